//! `VolumeSnapshotClass`, whose fields stand beside the metadata and not in a spec.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use kube::Resource;
use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, SNAPSHOT_GROUP};

/// A VolumeSnapshotClass says by which driver, and how, snapshots are taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotClass {
    /// What every object has.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,

    /// The CSI driver that takes the snapshots.
    pub driver: String,

    /// For the driver, and where the secrets for its calls are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, String>>,

    /// Whether a snapshot on the storage goes with its VolumeSnapshot.
    pub deletion_policy: DeletionPolicy,
}

impl Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
