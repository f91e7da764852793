//! What the caches keep of each object: the rest is memory that nobody reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::provisioner::{claim as claims, names};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A claim that waits for this driver is kept nearly whole, every other one as a name.
pub(super) fn claim(claim: &mut PersistentVolumeClaim, driver: &str) {
    claim.metadata.labels = None;
    claim.metadata.owner_references = None;
    if let Some(status) = claim.status.take() {
        let phase = status.phase;
        claim.status =
            Some(k8s_openapi::api::core::v1::PersistentVolumeClaimStatus { phase, ..<_>::default() });
    }
    if claims::is_ours(claim, driver) && !claims::is_bound(claim) {
        if let Some(annotations) = &mut claim.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        return;
    }
    let ours = [names::STORAGE_PROVISIONER, names::STORAGE_PROVISIONER_BETA, names::MIGRATED_TO];
    keep(&mut claim.metadata, &ours);
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        data_source: spec.data_source,
        data_source_ref: spec.data_source_ref,
        storage_class_name: spec.storage_class_name,
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
}

/// A volume of this driver is kept as far as its deletion needs it, every other one as a name.
pub(super) fn volume(volume: &mut PersistentVolume, driver: &str) {
    volume.metadata.labels = None;
    keep(
        &mut volume.metadata,
        &[
            names::PROVISIONED_BY,
            names::MIGRATED_TO,
            names::DELETION_SECRET_NAME,
            names::DELETION_SECRET_NAMESPACE,
        ],
    );
    let Some(spec) = volume.spec.take() else { return };
    let ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == driver);
    volume.spec = Some(PersistentVolumeSpec {
        claim_ref: spec.claim_ref,
        csi: spec.csi.filter(|_| ours).map(|csi| CSIPersistentVolumeSource {
            driver: csi.driver,
            volume_handle: csi.volume_handle,
            ..CSIPersistentVolumeSource::default()
        }),
        node_affinity: spec.node_affinity.filter(|_| ours),
        persistent_volume_reclaim_policy: spec.persistent_volume_reclaim_policy,
        storage_class_name: spec.storage_class_name,
        ..PersistentVolumeSpec::default()
    });
}

pub(super) fn class(class: &mut StorageClass) {
    keep(&mut class.metadata, &[]);
}

pub(super) fn node(node: &mut Node) {
    node.metadata.annotations = None;
    node.spec = None;
    node.status = None;
}

pub(super) fn csi_node(node: &mut CSINode, driver: &str) {
    keep(&mut node.metadata, &[]);
    node.spec.drivers.retain(|found| found.name == driver);
}

pub(super) fn attachment(attachment: &mut VolumeAttachment) {
    keep(&mut attachment.metadata, &[]);
    attachment.status = None;
    let source = std::mem::take(&mut attachment.spec.source);
    attachment.spec = VolumeAttachmentSpec { source, ..VolumeAttachmentSpec::default() };
}

fn keep(metadata: &mut ObjectMeta, annotations: &[&str]) {
    metadata.labels = None;
    let all: BTreeMap<String, String> = metadata.annotations.take().unwrap_or_default();
    let kept: BTreeMap<String, String> =
        all.into_iter().filter(|(key, _)| annotations.contains(&key.as_str())).collect();
    metadata.annotations = (!kept.is_empty()).then_some(kept);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn a_claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {
                "name": "data", "labels": {"a": "b"},
                "annotations": {names::STORAGE_PROVISIONER: "d", LAST_APPLIED: "{}", "team": "x"},
            },
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"},
            "status": {"phase": "Pending", "conditions": []},
        });
        change(&mut claim);
        serde_json::from_value(claim).expect("a claim")
    }

    #[test]
    fn a_waiting_claim_keeps_what_its_request_is_made_of() {
        let mut waiting = a_claim(|_| ());
        claim(&mut waiting, "d");
        let annotations = waiting.metadata.annotations.expect("annotations");
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["team", names::STORAGE_PROVISIONER]);
        assert!(waiting.spec.expect("spec").access_modes.is_some());
    }

    #[test]
    fn other_claims_keep_little() {
        for mut other in [
            a_claim(|c| c["spec"]["volumeName"] = json!("pvc-1")),
            a_claim(|c| c["metadata"]["annotations"][names::STORAGE_PROVISIONER] = json!("other")),
        ] {
            claim(&mut other, "d");
            assert_eq!(other.metadata.annotations.expect("annotations").len(), 1);
            assert_eq!(other.spec.expect("spec").access_modes, None);
        }
    }

    #[test]
    fn a_volume_can_still_be_judged() {
        use crate::provisioner::delete::{Step, plan};
        let whole = json!({
            "metadata": {"name": "pvc-1", "annotations": {names::PROVISIONED_BY: "d", "note": "x"}},
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete", "capacity": {"storage": "1Gi"},
                "csi": {"driver": "d", "volumeHandle": "v1", "volumeAttributes": {"a": "b"}},
            },
            "status": {"phase": "Released"},
        });
        let mut trimmed: PersistentVolume = serde_json::from_value(whole).expect("a volume");
        volume(&mut trimmed, "d");
        assert_eq!(plan(&trimmed, "d", false), Step::Delete { handle: "v1" });
        assert_eq!(trimmed.spec.as_ref().expect("spec").capacity, None);
        volume(&mut trimmed, "other");
        assert_eq!(plan(&trimmed, "d", false), Step::Nothing);
    }
}
