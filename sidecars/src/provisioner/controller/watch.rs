//! What is watched, and which queue each change goes to.

use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::cache::{Builder, Cache, Change, Index};
use dunnage_cluster::queue::Queue;
use dunnage_cluster::{Error, Key};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::trim;
use crate::provisioner::args::Args;
use crate::provisioner::capacity::plan::{self, Item, Owner};
use crate::provisioner::capacity::{Capacity, Setup as CapacitySetup};
use crate::provisioner::context::{Nodes, Queues, Watched, wake};
use crate::provisioner::driver::Driver;
use crate::provisioner::metrics::Metrics;
use crate::provisioner::progress::{Progress, Wait};
use crate::provisioner::{claim, delete, sources};

/// How often every claim and volume is looked at again.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// What the watches are for.
pub(super) struct Setup<'a> {
    pub(super) args: &'a Args,
    pub(super) driver: &'a Driver,
    pub(super) client: &'a Client,
    pub(super) capacity: Option<(Owner, Client, Queue<Item>)>,
    pub(super) progress: &'a Arc<Progress>,
    pub(super) queues: &'a Queues,
    pub(super) metrics: &'a Metrics,
}

/// The caches, begun but perhaps not filled yet.
pub(super) struct Watches {
    pub(super) watched: Watched,
    pub(super) capacity: Option<Capacity>,
    claims: Cache<PersistentVolumeClaim>,
    attachments: Option<Cache<VolumeAttachment>>,
    objects: Option<Cache<CSIStorageCapacity>>,
}

impl Watches {
    /// Waits until all there is has come.
    pub(super) async fn ready(&self, stop: &CancellationToken) -> Result<(), Error> {
        self.claims.ready(stop).await?;
        self.watched.classes.ready(stop).await?;
        self.watched.volumes.ready(stop).await?;
        if let Some(attachments) = &self.attachments {
            attachments.ready(stop).await?;
        }
        if let Some(nodes) = &self.watched.nodes {
            nodes.nodes.ready(stop).await?;
            nodes.drivers.ready(stop).await?;
        }
        if let Some(objects) = &self.objects {
            objects.ready(stop).await?;
        }
        Ok(())
    }
}

/// Begins to watch what this driver needs, and nothing that its role may not see.
pub(super) fn start(setup: &Setup<'_>, stop: &CancellationToken) -> Watches {
    let topology = setup.driver.can.topology && setup.args.standard.feature_gates.enabled("Topology", true);
    let mut classes = Builder::<StorageClass>::new(Api::all(setup.client.clone())).trim(trim::class);
    let mut nodes = topology.then(|| NodeBuilders::new(setup));
    let objects = setup.capacity.as_ref().map(|(owner, ..)| objects(setup, owner));
    let capacity = objects.as_ref().zip(setup.capacity.clone()).map(|((objects, by_item), capacity)| {
        let (owner, client, queue) = capacity;
        let (progress, claims) = (Arc::clone(setup.progress), setup.queues.claims.clone());
        Capacity::new(CapacitySetup {
            driver: setup.driver.clone(),
            client,
            owner,
            classes: classes.handle(),
            nodes: nodes.as_ref().map(NodeBuilders::handle),
            objects: objects.handle(),
            by_item: by_item.clone(),
            queue,
            immediate_too: setup.args.capacity_for_immediate_binding,
            workers: setup.args.capacity_threads,
            poll: setup.args.capacity_poll_interval,
            metrics: setup.metrics.clone(),
            grown: Box::new(move || wake(&progress, &claims, Wait::Room)),
        })
    });
    let objects = objects.zip(capacity.clone()).map(|((mut objects, _), capacity)| {
        objects.listen(move |change| match change {
            // Our own writes come back too; they are right already.
            Change::Applied { .. } | Change::Resync(_) => {}
            Change::Deleted(object) => capacity.touched(object),
        });
        objects.start(stop)
    });
    if let Some(nodes) = &mut nodes {
        nodes.listen(setup, capacity.as_ref());
    }
    let (claims, by_uid, by_source) = claims(setup, &mut classes, capacity.as_ref(), stop);
    let (volumes, volumes_by_handle) = volumes(setup, stop);
    let attachments = setup.driver.can.publish.then(|| attachments(setup, stop));
    let (attachments, by_volume) = attachments.unzip();
    let watched = Watched {
        claims: by_uid,
        claims_by_source: by_source,
        classes: classes.start(stop),
        volumes,
        volumes_by_handle,
        attachments: by_volume,
        nodes: nodes.map(|nodes| nodes.start(stop)),
    };
    Watches { watched, capacity, claims, attachments, objects }
}

fn claims(
    setup: &Setup<'_>,
    classes: &mut Builder<StorageClass>,
    capacity: Option<&Capacity>,
    stop: &CancellationToken,
) -> (Cache<PersistentVolumeClaim>, Index<PersistentVolumeClaim>, Index<PersistentVolumeClaim>) {
    let driver = setup.driver.name.clone();
    let trimmed_for = driver.clone();
    let mut claims = Builder::<PersistentVolumeClaim>::new(Api::all(setup.client.clone()))
        .trim(move |claim| trim::claim(claim, &trimmed_for))
        .resync(RESYNC);
    let by_uid = claims.index(|claim| claim.metadata.uid.iter().cloned().collect());
    let by_source = claims.index(sources::index_keys);
    let by_class = {
        let driver = driver.clone();
        claims.index(move |claim| {
            let waits = claim::is_ours(claim, &driver) && !claim::is_bound(claim);
            claim::class_name(claim).filter(|_| waits).map(str::to_owned).into_iter().collect()
        })
    };
    let (queues, can_clone) = (setup.queues.clone(), setup.driver.can.clone);
    claims.listen(move |change| {
        let claim = change.object();
        if can_clone && sources::sweep::is_due(claim) && !matches!(change, Change::Deleted(_)) {
            queues.clones.add(Key::of(claim.as_ref()));
        }
        let Some(uid) = &claim.metadata.uid else { return };
        if is_news(change, &driver, queues.claims.failures(uid) > 0) {
            queues.claims.add(uid.clone());
        }
    });
    let (queue, capacity) = (setup.queues.claims.clone(), capacity.cloned());
    classes.listen(move |change| {
        if let Some(capacity) = &capacity {
            capacity.changed();
        }
        // A class that was missing or has been made anew: whoever waits for it is tried at once.
        let Change::Applied { new, .. } = change else { return };
        for claim in by_class.get(new.metadata.name.as_deref().unwrap_or_default()) {
            if let Some(uid) = &claim.metadata.uid {
                queue.forget(uid);
                queue.add(uid.clone());
            }
        }
    });
    (claims.start(stop), by_uid, by_source)
}

/// Whether a change of a claim is worth a look now. A claim in back-off is left there unless it has really changed.
fn is_news(change: &Change<PersistentVolumeClaim>, driver: &str, failing: bool) -> bool {
    match change {
        // What was begun for it has to be brought to an end.
        Change::Deleted(_) => true,
        Change::Resync(claim) => !failing && claim::is_ours(claim, driver) && !claim::is_bound(claim),
        Change::Applied { old, new } => {
            let same = |old: &Arc<PersistentVolumeClaim>| {
                old.spec == new.spec
                    && old.metadata.annotations == new.metadata.annotations
                    && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
            };
            claim::is_ours(new, driver) && !(failing && old.as_ref().is_some_and(same))
        }
    }
}

fn volumes(
    setup: &Setup<'_>,
    stop: &CancellationToken,
) -> (Cache<PersistentVolume>, Index<PersistentVolume>) {
    let driver = setup.driver.name.clone();
    let trimmed_for = driver.clone();
    let mut volumes = Builder::<PersistentVolume>::new(Api::all(setup.client.clone()))
        .trim(move |volume| trim::volume(volume, &trimmed_for))
        .resync(RESYNC);
    let by_handle = volumes.index(|volume| {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.map(|csi| csi.volume_handle.clone()).into_iter().collect()
    });
    let (queues, progress) = (setup.queues.clone(), Arc::clone(setup.progress));
    volumes.listen(move |change| match change {
        Change::Applied { new: volume, .. } | Change::Resync(volume) => {
            if let Some(name) = &volume.metadata.name
                && delete::plan(volume, &driver, false) != delete::Step::Nothing
            {
                queues.volumes.add(name.clone());
            }
        }
        Change::Deleted(volume) => {
            // Gone before it was bound: the claim needs another one.
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            if let Some(uid) = claim.and_then(|claim| claim.uid.as_ref())
                && progress.is_saved(uid)
            {
                progress.forget(uid);
                queues.claims.add(uid.clone());
            }
        }
    });
    (volumes.start(stop), by_handle)
}

fn attachments(
    setup: &Setup<'_>,
    stop: &CancellationToken,
) -> (Cache<VolumeAttachment>, Index<VolumeAttachment>) {
    let mut attachments =
        Builder::<VolumeAttachment>::new(Api::all(setup.client.clone())).trim(trim::attachment);
    let by_volume = attachments
        .index(|attachment| attachment.spec.source.persistent_volume_name.iter().cloned().collect());
    let queue = setup.queues.volumes.clone();
    attachments.listen(move |change| {
        // A volume that waits to be detached is deleted as soon as it is.
        let Change::Deleted(attachment) = change else { return };
        if let Some(volume) = &attachment.spec.source.persistent_volume_name {
            queue.forget(volume);
            queue.add(volume.clone());
        }
    });
    (attachments.start(stop), by_volume)
}

fn objects(setup: &Setup<'_>, owner: &Owner) -> (Builder<CSIStorageCapacity>, Index<CSIStorageCapacity>) {
    let api = Api::namespaced(setup.client.clone(), &owner.namespace);
    let mut objects = Builder::<CSIStorageCapacity>::new(api).labels(plan::selector(&owner.driver));
    let owner = owner.clone();
    let by_item = objects
        .index(move |object| plan::item_of(object, &owner).map(|item| item.key()).into_iter().collect());
    (objects, by_item)
}

/// The two kinds that together say where the driver is.
struct NodeBuilders {
    nodes: Builder<Node>,
    drivers: Builder<CSINode>,
}

impl NodeBuilders {
    fn new(setup: &Setup<'_>) -> Self {
        let driver = setup.driver.name.clone();
        Self {
            nodes: Builder::new(Api::all(setup.client.clone())).trim(trim::node),
            drivers: Builder::new(Api::all(setup.client.clone()))
                .trim(move |node| trim::csi_node(node, &driver)),
        }
    }

    fn handle(&self) -> Nodes {
        Nodes { nodes: self.nodes.handle(), drivers: self.drivers.handle() }
    }

    /// A place that has come or gone changes where there is room, and ends the wait of claims for it.
    fn listen(&mut self, setup: &Setup<'_>, capacity: Option<&Capacity>) {
        let (progress, claims, capacity) =
            (Arc::clone(setup.progress), setup.queues.claims.clone(), capacity.cloned());
        let moved = Arc::new(move || {
            if let Some(capacity) = &capacity {
                capacity.changed();
            }
            wake(&progress, &claims, Wait::Place);
        });
        let changed = Arc::clone(&moved);
        self.nodes.listen(move |change| match change {
            Change::Applied { old: Some(old), new } if old.metadata.labels == new.metadata.labels => {}
            Change::Resync(_) => {}
            Change::Applied { .. } | Change::Deleted(_) => changed(),
        });
        self.drivers.listen(move |change| match change {
            Change::Applied { old: Some(old), new } if old.spec == new.spec => {}
            Change::Resync(_) => {}
            Change::Applied { .. } | Change::Deleted(_) => moved(),
        });
    }

    fn start(self, stop: &CancellationToken) -> Nodes {
        Nodes { nodes: self.nodes.start(stop), drivers: self.drivers.start(stop) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::provisioner::names;

    fn claim(change: impl FnOnce(&mut Value)) -> Arc<PersistentVolumeClaim> {
        let mut claim = json!({
            "metadata": {"uid": "1", "annotations": {names::STORAGE_PROVISIONER: "d"}},
            "spec": {},
        });
        change(&mut claim);
        Arc::new(serde_json::from_value(claim).expect("a claim"))
    }

    #[test]
    fn a_failing_claim_is_looked_at_early_only_when_it_has_changed() {
        let plain = claim(|_| ());
        let labelled = claim(|c| c["metadata"]["labels"] = json!({"a": "b"}));
        let chosen = claim(|c| c["metadata"]["annotations"][names::SELECTED_NODE] = json!("n1"));
        let others = claim(|c| c["metadata"]["annotations"] = json!({}));
        let applied = |old: Option<&Arc<PersistentVolumeClaim>>, new: &Arc<PersistentVolumeClaim>| {
            Change::Applied { old: old.cloned(), new: Arc::clone(new) }
        };
        for (change, failing, expected) in [
            (applied(None, &plain), true, true),
            (applied(Some(&plain), &labelled), true, false),
            (applied(Some(&plain), &labelled), false, true),
            (applied(Some(&plain), &chosen), true, true),
            (applied(None, &others), false, false),
            (Change::Resync(Arc::clone(&plain)), false, true),
            (Change::Resync(Arc::clone(&plain)), true, false),
            (Change::Deleted(others), false, true),
        ] {
            assert_eq!(is_news(&change, "d", failing), expected, "{change:?}");
        }
    }
}
