//! Names, labels and metadata of a backend's objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use sha2::{Digest, Sha256};

use super::View;

/// The label that carries the backend's name.
pub const BACKEND: &str = "dunnage.dev/backend";
/// The label that tells controller and node plugin apart.
pub const COMPONENT: &str = "dunnage.dev/component";
/// The label that tells the pods of several `DaemonSet` objects of a backend apart.
pub(super) const DAEMON_SET: &str = "dunnage.dev/daemon-set";

/// The two kinds of pods of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The pods that make volumes.
    Controller,
    /// The pods that hold them.
    Node,
}

impl Component {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Node => "node",
        }
    }
}

/// The names of a backend's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// StatefulSet, service account, role and bindings of the controller.
    pub controller: String,
    /// DaemonSet and service account of the node plugin.
    pub node: String,
    /// Secret with the router's certificate.
    pub router_tls: String,
    /// Secret with the agents' certificate.
    pub agent_tls: String,
}

impl Names {
    /// The names for a backend of this name.
    pub fn of(backend: &str) -> Self {
        Self {
            controller: format!("dunnage-{backend}-controller"),
            node: format!("dunnage-{backend}-node"),
            router_tls: format!("dunnage-{backend}-router-tls"),
            agent_tls: format!("dunnage-{backend}-agent-tls"),
        }
    }

    /// The DaemonSet for a kubelet directory beside the main one.
    pub fn further_node(&self, kubelet_dir: &str) -> String {
        let digest = hex::encode(Sha256::digest(kubelet_dir));
        format!("{}-{}", self.node, &digest[..8])
    }
}

/// The labels of every object of a backend.
pub fn labels(backend: &str) -> BTreeMap<String, String> {
    let mut labels = shared_labels();
    labels.insert(BACKEND.to_owned(), backend.to_owned());
    labels
}

/// The labels of what all backends share.
pub fn shared_labels() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", "dunnage"), ("app.kubernetes.io/managed-by", "dunnage")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The labels that find the pods of a component.
pub fn selector(backend: &str, component: Component) -> BTreeMap<String, String> {
    [(BACKEND, backend), (COMPONENT, component.as_str())]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The selector of the pods of a component, as command lines have it.
pub fn selector_text(backend: &str, component: Component) -> String {
    format!("{BACKEND}={backend},{COMPONENT}={}", component.as_str())
}

impl View<'_> {
    pub(super) fn cluster_meta(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels(&self.backend.name_any())),
            ..ObjectMeta::default()
        }
    }

    pub(super) fn meta(&self, name: &str, component: Component) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(self.pod_labels(component)),
            ..ObjectMeta::default()
        }
    }

    pub(super) fn pod_labels(&self, component: Component) -> BTreeMap<String, String> {
        let mut labels = labels(&self.backend.name_any());
        labels.insert(COMPONENT.to_owned(), component.as_str().to_owned());
        labels
    }

    pub(super) fn pod_selector(&self, component: Component) -> LabelSelector {
        LabelSelector {
            match_labels: Some(selector(&self.backend.name_any(), component)),
            ..LabelSelector::default()
        }
    }
}
