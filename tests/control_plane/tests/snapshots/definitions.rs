//! The definitions: what the API server refuses, and what it shows.

use dunnage_crds::snapshot::VolumeSnapshot;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::Request;
use serde_json::{Value, json};

use crate::world::World;

fn api(world: &World, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind));
    match kind {
        "VolumeSnapshot" => Api::namespaced_with(world.client.clone(), &world.name, &resource),
        _ => Api::all_with(world.client.clone(), &resource),
    }
}

async fn make(world: &World, kind: &str, name: &str, rest: Value) -> Result<DynamicObject, String> {
    let mut object =
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let object = serde_json::from_value(object).unwrap();
    api(world, kind).create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let world = World::without_snapshotter("rules", &[]).await;
    let content = |source: Value, of: Value| json!({"spec": {"volumeSnapshotRef": of, "deletionPolicy": "Retain", "driver": "d", "source": source}});
    let of = json!({"name": "s", "namespace": "rules"});
    for (kind, rest, says) in [
        ("VolumeSnapshot", json!({"spec": {"source": {}}}), "only one"),
        (
            "VolumeSnapshot",
            json!({"spec": {"source": {"persistentVolumeClaimName": "a", "volumeSnapshotContentName": "b"}}}),
            "only one",
        ),
        (
            "VolumeSnapshot",
            json!({"spec": {"source": {"persistentVolumeClaimName": "a"}, "volumeSnapshotClassName": ""}}),
            "must not be the empty string",
        ),
        ("VolumeSnapshotContent", content(json!({}), of.clone()), "only one"),
        (
            "VolumeSnapshotContent",
            content(json!({"snapshotHandle": "h", "volumeHandle": "v"}), of.clone()),
            "only one",
        ),
        (
            "VolumeSnapshotContent",
            content(json!({"snapshotHandle": "h"}), json!({"name": "s"})),
            "the name and the namespace",
        ),
        ("VolumeSnapshotClass", json!({"driver": "d", "deletionPolicy": "Maybe"}), "Unsupported value"),
        ("VolumeSnapshotClass", json!({"deletionPolicy": "Retain"}), "driver"),
    ] {
        let refused = make(&world, kind, "wrong", rest).await.expect_err(says);
        assert!(refused.contains(says), "{refused}");
    }
    make(&world, "VolumeSnapshotContent", "rules-kept", content(json!({"snapshotHandle": "h"}), of))
        .await
        .unwrap();
    let spec = json!({"spec": {"source": {"volumeSnapshotContentName": "rules-none"}}});
    make(&world, "VolumeSnapshot", "kept", spec).await.unwrap();
    for (kind, name, patch, says) in [
        (
            "VolumeSnapshotContent",
            "rules-kept",
            json!({"spec": {"source": {"snapshotHandle": "other"}}}),
            "immutable",
        ),
        (
            "VolumeSnapshotContent",
            "rules-kept",
            json!({"spec": {"source": {"snapshotHandle": null, "volumeHandle": "v"}}}),
            "cannot be taken away",
        ),
        (
            "VolumeSnapshot",
            "kept",
            json!({"spec": {"source": {"volumeSnapshotContentName": "other"}}}),
            "immutable",
        ),
        (
            "VolumeSnapshot",
            "kept",
            json!({"spec": {"source": {"volumeSnapshotContentName": null, "persistentVolumeClaimName": "a"}}}),
            "cannot be taken away",
        ),
    ] {
        let patched = api(&world, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        let refused = patched.expect_err(says).to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_the_columns_that_people_know() {
    let world = World::start("columns", &[]).await;
    let content = world.snapshot("daily").await;
    world.ready("daily").await;
    let (titles, cells) =
        table(&world, "/apis/snapshot.storage.k8s.io/v1/namespaces/columns/volumesnapshots").await;
    let expected = [
        "Name",
        "ReadyToUse",
        "SourcePVC",
        "SourceSnapshotContent",
        "RestoreSize",
        "SnapshotClass",
        "SnapshotContent",
        "CreationTime",
        "Age",
    ];
    assert_eq!(titles, expected);
    assert_eq!(
        cells[..7],
        [
            json!("daily"),
            json!(true),
            json!("data"),
            Value::Null,
            json!("1Gi"),
            json!("columns"),
            json!(content)
        ]
    );
    let (titles, _) = table(&world, "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses").await;
    assert_eq!(titles, ["Name", "Driver", "DeletionPolicy", "Age"]);
    let (titles, _) = table(&world, "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents").await;
    let expected = [
        "Name",
        "ReadyToUse",
        "RestoreSize",
        "DeletionPolicy",
        "Driver",
        "VolumeSnapshotClass",
        "VolumeSnapshot",
        "VolumeSnapshotNamespace",
        "Age",
    ];
    assert_eq!(titles, expected);
    // Other programs write sizes as numbers too.
    let patch = json!({"status": {"restoreSize": 7}});
    let written =
        world.snapshots().patch_status("daily", &PatchParams::default(), &Patch::Merge(patch)).await;
    let read: VolumeSnapshot = written.unwrap();
    assert_eq!(read.status.unwrap().restore_size.unwrap().0, "7");
}

/// The titles, and the cells of the first row, as kubectl is told them.
async fn table(world: &World, path: &str) -> (Vec<String>, Vec<Value>) {
    let mut request = Request::new(path).list(&ListParams::default()).unwrap();
    let accept = "application/json;as=Table;g=meta.k8s.io;v=v1".parse().unwrap();
    request.headers_mut().insert("accept", accept);
    let table: Value = world.client.request(request).await.unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let columns = list(&table["columnDefinitions"]);
    let titles = columns.iter().map(|column| column["name"].as_str().unwrap().to_owned()).collect();
    (titles, list(&table["rows"][0]["cells"]))
}
