//! What the sidecars share: the connection to the driver, leader election, health, metrics and the end of the process.

mod connection;
mod driver;
mod error;
mod http;
mod listing;
mod place;

use std::future::Future;
use std::time::Duration;

use dunnage_cluster::{client, leader, queue};
use dunnage_telemetry::metrics::{CsiOperations, Metrics};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::Standard;

pub use connection::Connection;
pub use driver::{ControllerCapability, Driver, NodeCapability, PluginCapability, ProbeError};
pub use error::Error;
pub(crate) use error::rpc_error;
pub use http::{Page, Pages};
pub use place::{identity, namespace};

/// A sidecar that serves a controller, connected to its driver and to the Kubernetes API.
pub struct Runtime {
    /// The driver.
    pub driver: Driver,
    /// The client for the work; elections have their own.
    pub client: Client,
    /// The registry of this process.
    pub metrics: Metrics,
    /// For the role's queues.
    pub queues: queue::Metrics,
    process: Process,
}

/// A sidecar's place taken by a controller of the whole cluster, which has no driver.
pub struct WithoutDriver {
    /// The client for the work; elections have their own.
    pub client: Client,
    /// The registry of this process.
    pub metrics: Metrics,
    /// For the role's queues.
    pub queues: queue::Metrics,
    process: Process,
}

/// What does not depend on a driver.
struct Process {
    metrics: Metrics,
    queues: queue::Metrics,
    standard: Standard,
    election: leader::Status,
    stop: CancellationToken,
}

impl Runtime {
    /// Starts the HTTP server, waits for the driver, asks what it can, and makes the client. `known_gates` are the
    /// feature gates that the role understands, `timeout` bounds each of the first calls to the driver.
    pub async fn start(
        standard: &Standard,
        known_gates: &[&str],
        timeout: Duration,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let connected = CancellationToken::new();
        let process = Process::open(standard, known_gates, &connected, stop).await?;
        let operations = CsiOperations::new(&process.metrics);
        let driver = Driver::connect(&standard.csi_address, &operations, timeout, &process.stop).await?;
        connected.cancel();
        let client = process.client().await?;
        Ok(Self { driver, client, metrics: process.metrics.clone(), queues: process.queues.clone(), process })
    }

    /// Runs `work` as the only holder of the lock (if leader election is asked for) until it ends, the process is
    /// asked to stop, or the driver is gone. `work` gets a token that tells it to finish.
    pub async fn run_as_leader<W, F, E>(&self, lock: &str, work: W) -> Result<(), E>
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        tokio::select! {
            ended = self.process.run_as_leader(lock, work) => ended,
            () = self.driver.lost() => {
                // A driver that comes back may have other capabilities, and another pod may reach its own.
                let error = Error::ConnectionLost { address: self.process.standard.csi_address.clone() };
                place::last_words(&error.to_string()).await;
                Err(error.into())
            }
        }
    }
}

impl WithoutDriver {
    /// Starts the HTTP server and makes the client. `known_gates` are the feature gates that the role understands.
    pub async fn start(
        standard: &Standard,
        known_gates: &[&str],
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let connected = CancellationToken::new();
        let process = Process::open(standard, known_gates, &connected, stop).await?;
        let client = process.client().await?;
        connected.cancel();
        Ok(Self { client, metrics: process.metrics.clone(), queues: process.queues.clone(), process })
    }

    /// Runs `work` as the only holder of the lock (if leader election is asked for) until it ends or the process is
    /// asked to stop. `work` gets a token that tells it to finish.
    pub async fn run_as_leader<W, F, E>(&self, lock: &str, work: W) -> Result<(), E>
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.process.run_as_leader(lock, work).await
    }
}

impl Process {
    async fn open(
        standard: &Standard,
        known_gates: &[&str],
        connected: &CancellationToken,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        for gate in standard.feature_gates.unknown(known_gates) {
            warn!(gate, "this feature gate is not known and has no effect");
        }
        let (metrics, queues) = (Metrics::default(), queue::Metrics::default());
        let election = leader::Status::default();
        metrics.register(|registry| {
            queues.register(registry);
            if standard.leader_election {
                election.register(registry);
            }
        });
        if let Some(address) = standard.http_address()? {
            let pages = pages(standard, &metrics, &election, connected);
            pages.start(address, &stop).await?;
        }
        Ok(Self { metrics, queues, standard: standard.clone(), election, stop })
    }

    async fn client(&self) -> Result<Client, Error> {
        Ok(client::connect(self.standard.kubeconfig().as_deref(), self.standard.limit()).await?)
    }

    async fn run_as_leader<W, F, E>(&self, lock: &str, work: W) -> Result<(), E>
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let stop = self.stop.clone();
        if !self.standard.leader_election {
            return work(stop.child_token()).await;
        }
        // Its own client: work that waits for its turn must not cost the lease.
        let client =
            client::connect(self.standard.kubeconfig().as_deref(), None).await.map_err(Error::from)?;
        leader::run(client, self.lease(lock), self.election.clone(), stop, work).await.map_err(Error::from)?
    }

    fn lease(&self, lock: &str) -> leader::Config {
        let namespace = namespace(&self.standard.leader_election_namespace);
        let config = leader::Config {
            lease_duration: self.standard.leader_election_lease_duration,
            renew_deadline: self.standard.leader_election_renew_deadline,
            retry_period: self.standard.leader_election_retry_period,
            labels: self.standard.leader_election_labels.clone(),
            ..leader::Config::new(namespace, leader::lock_name(lock), identity())
        };
        info!(
            namespace = config.namespace,
            lease = config.name,
            identity = config.identity,
            "electing a leader"
        );
        config
    }
}

/// Health, readiness and metrics of a controller's sidecar.
fn pages(
    standard: &Standard,
    metrics: &Metrics,
    election: &leader::Status,
    connected: &CancellationToken,
) -> Pages {
    let mut pages = Pages::new(metrics.clone(), &standard.metrics_path);
    let (status, connected) = (election.clone(), connected.clone());
    pages.check("/healthz", move || Page::from(status.check()));
    pages.check("/readyz", move || {
        let ready = connected.is_cancelled();
        Page::from(if ready { Ok(()) } else { Err("waiting for the driver".to_owned()) })
    });
    // Upstream serves it only under the newer name of the flag.
    if standard.leader_election && !standard.http_endpoint.is_empty() {
        let status = election.clone();
        pages.check("/healthz/leader-election", move || Page::from(status.check()));
    }
    pages
}
