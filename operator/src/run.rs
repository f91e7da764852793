//! The role itself: checks the ground, waits for the lease, then works until told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Recorder;
use dunnage_cluster::queue::{self, Backoff, Queue};
use dunnage_cluster::{Error, client, leader};
use dunnage_crds::StorageBackend;
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::agents::Agents;
use crate::apply::Applier;
use crate::metrics::Passes;
use crate::policy;
use crate::reconcile::{Context, work};
use crate::world::World;

/// Name of the Lease that one operator at a time holds.
pub const LEASE: &str = "dunnage-operator";
/// Backends are worked side by side; one is never worked twice at once.
const WORKERS: usize = 4;
const BACKOFF: Backoff = Backoff { start: Duration::from_millis(500), max: Duration::from_secs(60) };
/// Space and counts of volumes move all the time: they reach the status this late.
const NUMBERS: Duration = Duration::from_secs(5);

/// Runs the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator, and of backends that name none.
    #[arg(long, env = "NAMESPACE")]
    pub namespace: String,
    /// Image of the backends' containers: the operator's own.
    #[arg(long)]
    pub image: String,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:9740")]
    pub http_endpoint: SocketAddr,
    /// Who this is in the lease; the pod's name.
    #[arg(long, env = "POD_NAME", default_value = "dunnage-operator")]
    pub identity: String,
    /// File that says how to reach the cluster; not needed in a pod.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(
        "the cluster has no StorageBackend resource: install the chart with its CRD, or pipe `dunnage crd` into \
         kubectl apply --server-side -f -"
    )]
    NoCrd,
    #[error("cannot serve health and metrics at {address}")]
    Http { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Cluster(#[from] Error),
}

/// Runs until `stop`, or until the lease is lost.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), RunError> {
    let kubeconfig = args.kubeconfig.as_deref();
    let client = client::connect(kubeconfig, None).await?;
    let election = client::connect(kubeconfig, None).await?;
    run_with(client, election, args, stop).await
}

/// As [`run`], with clients that the caller has. The election's own is never kept waiting by other requests.
pub async fn run_with(
    client: Client,
    election: Client,
    args: Args,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let (metrics, checks) = (Metrics::default(), Checks::default());
    let (passes, queues, leading) = (Passes::default(), queue::Metrics::default(), leader::Status::default());
    metrics.register(|registry| {
        passes.register(registry);
        queues.register(registry);
        leading.register(registry);
    });
    let status = leading.clone();
    checks.live("lease", move || status.check());
    let address = args.http_endpoint;
    let server = dunnage_telemetry::http::serve(address, metrics, checks, stop.clone());
    let http = async move { server.await.map_err(|source| RunError::Http { address, source }) };

    let lead = async {
        wait_for_crd(&client, &stop).await?;
        let config = leader::Config::new(&args.namespace, LEASE, &args.identity);
        let args = args.clone();
        let work = |token| lead(client.clone(), args, passes, queues, token);
        leader::run(election, config, leading, stop.clone(), work).await?.map_err(RunError::from)
    };
    tokio::try_join!(http, async {
        let ended = lead.await;
        // A lost lease ends the process, and so does a missing CRD.
        stop.cancel();
        ended
    })
    .map(drop)
}

/// An API server that is away for a while is waited for; one without the CRD is not.
async fn wait_for_crd(client: &Client, stop: &CancellationToken) -> Result<(), RunError> {
    let api: Api<StorageBackend> = Api::all(client.clone());
    loop {
        let error = match api.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => return Ok(()),
            Err(error) => Error::api("look for StorageBackends")(error),
        };
        if error.is_not_found() {
            return Err(RunError::NoCrd);
        }
        warn!(error = chain(&error), "the API server does not answer, waiting for it");
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(3)) => {}
        }
    }
}

/// What the leader does.
async fn lead(
    client: Client,
    args: Args,
    passes: Passes,
    queues: queue::Metrics,
    stop: CancellationToken,
) -> Result<(), Error> {
    let queue = Queue::new("storagebackends", BACKOFF, &queues);
    let world = World::start(&client, &queue, &stop);
    if world.ready(&stop).await.is_err() {
        // Stopped before there was anything to stop.
        return Ok(());
    }
    let agents = {
        let queue = queue.clone();
        Arc::new(Agents::new(move |backend, more_than_numbers| {
            if more_than_numbers {
                queue.add(backend.to_owned());
            } else {
                queue.add_after(backend.to_owned(), NUMBERS);
            }
        }))
    };
    if world.backends.is_empty()
        && let Err(error) = policy::remove(&client).await
    {
        warn!(error = chain(&error), "cannot remove the deletion policy, which nothing needs");
    }
    let context = Arc::new(Context {
        applier: Applier::new(client.clone()),
        events: Recorder::start(client.clone(), "dunnage-operator", &args.identity, &stop),
        image: args.image,
        namespace: args.namespace,
        metrics: passes,
        world,
        agents,
        client,
        policy: policy::Guard::default(),
        begun: std::sync::Mutex::default(),
    });
    info!(backends = context.world.backends.len(), "working");
    queue::run(queue, WORKERS, stop, move |name| work(Arc::clone(&context), name)).await;
    Ok(())
}
