use tonic::Code;

use super::*;

/// A content of volume `v-1` on driver `d`, bound, changed.
pub(in super::super) fn content(change: impl FnOnce(&mut Value)) -> VolumeSnapshotContent {
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "snapcontent-u1", "resourceVersion": "1"},
        "spec": {
            "volumeSnapshotRef": {"name": "daily", "namespace": "shop", "uid": "u-1"},
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "v-1"},
        },
    });
    change(&mut content);
    serde_json::from_value(content).expect("content")
}

/// Several changes as one.
fn all(changes: &[&dyn Fn(&mut Value)]) -> VolumeSnapshotContent {
    content(|content| changes.iter().for_each(|change| change(content)))
}

fn note(content: &mut Value, key: &str) {
    content["metadata"]["annotations"][key] = json!("yes");
}

#[test]
fn every_state_of_a_content_has_its_step() {
    let deleting = |c: &mut Value| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let kept = |c: &mut Value| c["metadata"]["finalizers"] = json!([CONTENT_FINALIZER]);
    let wanted_gone = |c: &mut Value| note(c, BEING_DELETED);
    let creating = |c: &mut Value| note(c, BEING_CREATED);
    let grouped = |c: &mut Value| note(c, "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle");
    let retain = |c: &mut Value| c["spec"]["deletionPolicy"] = json!("Retain");
    let by_hand = |c: &mut Value| c["spec"]["source"] = json!({"snapshotHandle": "s-0"});
    let unbound = |c: &mut Value| c["spec"]["volumeSnapshotRef"]["uid"] = json!("");
    let ready = |c: &mut Value| c["status"] = json!({"snapshotHandle": "s-1", "readyToUse": true});
    let made = |c: &mut Value| c["status"] = json!({"snapshotHandle": "s-1", "readyToUse": false});
    let refused = |c: &mut Value| c["status"] = json!({"error": {"message": "x"}, "readyToUse": false});
    let create = || Step::Create { volume: "v-1" };
    let delete = || Step::Delete { handle: "s-1" };
    for (content, expected) in vec![
        (all(&[]), create()),
        (all(&[&refused]), create()),
        (all(&[&made]), create()),
        (all(&[&ready]), Step::Nothing),
        (all(&[&ready, &creating]), Step::Unmark),
        (all(&[&by_hand]), Step::Look { handle: "s-0" }),
        (all(&[&by_hand, &ready]), Step::Nothing),
        (all(&[&grouped]), Step::Nothing),
        (all(&[&grouped, &made]), Step::Look { handle: "s-1" }),
        // Its end is asked for, but the controller has not agreed.
        (all(&[&deleting, &kept]), create()),
        (all(&[&deleting, &kept, &ready]), Step::Nothing),
        // The end of a CreateSnapshot is not known: it is called until it is.
        (all(&[&deleting, &kept, &wanted_gone, &creating]), create()),
        (all(&[&deleting, &kept, &wanted_gone, &creating, &made]), create()),
        (all(&[&deleting, &kept, &wanted_gone, &creating, &ready]), Step::Unmark),
        (all(&[&deleting, &kept, &wanted_gone, &ready]), delete()),
        (all(&[&deleting, &kept, &wanted_gone, &made]), delete()),
        (all(&[&deleting, &kept, &wanted_gone, &refused]), Step::LetGo),
        (all(&[&deleting, &kept, &wanted_gone, &ready, &retain]), Step::LetGo),
        (all(&[&deleting, &kept, &wanted_gone, &ready, &grouped]), Step::LetGo),
        (all(&[&deleting, &wanted_gone, &retain]), Step::Nothing),
        (all(&[&wanted_gone, &ready]), Step::Nothing),
        (all(&[&deleting, &kept, &by_hand, &unbound]), Step::LetGo),
        (all(&[&deleting, &kept, &by_hand, &unbound, &ready]), delete()),
    ] {
        assert_eq!(step(&content), expected, "{content:?}");
    }
}

#[test]
fn a_call_is_noted_with_the_version_that_it_was_planned_for() {
    let fresh = content(|_| ());
    assert!(needs_mark(&fresh));
    let expected = json!({"metadata": {
        "resourceVersion": "1", "annotations": {BEING_CREATED: "yes"}, "finalizers": [CONTENT_FINALIZER],
    }});
    assert_eq!(mark(&fresh), expected);
    let going = content(|c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    assert_eq!(mark(&going)["metadata"].get("finalizers"), None, "none may be added any more");
    assert!(!needs_mark(&content(|c| note(c, BEING_CREATED))));
    assert!(!needs_mark(&content(|c| c["status"] = json!({"snapshotHandle": "s"}))), "the id keeps it");
}

#[test]
fn a_request_is_the_same_at_each_try_and_tells_names_only_when_asked() {
    let rules = |metadata| Rules { prefix: "snapshot".into(), uuid_length: -1, metadata, look: Look::No };
    let parameters = BTreeMap::from([
        ("tier".to_owned(), "cold".to_owned()),
        ("csi.storage.k8s.io/snapshotter-secret-name".to_owned(), "s".to_owned()),
    ]);
    let plain = request(&content(|_| ()), "v-1", &parameters, &rules(false)).expect("valid");
    assert_eq!((plain.name.as_str(), plain.source_volume_id.as_str()), ("snapshot-u-1", "v-1"));
    assert_eq!(plain.parameters, [("tier".to_owned(), "cold".to_owned())].into());
    let told = request(&content(|_| ()), "v-1", &parameters, &rules(true)).expect("valid").parameters;
    let value = |key: &str| told.get(&format!("csi.storage.k8s.io/{key}")).map(String::as_str);
    assert_eq!(value("volumesnapshot/name"), Some("daily"));
    assert_eq!(value("volumesnapshot/namespace"), Some("shop"));
    assert_eq!(value("volumesnapshotcontent/name"), Some("snapcontent-u1"));
    let cut = Rules { uuid_length: 1, ..rules(false) };
    assert_eq!(request(&content(|_| ()), "v", &parameters, &cut).expect("valid").name, "snapshot-u");
}

#[test]
fn only_an_answer_that_rules_the_snapshot_out_is_final() {
    for (code, expected) in [
        (Code::Cancelled, false),
        (Code::DeadlineExceeded, false),
        (Code::Unavailable, false),
        (Code::ResourceExhausted, false),
        (Code::Aborted, false),
        (Code::InvalidArgument, true),
        (Code::NotFound, true),
        (Code::FailedPrecondition, true),
        (Code::Internal, true),
        (Code::Unknown, true),
    ] {
        assert_eq!(is_final(&Status::new(code, "x")), expected, "{code:?}");
    }
}

#[test]
fn the_answer_becomes_the_status() {
    let now = Timestamp::from_second(1_800_000_000).expect("in range");
    let mut snapshot = Snapshot { snapshot_id: "s-1".into(), ready_to_use: true, ..Snapshot::default() };
    let made = found(&content(|_| ()), &snapshot, now);
    assert_eq!(made.creation_time, Some(1_800_000_000_000_000_000), "now, where the driver does not say");
    assert_eq!((made.restore_size, made.ready_to_use), (None, Some(true)));
    snapshot.size_bytes = 7;
    let at = snapshot.creation_time.get_or_insert_default();
    (at.seconds, at.nanos) = (5, 6);
    let failed_before = content(|c| c["status"] = json!({"error": {"message": "x"}, "creationTime": 1}));
    let made = found(&failed_before, &snapshot, now);
    assert_eq!((made.creation_time, made.restore_size, made.error), (Some(5_000_000_006), Some(7), None));
    snapshot.creation_time = None;
    assert_eq!(found(&failed_before, &snapshot, now).creation_time, Some(1), "what was noted stays");
}

#[test]
fn a_failure_is_told_once_and_the_end_clears_what_was_known() {
    let now = Timestamp::from_second(1_800_000_000).expect("in range");
    let mut content = content(|c| c["status"] = json!({"snapshotHandle": "s-1", "readyToUse": true}));
    let told = failed(&content, "no room", now);
    assert_eq!((told.snapshot_handle.as_deref(), told.ready_to_use), (Some("s-1"), Some(false)));
    content.status = Some(told.clone());
    assert_eq!(patch(&content, &failed(&content, "no room", Timestamp::UNIX_EPOCH)), None);
    let cleared = patch(&content, &gone(&content)).expect("a change");
    assert_eq!(cleared["status"]["snapshotHandle"], Value::Null);
    assert_eq!(cleared["status"]["readyToUse"], Value::Null);
}

#[test]
fn the_secret_is_named_in_the_annotations() {
    let with = |name: &str, namespace: &str| {
        secret(&content(|c| {
            c["metadata"]["annotations"] = json!({SECRET_NAME: name, SECRET_NAMESPACE: namespace});
        }))
    };
    let expected = SecretRef { name: "s".into(), namespace: "ns".into() };
    assert_eq!(with("s", "ns"), Some(expected));
    assert_eq!(with("", ""), None);
    assert_eq!(secret(&content(|_| ())), None);
}
