//! A snapshot's status: a copy of its content's, or what is in the way.

use dunnage_crds::snapshot::{SnapshotError, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::quantity;

/// The status that the content gives its snapshot.
pub(in super::super) fn copied(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
) -> VolumeSnapshotStatus {
    let theirs = content.status.clone().unwrap_or_default();
    let ready = theirs.ready_to_use.unwrap_or(false);
    let time = |nanoseconds: i64| Timestamp::from_nanosecond(nanoseconds.into()).ok().map(Time);
    VolumeSnapshotStatus {
        bound_volume_snapshot_content_name: content.metadata.name.clone(),
        creation_time: theirs.creation_time.and_then(time),
        ready_to_use: Some(ready),
        restore_size: theirs.restore_size.map(quantity::format),
        error: theirs.error.filter(|_| !ready),
        volume_group_snapshot_name: snapshot
            .status
            .as_ref()
            .and_then(|status| status.volume_group_snapshot_name.clone()),
    }
}

/// The status of a snapshot that something is in the way of. What else is known stays.
pub(in super::super) fn failed(
    snapshot: &VolumeSnapshot,
    message: &str,
    now: Timestamp,
) -> VolumeSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    let told = status.error.as_ref().and_then(|error| error.message.as_deref()) == Some(message);
    if !told {
        status.error = Some(SnapshotError { time: Some(Time(now)), message: Some(message.to_owned()) });
    }
    status.ready_to_use = Some(false);
    status
}

/// The patch from a snapshot's status to `wanted`; none when it is so already.
pub(in super::super) fn patch(snapshot: &VolumeSnapshot, wanted: &VolumeSnapshotStatus) -> Option<Value> {
    if snapshot.status.as_ref() == Some(wanted) {
        return None;
    }
    let VolumeSnapshotStatus {
        bound_volume_snapshot_content_name,
        creation_time,
        ready_to_use,
        restore_size,
        error,
        volume_group_snapshot_name: _,
    } = wanted;
    // What is not there any more is removed.
    Some(json!({"status": {
        "boundVolumeSnapshotContentName": bound_volume_snapshot_content_name,
        "creationTime": creation_time,
        "readyToUse": ready_to_use,
        "restoreSize": restore_size,
        "error": error,
    }}))
}

/// Whether nothing but what [`failed`] writes differs: working the snapshot for that would get around its back-off.
pub(in super::super) fn only_our_errors(old: &VolumeSnapshot, new: &VolumeSnapshot) -> bool {
    let without = |snapshot: &VolumeSnapshot| {
        let mut snapshot = snapshot.clone();
        snapshot.metadata.resource_version = None;
        let status = snapshot.status.get_or_insert_default();
        status.error = None;
        status.ready_to_use.get_or_insert(false);
        snapshot
    };
    old.metadata.resource_version != new.metadata.resource_version && without(old) == without(new)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{content, snapshot};
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("in range")
    }

    #[test]
    fn the_contents_status_is_copied_with_size_and_time_as_people_read_them() {
        let content = content(|content| {
            content["status"] = json!({
                "snapshotHandle": "s-1", "creationTime": 1_700_000_000_000_000_000_i64, "readyToUse": false,
                "restoreSize": 1_073_741_824, "error": {"message": "slow"},
            });
        });
        let made = copied(&snapshot(|_| ()), &content);
        let expected = json!({
            "boundVolumeSnapshotContentName": "snapcontent-u1", "creationTime": "2023-11-14T22:13:20Z",
            "readyToUse": false, "restoreSize": "1Gi", "error": {"message": "slow"},
        });
        assert_eq!(serde_json::to_value(&made).expect("json"), expected);
    }

    #[test]
    fn a_snapshot_that_is_ready_has_no_error() {
        let content = content(|content| {
            content["status"] = json!({"readyToUse": true, "error": {"message": "slow"}});
        });
        assert_eq!(copied(&snapshot(|_| ()), &content).error, None);
    }

    #[test]
    fn a_failure_is_told_once_and_keeps_its_time() {
        let fresh = snapshot(|_| ());
        let told = failed(&fresh, "no class", now());
        assert_eq!(told.ready_to_use, Some(false));
        let mut again = fresh.clone();
        again.status = Some(told.clone());
        let later = failed(&again, "no class", now() + std::time::Duration::from_secs(9));
        assert_eq!(later, told);
        assert_eq!(patch(&again, &later), None);
        assert!(patch(&again, &failed(&again, "other", now())).is_some());
    }

    #[test]
    fn our_own_error_does_not_wake_a_snapshot_and_everything_else_does() {
        let old = snapshot(|_| ());
        let error = |snapshot: &mut Value| {
            snapshot["metadata"]["resourceVersion"] = json!("2");
            snapshot["status"] = json!({"error": {"message": "x"}, "readyToUse": false});
        };
        assert!(only_our_errors(&old, &snapshot(error)));
        let deleted = snapshot(|snapshot| {
            error(snapshot);
            snapshot["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        assert!(!only_our_errors(&old, &deleted));
        assert!(!only_our_errors(&old, &old), "a resync");
    }
}
