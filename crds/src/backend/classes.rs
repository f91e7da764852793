//! The StorageClasses of a backend.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// One StorageClass. Its reclaimPolicy, bindingMode, parameters and mountOptions cannot be changed in place: after a
/// change, delete the StorageClass and the operator makes it anew; existing volumes keep what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassSpec {
    /// Name of the StorageClass.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::class_name_is_a_subdomain())]
    pub name: String,

    /// Whether claims that name no class get this one. IfNone: if the cluster has no other default class. Force:
    /// always; then take the mark off the other default yourself.
    #[serde(default)]
    pub default: DefaultClass,

    /// What becomes of a volume when its claim is deleted.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,

    /// When a volume is made. WaitForFirstConsumer: on the node that the first pod is scheduled to. Immediate: at
    /// once, on any node; the pod then has to go there.
    #[serde(default)]
    pub binding_mode: BindingMode,

    /// Parameters for the driver, as csi.storage.k8s.io/fstype for LoopFile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub parameters: BTreeMap<String, String>,

    /// Options for the mount of each volume. Which a volume takes depends on its file system; the condition
    /// ConfigAccepted names one that it does not take, and those that it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub mount_options: Vec<String>,

    /// Managed: the operator keeps the StorageClass as described here. Unmanaged: it leaves it alone. Absent: it
    /// removes it, if it made it.
    #[serde(default)]
    pub state: ClassState,
}

/// Whether a class becomes the cluster's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DefaultClass {
    /// When there is no other.
    #[default]
    IfNone,
    /// Never.
    Never,
    /// Always.
    Force,
}

/// What becomes of a volume when its claim is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// It is deleted with its data.
    #[default]
    Delete,
    /// It stays, with its PersistentVolume.
    Retain,
}

impl ReclaimPolicy {
    /// The name, as a StorageClass has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

/// When a volume is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BindingMode {
    /// For its first pod.
    #[default]
    WaitForFirstConsumer,
    /// At once.
    Immediate,
}

impl BindingMode {
    /// The name, as a StorageClass has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitForFirstConsumer => "WaitForFirstConsumer",
            Self::Immediate => "Immediate",
        }
    }
}

/// What the operator does with a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClassState {
    /// Keeps it as described.
    #[default]
    Managed,
    /// Leaves it alone.
    Unmanaged,
    /// Removes it.
    Absent,
}
