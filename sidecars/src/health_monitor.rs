//! The health monitor: what a driver says of its volumes' condition becomes events on their claims.

mod condition;
mod nodes;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::cache::{Builder, Cache};
use dunnage_cluster::error::chain;
use dunnage_cluster::events::Recorder;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::{Conflict, Standard, duration};
use crate::runtime::{ControllerCapability, Driver, Error, Runtime, identity};
use condition::Conditions;
use volumes::Volumes;

const GATES: [&str; 1] = ["ReleaseLeaderElectionOnExit"];

/// The flags of upstream's external-health-monitor-controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What all sidecars have.
    #[command(flatten)]
    pub standard: Standard,
    /// How often each volume is asked for, where the driver cannot list them, and nodes are looked at.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub monitor_interval: Duration,
    /// How often all volumes are listed, where the driver can.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub list_volumes_interval: Duration,
    /// Of upstream's queue; volumes are watched here, and it has no effect.
    #[arg(long, default_value = "5m", value_parser = duration, hide = true)]
    pub volume_list_add_interval: Duration,
    /// Of upstream's queue; nodes are watched here, and it has no effect.
    #[arg(long, default_value = "5m", value_parser = duration, hide = true)]
    pub node_list_add_interval: Duration,
    /// Of upstream's caches; watches are renewed by themselves here, and it has no effect.
    #[arg(long, default_value = "10m", value_parser = duration, hide = true)]
    pub resync: Duration,
    /// Limit for each call to the driver.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub timeout: Duration,
    /// Volumes asked for at once.
    #[arg(long, default_value_t = 10)]
    pub worker_threads: usize,
    /// Tells of nodes that fail, on the claims of their pods.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_node_watcher: bool,
}

/// How conditions are learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    List,
    Get,
}

/// Watches over the driver's volumes until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    if args.worker_threads == 0 {
        return Err(Conflict::Zero("worker-threads").into());
    }
    let runtime = match Runtime::start(&args.standard, &GATES, args.timeout, stop).await {
        Err(error) if error.is_stop() => return Ok(()),
        started => started?,
    };
    let way = way(|capability| runtime.driver.can(capability))?;
    let lock = format!("external-health-monitor-leader-{}", runtime.driver.name());
    let (driver, client) = (runtime.driver.clone(), runtime.client.clone());
    runtime.run_as_leader(&lock, move |stop| work(args, driver, client, way, stop)).await
}

/// One list is cheaper than a call a volume.
fn way(can: impl Fn(ControllerCapability) -> bool) -> Result<Way, Error> {
    if !can(ControllerCapability::VolumeCondition) {
        return Err(Error::NothingToDo("it lacks VOLUME_CONDITION"));
    }
    if can(ControllerCapability::ListVolumes) {
        return Ok(Way::List);
    }
    if can(ControllerCapability::GetVolume) {
        return Ok(Way::Get);
    }
    Err(Error::NothingToDo("it lacks both LIST_VOLUMES and GET_VOLUME"))
}

/// The leader's work.
async fn work(
    args: Args,
    driver: Driver,
    client: Client,
    way: Way,
    stop: CancellationToken,
) -> Result<(), Error> {
    info!(driver = driver.name(), ?way, nodes = args.enable_node_watcher, "watching over volumes");
    let volumes = Volumes::watch(&client, driver.name(), &stop);
    let nodes = args
        .enable_node_watcher
        .then(|| Builder::<Node>::new(Api::all(client.clone())).trim(nodes::trim).start(&stop));
    let component = format!("csi-pv-monitor-controller-{}", driver.name());
    let events = Recorder::start(client.clone(), &component, &identity(), &stop);
    let ready = async {
        volumes.ready(&stop).await?;
        match &nodes {
            Some(nodes) => nodes.ready(&stop).await,
            None => Ok(()),
        }
    };
    if ready.await.is_err() {
        // Only a stop ends the wait.
        return Ok(());
    }
    let monitor = Arc::new(Monitor { conditions: Conditions::default(), volumes, driver, events, args });
    tokio::join!(monitor.conditions(way, &stop), monitor.nodes(client, nodes, &stop));
    Ok(())
}

struct Monitor {
    conditions: Conditions,
    volumes: Volumes,
    driver: Driver,
    events: Recorder,
    args: Args,
}

impl Monitor {
    async fn conditions(&self, way: Way, stop: &CancellationToken) {
        let pause = match way {
            Way::List => self.args.list_volumes_interval,
            Way::Get => self.args.monitor_interval,
        };
        loop {
            match way {
                Way::List => self.list().await,
                Way::Get => self.get().await,
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn list(&self) {
        self.conditions.begin();
        let done = self.driver.list_volumes(self.args.timeout, 0, |page| {
            for entry in page {
                let condition = entry.status.and_then(|status| status.volume_condition);
                if let Some(volume) = entry.volume {
                    self.conditions.saw(&volume.volume_id);
                    self.learn(&volume.volume_id, condition.as_ref());
                }
            }
        });
        match done.await {
            Ok(()) => self.conditions.end(),
            Err(status) => warn!(code = ?status.code(), error = status.message(), "cannot list the volumes"),
        }
    }

    async fn get(&self) {
        self.conditions.begin();
        let handles = self.volumes.handles();
        for handle in &handles {
            self.conditions.saw(handle);
        }
        futures::stream::iter(handles)
            .for_each_concurrent(self.args.worker_threads, |handle| async move {
                match self.driver.get_volume_condition(self.args.timeout, &handle).await {
                    Ok(condition) => self.learn(&handle, condition.as_ref()),
                    Err(status) => {
                        warn!(volume = handle, code = ?status.code(), error = status.message(), "cannot ask for it");
                    }
                }
            })
            .await;
        self.conditions.end();
    }

    /// Tells what a condition has to say, on the claims that the volume belongs to.
    fn learn(&self, handle: &str, condition: Option<&dunnage_csi::v1::VolumeCondition>) {
        let claims = self.volumes.claims_of(handle);
        if claims.is_empty() {
            return;
        }
        let Some(tale) = condition.and_then(|condition| self.conditions.learn(handle, condition)) else {
            return;
        };
        info!(
            volume = handle,
            reason = tale.reason,
            message = tale.message,
            "telling of a volume's condition"
        );
        for claim in claims {
            self.events.tell_of(claim, tale.kind, tale.reason, tale.message.clone());
        }
    }

    async fn nodes(&self, client: Client, nodes: Option<Cache<Node>>, stop: &CancellationToken) {
        let Some(nodes) = nodes else { return };
        let mut known = nodes::Known::default();
        loop {
            for (node, turn) in known.turns(&nodes.all(), Timestamp::now()) {
                match nodes::tell(&client, &self.volumes, &self.events, &node, turn).await {
                    Ok(()) => known.told(&node, turn),
                    Err(error) => warn!(node, error = chain(&error), "cannot tell of the node yet"),
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.args.monitor_interval) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_listed_where_it_can_be_and_refused_where_it_has_nothing_to_say() {
        use ControllerCapability::{GetVolume, ListVolumes, VolumeCondition};
        for (has, expected) in [
            (&[VolumeCondition, ListVolumes, GetVolume][..], Some(Way::List)),
            (&[VolumeCondition, ListVolumes], Some(Way::List)),
            (&[VolumeCondition, GetVolume], Some(Way::Get)),
            (&[VolumeCondition], None),
            (&[ListVolumes, GetVolume], None),
        ] {
            assert_eq!(way(|capability| has.contains(&capability)).ok(), expected, "{has:?}");
        }
    }
}
