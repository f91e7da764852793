//! What a claim is to others: to events about it, and to the pods that use it.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};

/// The claim as an event names it.
pub(crate) fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// The names of the claims that a pod has among its volumes, by name or as ones that were made for it.
pub(crate) fn of_pod(pod: &Pod) -> impl Iterator<Item = String> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        // As Kubernetes names the claim of a generic ephemeral volume.
        (None, Some(_)) => Some(format!("{pod_name}-{}", volume.name)),
        (None, None) => None,
    })
}
