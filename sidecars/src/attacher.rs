//! The attacher: `VolumeAttachments` become calls of the driver, and the driver's answers their status.

mod changes;
mod listing;
mod patches;
mod plan;
mod source;
mod sync;
mod volumes;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::cache::{Builder, Cache, Change, Index};
use dunnage_cluster::queue::{self, Backoff, Queue};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::access;
use crate::flags::{Conflict, Standard, duration};
use crate::runtime::{ControllerCapability, Driver, Error, Runtime};
use plan::Handling;

/// The gate that writes gRPC codes into errors, by which kubelet counts a node's free attachments anew.
const ERROR_CODES: &str = "MutableCSINodeAllocatableCount";
const GATES: [&str; 2] = [ERROR_CODES, "ReleaseLeaderElectionOnExit"];

/// The flags of upstream's external-attacher.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What all sidecars have.
    #[command(flatten)]
    pub standard: Standard,
    /// How often everything is looked at again.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub resync: Duration,
    /// Limit for each call to the driver.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub timeout: Duration,
    /// Wait after the first failure; it doubles with each further one.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub retry_interval_start: Duration,
    /// Longest wait after a failure.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub retry_interval_max: Duration,
    /// Attachments worked at once, and as many volumes.
    #[arg(long, default_value_t = 10)]
    pub worker_threads: usize,
    /// Entries of one answer to `ListVolumes`; 0 lets the driver choose.
    #[arg(long, default_value_t = 0)]
    pub max_entries: i32,
    /// File system of volumes that name none.
    #[arg(long, default_value = "", hide_default_value = true, action = ArgAction::Set)]
    pub default_fstype: String,
    /// How often the driver's own list of what is published is compared with the attachments.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub reconcile_sync: Duration,
}

/// Serves attachments of the driver at `--csi-address` until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    if args.worker_threads == 0 {
        return Err(Conflict::Zero("worker-threads").into());
    }
    let runtime = match Runtime::start(&args.standard, &GATES, Duration::from_secs(1), stop).await {
        Err(error) if error.is_stop() => return Ok(()),
        started => started?,
    };
    let lock = format!("external-attacher-leader-{}", runtime.driver.name());
    let context = Context::new(&args, &runtime);
    runtime.run_as_leader(&lock, move |stop| context.work(args, stop)).await
}

/// What every part of the attacher uses.
struct Context {
    driver: Driver,
    client: Client,
    attachments: Api<VolumeAttachment>,
    rules: plan::Rules,
    handling: Handling,
    timeout: Duration,
    /// Attachments to be worked once although their status says that nothing is to do.
    forced: Mutex<HashSet<String>>,
    attachment_queue: Queue<String>,
    volume_queue: Queue<String>,
}

/// What the API server has told.
struct Watched {
    attachments: Cache<VolumeAttachment>,
    by_volume: Index<VolumeAttachment>,
    volumes: Cache<PersistentVolume>,
    nodes: Cache<CSINode>,
}

impl Context {
    fn new(args: &Args, runtime: &Runtime) -> Arc<Self> {
        let driver = runtime.driver.clone();
        let can = |capability| driver.can(capability);
        let rules = plan::Rules {
            driver: driver.name().to_owned(),
            finalizer: plan::finalizer(driver.name()),
            read_only: can(ControllerCapability::PublishReadonly),
            access: access::Rules {
                multi_writer: can(ControllerCapability::SingleNodeMultiWriter),
                default_fstype: args.default_fstype.clone(),
            },
            error_codes: args.standard.feature_gates.enabled(ERROR_CODES, true),
        };
        let handling = if can(ControllerCapability::PublishUnpublishVolume) {
            let listed = can(ControllerCapability::ListVolumes)
                && can(ControllerCapability::ListVolumesPublishedNodes);
            Handling::Calls { listed }
        } else {
            Handling::Trivial
        };
        let backoff = Backoff { start: args.retry_interval_start, max: args.retry_interval_max };
        Arc::new(Self {
            client: runtime.client.clone(),
            attachments: Api::all(runtime.client.clone()),
            rules,
            handling,
            timeout: args.timeout,
            forced: Mutex::default(),
            attachment_queue: Queue::new("csi-attacher-va", backoff, &runtime.queues),
            volume_queue: Queue::new("csi-attacher-pv", backoff, &runtime.queues),
            driver,
        })
    }

    /// The leader's work. What is begun is ended after `stop`.
    async fn work(self: Arc<Self>, args: Args, stop: CancellationToken) -> Result<(), Error> {
        info!(driver = self.rules.driver, handling = ?self.handling, "serving attachments");
        let Some(watched) = self.watch(&args, &stop).await else { return Ok(()) };
        let watched = Arc::new(watched);
        let attachments = queue::run(self.attachment_queue.clone(), args.worker_threads, stop.clone(), {
            let (context, watched) = (Arc::clone(&self), Arc::clone(&watched));
            move |name| sync::attachment(Arc::clone(&context), Arc::clone(&watched), name)
        });
        let volumes = queue::run(self.volume_queue.clone(), args.worker_threads, stop.clone(), {
            let (context, watched) = (Arc::clone(&self), Arc::clone(&watched));
            move |name| volumes::sync(Arc::clone(&context), Arc::clone(&watched), name)
        });
        let compare = async {
            if self.handling == (Handling::Calls { listed: true }) {
                listing::run(&self, &watched, &args, &stop).await;
            }
        };
        tokio::join!(attachments, volumes, compare);
        Ok(())
    }

    /// Begins the watches and waits for their first lists; none when asked to stop meanwhile.
    async fn watch(&self, args: &Args, stop: &CancellationToken) -> Option<Watched> {
        let mut attachments = Builder::<VolumeAttachment>::new(Api::all(self.client.clone()))
            .resync(args.resync)
            .trim(changes::trim);
        let by_volume = attachments
            .index(|attachment| attachment.spec.source.persistent_volume_name.iter().cloned().collect());
        let by_node = attachments.index(|attachment| vec![attachment.spec.node_name.clone()]);
        attachments.listen({
            let (attachments, volumes) = (self.attachment_queue.clone(), self.volume_queue.clone());
            move |change| match change {
                Change::Applied { old: Some(old), new } if changes::only_our_errors(old, new) => {}
                Change::Applied { .. } | Change::Resync(_) => {
                    attachments.add(name(&change.object().metadata));
                }
                // Perhaps the last one of its volume, whose finalizer can go now.
                Change::Deleted(gone) => {
                    attachments.forget(&name(&gone.metadata));
                    gone.spec
                        .source
                        .persistent_volume_name
                        .iter()
                        .cloned()
                        .for_each(|volume| volumes.add(volume));
                }
            }
        });
        let attachments = attachments.start(stop);
        if self.handling == Handling::Trivial {
            attachments.ready(stop).await.ok()?;
            let volumes = Builder::new(Api::all(self.client.clone())).handle();
            let nodes = Builder::new(Api::all(self.client.clone())).handle();
            return Some(Watched { attachments, by_volume, volumes, nodes });
        }

        let mut volumes = Builder::<PersistentVolume>::new(Api::all(self.client.clone()))
            .resync(args.resync)
            .trim(changes::trim_volume);
        volumes.listen({
            let (queue, waiting) = (self.volume_queue.clone(), by_volume.clone());
            let attachments = self.attachment_queue.clone();
            move |change| {
                let volume = name(&change.object().metadata);
                if let Change::Applied { old: None, .. } = change {
                    changes::unsettled(waiting.get(&volume)).for_each(|name| attachments.add(name));
                }
                queue.add(volume);
            }
        });
        let driver = self.rules.driver.clone();
        let mut nodes = Builder::<CSINode>::new(Api::all(self.client.clone()))
            .trim(move |node| node.spec.drivers.retain(|found| found.name == driver));
        nodes.listen({
            let attachments = self.attachment_queue.clone();
            move |change| match change {
                Change::Applied { old, new } if old.as_ref().is_none_or(|old| old.spec != new.spec) => {
                    changes::unsettled(by_node.get(&name(&new.metadata)))
                        .for_each(|name| attachments.add(name));
                }
                _ => {}
            }
        });
        let (volumes, nodes) = (volumes.start(stop), nodes.start(stop));
        attachments.ready(stop).await.ok()?;
        volumes.ready(stop).await.ok()?;
        nodes.ready(stop).await.ok()?;
        Some(Watched { attachments, by_volume, volumes, nodes })
    }
}

fn name(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}
