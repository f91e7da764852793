//! From a claim to a snapshot, and from a snapshot to a volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tonic::Code;

use dunnage_crds::snapshot::{DeletionPolicy, VolumeSnapshotContent};
use dunnage_csi::v1::Snapshot;
use dunnage_csi::v1::volume_content_source::Type;
use dunnage_harness::wait_for;

use crate::driver::Answer;
use crate::world::{SOON, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_claim_becomes_ready() {
    let world = World::start("taken", &["--extra-create-metadata"]).await;
    let content = world.snapshot("daily").await;
    let snapshot = world.ready("daily").await;
    let status = snapshot.status.unwrap();
    assert_eq!(status.bound(), Some(content.as_str()));
    assert_eq!(status.restore_size.unwrap().0, "1Gi");
    assert!(status.creation_time.is_some() && status.error.is_none());
    let finalizers = snapshot.metadata.finalizers.unwrap();
    for name in ["volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"] {
        let name = format!("snapshot.storage.kubernetes.io/{name}");
        assert!(finalizers.contains(&name), "{name} is not in {finalizers:?}");
    }
    let uid = snapshot.metadata.uid.unwrap();
    let content = world.contents().get(&content).await.unwrap();
    assert_eq!(content.spec.deletion_policy, DeletionPolicy::Delete);
    assert_eq!(content.spec.source_volume_mode.as_deref(), Some("Filesystem"));
    let handle = content.status.unwrap().snapshot_handle.unwrap();
    assert_eq!(handle, format!("id-of-snapshot-{uid}"));
    {
        let state = world.driver.state();
        let request = &state.creates[0];
        assert_eq!(state.creates.len(), 1, "{:?}", state.creates);
        assert_eq!(
            (request.name.as_str(), request.source_volume_id.as_str()),
            (format!("snapshot-{uid}").as_str(), "handle-of-data")
        );
        assert_eq!(request.parameters["csi.storage.k8s.io/volumesnapshot/name"], "daily");
    }
    world.event("taken", "daily", "CreatingSnapshot").await;
    world.event("taken", "daily", "SnapshotCreated").await;
    world.event("taken", "daily", "SnapshotReady").await;
    world.claim_is_kept("data", false).await;
    let unmarked = |content: Option<&VolumeSnapshotContent>| {
        let notes = content.and_then(|content| content.metadata.annotations.as_ref());
        notes.is_none_or(|notes| notes.keys().all(|key| !key.ends_with("being-created")))
    };
    wait_for(&world.contents(), &content.metadata.name.unwrap(), "unmarked", SOON, unmarked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_asked_for_until_it_is_ready_and_the_claim_is_kept_so_long() {
    let world = World::start("slow", &[]).await;
    world
        .driver
        .answer_next([Answer::Fail(Code::DeadlineExceeded); 3].into_iter().chain([Answer::NotReady; 3]));
    world.snapshot("daily").await;
    world.driver_shows("asked again", |state| state.creates.len() >= 2).await;
    world.claim_is_kept("data", true).await;
    world.ready("daily").await;
    assert_eq!(world.driver.state().creates.len(), 7);
    let names: std::collections::BTreeSet<String> =
        world.driver.state().creates.iter().map(|request| request.name.clone()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    world.claim_is_kept("data", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_shows_at_the_snapshot_and_is_tried_again() {
    let world = World::start("refused", &[]).await;
    world.driver.answer_next([Answer::Fail(Code::InvalidArgument); 3]);
    let content = world.snapshot("daily").await;
    let error = world.snapshot_error("daily", "InvalidArgument").await;
    assert_eq!(error, "rpc error: code = InvalidArgument desc = as told");
    world.event("default", &content, "SnapshotCreationFailed").await;
    let ready = world.ready("daily").await;
    assert_eq!(ready.status.unwrap().error, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_drivers_default_class_is_chosen() {
    let world = World::start("by-default", &[]).await;
    let source = json!({"source": {"persistentVolumeClaimName": "data"}});
    world.snapshot_with("early", source.clone()).await;
    world.snapshot_error("early", "no default VolumeSnapshotClass").await;
    let note = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    let meta = json!({"metadata": {"name": "default-gold", "annotations": note}});
    world.class("default-gold", meta).await;
    for name in ["early", "later"] {
        if name == "later" {
            world.snapshot_with(name, source.clone()).await;
        }
        let snapshot = world.ready(name).await;
        assert_eq!(snapshot.spec.volume_snapshot_class_name.as_deref(), Some("default-gold"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_told_and_waited_for() {
    let world = World::start("missing", &[]).await;
    let of = |claim: &str, class: &str| json!({"source": {"persistentVolumeClaimName": claim}, "volumeSnapshotClassName": class});
    world.snapshot_with("no-class", of("data", "missing-later")).await;
    world.snapshot_with("no-claim", of("other", "missing")).await;
    world.snapshot_error("no-class", "\"missing-later\" does not exist").await;
    world.snapshot_error("no-claim", "claim other does not exist").await;
    world.event("missing", "no-claim", "SnapshotPVCSourceMissing").await;
    world.class("missing-later", json!({})).await;
    world.claim_with_volume("other").await;
    world.ready("no-class").await;
    world.ready("no-claim").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_given_to_the_driver_for_taking_and_deleting() {
    let world = World::start("secret", &[]).await;
    let secret = json!({"metadata": {"name": "key-of-daily"}, "stringData": {"key": "hush"}});
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "secret");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let parameters = json!({"parameters": {
        "tier": "cold",
        "csi.storage.k8s.io/snapshotter-secret-name": "key-of-${volumesnapshot.name}",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
    }});
    world.class("secret-vault", parameters).await;
    let spec = json!({
        "source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "secret-vault",
    });
    world.snapshot_with("daily", spec).await;
    world.ready("daily").await;
    world.delete_snapshot("daily").await;
    world.snapshot_gone("daily").await;
    let state = world.driver.state();
    let expected = [("key".to_owned(), "hush".to_owned())].into();
    assert_eq!((&state.creates[0].secrets, &state.deletes[0].secrets), (&expected, &expected));
    assert_eq!(state.creates[0].parameters, [("tier".to_owned(), "cold".to_owned())].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_existed_already_is_bound() {
    let world = World::start("by-hand", &[]).await;
    let there =
        Snapshot { snapshot_id: "old".into(), size_bytes: 7, ready_to_use: true, ..Snapshot::default() };
    world.driver.state().snapshots.insert("of-another-cluster".into(), there);
    world.content_by_hand("by-hand-old", "imported", "old", "Retain").await;
    world.snapshot_with("imported", json!({"source": {"volumeSnapshotContentName": "by-hand-old"}})).await;
    let snapshot = world.ready("imported").await;
    assert_eq!(snapshot.status.unwrap().restore_size.unwrap().0, "7");
    let content = world.contents().get("by-hand-old").await.unwrap();
    assert_eq!(content.spec.volume_snapshot_ref.uid, snapshot.metadata.uid);
    assert!(world.driver.state().creates.is_empty());

    // Another snapshot does not get it, and one that the driver lacks is told.
    world.snapshot_with("thief", json!({"source": {"volumeSnapshotContentName": "by-hand-old"}})).await;
    world.snapshot_error("thief", "bound to another VolumeSnapshot").await;
    world.content_by_hand("by-hand-lost", "lost", "gone", "Retain").await;
    world.snapshot_with("lost", json!({"source": {"volumeSnapshotContentName": "by-hand-lost"}})).await;
    world.snapshot_error("lost", "has no snapshot \"gone\"").await;
    world.event("default", "by-hand-lost", "SnapshotContentCheckandUpdateFailed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_restored_from_a_snapshot_and_the_snapshot_is_kept_meanwhile() {
    let world = World::start("restore", &[]).await;
    world.snapshot("daily").await;
    world.ready("daily").await;
    let class = json!({
        "metadata": {"name": "restore"}, "provisioner": world.driver.name, "volumeBindingMode": "Immediate",
    });
    world.create::<StorageClass>(class).await;
    let claim = json!({
        "metadata": {"name": "restored"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "restore",
            "resources": {"requests": {"storage": "1Gi"}},
            "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "daily"},
        },
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    world.claims().create(&PostParams::default(), &claim).await.unwrap();
    // Nobody provisions yet: the deletion waits for the restore.
    world.delete_snapshot("daily").await;
    world.event("restore", "daily", "SnapshotDeletePending").await;
    assert!(world.driver.state().deletes.is_empty());
    assert!(world.driver.state().restores.is_empty());
    world.claims().delete("restored", &<_>::default()).await.unwrap();
    world.snapshot_gone("daily").await;

    world.snapshot("weekly").await;
    let weekly = world.ready("weekly").await;
    let mut again = claim;
    again.spec.as_mut().unwrap().data_source.as_mut().unwrap().name = "weekly".to_owned();
    again.metadata.name = Some("again".to_owned());
    world.claims().create(&PostParams::default(), &again).await.unwrap();
    let provisioner = world.provisioner();
    let bound = |claim: Option<&PersistentVolumeClaim>| {
        claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
    };
    wait_for(&world.claims(), "again", "bound", SOON, bound).await;
    drop(provisioner);
    let source = world.driver.state().restores[0].volume_content_source.clone().unwrap().r#type.unwrap();
    let Type::Snapshot(source) = source else { panic!("{source:?}") };
    assert_eq!(source.snapshot_id, format!("id-of-snapshot-{}", weekly.metadata.uid.unwrap()));
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    assert!(!volumes.list(&<_>::default()).await.unwrap().items.is_empty());
    world.delete_snapshot("weekly").await;
    world.snapshot_gone("weekly").await;
}
