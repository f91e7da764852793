//! From snapshots to volumes.

use dunnage_harness::eventually;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use crate::csi::{Abilities, Answer};
use crate::world::{SOON, World};

const GROUP: &str = "snapshot.storage.k8s.io";
const FINALIZER: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

/// A definition of the snapshot API that checks nothing and has no status of its own.
fn definition(kind: &str, scope: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": GROUP, "scope": scope, "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", kind))
}

/// Waits until the API server serves a kind that was just defined.
async fn create(api: &Api<DynamicObject>, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    eventually("the object to be made", SOON, async || {
        api.create(&PostParams::default(), &object).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_restored_from_a_snapshot_that_is_kept_meanwhile() {
    let world = World::start("restore", Abilities { snapshot: true, ..Abilities::default() }, &[]).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for (kind, scope) in [("VolumeSnapshot", "Namespaced"), ("VolumeSnapshotContent", "Cluster")] {
        let definition = serde_json::from_value(definition(kind, scope)).unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let snapshots: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), "restore", &kind("VolumeSnapshot"));
    let snapshot = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "VolumeSnapshot", "metadata": {"name": "backup"},
        "status": {"readyToUse": true, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": "content"},
    });
    create(&snapshots, snapshot).await;
    let uid = snapshots.get("backup").await.unwrap().metadata.uid;
    let contents: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind("VolumeSnapshotContent"));
    let content = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "VolumeSnapshotContent", "metadata": {"name": "content"},
        "spec": {
            "driver": world.driver.name,
            "volumeSnapshotRef": {"name": "backup", "namespace": "restore", "uid": uid},
        },
        "status": {"snapshotHandle": "handle-of-backup"},
    });
    create(&contents, content).await;

    world.driver.answer_next([Answer::MakeAndHang]);
    world.class("restore", "Immediate", json!({})).await;
    let source = json!({"dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "backup"}});
    world.claim_with("data", "restore", None, source).await;
    let finalizers = async || snapshots.get("backup").await.unwrap().metadata.finalizers.unwrap_or_default();
    eventually("the snapshot to be kept", SOON, async || {
        let found = finalizers().await;
        if found == [FINALIZER] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    world.bound("data").await;
    let asked = {
        let state = world.driver.state();
        format!("{:?}", state.creates[0].volume_content_source)
    };
    assert!(asked.contains("handle-of-backup"), "{asked}");
    let left = finalizers().await;
    assert!(left.is_empty(), "it is let go with the volume: {left:?}");
}
