use serde_json::{Value, json};

use super::*;

/// A snapshot of claim `data`, changed.
pub(in super::super) fn snapshot(change: impl FnOnce(&mut Value)) -> VolumeSnapshot {
    let mut snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "daily", "namespace": "shop", "uid": "u1", "resourceVersion": "1"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "class"},
    });
    change(&mut snapshot);
    serde_json::from_value(snapshot).expect("snapshot")
}

/// The content of that snapshot, changed.
pub(in super::super) fn content(change: impl FnOnce(&mut Value)) -> VolumeSnapshotContent {
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "snapcontent-u1", "resourceVersion": "1"},
        "spec": {
            "volumeSnapshotRef": {"name": "daily", "namespace": "shop", "uid": "u1"},
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "v-1"},
        },
    });
    change(&mut content);
    serde_json::from_value(content).expect("content")
}

fn by_hand(snapshot: &mut Value) {
    snapshot["spec"]["source"] = json!({"volumeSnapshotContentName": "kept"});
}

fn handle(content: &mut Value) {
    content["spec"]["source"] = json!({"snapshotHandle": "s-1"});
}

fn ready(snapshot: &mut Value) {
    snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u1", "readyToUse": true});
}

#[test]
fn every_state_of_a_snapshot_has_its_step() {
    let of = |uid: Value, name: &str| {
        let name = name.to_owned();
        move |content: &mut Value| {
            content["spec"]["volumeSnapshotRef"] = json!({"name": name, "namespace": "shop", "uid": uid});
        }
    };
    let free = |content: &mut Value| {
        handle(content);
        of(json!(null), "daily")(content);
    };
    let others = |content: &mut Value| {
        handle(content);
        of(json!("u2"), "daily")(content);
    };
    let for_another = |content: &mut Value| {
        handle(content);
        of(json!(null), "weekly")(content);
    };
    let bound = |snapshot: &mut Value| {
        snapshot["status"] = json!({"boundVolumeSnapshotContentName": "snapcontent-u1"});
    };
    let grouped = |snapshot: &mut Value| {
        snapshot["status"] = json!({"volumeGroupSnapshotName": "all"});
    };
    let nowhere = |snapshot: &mut Value| snapshot["spec"]["source"] = json!({});
    for (snapshot, content, expected) in vec![
        (snapshot(|_| ()), None, Ok(Step::Create)),
        (snapshot(|_| ()), Some(content(|_| ())), Ok(Step::Copy)),
        (snapshot(|_| ()), Some(content(handle)), Err("SnapshotHandleSet")),
        (snapshot(|_| ()), Some(content(of(json!("u2"), "daily"))), Err("SnapshotContentMisbound")),
        (snapshot(bound), None, Err("SnapshotContentMissing")),
        (snapshot(ready), Some(content(|_| ())), Ok(Step::Nothing)),
        (snapshot(ready), None, Err("SnapshotContentMissing")),
        (snapshot(ready), Some(content(of(json!("u2"), "daily"))), Err("SnapshotMisbound")),
        (snapshot(by_hand), None, Err("SnapshotContentMissing")),
        (snapshot(by_hand), Some(content(|_| ())), Err("SnapshotContentMismatch")),
        (snapshot(by_hand), Some(content(free)), Ok(Step::Bind)),
        (snapshot(by_hand), Some(content(handle)), Ok(Step::Copy)),
        (snapshot(by_hand), Some(content(others)), Err("SnapshotContentMisbound")),
        (snapshot(by_hand), Some(content(for_another)), Err("SnapshotContentMisbound")),
        (snapshot(grouped), None, Ok(Step::Nothing)),
        (snapshot(grouped), Some(content(handle)), Ok(Step::Copy)),
        (snapshot(nowhere), None, Err("SnapshotValidationError")),
    ] {
        let step = step(&snapshot, content.as_ref()).map_err(|problem| problem.reason);
        assert_eq!(step, expected, "{snapshot:?} {content:?}");
    }
}

#[test]
fn a_content_is_found_by_the_source_the_status_or_the_uid() {
    assert_eq!(content_name(&snapshot(|_| ())), "snapcontent-u1");
    assert_eq!(content_name(&snapshot(by_hand)), "kept");
    let bound = snapshot(|s| s["status"] = json!({"boundVolumeSnapshotContentName": "of-a-group"}));
    assert_eq!(content_name(&bound), "of-a-group");
}

#[test]
fn a_snapshot_gets_one_finalizer_at_once_and_one_with_a_content_that_goes_too() {
    let retain = |content: &mut Value| content["spec"]["deletionPolicy"] = json!("Retain");
    let foreign = |content: &mut Value| content["spec"]["volumeSnapshotRef"]["uid"] = json!("u2");
    for (content, expected) in [
        (None, vec![SOURCE_FINALIZER]),
        (Some(content(retain)), vec![SOURCE_FINALIZER]),
        (Some(content(foreign)), vec![SOURCE_FINALIZER]),
        (Some(content(|_| ())), vec![SOURCE_FINALIZER, BOUND_FINALIZER]),
    ] {
        assert_eq!(missing_finalizers(&snapshot(|_| ()), content.as_ref()), expected);
    }
    let has_both = snapshot(|s| s["metadata"]["finalizers"] = json!([SOURCE_FINALIZER, BOUND_FINALIZER]));
    assert!(missing_finalizers(&has_both, Some(&content(|_| ()))).is_empty());
}

#[test]
fn exactly_one_default_class_of_the_driver_is_taken() {
    let class = |name: &str, driver: &str, default: &str| -> VolumeSnapshotClass {
        let class = json!({
            "metadata": {"name": name, "annotations": {DEFAULT_CLASS: default}},
            "driver": driver, "deletionPolicy": "Delete",
        });
        serde_json::from_value(class).expect("class")
    };
    let classes = [class("a", "d", "true"), class("b", "d", "false"), class("c", "x", "true")];
    assert_eq!(default_class(&classes, "d"), Ok("a".to_owned()));
    assert!(default_class(&classes, "y").is_err());
    let two = [class("a", "d", "true"), class("b", "d", "true")];
    assert!(default_class(&two, "d").is_err_and(|refused| refused.message.contains("a, b")));
}

#[test]
fn only_a_snapshot_of_a_claim_that_is_not_bound_waits_for_a_class() {
    let no_class = |snapshot: &mut Value| snapshot["spec"]["volumeSnapshotClassName"] = json!(null);
    assert!(lacks_class(&snapshot(no_class)));
    assert!(!lacks_class(&snapshot(|_| ())));
    for change in [by_hand, ready] {
        let other = snapshot(|snapshot| {
            no_class(snapshot);
            change(snapshot);
        });
        assert!(!lacks_class(&other), "{other:?}");
    }
}

#[test]
fn binding_writes_the_uid_and_the_class() {
    let expected = json!({"spec": {"volumeSnapshotRef": {"uid": "u1"}, "volumeSnapshotClassName": "class"}});
    assert_eq!(bind(&snapshot(|_| ())), expected);
}
