//! Which changes of contents matter, and which of their fields: pure.

use dunnage_crds::snapshot::VolumeSnapshotContent;

use crate::snapshot::{BEING_CREATED, is_ready};

/// Drops what is not read: of other drivers' contents nearly all.
pub(super) fn trim(driver: String) -> impl Fn(&mut VolumeSnapshotContent) + Send + Sync {
    move |content| {
        content.metadata.labels = None;
        if content.spec.driver != driver {
            content.metadata.annotations = None;
            content.metadata.finalizers = None;
            content.spec.source = <_>::default();
            content.spec.volume_snapshot_ref = <_>::default();
            content.status = None;
        }
    }
}

/// Whether nothing differs but what the snapshotter writes itself: working the content for that would get around its
/// back-off. When the snapshot has become ready, what waited for that goes on.
pub(super) fn is_our_own(old: &VolumeSnapshotContent, new: &VolumeSnapshotContent) -> bool {
    let theirs = |content: &VolumeSnapshotContent| {
        let mut content = content.clone();
        content.metadata.resource_version = None;
        content.metadata.finalizers = None;
        content.status = None;
        if let Some(annotations) = &mut content.metadata.annotations {
            annotations.remove(BEING_CREATED);
        }
        content.metadata.annotations = content.metadata.annotations.filter(|left| !left.is_empty());
        content
    };
    let became_ready = is_ready(new) && !is_ready(old);
    old.metadata.resource_version != new.metadata.resource_version
        && !became_ready
        && theirs(old) == theirs(new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan::tests::content;
    use super::*;
    use crate::snapshot::{BEING_DELETED, CONTENT_FINALIZER};

    #[test]
    fn only_what_others_write_and_readiness_wake_a_content() {
        let status = |ready: bool| {
            move |content: &mut Value| content["status"] = json!({"snapshotHandle": "s", "readyToUse": ready})
        };
        let newer = |change: &dyn Fn(&mut Value)| {
            content(|content| {
                content["metadata"]["resourceVersion"] = json!("2");
                change(content);
            })
        };
        let old = content(status(false));
        for (change, ours) in [
            (&(|_: &mut Value| ()) as &dyn Fn(&mut Value), true),
            (&|c: &mut Value| c["metadata"]["annotations"] = json!({BEING_CREATED: "yes"}), true),
            (&|c: &mut Value| c["metadata"]["finalizers"] = json!([CONTENT_FINALIZER]), true),
            (&|c: &mut Value| c["status"] = json!({"error": {"message": "x"}}), true),
            (&status(true), false),
            (&|c: &mut Value| c["metadata"]["annotations"] = json!({BEING_DELETED: "yes"}), false),
            (&|c: &mut Value| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"), false),
            (&|c: &mut Value| c["spec"]["volumeSnapshotRef"]["uid"] = json!("u2"), false),
            (&|c: &mut Value| c["spec"]["deletionPolicy"] = json!("Retain"), false),
        ] {
            let new = newer(change);
            assert_eq!(is_our_own(&old, &new), ours, "{new:?}");
        }
        assert!(!is_our_own(&old, &old), "a resync");
    }

    #[test]
    fn of_other_drivers_contents_nearly_nothing_is_kept() {
        let (mut ours, mut theirs) = (content(|_| ()), content(|_| ()));
        trim("d".to_owned())(&mut ours);
        trim("x".to_owned())(&mut theirs);
        assert_eq!(ours.spec.source.volume_handle.as_deref(), Some("v-1"));
        assert_eq!(theirs.spec.source.volume_handle, None);
    }
}
