//! What every step of the provisioner works with.

use std::sync::Arc;

use dunnage_cluster::Key;
use dunnage_cluster::cache::{Cache, Index};
use dunnage_cluster::events::{Kind, Recorder};
use dunnage_cluster::queue::Queue;
use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::Client;

use super::args::Args;
use super::capacity::Capacity;
use super::driver::Driver as CsiDriver;
use super::journal::Journal;
use super::metrics::Metrics;
use super::names;
use super::progress::{Progress, Wait};
use super::topology::{Driver, Node};
use crate::claims;

/// Shared by all workers.
pub struct Context {
    pub args: Args,
    /// Written into volumes, as upstream does: which process made them.
    pub identity: String,
    pub driver: CsiDriver,
    pub client: Client,
    pub watched: Watched,
    pub journal: Journal,
    pub progress: Arc<Progress>,
    pub events: Recorder,
    pub metrics: Metrics,
    pub capacity: Option<Capacity>,
    pub queues: Queues,
}

/// Claims by UID and volumes by name.
#[derive(Clone)]
pub struct Queues {
    pub claims: Queue<String>,
    pub volumes: Queue<String>,
    /// Cloned claims that are to be let go.
    pub clones: Queue<Key>,
}

/// What is watched.
pub struct Watched {
    /// By UID.
    pub claims: Index<PersistentVolumeClaim>,
    pub claims_by_source: Index<PersistentVolumeClaim>,
    pub classes: Cache<StorageClass>,
    pub volumes: Cache<PersistentVolume>,
    pub volumes_by_handle: Index<PersistentVolume>,
    /// By PersistentVolume, only where the driver attaches volumes.
    pub attachments: Option<Index<VolumeAttachment>>,
    /// Only where the driver knows of places.
    pub nodes: Option<Nodes>,
}

/// Nodes with their labels, and which drivers are on them.
#[derive(Clone)]
pub struct Nodes {
    pub nodes: Cache<NodeObject>,
    pub drivers: Cache<CSINode>,
}

impl Nodes {
    /// One node as far as topology goes.
    pub fn get(&self, name: &str, driver: &str) -> Node {
        let node = self.nodes.named(name);
        let labels = node.map(|node| node.metadata.labels.clone().unwrap_or_default());
        Node { labels, driver: on_node(self.drivers.named(name).as_deref(), driver) }
    }

    /// All nodes with labels.
    pub fn all(&self, driver: &str) -> Vec<Node> {
        let node = |node: Arc<NodeObject>| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let driver = on_node(self.drivers.named(name).as_deref(), driver);
            Node { labels: Some(node.metadata.labels.clone().unwrap_or_default()), driver }
        };
        self.nodes.all().into_iter().map(node).collect()
    }
}

fn on_node(node: Option<&CSINode>, driver: &str) -> Driver {
    let Some(node) = node else { return Driver::NoNode };
    match node.spec.drivers.iter().find(|found| found.name == driver) {
        Some(found) => Driver::Registered(found.topology_keys.clone().unwrap_or_default()),
        None => Driver::NotRegistered,
    }
}

impl Context {
    /// The name that the volume of a claim has.
    pub fn volume_name(&self, uid: &str) -> String {
        names::volume_name(&self.args.volume_name_prefix, self.args.volume_name_uuid_length, uid)
    }

    /// Works all claims at once that wait for this.
    pub fn wake(&self, wait: Wait) {
        wake(&self.progress, &self.queues.claims, wait);
    }

    /// Tells about a claim.
    pub fn tell(
        &self,
        claim: &PersistentVolumeClaim,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.events.tell_of(claims::reference(claim), kind, reason, message);
    }
}

/// Works all claims at once that wait for this.
pub fn wake(progress: &Progress, queue: &Queue<String>, wait: Wait) {
    for uid in progress.waiting(wait) {
        queue.forget(&uid);
        queue.add(uid);
    }
}
