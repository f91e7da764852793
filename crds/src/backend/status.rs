//! What the operator last saw of a backend.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator last saw. Written only when something changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageBackendStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready is the summary; each condition's message says what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,

    /// Name of the CSI driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_name: Option<String>,

    /// The nodes that have, or should have, the storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesStatus>,

    /// Space, over all pools that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,

    /// What uses the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,

    /// What runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,

    /// What holds up the deletion of the backend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub blocking: Vec<Blocker>,
}

/// Counts of nodes, and those with a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodesStatus {
    /// Nodes that the backend selects.
    #[serde(default)]
    pub desired: i32,

    /// Nodes whose driver is up, registered with the kubelet, and has its pool.
    #[serde(default)]
    pub registered: i32,

    /// Nodes whose plugin has the latest version.
    #[serde(default)]
    pub updated: i32,

    /// registered/desired, for people.
    #[serde(default)]
    pub summary: String,

    /// Nodes with a problem, sorted by name; the first 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub problems: Vec<NodeProblem>,
}

/// What is wrong on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProblem {
    /// Name of the node.
    pub node: String,

    /// One word for programs.
    pub reason: String,

    /// What is wrong and what to do.
    pub message: String,
}

/// Space of the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Size, as 100Gi.
    pub total: String,

    /// Space for new volumes, as 80Gi.
    pub available: String,
}

/// What uses the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// PersistentVolumes of the driver.
    #[serde(default)]
    pub volumes: i32,

    /// VolumeAttachments of the driver.
    #[serde(default)]
    pub attachments: i32,

    /// Volumes in a pool that no PersistentVolume speaks of.
    #[serde(default)]
    pub orphans: i32,
}

/// What runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// Version of the operator.
    pub operator: String,

    /// Versions of the drivers that answer, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub drivers: Vec<String>,
}

/// Something that holds up the deletion of the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// What it is, as PersistentVolume.
    pub kind: String,

    /// How many there are.
    pub count: i32,

    /// The first few names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub examples: Vec<String>,

    /// What to do about it.
    pub message: String,
}
