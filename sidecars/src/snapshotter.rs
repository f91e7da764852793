//! The snapshotter: `VolumeSnapshotContents` become calls of the driver, and the driver's answers their status.

mod calls;
mod changes;
mod plan;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::cache::{Builder, Cache, Change};
use dunnage_cluster::events::Recorder;
use dunnage_cluster::queue::{self, Backoff, Queue};
use dunnage_crds::snapshot::{VolumeSnapshotClass, VolumeSnapshotContent};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::flags::{Conflict, Standard, duration};
use crate::runtime::{ControllerCapability, Driver, Error, Runtime, identity};

const GATES: [&str; 2] = ["CSIVolumeGroupSnapshot", "ReleaseLeaderElectionOnExit"];

/// The flags of upstream's csi-snapshotter.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What all sidecars have.
    #[command(flatten)]
    pub standard: Standard,
    /// How often everything is looked at again.
    #[arg(long, default_value = "15m", value_parser = duration)]
    pub resync_period: Duration,
    /// First part of the names of snapshots.
    #[arg(long, default_value = "snapshot")]
    pub snapshot_name_prefix: String,
    /// How much of the VolumeSnapshot's UID is in the names of snapshots; -1 is all of it, with dashes.
    #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
    pub snapshot_name_uuid_length: i32,
    /// Names of group snapshots, which are not taken.
    #[arg(long, default_value = "groupsnapshot", hide = true)]
    pub groupsnapshot_name_prefix: String,
    /// As the name above.
    #[arg(long, default_value_t = -1, allow_hyphen_values = true, hide = true)]
    pub groupsnapshot_name_uuid_length: i32,
    /// Contents worked at once.
    #[arg(long, default_value_t = 10)]
    pub worker_threads: usize,
    /// Limit for each call to the driver.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub timeout: Duration,
    /// Tells the driver the names of snapshot and content.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub extra_create_metadata: bool,
    /// Wait after the first failure; it doubles with each further one.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub retry_interval_start: Duration,
    /// Longest wait after a failure.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub retry_interval_max: Duration,
    /// One snapshotter on every node: not supported, the driver routes to its nodes instead.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, hide = true)]
    pub node_deployment: bool,
}

impl Args {
    fn check(&self) -> Result<(), Conflict> {
        if self.worker_threads == 0 {
            return Err(Conflict::Zero("worker-threads"));
        }
        if self.snapshot_name_prefix.is_empty() {
            return Err(Conflict::Missing("snapshot-name-prefix"));
        }
        if self.node_deployment {
            return Err(Conflict::Unsupported("node-deployment"));
        }
        Ok(())
    }
}

/// Serves the snapshots of the driver at `--csi-address` until `stop`, whenever this process leads.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    args.check()?;
    let runtime = match Runtime::start(&args.standard, &GATES, args.timeout, stop).await {
        Err(error) if error.is_stop() => return Ok(()),
        started => started?,
    };
    if !runtime.driver.can(ControllerCapability::CreateDeleteSnapshot) {
        return Err(Error::NothingToDo("it lacks CREATE_DELETE_SNAPSHOT"));
    }
    let backoff = Backoff { start: args.retry_interval_start, max: args.retry_interval_max };
    let queue = Queue::new("csi-snapshotter-content", backoff, &runtime.queues);
    let (client, driver) = (runtime.client.clone(), runtime.driver.clone());
    let lock = format!("external-snapshotter-leader-{}", driver.name());
    runtime.run_as_leader(&lock, move |stop| lead(args, client, driver, queue, stop)).await
}

/// What every part of the snapshotter uses.
struct Context {
    driver: Driver,
    client: Client,
    contents: Api<VolumeSnapshotContent>,
    watched: Cache<VolumeSnapshotContent>,
    classes: Cache<VolumeSnapshotClass>,
    events: Recorder,
    rules: plan::Rules,
    timeout: Duration,
}

/// The leader's work. What is begun is ended after `stop`.
async fn lead(
    args: Args,
    client: Client,
    driver: Driver,
    queue: Queue<String>,
    stop: CancellationToken,
) -> Result<(), Error> {
    info!(driver = driver.name(), "serving snapshots");
    let name = driver.name().to_owned();
    let mut contents = Builder::<VolumeSnapshotContent>::new(Api::all(client.clone()))
        .resync(args.resync_period)
        .trim(changes::trim(name.clone()));
    contents.listen({
        let queue = queue.clone();
        move |change| {
            let content = change.object();
            if content.spec.driver != name {
                return;
            }
            let name = content.metadata.name.clone().unwrap_or_default();
            match change {
                Change::Applied { old: Some(old), new } if changes::is_our_own(old, new) => {}
                Change::Applied { .. } | Change::Resync(_) => queue.add(name),
                Change::Deleted(_) => queue.forget(&name),
            }
        }
    });
    let classes = Builder::<VolumeSnapshotClass>::new(Api::all(client.clone())).start(&stop);
    if classes.ready(&stop).await.is_err() {
        return Ok(());
    }
    let contents = contents.start(&stop);
    if contents.ready(&stop).await.is_err() {
        return Ok(());
    }
    // Events are written until the last worker has ended.
    let done = CancellationToken::new();
    let component = format!("csi-snapshotter {}", driver.name());
    let can = |capability| driver.can(capability);
    let context = Arc::new(Context {
        contents: Api::all(client.clone()),
        watched: contents,
        classes,
        events: Recorder::start(client.clone(), &component, &identity(), &done),
        client,
        rules: plan::Rules {
            prefix: args.snapshot_name_prefix,
            uuid_length: args.snapshot_name_uuid_length,
            metadata: args.extra_create_metadata,
            look: if can(ControllerCapability::ListSnapshots) {
                plan::Look::List
            } else if can(ControllerCapability::GetSnapshot) {
                plan::Look::Get
            } else {
                plan::Look::No
            },
        },
        timeout: args.timeout,
        driver,
    });
    queue::run(queue, args.worker_threads, stop, move |name| sync::content(Arc::clone(&context), name)).await;
    done.cancel();
    Ok(())
}
