//! The CreateVolume request for a claim.

use std::collections::{BTreeMap, HashMap};

use dunnage_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use dunnage_csi::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability, VolumeContentSource};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::access::{self, SingleNode};
use super::params::Parameters;
use super::topology::Asked;
use crate::quantity;

/// All that a request is made of.
pub struct Inputs<'a> {
    pub volume: &'a str,
    pub claim: &'a PersistentVolumeClaim,
    pub class: &'a StorageClass,
    pub parameters: &'a Parameters,
    pub single_node: SingleNode,
    /// Whether the driver is told the names of claim and volume.
    pub extra_metadata: bool,
    pub topology: Option<&'a Asked>,
    pub source: Option<VolumeContentSource>,
    pub mutable_parameters: BTreeMap<String, String>,
    pub secrets: HashMap<String, String>,
}

/// A claim that no request can be made for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error(transparent)]
    Access(#[from] access::Invalid),
    #[error("the claim's storage request {0:?} is no size that a volume can have")]
    Size(String),
}

/// Builds the request.
pub fn build(inputs: Inputs<'_>) -> Result<CreateVolumeRequest, Invalid> {
    let mut parameters: HashMap<String, String> = inputs.parameters.driver.clone().into_iter().collect();
    if inputs.extra_metadata {
        let metadata = &inputs.claim.metadata;
        for (key, value) in [
            ("csi.storage.k8s.io/pvc/name", metadata.name.clone()),
            ("csi.storage.k8s.io/pvc/namespace", metadata.namespace.clone()),
            ("csi.storage.k8s.io/pv/name", Some(inputs.volume.to_owned())),
        ] {
            parameters.insert(key.to_owned(), value.unwrap_or_default());
        }
    }
    Ok(CreateVolumeRequest {
        name: inputs.volume.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: size(inputs.claim)?, limit_bytes: 0 }),
        volume_capabilities: capabilities(&inputs)?,
        parameters,
        secrets: inputs.secrets,
        volume_content_source: inputs.source,
        accessibility_requirements: inputs.topology.map(Asked::requirement),
        mutable_parameters: inputs.mutable_parameters.into_iter().collect(),
    })
}

/// The bytes that a claim asks for.
pub fn size(claim: &PersistentVolumeClaim) -> Result<i64, Invalid> {
    let asked = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .ok_or_else(|| Invalid::Size(String::new()))?;
    quantity::parse(asked).ok_or_else(|| Invalid::Size(asked.0.clone()))
}

pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

fn capabilities(inputs: &Inputs<'_>) -> Result<Vec<VolumeCapability>, Invalid> {
    let modes = inputs.claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let access_type = if is_block(inputs.claim) {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: inputs.parameters.fs_type.clone(),
            mount_flags: inputs.class.mount_options.clone().unwrap_or_default(),
            ..MountVolume::default()
        })
    };
    let modes = access::modes(modes, inputs.single_node)?;
    let capability = |mode: access::Mode| VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type.clone()),
    };
    Ok(modes.into_iter().map(capability).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::params;

    fn claim(spec: serde_json::Value) -> PersistentVolumeClaim {
        let claim = json!({"metadata": {"name": "data", "namespace": "shop"}, "spec": spec});
        serde_json::from_value(claim).expect("a claim")
    }

    fn built(claim: &PersistentVolumeClaim, extra_metadata: bool) -> Result<CreateVolumeRequest, Invalid> {
        let class = StorageClass {
            mount_options: Some(vec!["noatime".into()]),
            parameters: Some(
                [("csi.storage.k8s.io/fstype".into(), "xfs".into()), ("a".into(), "b".into())].into(),
            ),
            ..StorageClass::default()
        };
        let parameters = params::parse(class.parameters.as_ref().expect("set"), "").expect("parse");
        build(Inputs {
            volume: "pvc-1",
            claim,
            class: &class,
            parameters: &parameters,
            single_node: SingleNode::Plain,
            extra_metadata,
            topology: None,
            source: None,
            mutable_parameters: BTreeMap::new(),
            secrets: HashMap::new(),
        })
    }

    #[test]
    fn a_file_system_claim_asks_for_a_mount_with_the_classs_options() {
        let claim = claim(json!({
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        }));
        let request = built(&claim, false).expect("a request");
        assert_eq!(request.name, "pvc-1");
        let range = CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 };
        assert_eq!(request.capacity_range, Some(range));
        assert_eq!(request.parameters, [("a".to_owned(), "b".to_owned())].into());
        assert_eq!(request.volume_capabilities.len(), 2);
        let Some(AccessType::Mount(mount)) = &request.volume_capabilities[0].access_type else {
            panic!("not a mount: {request:?}")
        };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
            ("xfs", &["noatime".to_owned()][..])
        );
    }

    #[test]
    fn a_block_claim_asks_for_a_device() {
        let claim = claim(json!({
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "resources": {"requests": {"storage": "1"}},
        }));
        let request = built(&claim, false).expect("a request");
        assert_eq!(request.volume_capabilities[0].access_type, Some(AccessType::Block(BlockVolume {})));
    }

    #[test]
    fn the_driver_hears_the_names_only_when_asked_to() {
        let claim =
            claim(json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}));
        let request = built(&claim, true).expect("a request");
        for (key, value) in [("pvc/name", "data"), ("pvc/namespace", "shop"), ("pv/name", "pvc-1")] {
            assert_eq!(request.parameters[&format!("csi.storage.k8s.io/{key}")], value);
        }
    }

    #[test]
    fn a_claim_without_a_usable_size_or_mode_is_refused() {
        let sized = |storage: &str| json!({"requests": {"storage": storage}});
        for (spec, expected) in [
            (json!({"accessModes": ["ReadWriteOnce"]}), Invalid::Size(String::new())),
            (
                json!({"accessModes": ["ReadWriteOnce"], "resources": sized("9Zi")}),
                Invalid::Size("9Zi".into()),
            ),
            (json!({"resources": sized("1Gi")}), Invalid::Access(access::Invalid::None)),
        ] {
            assert_eq!(built(&claim(spec), false), Err(expected));
        }
    }
}
