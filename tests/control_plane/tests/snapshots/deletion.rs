//! The end of snapshots, in every order that people choose.

use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use dunnage_crds::snapshot::VolumeSnapshotContent;
use dunnage_csi::v1::Snapshot;
use dunnage_harness::wait_for;

use crate::world::{SOON, World};

const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

fn is_marked(content: Option<&VolumeSnapshotContent>) -> bool {
    let notes = content.and_then(|content| content.metadata.annotations.as_ref());
    notes.is_some_and(|notes| notes.contains_key(BEING_DELETED))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_policy_delete_the_snapshot_on_the_storage_goes_too() {
    let world = World::start("delete", &[]).await;
    let content = world.snapshot("daily").await;
    world.ready("daily").await;
    world.delete_snapshot("daily").await;
    world.snapshot_gone("daily").await;
    world.content_gone(&content).await;
    let state = world.driver.state();
    assert_eq!((state.deletes.len(), state.snapshots.len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_policy_retain_the_content_stays_and_its_end_costs_no_data() {
    let world = World::start("retain", &[]).await;
    world.class("retain-kept", json!({"deletionPolicy": "Retain"})).await;
    let spec =
        json!({"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "retain-kept"});
    let content = world.snapshot_with("daily", spec).await;
    world.ready("daily").await;
    world.delete_snapshot("daily").await;
    world.snapshot_gone("daily").await;
    wait_for(&world.contents(), &content, "marked", SOON, is_marked).await;
    world.contents().delete(&content, &DeleteParams::default()).await.unwrap();
    world.content_gone(&content).await;
    let state = world.driver.state();
    assert_eq!((state.deletes.len(), state.snapshots.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_deleted_first_stays_until_its_snapshot_is_deleted() {
    let world = World::start("first", &[]).await;
    let content = world.snapshot("daily").await;
    world.ready("daily").await;
    world.contents().delete(&content, &DeleteParams::default()).await.unwrap();
    // Another snapshot is worked after it: had it been let go, it would be gone by then.
    world.snapshot("weekly").await;
    world.ready("weekly").await;
    assert!(world.driver.state().deletes.is_empty());
    assert!(world.contents().get_opt(&content).await.unwrap().is_some());
    world.delete_snapshot("daily").await;
    world.snapshot_gone("daily").await;
    world.content_gone(&content).await;
    assert_eq!(world.driver.state().deletes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_whose_snapshot_was_removed_by_force_stays_until_it_is_deleted_itself() {
    let world = World::start("forced", &[]).await;
    let content = world.snapshot("daily").await;
    world.ready("daily").await;
    world.delete_snapshot("daily").await;
    world.snapshot_gone("daily").await;
    world.content_gone(&content).await;

    let there = Snapshot { snapshot_id: "old".into(), ready_to_use: true, ..Snapshot::default() };
    world.driver.state().snapshots.insert("old".into(), there);
    world.content_by_hand("forced-old", "imported", "old", "Delete").await;
    world.snapshot_with("imported", json!({"source": {"volumeSnapshotContentName": "forced-old"}})).await;
    world.ready("imported").await;
    // A copy of the content's object in a cluster without the snapshot: nothing is deleted by itself.
    let copied = json!({"spec": {"volumeSnapshotRef": {"name": "nobody", "uid": "of-another-cluster"}}});
    world.change_content("forced-old", copied).await.unwrap();
    world.snapshot_error("imported", "bound to another VolumeSnapshot").await;
    world.delete_snapshot("imported").await;
    world.snapshot_gone("imported").await;
    assert!(world.driver.state().snapshots.contains_key("old"));
    world.contents().delete("forced-old", &DeleteParams::default()).await.unwrap();
    world.content_gone("forced-old").await;
    assert!(!world.driver.state().snapshots.contains_key("old"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_was_never_bound_can_be_deleted() {
    let world = World::start("unbound", &[]).await;
    world.content_by_hand("unbound-old", "never", "old", "Delete").await;
    let finalizer = json!({"metadata": {"finalizers": [
        "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
    ]}});
    let patch = Patch::Merge(finalizer);
    world.contents().patch("unbound-old", &PatchParams::default(), &patch).await.unwrap();
    world.contents().delete("unbound-old", &DeleteParams::default()).await.unwrap();
    world.content_gone("unbound-old").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_holds_the_deletion_up_and_is_told() {
    let world = World::start("no-secret", &[]).await;
    let content = world.snapshot("daily").await;
    world.ready("daily").await;
    let note = |name: Option<&str>| {
        json!({"metadata": {"annotations": {
            "snapshot.storage.kubernetes.io/deletion-secret-name": name,
            "snapshot.storage.kubernetes.io/deletion-secret-namespace": name.map(|_| "no-secret"),
        }}})
    };
    world.change_content(&content, note(Some("lost"))).await.unwrap();
    world.delete_snapshot("daily").await;
    let told = world.event("default", &content, "SnapshotDeleteError").await;
    assert!(told.contains("no-secret/lost"), "{told}");
    assert!(world.driver.state().deletes.is_empty());
    world.change_content(&content, note(None)).await.unwrap();
    world.snapshot_gone("daily").await;
    world.content_gone(&content).await;
}
