//! Which nodes have the storage.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// The nodes of a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// Labels of the nodes that have this storage. Default: all nodes. Volumes on a node that no longer matches
    /// cannot be mounted there any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,

    /// Taints that the node plugin bears. Default: all, because pods that bear a taint need their volumes too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,

    /// The kubelet's directory, or Auto: known from the node (k0s, MicroK8s), else /var/lib/kubelet.
    #[serde(default)]
    #[schemars(length(min = 1, max = 80))]
    #[x_kube(validation = rules::kubelet_dir_is_auto_or_a_path())]
    pub kubelet_dir: KubeletDir,
}

/// The kubelet's directory: found out for each node, or one path for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct KubeletDir(pub String);

impl KubeletDir {
    /// The path that was given, or none for Auto.
    pub fn path(&self) -> Option<&str> {
        (self.0 != "Auto").then_some(self.0.as_str())
    }
}

impl Default for KubeletDir {
    fn default() -> Self {
        Self("Auto".to_owned())
    }
}

/// Labels that a node must have; all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels and their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,

    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::values_fit_the_operator())]
pub struct LabelRequirement {
    /// The label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,

    /// How the label is compared.
    pub operator: LabelOperator,

    /// The values for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label is missing or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

impl LabelOperator {
    /// The name, as node affinity has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        }
    }
}

impl LabelSelector {
    /// Whether an object with these labels is meant, by the scheduler's rules.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            LabelOperator::In => listed,
            LabelOperator::NotIn => !listed,
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(operator: LabelOperator, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: vec![LabelRequirement {
                key: "disk".into(),
                operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn a_selector_matches_as_the_scheduler_does() {
        let ssd: BTreeMap<String, String> = [("disk".to_owned(), "ssd".to_owned())].into();
        let bare = BTreeMap::new();
        for (selector, with_ssd, without) in [
            (LabelSelector::default(), true, true),
            (LabelSelector { match_labels: ssd.clone(), ..LabelSelector::default() }, true, false),
            (requirement(LabelOperator::In, &["ssd", "nvme"]), true, false),
            (requirement(LabelOperator::In, &["nvme"]), false, false),
            (requirement(LabelOperator::NotIn, &["ssd"]), false, true),
            (requirement(LabelOperator::Exists, &[]), true, false),
            (requirement(LabelOperator::DoesNotExist, &[]), false, true),
        ] {
            assert_eq!(selector.matches(&ssd), with_ssd, "{selector:?} on a node with disk=ssd");
            assert_eq!(selector.matches(&bare), without, "{selector:?} on a node without labels");
        }
    }
}
