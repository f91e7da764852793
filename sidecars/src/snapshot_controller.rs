//! The snapshot controller: one for the cluster and all drivers. It binds `VolumeSnapshots` and their contents to each
//! other; the drivers' snapshotters do the rest.

mod content;
mod end;
mod metrics;
mod plan;
mod sync;
mod take;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::events::Recorder;
use dunnage_cluster::queue::{self, Backoff, Queue};
use dunnage_cluster::{Error as ClusterError, Key};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::{Conflict, Standard, duration};
use crate::runtime::{Error, WithoutDriver, identity};

const GATES: [&str; 2] = ["CSIVolumeGroupSnapshot", "ReleaseLeaderElectionOnExit"];
/// The Lease, whatever the driver.
const LOCK: &str = "snapshot-controller-leader";
const COMPONENT: &str = "snapshot-controller";

/// The flags of upstream's snapshot-controller.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("csi_address", |address| address.hide(true)))]
pub struct Args {
    /// What all sidecars have; there is no driver.
    #[command(flatten)]
    pub standard: Standard,
    /// How often everything is looked at again.
    #[arg(long, default_value = "15m", value_parser = duration)]
    pub resync_period: Duration,
    /// Snapshots worked at once, and as many contents.
    #[arg(long, default_value_t = 10)]
    pub worker_threads: usize,
    /// Wait after the first failure; it doubles with each further one.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub retry_interval_start: Duration,
    /// Longest wait after a failure.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub retry_interval_max: Duration,
    /// How long to wait at the start for the definitions of the snapshot kinds.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub retry_crd_interval_max: Duration,
    /// Notes how a volume was used, so that its snapshot is not restored in another mode.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub prevent_volume_mode_conversion: bool,
    /// One snapshotter on every node: not supported, a driver routes to its nodes instead.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, hide = true)]
    pub enable_distributed_snapshotting: bool,
}

impl Args {
    fn check(&self) -> Result<(), Conflict> {
        if self.worker_threads == 0 {
            return Err(Conflict::Zero("worker-threads"));
        }
        if self.enable_distributed_snapshotting {
            return Err(Conflict::Unsupported("enable-distributed-snapshotting"));
        }
        Ok(())
    }
}

/// Serves the cluster's snapshots until `stop`, whenever this process leads.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    args.check()?;
    let runtime = WithoutDriver::start(&args.standard, &GATES, stop.clone()).await?;
    let metrics = metrics::Operations::default();
    runtime.metrics.register(|registry| metrics.register(registry));
    match await_definitions(&runtime.client, args.retry_crd_interval_max, &stop).await {
        Err(error) if error.is_stop() => return Ok(()),
        there => there?,
    }
    let backoff = Backoff { start: args.retry_interval_start, max: args.retry_interval_max };
    let queues = Queues {
        snapshots: Queue::new("snapshot-controller-snapshot", backoff, &runtime.queues),
        contents: Queue::new("snapshot-controller-content", backoff, &runtime.queues),
    };
    let client = runtime.client.clone();
    runtime.run_as_leader(LOCK, move |stop| lead(args, client, metrics, queues, stop)).await
}

/// Snapshots by namespace and name, contents by name.
#[derive(Clone)]
struct Queues {
    snapshots: Queue<Key>,
    contents: Queue<String>,
}

/// What every part of the controller uses.
struct Context {
    client: Client,
    contents: Api<VolumeSnapshotContent>,
    watched: watch::Watched,
    queues: Queues,
    events: Recorder,
    metrics: metrics::Operations,
    keep_mode: bool,
}

impl Context {
    fn snapshots(&self, namespace: &str) -> Api<VolumeSnapshot> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The leader's work. What is begun is ended after `stop`.
async fn lead(
    args: Args,
    client: Client,
    metrics: metrics::Operations,
    queues: Queues,
    stop: CancellationToken,
) -> Result<(), Error> {
    let Some(watched) = watch::start(&client, args.resync_period, &queues, &stop).await else {
        return Ok(());
    };
    info!("serving snapshots");
    // Events are written until the last worker has ended.
    let done = CancellationToken::new();
    let context = Arc::new(Context {
        contents: Api::all(client.clone()),
        watched,
        events: Recorder::start(client.clone(), COMPONENT, &identity(), &done),
        client,
        queues,
        metrics,
        keep_mode: args.prevent_volume_mode_conversion,
    });
    let snapshots = queue::run(context.queues.snapshots.clone(), args.worker_threads, stop.clone(), {
        let context = Arc::clone(&context);
        move |key| sync::snapshot(Arc::clone(&context), key)
    });
    let contents = queue::run(context.queues.contents.clone(), args.worker_threads, stop.clone(), {
        let context = Arc::clone(&context);
        move |name| content::sync(Arc::clone(&context), name)
    });
    tokio::join!(snapshots, contents);
    done.cancel();
    Ok(())
}

/// Waits until the API server has the three kinds: whoever installs the controller installs them at the same time.
async fn await_definitions(client: &Client, limit: Duration, stop: &CancellationToken) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let error = match definitions(client).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if started.elapsed() >= limit {
            // Missing rights or a server that is away have nothing to do with the definitions.
            return Err(if error.is_not_found() { Error::NoDefinitions(error) } else { error.into() });
        }
        warn!(error = dunnage_cluster::error::chain(&error), "waiting for the snapshot kinds");
        tokio::select! {
            () = stop.cancelled() => return Err(Error::Stopped),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

async fn definitions(client: &Client) -> Result<(), ClusterError> {
    let one = ListParams::default().limit(1);
    let (snapshots, contents, classes): (
        Api<VolumeSnapshot>,
        Api<VolumeSnapshotContent>,
        Api<VolumeSnapshotClass>,
    ) = (Api::all(client.clone()), Api::all(client.clone()), Api::all(client.clone()));
    snapshots.list_metadata(&one).await.map_err(ClusterError::api("list VolumeSnapshots"))?;
    contents.list_metadata(&one).await.map_err(ClusterError::api("list VolumeSnapshotContents"))?;
    classes.list_metadata(&one).await.map_err(ClusterError::api("list VolumeSnapshotClasses"))?;
    Ok(())
}
