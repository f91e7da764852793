//! What the operator watches: caches trimmed to what is read, with an index for each question.

mod trim;

use std::collections::BTreeMap;
use std::sync::Arc;

use dunnage_cluster::cache::{Builder, Cache, Change, Index};
use dunnage_cluster::queue::Queue;
use dunnage_crds::{StorageBackend, defaults};
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::removal::{Uses, Volume};

/// Label of everything that belongs to a backend.
pub const BACKEND: &str = "dunnage.dev/backend";
/// Which part of a backend.
pub const COMPONENT: &str = "dunnage.dev/component";
/// Which provisioner a claim waits for, and its older form.
pub const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Keys are names of backends.
pub type Backends = Queue<String>;

/// All caches.
pub struct World {
    pub backends: Cache<StorageBackend>,
    by_driver: Index<StorageBackend>,
    pub nodes: Cache<Node>,
    pub csi_nodes: Cache<CSINode>,
    pods: Index<Pod>,
    pod_cache: Cache<Pod>,
    pub daemon_sets: Cache<DaemonSet>,
    daemon_sets_of: Index<DaemonSet>,
    pub stateful_sets: Cache<StatefulSet>,
    pub classes: Cache<StorageClass>,
    pub drivers: Cache<CSIDriver>,
    volumes: Index<PersistentVolume>,
    volume_cache: Cache<PersistentVolume>,
    attachments: Index<VolumeAttachment>,
    attachment_cache: Cache<VolumeAttachment>,
    claims: Index<PersistentVolumeClaim>,
    claim_cache: Cache<PersistentVolumeClaim>,
}

impl World {
    /// Starts all watches; whatever changes wakes the backends that it concerns.
    pub fn start(client: &Client, queue: &Backends, stop: &CancellationToken) -> Self {
        let mut backends = builder::<StorageBackend>(client);
        let by_driver = backends.index(|backend| vec![defaults::driver_name(backend)]);
        backends.listen({
            let queue = queue.clone();
            move |change| queue.add(change.object().name_any())
        });
        // The second of a pair that cannot live side by side may live when the first goes: with its name, class or path.
        backends.listen({
            let (queue, all) = (queue.clone(), backends.handle());
            move |change| {
                if let Change::Deleted(_) = change {
                    wake_all(&queue, &all);
                }
            }
        });
        let all = backends.handle();

        let mut nodes = builder::<Node>(client).trim(trim::node);
        listen_all(&mut nodes, queue, &all, trim::same_node);
        let mut csi_nodes = builder::<CSINode>(client).trim(trim::csi_node);
        listen_all(&mut csi_nodes, queue, &all, |a, b| a.spec == b.spec);

        let mut pods = builder::<Pod>(client).labels(BACKEND).trim(trim::pod);
        let pods_of = pods.index(label);
        listen_label(&mut pods, queue);
        let mut daemon_sets = builder::<DaemonSet>(client).labels(BACKEND).trim(trim::daemon_set);
        let daemon_sets_of = daemon_sets.index(label);
        listen_label(&mut daemon_sets, queue);
        let mut stateful_sets = builder::<StatefulSet>(client).labels(BACKEND).trim(trim::stateful_set);
        listen_label(&mut stateful_sets, queue);

        // Any class may be the cluster's default, and any driver may have the name of ours.
        let mut classes = builder::<StorageClass>(client);
        listen_all(&mut classes, queue, &all, |_, _| false);
        let mut drivers = builder::<CSIDriver>(client);
        drivers.listen({
            let (queue, by_driver) = (queue.clone(), by_driver.clone());
            move |change| wake_driver(&queue, &by_driver, &change.object().name_any())
        });

        let mut volumes = builder::<PersistentVolume>(client).trim(trim::volume);
        let volumes_of = volumes.index(|volume| driver_of(volume).into_iter().collect());
        listen_driver(&mut volumes, queue, &by_driver, driver_of);
        let mut attachments = builder::<VolumeAttachment>(client).trim(trim::attachment);
        let attachments_of = attachments.index(|attachment| vec![attachment.spec.attacher.clone()]);
        listen_driver(&mut attachments, queue, &by_driver, |attachment| {
            Some(attachment.spec.attacher.clone())
        });
        let mut claims = builder::<PersistentVolumeClaim>(client).trim(trim::claim);
        let claims_of = claims.index(|claim| provisioner_of(claim).into_iter().collect());
        listen_driver(&mut claims, queue, &by_driver, provisioner_of);

        Self {
            backends: backends.start(stop),
            by_driver,
            nodes: nodes.start(stop),
            csi_nodes: csi_nodes.start(stop),
            pods: pods_of,
            pod_cache: pods.start(stop),
            daemon_sets: daemon_sets.start(stop),
            daemon_sets_of,
            stateful_sets: stateful_sets.start(stop),
            classes: classes.start(stop),
            drivers: drivers.start(stop),
            volumes: volumes_of,
            volume_cache: volumes.start(stop),
            attachments: attachments_of,
            attachment_cache: attachments.start(stop),
            claims: claims_of,
            claim_cache: claims.start(stop),
        }
    }

    /// Waits until all that there was at the start is known: before that, nothing may be decided.
    pub async fn ready(&self, stop: &CancellationToken) -> Result<(), dunnage_cluster::Error> {
        self.backends.ready(stop).await?;
        self.nodes.ready(stop).await?;
        self.csi_nodes.ready(stop).await?;
        self.pod_cache.ready(stop).await?;
        self.daemon_sets.ready(stop).await?;
        self.stateful_sets.ready(stop).await?;
        self.classes.ready(stop).await?;
        self.drivers.ready(stop).await?;
        self.volume_cache.ready(stop).await?;
        self.attachment_cache.ready(stop).await?;
        self.claim_cache.ready(stop).await
    }

    /// Other backends that use this driver name.
    pub fn others_with_driver(&self, driver: &str, backend: &str) -> Vec<Arc<StorageBackend>> {
        let mut others = self.by_driver.get(driver);
        others.retain(|other| other.name_any() != backend);
        others
    }

    /// A backend's pods of a component (`controller` or `node`).
    pub fn pods(&self, backend: &str, component: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.get(backend);
        pods.retain(|pod| pod.labels().get(COMPONENT).is_some_and(|found| found == component));
        pods.sort_by_key(|pod| pod.name_any());
        pods
    }

    /// A backend's node plugins.
    pub fn daemon_sets(&self, backend: &str) -> Vec<Arc<DaemonSet>> {
        self.daemon_sets_of.get(backend)
    }

    /// What uses the driver, as far as it is watched.
    pub fn uses(&self, driver: &str) -> Uses {
        let mut volumes: Vec<Volume> =
            self.volumes.get(driver).iter().map(|volume| describe(volume)).collect();
        volumes.sort();
        let mut attachments: Vec<String> =
            self.attachments.get(driver).iter().map(|attachment| attachment.name_any()).collect();
        attachments.sort();
        let mut claims: Vec<String> =
            self.claims.get(driver).iter().map(|claim| full_name(&**claim)).collect();
        claims.sort();
        Uses { volumes, attachments, claims, ..Uses::default() }
    }

    /// Names of all default classes.
    pub fn default_classes(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .classes
            .all()
            .iter()
            .filter(|class| is_default(class))
            .map(|class| class.name_any())
            .collect();
        names.sort();
        names
    }
}

/// Whether a class is marked as the cluster's default, in the new or the old way.
pub fn is_default(class: &StorageClass) -> bool {
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|key| class.annotations().get(*key).is_some_and(|value| value == "true"))
}

/// `namespace/name`.
pub fn full_name(object: &impl ResourceExt) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

pub(crate) fn describe(volume: &PersistentVolume) -> Volume {
    let spec = volume.spec.as_ref();
    let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
    Volume {
        name: volume.name_any(),
        phase: volume
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_else(|| "Pending".to_owned()),
        claim: claim.map(|claim| {
            format!(
                "{}/{}",
                claim.namespace.as_deref().unwrap_or_default(),
                claim.name.as_deref().unwrap_or_default()
            )
        }),
        handle: spec
            .and_then(|spec| spec.csi.as_ref())
            .map(|csi| csi.volume_handle.clone())
            .unwrap_or_default(),
    }
}

fn builder<K>(client: &Client) -> Builder<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    Builder::new(Api::<DeserializeGuard<K>>::all(client.clone()))
}

/// The backend's name, from the label.
pub fn label(object: &impl Resource) -> Vec<String> {
    object.meta().labels.as_ref().and_then(|labels| labels.get(BACKEND)).cloned().into_iter().collect()
}

pub(crate) fn driver_of(volume: &PersistentVolume) -> Option<String> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.driver.clone())
}

/// The provisioner that a claim without a volume waits for.
pub(crate) fn provisioner_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let bound =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty());
    let annotations: &BTreeMap<String, String> = claim.annotations();
    PROVISIONER.iter().find_map(|key| annotations.get(*key)).filter(|_| !bound).cloned()
}

fn listen_all<K>(
    builder: &mut Builder<K>,
    queue: &Backends,
    backends: &Cache<StorageBackend>,
    same: impl Fn(&K, &K) -> bool + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (queue, backends) = (queue.clone(), backends.clone());
    builder.listen(move |change| {
        if let Change::Applied { old: Some(old), new } = change
            && same(old, new)
        {
            return;
        }
        wake_all(&queue, &backends);
    });
}

fn wake_all(queue: &Backends, backends: &Cache<StorageBackend>) {
    for backend in backends.all() {
        queue.add(backend.name_any());
    }
}

fn listen_label<K>(builder: &mut Builder<K>, queue: &Backends)
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let queue = queue.clone();
    builder.listen(move |change| {
        for backend in label(&**change.object()) {
            queue.add(backend);
        }
    });
}

fn listen_driver<K>(
    builder: &mut Builder<K>,
    queue: &Backends,
    by_driver: &Index<StorageBackend>,
    driver: impl Fn(&K) -> Option<String> + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (queue, by_driver) = (queue.clone(), by_driver.clone());
    builder.listen(move |change| {
        let old = match change {
            Change::Applied { old, .. } => old.as_ref().and_then(|old| driver(old)),
            Change::Deleted(_) | Change::Resync(_) => None,
        };
        for driver in driver(change.object()).into_iter().chain(old) {
            wake_driver(&queue, &by_driver, &driver);
        }
    });
}

fn wake_driver(queue: &Backends, by_driver: &Index<StorageBackend>, driver: &str) {
    for backend in by_driver.get(driver) {
        // A burst of claims is one pass, not thousands.
        queue.add_after(backend.name_any(), std::time::Duration::from_millis(500));
    }
}
