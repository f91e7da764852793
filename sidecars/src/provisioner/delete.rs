//! What a PersistentVolume needs: its finalizer kept, or its volume deleted.

pub mod run;

use k8s_openapi::api::core::v1::PersistentVolume;

use super::names;
use super::secrets::SecretRef;

/// The next thing to do for a PersistentVolume.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Nothing,
    AddFinalizer,
    RemoveFinalizer,
    /// The volume is to go, but a node still has it.
    AwaitDetach,
    Delete {
        handle: &'a str,
    },
}

/// Where the secret for DeleteVolume is named.
#[derive(Debug, PartialEq, Eq)]
pub enum DeletionSecret {
    None,
    Named(SecretRef),
    /// The volume does not say: its StorageClass may.
    ByClass,
}

/// Plans for one PersistentVolume; `attached` is whether a VolumeAttachment names it.
pub fn plan<'a>(volume: &'a PersistentVolume, driver: &str, attached: bool) -> Step<'a> {
    let Some(handle) = handle_if_ours(volume, driver) else { return Step::Nothing };
    let metadata = &volume.metadata;
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleting = metadata.deletion_timestamp.is_some();
    let finalizer = metadata.finalizers.iter().flatten().any(|found| found == names::VOLUME_FINALIZER);
    match (policy, phase) {
        (Some("Retain" | "Recycle"), _) if finalizer => Step::RemoveFinalizer,
        (Some("Delete"), Some("Bound")) if !deleting && !finalizer => Step::AddFinalizer,
        // One that is being deleted without our finalizer was deleted by somebody who took it off on purpose.
        (Some("Delete"), Some("Released")) if !deleting || finalizer => {
            if attached {
                Step::AwaitDetach
            } else {
                Step::Delete { handle }
            }
        }
        _ => Step::Nothing,
    }
}

/// The secret that the volume's annotations name.
pub fn deletion_secret(volume: &PersistentVolume) -> DeletionSecret {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key);
    let name = annotation(names::DELETION_SECRET_NAME);
    let namespace = annotation(names::DELETION_SECRET_NAMESPACE);
    match (name, namespace) {
        (Some(name), Some(namespace)) if name.is_empty() || namespace.is_empty() => DeletionSecret::None,
        (Some(name), Some(namespace)) => {
            DeletionSecret::Named(SecretRef { name: name.clone(), namespace: namespace.clone() })
        }
        _ => DeletionSecret::ByClass,
    }
}

/// The volume's id when it is this driver's, made here or by hand.
fn handle_if_ours<'a>(volume: &'a PersistentVolume, driver: &str) -> Option<&'a str> {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    // A migrated in-tree volume has no handle that could be trusted without translation.
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    let ours = match annotation(names::PROVISIONED_BY) {
        Some(by) => by == driver || annotation(names::MIGRATED_TO) == Some(driver),
        None => csi.driver == driver,
    };
    (ours && csi.driver == driver).then_some(csi.volume_handle.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(policy: &str, phase: &str, change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {
                "name": "pvc-1",
                "annotations": {names::PROVISIONED_BY: "d"},
                "finalizers": ["kubernetes.io/pv-protection", names::VOLUME_FINALIZER],
            },
            "spec": {
                "persistentVolumeReclaimPolicy": policy,
                "csi": {"driver": "d", "volumeHandle": "v1"},
            },
            "status": {"phase": phase},
        });
        change(&mut volume);
        serde_json::from_value(volume).expect("a volume")
    }

    fn deleting(volume: &mut Value) {
        volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }

    fn no_finalizer(volume: &mut Value) {
        volume["metadata"]["finalizers"] = json!([]);
    }

    #[test]
    fn a_released_volume_with_policy_delete_is_deleted() {
        let delete = Step::Delete { handle: "v1" };
        assert_eq!(plan(&volume("Delete", "Released", |_| ()), "d", false), delete);
        assert_eq!(plan(&volume("Delete", "Released", deleting), "d", false), delete);
        assert_eq!(plan(&volume("Delete", "Released", no_finalizer), "d", false), delete);
        assert_eq!(plan(&volume("Delete", "Released", |_| ()), "d", true), Step::AwaitDetach);
        let taken = volume("Delete", "Released", |v| {
            deleting(v);
            no_finalizer(v);
        });
        assert_eq!(plan(&taken, "d", false), Step::Nothing);
    }

    #[test]
    fn a_bound_volume_is_kept_even_when_its_deletion_was_asked_for() {
        for phase in ["Pending", "Available", "Bound", "Failed"] {
            assert_eq!(plan(&volume("Delete", phase, deleting), "d", false), Step::Nothing, "{phase}");
        }
    }

    #[test]
    fn the_finalizer_follows_the_policy() {
        assert_eq!(plan(&volume("Delete", "Bound", no_finalizer), "d", false), Step::AddFinalizer);
        assert_eq!(plan(&volume("Delete", "Bound", |_| ()), "d", false), Step::Nothing);
        for policy in ["Retain", "Recycle"] {
            for phase in ["Bound", "Released"] {
                assert_eq!(plan(&volume(policy, phase, |_| ()), "d", false), Step::RemoveFinalizer);
                assert_eq!(plan(&volume(policy, phase, no_finalizer), "d", false), Step::Nothing);
            }
        }
    }

    #[test]
    fn a_volume_is_ours_by_annotation_or_without_one_by_driver() {
        let by_hand = volume("Delete", "Released", |v| v["metadata"]["annotations"] = json!({}));
        assert_eq!(plan(&by_hand, "d", false), Step::Delete { handle: "v1" });
        let others = volume("Delete", "Released", |v| {
            v["metadata"]["annotations"] = json!({names::PROVISIONED_BY: "x"});
        });
        assert_eq!(plan(&others, "d", false), Step::Nothing);
        let in_tree = volume("Delete", "Released", |v| {
            v["metadata"]["annotations"] =
                json!({names::PROVISIONED_BY: "kubernetes.io/x", names::MIGRATED_TO: "d"});
            v["spec"] = json!({"persistentVolumeReclaimPolicy": "Delete"});
        });
        assert_eq!(plan(&in_tree, "d", false), Step::Nothing);
    }

    #[test]
    fn the_deletion_secret_is_named_absent_or_left_to_the_class() {
        let with = |name: &str, namespace: &str| {
            volume("Delete", "Released", |v| {
                v["metadata"]["annotations"] =
                    json!({names::DELETION_SECRET_NAME: name, names::DELETION_SECRET_NAMESPACE: namespace});
            })
        };
        let named = SecretRef { name: "s".into(), namespace: "ns".into() };
        assert_eq!(deletion_secret(&with("s", "ns")), DeletionSecret::Named(named));
        assert_eq!(deletion_secret(&with("", "")), DeletionSecret::None);
        assert_eq!(deletion_secret(&with("s", "")), DeletionSecret::None);
        assert_eq!(deletion_secret(&volume("Delete", "Released", |_| ())), DeletionSecret::ByClass);
    }
}
