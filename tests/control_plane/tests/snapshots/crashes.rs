//! What is cut short leaves nothing behind: neither on the storage nor in the cluster.

use kube::api::DeleteParams;
use tonic::Code;

use dunnage_crds::snapshot::VolumeSnapshotContent;
use dunnage_harness::wait_for;

use crate::driver::Answer;
use crate::world::{SOON, World};

const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

fn is_marked(content: Option<&VolumeSnapshotContent>) -> bool {
    let notes = content.and_then(|content| content.metadata.annotations.as_ref());
    notes.is_some_and(|notes| notes.contains_key(BEING_CREATED))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_the_snapshot_and_its_note_makes_it_once() {
    let mut world = World::start("killed", &["--timeout=1m"]).await;
    world.driver.answer_next([Answer::TakeAndHang]);
    let content = world.snapshot("daily").await;
    world.driver_shows("taken", |state| state.snapshots.len() == 1).await;
    world.kill();
    let noted = world.contents().get(&content).await.unwrap();
    assert!(is_marked(Some(&noted)), "{noted:?}");
    assert!(noted.status.is_none_or(|status| status.snapshot_handle.is_none()));
    world.begin();
    world.ready("daily").await;
    {
        let state = world.driver.state();
        assert_eq!((state.creates.len(), state.snapshots.len()), (2, 1));
    }
    world.delete_snapshot("daily").await;
    world.content_gone(&content).await;
    assert!(world.driver.state().snapshots.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_deleted_while_its_taker_is_dead_leaks_nothing() {
    let mut world = World::start("orphan", &["--timeout=1m"]).await;
    world.driver.answer_next([Answer::TakeAndHang]);
    let content = world.snapshot("daily").await;
    world.driver_shows("taken", |state| state.snapshots.len() == 1).await;
    world.kill();
    world.delete_snapshot("daily").await;
    let going = |content: Option<&VolumeSnapshotContent>| {
        content.is_some_and(|content| content.metadata.deletion_timestamp.is_some())
    };
    wait_for(&world.contents(), &content, "being deleted", SOON, going).await;
    world.begin();
    world.content_gone(&content).await;
    world.snapshot_gone("daily").await;
    let state = world.driver.state();
    assert_eq!((state.creates.len(), state.deletes.len(), state.snapshots.len()), (2, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_deleted_while_the_driver_does_not_answer_is_taken_and_deleted() {
    let world = World::start("timeouts", &[]).await;
    world.driver.state().always = Some(Code::DeadlineExceeded);
    let content = world.snapshot("daily").await;
    world.driver_shows("tried", |state| state.creates.len() >= 2).await;
    world.delete_snapshot("daily").await;
    let tries = world.driver.state().creates.len();
    world.driver_shows("tried on", |state| state.creates.len() > tries).await;
    assert!(is_marked(world.contents().get_opt(&content).await.unwrap().as_ref()));
    world.driver.state().always = None;
    world.content_gone(&content).await;
    world.snapshot_gone("daily").await;
    let state = world.driver.state();
    assert!(state.snapshots.is_empty() && state.deletes.len() == 1, "{} deletes", state.deletes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_deleted_after_a_final_refusal_goes_without_a_call() {
    let world = World::start("refusal", &[]).await;
    world.driver.answer_next([Answer::Fail(Code::NotFound); 1000]);
    let content = world.snapshot("daily").await;
    world.snapshot_error("daily", "NotFound").await;
    world.delete_snapshot("daily").await;
    world.content_gone(&content).await;
    world.snapshot_gone("daily").await;
    assert!(world.driver.state().deletes.is_empty());
    world.claim_is_kept("data", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_deleted_while_its_snapshot_is_taken_waits_for_it() {
    let world = World::start("claim", &[]).await;
    world.driver.state().always = Some(Code::DeadlineExceeded);
    world.snapshot("daily").await;
    world.driver_shows("tried", |state| !state.creates.is_empty()).await;
    world.claims().delete("data", &DeleteParams::default()).await.unwrap();
    let tries = world.driver.state().creates.len();
    world.driver_shows("tried on", |state| state.creates.len() > tries).await;
    assert!(world.claims().get_opt("data").await.unwrap().is_some());
    world.driver.state().always = None;
    world.ready("daily").await;
    wait_for(&world.claims(), "data", "gone", SOON, |claim| claim.is_none()).await;
}
