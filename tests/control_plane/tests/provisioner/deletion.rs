//! The end of volumes, in every order that people choose.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use dunnage_harness::wait_for;

use crate::csi::Abilities;
use crate::world::{SOON, World};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

fn has_finalizer(volume: Option<&PersistentVolume>) -> bool {
    volume.is_some_and(|volume| volume.finalizers().iter().any(|found| found == FINALIZER))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_deleted_before_its_claim_lives_as_long_as_the_claim() {
    let world = World::start("early", Abilities::default(), &[]).await;
    world.class("early", "Immediate", json!({})).await;
    let name = world.claim("data", "early", None).await;
    world.bound("data").await;
    world.volumes().delete(&name, &DeleteParams::default()).await.unwrap();
    let deleting = |volume: Option<&PersistentVolume>| {
        volume.is_some_and(|volume| volume.metadata.deletion_timestamp.is_some())
    };
    wait_for(&world.volumes(), &name, "being deleted", SOON, deleting).await;
    assert!(world.driver.state().deletes.is_empty());
    world.delete_claim("data").await;
    world.volume_gone(&name).await;
    assert_eq!(world.driver.state().deletes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_volume_is_never_deleted_and_has_no_finalizer() {
    let world = World::start("retain", Abilities::default(), &[]).await;
    world.class("retain", "Immediate", json!({"reclaimPolicy": "Retain"})).await;
    let name = world.claim("data", "retain", None).await;
    world.bound("data").await;
    wait_for(&world.volumes(), &name, "without finalizer", SOON, |volume| !has_finalizer(volume)).await;
    world.delete_claim("data").await;
    let released = |volume: Option<&PersistentVolume>| {
        volume.and_then(|volume| volume.status.as_ref()?.phase.as_deref()) == Some("Released")
    };
    wait_for(&world.volumes(), &name, "released", SOON, released).await;
    // Deciding otherwise later works too.
    let patch = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    assert!(world.driver.state().deletes.is_empty());
    world.volumes().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    world.volume_gone(&name).await;
    assert_eq!(world.driver.state().deletes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_made_by_hand_gets_the_finalizer_and_is_deleted() {
    let world = World::start("static", Abilities::default(), &[]).await;
    let volume = json!({
        "metadata": {"name": "by-hand"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": world.driver.name, "volumeHandle": "by-hand"},
        },
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    world.volumes().create(&PostParams::default(), &volume).await.unwrap();
    world.claim_with("data", "static", None, json!({"volumeName": "by-hand"})).await;
    world.bound("data").await;
    wait_for(&world.volumes(), "by-hand", "with finalizer", SOON, has_finalizer).await;
    world.delete_claim("data").await;
    world.volume_gone("by-hand").await;
    assert_eq!(world.driver.state().deletes[0].volume_id, "by-hand");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_is_deleted_as_soon_as_it_is_detached() {
    let world = World::start("attached", Abilities { publish: true, ..Abilities::default() }, &[]).await;
    world.class("attached", "Immediate", json!({})).await;
    let name = world.claim("data", "attached", None).await;
    world.bound("data").await;
    let attachment = json!({
        "metadata": {"name": "csi-of-data"},
        "spec": {
            "attacher": world.driver.name, "nodeName": "somewhere", "source": {"persistentVolumeName": name},
        },
    });
    let attachment: VolumeAttachment = serde_json::from_value(attachment).unwrap();
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    attachments.create(&PostParams::default(), &attachment).await.unwrap();
    world.delete_claim("data").await;
    world.volume_event(&name, "VolumeDelete").await;
    assert!(world.driver.state().deletes.is_empty());
    attachments.delete("csi-of-data", &DeleteParams::default()).await.unwrap();
    world.volume_gone(&name).await;
    assert_eq!(world.driver.state().deletes.len(), 1);
}
