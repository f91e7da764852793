//! What is kept of each kind. A trimmed object is never written back.

use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Node, NodeSpec, NodeStatus, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, Pod, PodSpec,
};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

fn bare(meta: &mut ObjectMeta) {
    meta.annotations = None;
    meta.labels = None;
    meta.owner_references = None;
}

pub(super) fn node(node: &mut Node) {
    node.spec = node.spec.take().map(|spec| NodeSpec { taints: spec.taints, ..NodeSpec::default() });
    // Heartbeats change the conditions' times; only Ready is read.
    node.status = node.status.take().map(|status| NodeStatus {
        conditions: status.conditions.map(|conditions| {
            conditions.into_iter().filter(|condition| condition.type_ == "Ready").collect()
        }),
        node_info: status.node_info,
        ..NodeStatus::default()
    });
}

/// Whether two forms of a node differ in nothing but heartbeats.
pub(super) fn same_node(a: &Node, b: &Node) -> bool {
    let readiness = |node: &Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.map(|condition| condition.status.clone()).next()
    };
    let info = |node: &Node| node.status.as_ref().and_then(|status| status.node_info.clone());
    a.metadata.uid == b.metadata.uid
        && a.metadata.labels == b.metadata.labels
        && a.metadata.annotations == b.metadata.annotations
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.spec == b.spec
        && readiness(a) == readiness(b)
        && info(a) == info(b)
}

pub(super) fn csi_node(node: &mut CSINode) {
    bare(&mut node.metadata);
}

pub(super) fn pod(pod: &mut Pod) {
    pod.spec = pod.spec.take().map(|spec| PodSpec { node_name: spec.node_name, ..PodSpec::default() });
}

pub(super) fn daemon_set(set: &mut DaemonSet) {
    set.spec = None;
}

pub(super) fn stateful_set(set: &mut StatefulSet) {
    if let Some(spec) = &mut set.spec {
        spec.template = k8s_openapi::api::core::v1::PodTemplateSpec::default();
    }
}

pub(super) fn volume(volume: &mut PersistentVolume) {
    bare(&mut volume.metadata);
    volume.spec = volume.spec.take().map(|spec| PersistentVolumeSpec {
        csi: spec.csi.map(|mut csi| {
            csi.volume_attributes = None;
            csi
        }),
        claim_ref: spec.claim_ref,
        ..PersistentVolumeSpec::default()
    });
}

pub(super) fn attachment(attachment: &mut VolumeAttachment) {
    bare(&mut attachment.metadata);
    attachment.status = None;
}

pub(super) fn claim(claim: &mut PersistentVolumeClaim) {
    let provisioner = |key: &String| super::PROVISIONER.contains(&key.as_str());
    claim.metadata.annotations = claim
        .metadata
        .annotations
        .take()
        .map(|annotations| annotations.into_iter().filter(|(key, _)| provisioner(key)).collect());
    claim.metadata.labels = None;
    claim.metadata.owner_references = None;
    claim.status = None;
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
}
