//! What is watched, and whom a change wakes.

use std::time::Duration;

use dunnage_cluster::Key;
use dunnage_cluster::cache::{Builder, Cache, Change, Index};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::Queues;
use super::plan::{self, Source, status};
use crate::provisioner::source::{Place, Reference, reference};
use crate::snapshot::is_deleting;

/// What the API server has told.
pub(super) struct Watched {
    pub(super) snapshots: Cache<VolumeSnapshot>,
    /// Snapshots by [`of_claim`].
    pub(super) by_claim: Index<VolumeSnapshot>,
    pub(super) contents: Cache<VolumeSnapshotContent>,
    pub(super) classes: Cache<VolumeSnapshotClass>,
    pub(super) claims: Cache<PersistentVolumeClaim>,
    /// Claims to be filled from a snapshot, by the snapshot's namespace and name.
    pub(super) by_snapshot: Index<PersistentVolumeClaim>,
}

/// Where a claim is found in the index of snapshots.
pub(super) fn of_claim(namespace: &str, claim: &str) -> String {
    format!("{namespace}/{claim}")
}

/// Begins the watches and waits for their first lists; none when asked to stop meanwhile.
pub(super) async fn start(
    client: &Client,
    resync: Duration,
    queues: &Queues,
    stop: &CancellationToken,
) -> Option<Watched> {
    let mut snapshots =
        Builder::<VolumeSnapshot>::new(Api::all(client.clone())).resync(resync).trim(|snapshot| {
            snapshot.metadata.labels = None;
            snapshot.metadata.annotations = None;
        });
    let by_claim = snapshots.index(|snapshot| match plan::source(snapshot) {
        Ok(Source::Claim(claim)) => {
            vec![of_claim(snapshot.metadata.namespace.as_deref().unwrap_or_default(), claim)]
        }
        _ => Vec::new(),
    });
    snapshots.listen({
        let (queue, waiting) = (queues.snapshots.clone(), by_claim.clone());
        let contents = queues.contents.clone();
        move |change| match change {
            Change::Applied { old: Some(old), new } if status::only_our_errors(old, new) => {}
            Change::Applied { old, new } => {
                let was_deleting = old.as_ref().is_some_and(|old| is_deleting(&old.metadata));
                if is_deleting(&new.metadata) && !was_deleting {
                    contents.add(plan::content_name(new));
                }
                queue.add(Key::of(&**new));
            }
            Change::Resync(snapshot) => queue.add(Key::of(&**snapshot)),
            Change::Deleted(gone) => {
                queue.forget(&Key::of(&**gone));
                // One of those that are left lets the claim go.
                let namespace = gone.metadata.namespace.as_deref().unwrap_or_default();
                if let Ok(Source::Claim(claim)) = plan::source(gone) {
                    waiting
                        .get(&of_claim(namespace, claim))
                        .iter()
                        .for_each(|snapshot| queue.add(Key::of(&**snapshot)));
                }
            }
        }
    });

    let mut contents = Builder::<VolumeSnapshotContent>::new(Api::all(client.clone())).resync(resync);
    contents.listen({
        let queues = queues.clone();
        move |change| heard(&queues, change)
    });

    let mut claims = Builder::<PersistentVolumeClaim>::new(Api::all(client.clone())).trim(trim);
    let by_snapshot = claims.index(|claim| match reference(claim) {
        Ok(Reference::Snapshot(Place { namespace, name })) => {
            vec![Key::namespaced(namespace, name).to_string()]
        }
        _ => Vec::new(),
    });
    claims.listen({
        let (queue, taken) = (queues.snapshots.clone(), by_claim.clone());
        move |change| {
            let claim = change.object();
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            // Perhaps it is bound at last, or waits to be let go.
            for snapshot in taken.get(&of_claim(namespace, name)) {
                if !plan::is_ready(&snapshot) || is_deleting(&claim.metadata) {
                    queue.add(Key::of(&*snapshot));
                }
            }
            if let Ok(Reference::Snapshot(Place { namespace, name })) = reference(claim) {
                queue.add(Key::namespaced(namespace, name));
            }
        }
    });
    let mut classes = Builder::<VolumeSnapshotClass>::new(Api::all(client.clone()));
    classes.listen({
        let (queue, known) = (queues.snapshots.clone(), snapshots.handle());
        move |change| {
            // Perhaps the one that a snapshot has waited for.
            if let Change::Applied { .. } = change {
                let waiting = known.all().into_iter().filter(|snapshot| !plan::is_bound(snapshot));
                waiting.for_each(|snapshot| queue.add(Key::of(&*snapshot)));
            }
        }
    });
    let (claims, contents, classes) = (claims.start(stop), contents.start(stop), classes.start(stop));
    // Last, so that the first look at a snapshot sees what belongs to it.
    claims.ready(stop).await.ok()?;
    contents.ready(stop).await.ok()?;
    classes.ready(stop).await.ok()?;
    let snapshots = snapshots.start(stop);
    snapshots.ready(stop).await.ok()?;
    Some(Watched { snapshots, by_claim, contents, classes, claims, by_snapshot })
}

/// A change of a content wakes it and its snapshot.
fn heard(queues: &Queues, change: &Change<VolumeSnapshotContent>) {
    let content = change.object();
    let wake = |content: &VolumeSnapshotContent| {
        let of = &content.spec.volume_snapshot_ref;
        if let (Some(namespace), Some(name)) = (&of.namespace, &of.name) {
            queues.snapshots.add(Key::namespaced(namespace, name));
        }
    };
    match change {
        Change::Applied { old, new } => {
            // It may have been another's before.
            if let Some(old) = old
                && old.spec.volume_snapshot_ref != new.spec.volume_snapshot_ref
            {
                wake(old);
            }
            wake(new);
        }
        Change::Deleted(gone) => wake(gone),
        Change::Resync(_) => {}
    }
    let name = content.metadata.name.clone().unwrap_or_default();
    match change {
        Change::Deleted(_) => queues.contents.forget(&name),
        _ => queues.contents.add(name),
    }
}

/// Drops what is not read from a claim.
fn trim(claim: &mut PersistentVolumeClaim) {
    claim.metadata.labels = None;
    claim.metadata.annotations = None;
    claim.metadata.owner_references = None;
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        volume_name: spec.volume_name,
        data_source: spec.data_source,
        data_source_ref: spec.data_source_ref,
        ..PersistentVolumeClaimSpec::default()
    });
    claim.status = claim.status.take().map(|status| PersistentVolumeClaimStatus {
        phase: status.phase,
        ..PersistentVolumeClaimStatus::default()
    });
}
