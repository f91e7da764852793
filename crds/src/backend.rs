//! `StorageBackend`: one kind of storage on a set of nodes, as its owner describes it.

#![expect(unreachable_pub, reason = "KubeSchema copies each type into a function, where pub reaches nothing")]
#![expect(clippy::doc_markdown, reason = "the comments are what kubectl explain shows")]

pub mod classes;
pub mod nodes;
pub mod pods;
mod rules;
pub mod status;
pub mod storage;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use classes::StorageClassSpec;
use nodes::Nodes;
use pods::{ByContainer, ControllerSpec, Images, Logging, Resources, Tuning, Update};
use status::StorageBackendStatus;
use storage::{BackendType, Btrfs, Directory, LoopFile};

/// What the backend stores volumes on, and how its driver runs. Only `type` and the member of the same name are
/// needed: {type: Directory, directory: {path: /var/lib/dunnage}} makes a CSI driver and a StorageClass.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dunnage.dev",
    version = "v1alpha1",
    kind = "StorageBackend",
    plural = "storagebackends",
    shortname = "sb",
    category = "storage",
    doc = "A StorageBackend is storage of one kind on a set of nodes. The operator makes a CSI driver of it, with its StorageClasses, controller and node plugins.",
    status = "StorageBackendStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = rules::name_is_short(),
    validation = rules::name_is_a_label(),
    printcolumn(name = "TYPE", type_ = "string", json_path = ".spec.type"),
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether claims can be served; MESSAGE (-o wide) says why not."
    ),
    printcolumn(
        name = "NODES",
        type_ = "string",
        json_path = ".status.nodes.summary",
        description = "Nodes where the driver is registered, of those where it should be."
    ),
    printcolumn(name = "VOLUMES", type_ = "integer", json_path = ".status.usage.volumes"),
    printcolumn(
        name = "FREE",
        type_ = "string",
        json_path = ".status.capacity.available",
        description = "Space for new volumes, over all pools."
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "DRIVER", type_ = "string", json_path = ".status.driverName", priority = 1),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".status.versions.operator", priority = 1),
    printcolumn(
        name = "MESSAGE",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::member_of_type("Directory", "directory"),
    validation = rules::member_of_type("LoopFile", "loopFile"),
    validation = rules::member_of_type("Btrfs", "btrfs"),
    validation = rules::type_is_immutable(),
    validation = rules::path_is_immutable("directory"),
    validation = rules::path_is_immutable("loopFile"),
    validation = rules::path_is_immutable("btrfs"),
    validation = rules::optional_is_immutable("driverName"),
    validation = rules::optional_is_immutable("namespace")
)]
pub struct StorageBackendSpec {
    /// The kind of storage. This version has Directory (a directory a volume; sizes are accounted for but not
    /// enforced), LoopFile (an image file a volume, mounted through a loop device; its size is a hard limit) and Btrfs
    /// (a subvolume a volume; its size is a hard limit, and snapshots and clones are made in a moment). Immutable.
    #[serde(rename = "type")]
    pub type_: BackendType,

    /// Settings of type Directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,

    /// Settings of type LoopFile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_file: Option<LoopFile>,

    /// Settings of type Btrfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub btrfs: Option<Btrfs>,

    /// Name of the CSI driver, which stands in every PersistentVolume. At most 54 characters, and fewer where the
    /// kubelet's directory has a long path (23 on MicroK8s for a backend's default name). Default:
    /// NAME.csi.dunnage.dev. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::driver_name_is_a_subdomain(), validation = rules::driver_name_is_short())]
    pub driver_name: Option<String>,

    /// Namespace of the controller and node plugins. It must exist and allow privileged pods. Default: the
    /// operator's own. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::namespace_is_a_label())]
    pub namespace: Option<String>,

    /// Which nodes have this storage. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,

    /// StorageClasses to make. When empty: one, named after the backend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    #[x_kube(validation = rules::one_forced_default())]
    pub classes: Vec<StorageClassSpec>,

    /// Whether volumes are attached to a node before they are used. With Auto they are not, and pods start sooner.
    /// Required adds a check that only one node at a time has a volume.
    #[serde(default)]
    pub attach: Attach,

    /// What becomes of a claim whose data source, a snapshot or a volume, lies on another node. Copy: the data are
    /// copied to the claim's node. Refuse: the claim is handed back to the scheduler until it chooses the data's node.
    #[serde(default)]
    pub cross_pool: CrossPool,

    /// Where images come from. Default: the operator's own image, for all containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,

    /// The controller plugin, which makes and deletes volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerSpec>,

    /// Rates and time limits. The defaults suit most clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,

    /// Logs of all containers of the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,

    /// CPU and memory of each container. What is not given keeps a small default request and no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ByContainer<Resources>>,

    /// How a new version reaches the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,

    /// When the backend may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Deletion>,
}

/// Whether volumes are attached before use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Attach {
    /// Only where the storage needs it; none of today's types does.
    #[default]
    Auto,
    /// Always.
    Required,
}

/// Whether data are copied from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CrossPool {
    /// Where a claim needs it.
    #[default]
    Copy,
    /// Never.
    Refuse,
}

/// When a backend may be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    /// InUse: a deletion waits while volumes, attachments or claims of the backend exist. Always: it waits until
    /// this field is set to InUse again, even if nothing is in use.
    #[serde(default)]
    pub protection: Protection,
}

/// What holds up a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protection {
    /// Anything of the backend that is in use.
    #[default]
    InUse,
    /// The setting itself, as well as anything in use.
    Always,
}
