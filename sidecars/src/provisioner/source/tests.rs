use serde_json::{Value, json};

use super::*;

fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "copy", "namespace": "shop", "uid": "1"},
        "spec": {
            "storageClassName": "fast", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "2Gi"}},
        },
    });
    change(&mut claim);
    serde_json::from_value(claim).expect("a claim")
}

fn words(reference: Reference<'_>) -> String {
    match reference {
        Reference::None => "none".to_owned(),
        Reference::Snapshot(Place { namespace, name }) => format!("Snapshot {namespace}/{name}"),
        Reference::Claim(Place { namespace, name }) => format!("Claim {namespace}/{name}"),
        Reference::Populator(kind) => format!("Populator {kind}"),
    }
}

#[test]
fn the_object_named_by_a_claim_is_recognised() {
    for (source, expected) in [
        (json!({}), Ok("none")),
        (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}), Ok("Claim shop/a")),
        (
            json!({"dataSource": {"kind": "VolumeSnapshot", "name": "a", "apiGroup": "snapshot.storage.k8s.io"}}),
            Ok("Snapshot shop/a"),
        ),
        (json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a"}}), Ok("Claim shop/a")),
        (json!({"dataSourceRef": {"kind": "Image", "name": "a", "apiGroup": "x.io"}}), Ok("Populator Image")),
        (
            json!({"dataSource": {"kind": "VolumeSnapshot", "name": "a", "apiGroup": "x.io"}}),
            Err("no data source"),
        ),
        (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": ""}}), Err("has no name")),
        (
            json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": "other"}}),
            Ok("Claim other/a"),
        ),
    ] {
        let claim = claim(|c| c["spec"] = source);
        match (reference(&claim), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(words(found), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }
}

fn source_claim() -> Value {
    json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "9"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    })
}

fn source_volume() -> Value {
    json!({
        "spec": {
            "csi": {"driver": "d", "volumeHandle": "v9"},
            "claimRef": {"name": "data", "namespace": "shop", "uid": "9"},
        },
        "status": {"phase": "Bound"},
    })
}

fn cloned(source: Value, volume: Value) -> Result<Source, Invalid> {
    let source = serde_json::from_value(source).expect("a claim");
    let volume: Option<PersistentVolume> = serde_json::from_value(volume).expect("a volume");
    from_claim(&claim(|_| ()), "d", &source, volume.as_ref())
}

#[test]
fn a_bound_claim_of_the_driver_can_be_cloned() {
    assert_eq!(cloned(source_claim(), source_volume()), Ok(Source::Volume("v9".into())));
}

#[test]
fn a_claim_that_cannot_be_cloned_says_why() {
    let with = |mut value: Value, pointer: &str, to: Value| {
        *value.pointer_mut(pointer).expect("a place") = to;
        value
    };
    let mut deleting = source_claim();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut block = source_claim();
    block["spec"]["volumeMode"] = json!("Block");
    for (source, volume, expected) in [
        (deleting, source_volume(), "being deleted"),
        (with(source_claim(), "/status/phase", json!("Pending")), source_volume(), "not bound"),
        (with(source_claim(), "/spec/storageClassName", Value::Null), source_volume(), "StorageClass"),
        (source_claim(), Value::Null, "no PersistentVolume"),
        (source_claim(), with(source_volume(), "/spec/csi/driver", json!("x")), "another driver"),
        (source_claim(), with(source_volume(), "/spec/claimRef/uid", json!("8")), "to each other"),
        (block, source_volume(), "volumeMode"),
        (with(source_claim(), "/spec/resources/requests/storage", json!("3Gi")), source_volume(), "larger"),
    ] {
        let error = cloned(source, volume).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn snapshot() -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "shop", "uid": "5"},
        "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi"},
    })
}

fn content() -> Value {
    json!({
        "metadata": {"name": "c", "annotations": {}},
        "spec": {
            "driver": "d", "sourceVolumeMode": "Filesystem",
            "volumeSnapshotRef": {"name": "s", "namespace": "shop", "uid": "5"},
        },
        "status": {"snapshotHandle": "h"},
    })
}

fn restored(snapshot: Value, content: Value) -> Result<Source, Invalid> {
    let snapshot: Snapshot = serde_json::from_value(snapshot).expect("a snapshot");
    content_name(&snapshot)?;
    from_snapshot(&claim(|_| ()), "d", true, &snapshot, &serde_json::from_value(content).expect("content"))
}

#[test]
fn a_ready_snapshot_can_be_restored_and_a_larger_claim_is_allowed() {
    assert_eq!(restored(snapshot(), content()), Ok(Source::Snapshot("h".into())));
}

#[test]
fn a_snapshot_that_cannot_be_restored_says_why() {
    let with = |mut value: Value, pointer: &str, to: Value| {
        *value.pointer_mut(pointer).expect("a place") = to;
        value
    };
    let mut deleting = snapshot();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (snapshot, content, expected) in [
        (deleting, content(), "being deleted"),
        (
            with(snapshot(), "/status/boundVolumeSnapshotContentName", Value::Null),
            content(),
            "not bound to a",
        ),
        (snapshot(), with(content(), "/spec/volumeSnapshotRef/uid", json!("6")), "to each other"),
        (snapshot(), with(content(), "/spec/driver", json!("x")), "another driver"),
        (with(snapshot(), "/status/readyToUse", json!(false)), content(), "not ready"),
        (with(snapshot(), "/status/restoreSize", json!("3Gi")), content(), "larger"),
        (snapshot(), with(content(), "/spec/sourceVolumeMode", json!("Block")), "volumeMode"),
        (snapshot(), with(content(), "/status/snapshotHandle", Value::Null), "no handle"),
    ] {
        let error = restored(snapshot, content).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_restore_that_has_begun_goes_on_although_the_snapshot_is_being_deleted() {
    let mut deleting = snapshot();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleting["metadata"]["finalizers"] = json!([names::SNAPSHOT_FINALIZER]);
    assert_eq!(restored(deleting, content()), Ok(Source::Snapshot("h".into())));
}

#[test]
fn the_volume_mode_may_change_where_the_content_allows_it() {
    let mut content = content();
    content["spec"]["sourceVolumeMode"] = json!("Block");
    content["metadata"]["annotations"][names::ALLOW_MODE_CHANGE] = json!("true");
    assert_eq!(restored(snapshot(), content), Ok(Source::Snapshot("h".into())));
}
