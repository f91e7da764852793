//! The content that is made for a snapshot.

use std::collections::BTreeMap;

use dunnage_crds::snapshot::{
    ContentSource, SNAPSHOT_GROUP, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
    VolumeSnapshotContentSpec,
};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use kube::api::ObjectMeta;

use super::{Problem, made_name, problem};
use crate::snapshot::params::{self, Facts, Purpose};
use crate::snapshot::{CONTENT_FINALIZER, SECRET_NAME, SECRET_NAMESPACE};

/// The volume of a claim, which it must be bound to.
pub(in super::super) fn volume_name(claim: &PersistentVolumeClaim) -> Result<&str, Problem> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    if phase == Some("Bound") && !name.is_empty() {
        Ok(name)
    } else {
        let claim = claim.metadata.name.as_deref().unwrap_or_default();
        Err(failed(format!("claim {claim} is not bound to a volume")))
    }
}

/// The driver's part of a claim's volume, which must be bound to that claim.
pub(in super::super) fn csi<'a>(
    claim: &PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Result<&'a CSIPersistentVolumeSource, Problem> {
    let spec = volume.spec.as_ref();
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let of = spec.and_then(|spec| spec.claim_ref.as_ref());
    let bound = of.is_some_and(|of| {
        of.name == claim.metadata.name
            && of.namespace == claim.metadata.namespace
            && of.uid == claim.metadata.uid
    });
    if !bound {
        return Err(failed(format!("PersistentVolume {name} is bound to another claim")));
    }
    spec.and_then(|spec| spec.csi.as_ref()).ok_or_else(|| {
        failed(format!("PersistentVolume {name} is not a CSI driver's: it cannot be snapshotted"))
    })
}

/// What a content is made of.
pub(in super::super) struct Inputs<'a> {
    pub(in super::super) snapshot: &'a VolumeSnapshot,
    pub(in super::super) class: &'a VolumeSnapshotClass,
    pub(in super::super) claim: &'a PersistentVolumeClaim,
    pub(in super::super) volume: &'a PersistentVolume,
    /// Notes how the volume was used, so that a restore in another mode can be refused.
    pub(in super::super) keep_mode: bool,
}

/// The content by which the driver's side takes the snapshot.
pub(in super::super) fn content(inputs: &Inputs<'_>) -> Result<VolumeSnapshotContent, Problem> {
    let Inputs { snapshot, class, claim, volume, keep_mode } = *inputs;
    let csi = csi(claim, volume)?;
    let class_name = class.metadata.name.as_deref().unwrap_or_default();
    if class.driver != csi.driver {
        return Err(failed(format!(
            "VolumeSnapshotClass {class_name} is for driver {}, and the volume is on driver {}",
            class.driver, csi.driver
        )));
    }
    let name = made_name(snapshot);
    let facts = Facts {
        content: &name,
        snapshot: snapshot.metadata.name.as_deref().unwrap_or_default(),
        namespace: snapshot.metadata.namespace.as_deref().unwrap_or_default(),
    };
    let parameters = class.parameters.clone().unwrap_or_default();
    let secret =
        params::secret(&parameters, Purpose::Snapshot, &facts).map_err(|error| failed(error.to_string()))?;
    let annotations = secret.map(|secret| {
        BTreeMap::from([
            (SECRET_NAME.to_owned(), secret.name),
            (SECRET_NAMESPACE.to_owned(), secret.namespace),
        ])
    });
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
    let mut content = VolumeSnapshotContent::new(
        &name,
        VolumeSnapshotContentSpec {
            volume_snapshot_ref: ObjectReference {
                api_version: Some(format!("{SNAPSHOT_GROUP}/v1")),
                kind: Some("VolumeSnapshot".to_owned()),
                name: snapshot.metadata.name.clone(),
                namespace: snapshot.metadata.namespace.clone(),
                uid: snapshot.metadata.uid.clone(),
                resource_version: snapshot.metadata.resource_version.clone(),
                field_path: None,
            },
            deletion_policy: class.deletion_policy,
            driver: class.driver.clone(),
            volume_snapshot_class_name: Some(class_name.to_owned()),
            source: ContentSource { volume_handle: Some(csi.volume_handle.clone()), snapshot_handle: None },
            source_volume_mode: mode.filter(|_| keep_mode),
        },
    );
    content.metadata = ObjectMeta {
        name: Some(name),
        annotations,
        // From the start: the driver's side may be quicker than a later write.
        finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Ok(content)
}

fn failed(message: String) -> Problem {
    problem("SnapshotContentCreationFailed", message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::snapshot;
    use super::*;

    fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "c1"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        });
        change(&mut claim);
        serde_json::from_value(claim).expect("claim")
    }

    fn volume(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": {
            "claimRef": {"name": "data", "namespace": "shop", "uid": "c1"},
            "volumeMode": "Block",
            "csi": {"driver": "d", "volumeHandle": "v-1"},
        }});
        change(&mut volume);
        serde_json::from_value(volume).expect("volume")
    }

    fn class(driver: &str) -> VolumeSnapshotClass {
        let class = json!({
            "metadata": {"name": "class"}, "driver": driver, "deletionPolicy": "Retain",
            "parameters": {
                "csi.storage.k8s.io/snapshotter-secret-name": "key-of-${volumesnapshot.name}",
                "csi.storage.k8s.io/snapshotter-secret-namespace": "vault",
            },
        });
        serde_json::from_value(class).expect("class")
    }

    #[test]
    fn a_content_names_snapshot_volume_class_and_secret() {
        let (snapshot, claim, volume, class) = (snapshot(|_| ()), claim(|_| ()), volume(|_| ()), class("d"));
        let inputs =
            Inputs { snapshot: &snapshot, class: &class, claim: &claim, volume: &volume, keep_mode: true };
        let made = serde_json::to_value(content(&inputs).expect("valid")).expect("json");
        let expected = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": "snapcontent-u1", "finalizers": [CONTENT_FINALIZER],
                "annotations": {SECRET_NAME: "key-of-daily", SECRET_NAMESPACE: "vault"},
            },
            "spec": {
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "name": "daily",
                    "namespace": "shop", "uid": "u1", "resourceVersion": "1",
                },
                "deletionPolicy": "Retain", "driver": "d", "volumeSnapshotClassName": "class",
                "source": {"volumeHandle": "v-1"}, "sourceVolumeMode": "Block",
            },
        });
        assert_eq!(made, expected);
        let free = Inputs { keep_mode: false, ..inputs };
        assert_eq!(content(&free).expect("valid").spec.source_volume_mode, None);
    }

    #[test]
    fn what_cannot_be_snapshotted_is_refused() {
        let of = |change: fn(&mut Value)| csi(&claim(|_| ()), &volume(change)).is_ok();
        assert!(of(|_| ()));
        assert!(!of(|volume| volume["spec"]["claimRef"]["uid"] = json!("c2")));
        assert!(!of(|volume| volume["spec"]["claimRef"] = json!(null)));
        assert!(!of(|volume| volume["spec"]["csi"] = json!(null)));
        assert!(volume_name(&claim(|claim| claim["status"]["phase"] = json!("Pending"))).is_err());
        assert!(volume_name(&claim(|claim| claim["spec"]["volumeName"] = json!(""))).is_err());
        let (snapshot, claim, volume, class) = (snapshot(|_| ()), claim(|_| ()), volume(|_| ()), class("x"));
        let inputs =
            Inputs { snapshot: &snapshot, class: &class, claim: &claim, volume: &volume, keep_mode: true };
        assert!(content(&inputs).is_err_and(|refused| refused.message.contains("driver x")));
    }
}
