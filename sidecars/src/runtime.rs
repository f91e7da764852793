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
        let connected = CancellationToken::new();
        if let Some(address) = standard.http_address()? {
            let pages = pages(standard, &metrics, &election, &connected);
            pages.start(address, &stop).await?;
        }
        let operations = CsiOperations::new(&metrics);
        let driver = Driver::connect(&standard.csi_address, &operations, timeout, &stop).await?;
        connected.cancel();
        let client = client::connect(standard.kubeconfig().as_deref(), standard.limit()).await?;
        Ok(Self { driver, client, metrics, queues, standard: standard.clone(), election, stop })
    }

    /// Runs `work` as the only holder of the lock (if leader election is asked for) until it ends, the process is
    /// asked to stop, or the driver is gone. `work` gets a token that tells it to finish.
    pub async fn run_as_leader<W, F, E>(&self, lock: &str, work: W) -> Result<(), E>
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let stop = self.stop.clone();
        let led = async {
            if !self.standard.leader_election {
                return work(stop.child_token()).await;
            }
            // Its own client: work that waits for its turn must not cost the lease.
            let client =
                client::connect(self.standard.kubeconfig().as_deref(), None).await.map_err(Error::from)?;
            leader::run(client, self.lease(lock), self.election.clone(), stop.clone(), work)
                .await
                .map_err(Error::from)?
        };
        tokio::select! {
            ended = led => ended,
            () = self.driver.lost() => {
                // A driver that comes back may have other capabilities, and another pod may reach its own.
                let error = Error::ConnectionLost { address: self.standard.csi_address.clone() };
                place::last_words(&error.to_string()).await;
                Err(error.into())
            }
        }
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
