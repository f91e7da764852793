//! The PersistentVolume for a volume that the driver made.

use std::collections::BTreeMap;

use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::{CreateVolumeRequest, Volume};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, SecretReference, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::params::SecretKind;
use super::secrets::SecretRef;
use super::{claim, names, request};
use crate::quantity;

/// All that a PersistentVolume is made of.
pub struct Inputs<'a> {
    pub driver: &'a str,
    pub identity: &'a str,
    pub claim: &'a PersistentVolumeClaim,
    pub class: &'a StorageClass,
    pub request: &'a CreateVolumeRequest,
    pub volume: &'a Volume,
    pub fs_type: &'a str,
    pub secrets: &'a BTreeMap<SecretKind, SecretRef>,
    /// Whether a volume that can only be read by many nodes is marked read-only.
    pub publish_read_only: bool,
}

/// An answer that does not keep what was asked for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("the driver made a volume of {made} bytes although {asked} were asked for")]
    TooSmall { made: i64, asked: i64 },
    #[error("the driver made an empty volume although it was to be filled from a source")]
    NoSource,
    #[error("the driver's answer names no volume")]
    NoId,
}

/// Checks an answer against its request.
pub fn check(request: &CreateVolumeRequest, volume: &Volume) -> Result<(), Mismatch> {
    if volume.volume_id.is_empty() {
        return Err(Mismatch::NoId);
    }
    let asked = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
    if volume.capacity_bytes != 0 && volume.capacity_bytes < asked {
        return Err(Mismatch::TooSmall { made: volume.capacity_bytes, asked });
    }
    if request.volume_content_source.is_some() && volume.content_source.is_none() {
        return Err(Mismatch::NoSource);
    }
    Ok(())
}

/// Builds the object.
pub fn build(inputs: &Inputs<'_>) -> PersistentVolume {
    let spec = inputs.claim.spec.clone().unwrap_or_default();
    let asked = inputs.request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
    let bytes = if inputs.volume.capacity_bytes == 0 { asked } else { inputs.volume.capacity_bytes };
    PersistentVolume {
        metadata: metadata(inputs),
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some([("storage".to_owned(), quantity::format(bytes))].into()),
            claim_ref: Some(claim_ref(inputs.claim)),
            csi: Some(csi(inputs)),
            mount_options: inputs.class.mount_options.clone(),
            node_affinity: affinity(inputs.volume),
            persistent_volume_reclaim_policy: Some(
                inputs.class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
            ),
            storage_class_name: claim::class_name(inputs.claim).map(str::to_owned),
            volume_attributes_class_name: spec.volume_attributes_class_name.filter(|name| !name.is_empty()),
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn metadata(inputs: &Inputs<'_>) -> ObjectMeta {
    let mut annotations =
        BTreeMap::from([(names::PROVISIONED_BY.to_owned(), inputs.class.provisioner.clone())]);
    // Always both: their absence means "look the class up" when the volume is deleted.
    let deletion = inputs.secrets.get(&SecretKind::Provisioner);
    let (name, namespace) =
        deletion.map_or(("", ""), |secret| (secret.name.as_str(), secret.namespace.as_str()));
    annotations.insert(names::DELETION_SECRET_NAME.to_owned(), name.to_owned());
    annotations.insert(names::DELETION_SECRET_NAMESPACE.to_owned(), namespace.to_owned());
    if let Some(modify) = inputs.secrets.get(&SecretKind::ControllerModify) {
        annotations.insert(names::MODIFY_SECRET_NAME.to_owned(), modify.name.clone());
        annotations.insert(names::MODIFY_SECRET_NAMESPACE.to_owned(), modify.namespace.clone());
    }
    ObjectMeta {
        name: Some(inputs.request.name.clone()),
        annotations: Some(annotations),
        finalizers: Some(vec![names::VOLUME_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    }
}

fn claim_ref(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

fn csi(inputs: &Inputs<'_>) -> CSIPersistentVolumeSource {
    let mut attributes = BTreeMap::from([(names::IDENTITY_ATTRIBUTE.to_owned(), inputs.identity.to_owned())]);
    attributes.extend(inputs.volume.volume_context.clone());
    let secret = |kind: SecretKind| {
        inputs.secrets.get(&kind).map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: Some(secret.namespace.clone()),
        })
    };
    let fs_type = (!request::is_block(inputs.claim) && !inputs.fs_type.is_empty()).then_some(inputs.fs_type);
    CSIPersistentVolumeSource {
        driver: inputs.driver.to_owned(),
        volume_handle: inputs.volume.volume_id.clone(),
        volume_attributes: Some(attributes),
        fs_type: fs_type.map(str::to_owned),
        read_only: (inputs.publish_read_only && only_read(inputs.request)).then_some(true),
        controller_expand_secret_ref: secret(SecretKind::ControllerExpand),
        controller_publish_secret_ref: secret(SecretKind::ControllerPublish),
        node_expand_secret_ref: secret(SecretKind::NodeExpand),
        node_publish_secret_ref: secret(SecretKind::NodePublish),
        node_stage_secret_ref: secret(SecretKind::NodeStage),
    }
}

fn only_read(request: &CreateVolumeRequest) -> bool {
    let [capability] = request.volume_capabilities.as_slice() else { return false };
    capability.access_mode.as_ref().is_some_and(|mode| mode.mode() == Mode::MultiNodeReaderOnly)
}

fn affinity(volume: &Volume) -> Option<VolumeNodeAffinity> {
    let mut terms = Vec::new();
    for topology in volume.accessible_topology.iter().filter(|topology| !topology.segments.is_empty()) {
        let sorted: BTreeMap<&String, &String> = topology.segments.iter().collect();
        let expressions = sorted.into_iter().map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        });
        terms.push(NodeSelectorTerm {
            match_expressions: Some(expressions.collect()),
            ..NodeSelectorTerm::default()
        });
    }
    let required = NodeSelector { node_selector_terms: terms };
    (!required.node_selector_terms.is_empty()).then_some(VolumeNodeAffinity { required: Some(required) })
}

#[cfg(test)]
mod tests;
