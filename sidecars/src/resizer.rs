//! The resizer: claims that ask for more become calls of the driver, and so do those that ask for another
//! `VolumeAttributesClass`.

mod args;
mod facts;
mod memory;
mod modify;
mod outcome;
mod patches;
mod plan;
mod resize;
mod watch;
mod world;

#[cfg(test)]
mod model;
#[cfg(test)]
mod property;

use std::sync::Arc;

use dunnage_cluster::events::Recorder;
use dunnage_cluster::queue::{self, Backoff, Outcome, Queue};
use dunnage_cluster::{Error as ClusterError, Key};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::access;
use crate::runtime::{
    ControllerCapability, Driver, Error, NodeCapability, PluginCapability, Runtime, identity,
};
use args::{ANNOTATE, ATTRIBUTES, GATES};
use memory::Memory;
use plan::Way;
use watch::{Glance, Watched};
use world::Live;

pub use args::Args;

/// What the resizer can do with a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Abilities {
    grow: Option<Way>,
    modify: bool,
}

/// Serves claims of the driver at `--csi-address` until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    args.check()?;
    let runtime = match Runtime::start(&args.standard, &GATES, args.timeout, stop).await {
        Err(error) if error.is_stop() => return Ok(()),
        started => started?,
    };
    let abilities = abilities(&runtime.driver, &runtime.client, &args).await?;
    let lock = format!("external-resizer-{}", runtime.driver.name());
    let (driver, client, metrics) = (runtime.driver.clone(), runtime.client.clone(), runtime.queues.clone());
    runtime
        .run_as_leader(&lock, move |stop| async move {
            lead(&args, driver, client, &metrics, abilities, stop).await
        })
        .await
}

/// Asks the driver what it can do, and the API server whether it knows the classes.
async fn abilities(driver: &Driver, client: &Client, args: &Args) -> Result<Abilities, Error> {
    if !driver.has(PluginCapability::ControllerService) {
        return Err(Error::NothingToDo("it has no controller service"));
    }
    let grow = if driver.can(ControllerCapability::ExpandVolume) {
        Some(Way::Controller)
    } else if driver.node_can(NodeCapability::ExpandVolume, args.timeout).await? {
        Some(Way::Node)
    } else {
        None
    };
    let asked = args.standard.feature_gates.enabled(ATTRIBUTES, true);
    let able = asked && driver.can(ControllerCapability::ModifyVolume);
    let modify = able && has_classes(client).await?;
    if able && !modify {
        warn!("volumes cannot be modified: this API server does not have VolumeAttributesClasses");
    }
    if grow.is_none() && !modify {
        return Err(Error::NothingToDo("it can neither grow nor modify volumes"));
    }
    Ok(Abilities { grow, modify })
}

async fn has_classes(client: &Client) -> Result<bool, ClusterError> {
    match client.list_api_group_resources("storage.k8s.io/v1").await {
        Ok(list) => Ok(list.resources.iter().any(|found| found.name == "volumeattributesclasses")),
        Err(error) => Err(ClusterError::api("list the resources of storage.k8s.io/v1")(error)),
    }
}

/// The two queues and what the workers share.
struct Context {
    driver: String,
    world: Live,
    watched: Watched,
    growth: Arc<Memory>,
    changes: Arc<Memory>,
    resize: resize::Rules,
    modify: modify::Rules,
}

/// The queues of claims, each of which a claim may be in.
#[derive(Clone)]
struct Queues {
    resize: Queue<Key>,
    modify: Queue<Key>,
}

/// The leader's work. What is begun is ended after `stop`.
async fn lead(
    args: &Args,
    driver: Driver,
    client: Client,
    metrics: &queue::Metrics,
    abilities: Abilities,
    stop: CancellationToken,
) -> Result<(), Error> {
    info!(driver = driver.name(), grow = ?abilities.grow, modify = abilities.modify, "serving claims");
    let backoff = Backoff { start: args.retry_interval_start, max: args.retry_interval_max };
    let queues = Queues {
        resize: Queue::new("csi-resizer-resize", backoff, metrics),
        modify: Queue::new("csi-resizer-modify", backoff, metrics),
    };
    let name = driver.name().to_owned();
    let (growth, changes) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
    let setup = watch::Setup {
        client: &client,
        driver: &name,
        abilities,
        resync: args.resync_period,
        memories: [Arc::clone(&growth), Arc::clone(&changes)],
    };
    let Some((watched, classes)) = watch::start(&setup, &queues, &stop).await else { return Ok(()) };
    // Events are written until the last worker has ended.
    let done = CancellationToken::new();
    let events = Recorder::start(client.clone(), &format!("external-resizer {name}"), &identity(), &done);
    let multi_writer = driver.can(ControllerCapability::SingleNodeMultiWriter);
    let context = Arc::new(Context {
        watched,
        growth,
        changes,
        resize: resize::Rules {
            driver: name.clone(),
            way: abilities.grow.unwrap_or(Way::Node),
            access: access::Rules { multi_writer, ..access::Rules::default() },
            annotate: args.standard.feature_gates.enabled(ANNOTATE, true),
            mind_use: args.handle_volume_inuse_error,
            rest: args.retry_interval_max,
        },
        modify: modify::Rules {
            driver: name.clone(),
            names: args.extra_modify_metadata,
            rest: args.retry_interval_max,
        },
        driver: name,
        world: Live { client, driver, timeout: args.timeout, events, classes },
    });
    let resizing = queue::run(queues.resize, args.workers, stop.clone(), {
        let context = Arc::clone(&context);
        move |key| Arc::clone(&context).grow(key)
    });
    let modifying =
        queue::run(queues.modify, args.workers, stop, move |key| Arc::clone(&context).change(key));
    tokio::join!(resizing, modifying);
    done.cancel();
    Ok(())
}

impl Context {
    /// Most claims need nothing, which the caches tell without a request.
    async fn grow(self: Arc<Self>, key: Key) -> Outcome {
        match self.watched.glance(&key, &self.driver) {
            Glance::Ours(claim, volume) if facts::wants_more(&claim) || facts::has_grown(&claim, &volume) => {
                // Boxed, for it is a large future.
                Box::pin(resize::sync(&self.world, &self.growth, &self.resize, &key)).await
            }
            Glance::NoVolumeYet(claim) if facts::wants_more(&claim) => Outcome::Retry,
            _ => Outcome::Done,
        }
    }

    async fn change(self: Arc<Self>, key: Key) -> Outcome {
        match self.watched.glance(&key, &self.driver) {
            Glance::Ours(claim, _) if modify::is_due(&claim) => {
                Box::pin(modify::sync(&self.world, &self.changes, &self.modify, &key)).await
            }
            Glance::NoVolumeYet(claim) if modify::is_due(&claim) => Outcome::Retry,
            _ => Outcome::Done,
        }
    }
}
