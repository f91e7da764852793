//! Which changes of watched objects matter, and which of their fields: pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;

/// Drops what is not read from an attachment.
pub(super) fn trim(attachment: &mut VolumeAttachment) {
    attachment.metadata.labels = None;
    attachment.metadata.owner_references = None;
}

/// Drops what is not read from a volume.
pub(super) fn trim_volume(volume: &mut PersistentVolume) {
    volume.metadata.labels = None;
    volume.metadata.annotations = None;
    volume.status = None;
    volume.spec = volume.spec.take().map(|spec| PersistentVolumeSpec {
        access_modes: spec.access_modes,
        csi: spec.csi,
        mount_options: spec.mount_options,
        volume_mode: spec.volume_mode,
        ..PersistentVolumeSpec::default()
    });
}

/// Whether nothing but the errors in the status differ. We write those ourselves: working the attachment for that
/// would get around its back-off.
pub(super) fn only_our_errors(old: &VolumeAttachment, new: &VolumeAttachment) -> bool {
    let without_errors = |attachment: &VolumeAttachment| {
        let mut attachment = attachment.clone();
        attachment.metadata.resource_version = None;
        // The first error also brings the status itself.
        let status = attachment.status.get_or_insert_default();
        status.attach_error = None;
        status.detach_error = None;
        attachment
    };
    old.metadata.resource_version != new.metadata.resource_version
        && without_errors(old) == without_errors(new)
}

/// The names of attachments that wait for something: not attached yet, or to be detached.
pub(super) fn unsettled(attachments: Vec<Arc<VolumeAttachment>>) -> impl Iterator<Item = String> {
    attachments.into_iter().filter_map(|attachment| {
        let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        let settled = attached && attachment.metadata.deletion_timestamp.is_none();
        attachment.metadata.name.clone().filter(|_| !settled)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn attachment(version: &str, status: Value, more: Value) -> VolumeAttachment {
        let mut object = json!({
            "metadata": {"name": "csi-1", "resourceVersion": version},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
            "status": status,
        });
        for (key, value) in more.as_object().expect("object") {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).expect("an attachment")
    }

    #[test]
    fn only_our_own_errors_are_no_reason_to_work_an_attachment() {
        let none = || json!({});
        let old = attachment("1", json!(null), none());
        for (version, status, more, ignored) in [
            ("2", json!({"attached": false, "attachError": {"message": "m"}}), none(), true),
            ("2", json!({"attached": false, "detachError": {"message": "m"}}), none(), true),
            ("2", json!({"attached": true}), none(), false),
            ("2", json!(null), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), false),
            ("2", json!(null), json!({"finalizers": ["f"]}), false),
            ("2", json!(null), json!({"annotations": {"a": "b"}}), false),
            // A resync, not a change.
            ("1", json!(null), none(), false),
        ] {
            let new = attachment(version, status, more);
            assert_eq!(only_our_errors(&old, &new), ignored, "{new:?}");
        }
    }

    #[test]
    fn what_waits_is_not_attached_or_is_to_be_detached() {
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (status, more, waits) in [
            (json!(null), json!({}), true),
            (json!({"attached": false}), json!({}), true),
            (json!({"attached": true}), json!({}), false),
            (json!({"attached": true}), deleting, true),
        ] {
            let attachment = Arc::new(attachment("1", status, more));
            assert_eq!(
                unsettled(vec![Arc::clone(&attachment)]).count(),
                usize::from(waits),
                "{attachment:?}"
            );
        }
    }
}
