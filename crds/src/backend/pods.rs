//! How the pods of a backend run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// One value for each container of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ByContainer<T> {
    /// The driver on each node, which does the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_driver: Option<T>,

    /// Tells the kubelet of the driver on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registrar: Option<T>,

    /// The driver in the controller plugin, which passes calls on to the right node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<T>,

    /// Tells the router where the drivers on the nodes are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_discovery: Option<T>,

    /// Makes volumes for claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<T>,

    /// Grows volumes when their claims ask for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resizer: Option<T>,

    /// Takes and deletes snapshots; runs where the cluster has the kinds of snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshotter: Option<T>,

    /// Attaches volumes to nodes; runs only with attach: Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attacher: Option<T>,
}

/// CPU and memory of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler sets aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,

    /// What the container may never exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// CPUs, as 100m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,

    /// Bytes, as 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Where images come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Registry to use in place of the one in the operator's image, as a mirror: registry.example.com:5000/mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = rules::registry_is_a_host())]
    pub registry: Option<String>,

    /// When the kubelet pulls. Default: Kubernetes' own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,

    /// Names of Secrets in the backend's namespace that hold the registry's credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub pull_secrets: Vec<String>,

    /// Whole image references for single containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<ByContainer<String>>,
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At each start of a container.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Never: the image is already on the node.
    Never,
}

impl PullPolicy {
    /// The name, as a container has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The controller plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerSpec {
    /// Number of controller pods; one leads and the others stand by. Default: 2, or 1 in a cluster of one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<i32>,

    /// Labels of the nodes that controller pods may run on. Default: any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that controller pods bear. Default: those of control-plane nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
}

/// Rates and time limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Volumes that are made, deleted or attached at the same time. Default: 100 made or deleted, 10 attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub workers: Option<i32>,

    /// Limit on requests to the API server. Default: none of our own; the API server sees to fairness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_api: Option<KubeApi>,

    /// Time for one call of the driver, as 30s. Default: 10s to make or delete a volume, 15s to attach one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 16))]
    #[x_kube(validation = rules::is_a_duration("callTimeout"))]
    pub call_timeout: Option<String>,

    /// Times of the leader election between controller pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElection>,
}

/// Limit on requests to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.burst >= self.qps", "burst must be at least qps: raise burst or lower qps"))]
pub struct KubeApi {
    /// Requests a second, on average.
    #[schemars(range(min = 1, max = 10000))]
    pub qps: i32,

    /// Requests at once.
    #[schemars(range(min = 1, max = 20000))]
    pub burst: i32,
}

/// Times of a leader election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::lease_times_are_in_order())]
pub struct LeaderElection {
    /// How long the others wait for a leader that is silent.
    #[serde(default = "fifteen_seconds")]
    #[schemars(length(min = 2, max = 16))]
    #[x_kube(validation = rules::is_a_duration("leaseDuration"))]
    pub lease_duration: String,

    /// How long a leader that cannot renew goes on.
    #[serde(default = "ten_seconds")]
    #[schemars(length(min = 2, max = 16))]
    #[x_kube(validation = rules::is_a_duration("renewDeadline"))]
    pub renew_deadline: String,

    /// Time between two tries.
    #[serde(default = "five_seconds")]
    #[schemars(length(min = 2, max = 16))]
    #[x_kube(validation = rules::is_a_duration("retryPeriod"))]
    pub retry_period: String,
}

fn fifteen_seconds() -> String {
    "15s".to_owned()
}

fn ten_seconds() -> String {
    "10s".to_owned()
}

fn five_seconds() -> String {
    "5s".to_owned()
}

/// Logs of all containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// How much is logged.
    #[serde(default)]
    pub level: LogLevel,

    /// text: lines for people. json: an object a line, for collectors.
    #[serde(default)]
    pub format: LogFormat,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What needs a person.
    Error,
    /// Also what failed and is tried again.
    Warn,
    /// Also each change made.
    #[default]
    Info,
    /// Also each decision.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The name, as the program takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// The shape of the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    #[default]
    Json,
}

impl LogFormat {
    /// The name, as the program takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// How a new version reaches the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// RollingUpdate: node after node, and no further than the first node that fails to register. OnDelete: a
    /// node's pod is replaced when you delete it.
    #[serde(default)]
    pub strategy: UpdateStrategy,

    /// Nodes that may be without a running driver during an update: a number or a share, as 10%. Default: 1. Mounted
    /// volumes stay mounted meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "pattern" = "^([1-9][0-9]?|100)%$"))]
    pub max_unavailable: Option<IntOrString>,
}

/// How node plugins are updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategy {
    /// One after the other.
    #[default]
    RollingUpdate,
    /// When a person deletes them.
    OnDelete,
}
