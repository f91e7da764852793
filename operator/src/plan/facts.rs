//! What the cluster has, as far as a plan depends on it.

use std::collections::BTreeMap;

use dunnage_crds::{StorageBackendSpec, defaults};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

/// Marks the class for claims that name none.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// What the cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// All nodes, sorted by name.
    pub hosts: Vec<Host>,
    /// Names of the classes that are marked as the default, sorted.
    pub default_classes: Vec<String>,
    /// What it has of snapshots.
    pub snapshots: Snapshots,
}

/// What a cluster has of the kinds of snapshots, `snapshot.storage.k8s.io/v1`, as a backend is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapshots {
    /// Nobody has installed the kinds.
    #[default]
    Absent,
    /// They are there.
    Present,
    /// They are there, and somebody else has a VolumeSnapshotClass of the backend's name.
    PresentWithForeignClass,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name of the node.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its kubelet reports that it is well.
    pub ready: bool,
    /// Where its kubelet keeps its files.
    pub kubelet_dir: String,
}

impl Observed {
    /// Takes what a plan needs from the API's objects.
    pub fn from_objects<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        classes: impl IntoIterator<Item = &'a StorageClass>,
    ) -> Self {
        let mut hosts: Vec<Host> = nodes.into_iter().map(Host::from_node).collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        let mut default_classes: Vec<String> =
            classes.into_iter().filter(|class| is_default(class)).map(ResourceExt::name_any).collect();
        default_classes.sort();
        Self { hosts, default_classes, snapshots: Snapshots::Absent }
    }

    /// The kubelet directories of the selected nodes, each once. The first is the one that further nodes most likely
    /// have: the usual one, if any node has it.
    pub fn kubelet_dirs(&self, spec: &StorageBackendSpec) -> Vec<String> {
        let selected = self.hosts.iter().filter(|host| defaults::selects(spec, &host.labels));
        let mut dirs: Vec<String> = selected.map(|host| host.kubelet_dir.clone()).collect();
        dirs.sort_by_key(|dir| (dir != defaults::KUBELET_DIR, dir.clone()));
        dirs.dedup();
        if dirs.is_empty() {
            dirs.push(defaults::KUBELET_DIR.to_owned());
        }
        dirs
    }
}

impl Host {
    /// Takes what a plan needs from a Node.
    pub fn from_node(node: &Node) -> Self {
        let conditions =
            node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            kubelet_dir: kubelet_dir(node).to_owned(),
        }
    }
}

/// Where a node's kubelet keeps its files: k0s and `MicroK8s` say who they are, and the others keep to the default.
fn kubelet_dir(node: &Node) -> &'static str {
    let version =
        node.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| &info.kubelet_version);
    if version.is_some_and(|version| version.contains("+k0s")) {
        "/var/lib/k0s/kubelet"
    } else if node.labels().keys().any(|label| label.starts_with("microk8s.io/")) {
        "/var/snap/microk8s/common/var/lib/kubelet"
    } else {
        defaults::KUBELET_DIR
    }
}

fn is_default(class: &StorageClass) -> bool {
    class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus, NodeSystemInfo};

    use super::*;

    fn node(name: &str, kubelet_version: &str, label: Option<&str>) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.labels = label.map(|label| [(label.to_owned(), "true".to_owned())].into());
        node.status = Some(NodeStatus {
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            node_info: Some(NodeSystemInfo {
                kubelet_version: kubelet_version.to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        });
        node
    }

    #[test]
    fn distributions_say_where_their_kubelet_lives() {
        for (version, label, expected) in [
            ("v1.34.1", None, "/var/lib/kubelet"),
            ("v1.34.1+k3s1", None, "/var/lib/kubelet"),
            ("v1.34.1+k0s", None, "/var/lib/k0s/kubelet"),
            ("v1.34.1", Some("microk8s.io/cluster"), "/var/snap/microk8s/common/var/lib/kubelet"),
        ] {
            let host = Host::from_node(&node("a", version, label));
            assert_eq!(host.kubelet_dir, expected, "{version} {label:?}");
        }
    }

    #[test]
    fn a_node_without_a_status_is_not_ready_and_has_the_usual_directory() {
        let host = Host::from_node(&Node::default());
        assert!(!host.ready);
        assert_eq!(host.kubelet_dir, defaults::KUBELET_DIR);
    }

    #[test]
    fn the_usual_directory_comes_first_and_each_comes_once() {
        let nodes =
            [node("b", "v1.34.1+k0s", None), node("a", "v1.34.1", None), node("c", "v1.34.1+k0s", None)];
        let observed = Observed::from_objects(&nodes, []);
        let dirs = observed.kubelet_dirs(&StorageBackendSpec::default());
        assert_eq!(dirs, ["/var/lib/kubelet", "/var/lib/k0s/kubelet"]);
        assert_eq!(observed.hosts[0].name, "a");
        assert!(observed.hosts[0].ready);
    }

    #[test]
    fn a_cluster_without_nodes_has_the_usual_directory() {
        let dirs = Observed::default().kubelet_dirs(&StorageBackendSpec::default());
        assert_eq!(dirs, [defaults::KUBELET_DIR]);
    }

    #[test]
    fn only_a_class_that_says_true_is_the_default() {
        let class = |name: &str, mark: &str| {
            let mut class = StorageClass::default();
            class.metadata.name = Some(name.to_owned());
            class.metadata.annotations = Some([(DEFAULT_CLASS.to_owned(), mark.to_owned())].into());
            class
        };
        let classes = [class("b", "true"), class("a", "true"), class("c", "false"), StorageClass::default()];
        assert_eq!(Observed::from_objects([], &classes).default_classes, ["a", "b"]);
    }
}
