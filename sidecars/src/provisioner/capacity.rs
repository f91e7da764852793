//! CSIStorageCapacity: tells the scheduler where there is room.

pub mod owner;
pub mod plan;
mod run;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_cluster::cache::{Cache, Index};
use dunnage_cluster::queue::Queue;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::Client;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::context::Nodes;
use super::driver::Driver;
use super::metrics::Metrics;
use super::topology::Segment;
use plan::{Item, Owner};

/// How long a claim waits for the objects to be right before it goes back to the scheduler.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long after a deletion room may still grow: drivers free space in the background.
const SETTLING: Duration = Duration::from_secs(60);
/// A claim without strict topology may name many places; only the first are asked about at once.
const PLACES: usize = 16;

/// Keeps the objects right. Clones are the same one.
#[derive(Clone)]
pub struct Capacity(Arc<Shared>);

/// What it works with.
pub struct Setup {
    pub driver: Driver,
    pub client: Client,
    pub owner: Owner,
    pub classes: Cache<StorageClass>,
    /// None for a driver without topology: its room is everywhere.
    pub nodes: Option<Nodes>,
    pub objects: Cache<CSIStorageCapacity>,
    /// By [`Item::key`].
    pub by_item: Index<CSIStorageCapacity>,
    pub queue: Queue<Item>,
    pub immediate_too: bool,
    pub workers: usize,
    pub poll: Duration,
    pub metrics: Metrics,
    /// Called when there is more room somewhere.
    pub grown: Box<dyn Fn() + Send + Sync>,
}

struct Shared {
    setup: Setup,
    wanted: Mutex<BTreeSet<Item>>,
    items: Mutex<HashMap<Item, Arc<tokio::sync::Mutex<Last>>>>,
    settling: Mutex<HashMap<Item, Instant>>,
    changed: Notify,
}

/// What was last found out about an item.
#[derive(Default)]
struct Last {
    asked: Option<Instant>,
    published: Option<CSIStorageCapacity>,
    bytes: Option<i64>,
}

impl Capacity {
    pub fn new(setup: Setup) -> Self {
        Self(Arc::new(Shared {
            setup,
            wanted: Mutex::default(),
            items: Mutex::default(),
            settling: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Nodes or classes have changed.
    pub fn changed(&self) {
        self.0.changed.notify_one();
    }

    /// Somebody has changed or deleted an object.
    pub fn touched(&self, object: &CSIStorageCapacity) {
        if let Some(item) = plan::item_of(object, &self.0.setup.owner) {
            self.0.setup.queue.add(item);
        }
    }

    /// Room in these places has changed; no place is everywhere.
    pub fn refresh(&self, places: &[Segment]) {
        for item in self.at(places) {
            self.0.setup.queue.add(item);
        }
    }

    /// A volume in these places is gone; its space may follow in a while.
    pub fn freed(&self, places: &[Segment]) {
        let until = Instant::now() + SETTLING;
        for item in self.at(places) {
            lock(&self.0.settling).insert(item.clone(), until);
            self.0.setup.queue.add(item);
        }
    }

    /// Returns when the objects for these places are right, or after a while.
    pub async fn refresh_now(&self, places: &[Segment]) {
        let (asked, places) = (Instant::now(), &places[..places.len().min(PLACES)]);
        let all = async {
            for item in self.at(places) {
                run::publish(&self.0, &item, Some(asked)).await;
            }
        };
        // What is missing by then is done by the workers.
        if tokio::time::timeout(PATIENCE, all).await.is_err() {
            self.refresh(places);
        }
    }

    /// Works until `stop`. The caches must be ready.
    pub async fn run(self, stop: tokio_util::sync::CancellationToken) {
        run::run(self.0, stop).await;
    }

    fn at(&self, places: &[Segment]) -> Vec<Item> {
        let wanted = lock(&self.0.wanted);
        wanted.iter().filter(|item| plan::concerns(item, places)).cloned().collect()
    }
}

/// The places that a PersistentVolume's affinity names.
pub fn segments_of(volume: &PersistentVolume) -> Vec<Segment> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.required.as_ref());
    let segment = |term: &k8s_openapi::api::core::v1::NodeSelectorTerm| -> Segment {
        let expressions = term.match_expressions.iter().flatten();
        expressions.filter_map(|one| Some((one.key.clone(), one.values.as_ref()?.first()?.clone()))).collect()
    };
    terms.iter().flat_map(|required| required.node_selector_terms.iter()).map(segment).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
