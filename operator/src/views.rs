//! From the API's objects to what status and pools need. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dunnage_crds::{StorageBackend, defaults};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::agents::Target;
use crate::pools::NodeFacts;
use crate::status::{Controller, NodeView, PodView};

/// The port of the agents.
pub const AGENT_PORT: u16 = 9741;

/// The nodes' uid and topology label.
pub fn node_facts<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    topology_key: &str,
) -> BTreeMap<String, NodeFacts> {
    let facts = |node: &Node| NodeFacts {
        uid: node.uid().unwrap_or_default(),
        label: node.labels().get(topology_key).cloned(),
    };
    nodes.into_iter().map(|node| (node.name_any(), facts(node))).collect()
}

/// Where the agents are: the newest pod of each node that has an address.
pub fn targets<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<Target> {
    newest(pods)
        .into_iter()
        .filter_map(|(node, pod)| {
            let address: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
            Some(Target { node, pod_uid: pod.uid()?, address: (address, AGENT_PORT).into() })
        })
        .collect()
}

fn newest<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<String, &'a Pod> {
    let mut newest: BTreeMap<String, &Pod> = BTreeMap::new();
    let age = |pod: &Pod| (pod.metadata.deletion_timestamp.is_none(), pod.creation_timestamp());
    for pod in pods {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { continue };
        match newest.get(&node) {
            Some(other) if age(other) >= age(pod) => {}
            _ => drop(newest.insert(node, pod)),
        }
    }
    newest
}

/// The nodes that should have the backend, and those that still have a pod of it.
pub fn node_views<'a>(
    backend: &StorageBackend,
    topology_key: &str,
    driver: &str,
    nodes: impl IntoIterator<Item = &'a Node>,
    csi_nodes: &BTreeMap<String, &CSINode>,
    pods: impl IntoIterator<Item = &'a Pod>,
    sets: &[&DaemonSet],
) -> Vec<NodeView> {
    let pods = newest(pods);
    let tolerations = backend.spec.nodes.as_ref().and_then(|nodes| nodes.tolerations.as_deref());
    let mut views: Vec<NodeView> = nodes
        .into_iter()
        .filter(|node| defaults::selects(&backend.spec, node.labels()) && is_tolerated(node, tolerations))
        .map(|node| {
            let name = node.name_any();
            let registered = csi_nodes.get(&name).is_some_and(|csi_node| {
                csi_node.spec.drivers.iter().any(|registered| registered.name == driver)
            });
            NodeView {
                pod: pods.get(&name).map(|pod| pod_view(pod, is_latest(pod, sets))),
                label: node.labels().get(topology_key).cloned(),
                registered,
                name,
            }
        })
        .collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

/// Taints that the DaemonSet's controller tolerates by itself.
const ALWAYS: &str = "node.kubernetes.io/";

/// Whether the DaemonSet puts a pod on this node. Without tolerations given, it tolerates everything.
fn is_tolerated(node: &Node, tolerations: Option<&[Toleration]>) -> bool {
    let Some(tolerations) = tolerations else { return true };
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.all(|taint| {
        let fits = |toleration: &Toleration| {
            let key = toleration.key.as_deref().unwrap_or_default();
            let exists = toleration.operator.as_deref() == Some("Exists");
            (key == taint.key || (key.is_empty() && exists))
                && (exists
                    || toleration.value.as_deref().unwrap_or_default()
                        == taint.value.as_deref().unwrap_or_default())
                && toleration
                    .effect
                    .as_deref()
                    .is_none_or(|effect| effect.is_empty() || effect == taint.effect)
        };
        taint.effect == "PreferNoSchedule" || taint.key.starts_with(ALWAYS) || tolerations.iter().any(fits)
    })
}

/// A pod carries the generation of the template it was made from, and its set the newest.
fn is_latest(pod: &Pod, sets: &[&DaemonSet]) -> bool {
    const TEMPLATE: &str = "pod-template-generation";
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let set = sets.iter().find(|set| owner.is_some_and(|owner| set.uid().as_ref() == Some(&owner.uid)));
    let newest = set.and_then(|set| set.annotations().get("deprecated.daemonset.template.generation"));
    newest.is_some() && newest == pod.labels().get(TEMPLATE)
}

fn pod_view(pod: &Pod, updated: bool) -> PodView {
    PodView { ready: is_ready(pod), updated, message: waiting(pod) }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none() && conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// What a pod waits for, in kubelet's or the scheduler's words.
fn waiting(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return String::new() };
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    for container in containers {
        let Some(waiting) = container.state.as_ref().and_then(|state| state.waiting.as_ref()) else {
            continue;
        };
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        if !matches!(reason, "ContainerCreating" | "PodInitializing") {
            let message = waiting.message.as_deref().unwrap_or_default();
            return format!("container {}: {reason} {message}", container.name).trim_end().to_owned();
        }
    }
    let unscheduled =
        status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(message) = unscheduled.and_then(|condition| condition.message.as_deref()) {
        return message.to_owned();
    }
    let slow = status.container_statuses.iter().flatten().find(|container| !container.ready);
    slow.map(|container| format!("container {} is not ready", container.name)).unwrap_or_default()
}

/// The controller's pods against their set.
pub fn controller<'a>(set: Option<&StatefulSet>, pods: impl IntoIterator<Item = &'a Pod>) -> Controller {
    let Some(set) = set else { return Controller { desired: 1, ..Controller::default() } };
    let desired = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = set.status.clone().unwrap_or_default();
    let seen = status.observed_generation == set.metadata.generation;
    let mut controller = Controller { desired, ..Controller::default() };
    for pod in pods {
        let newest = status.update_revision.as_ref();
        let latest = newest.is_some() && newest == pod.labels().get(REVISION);
        controller.ready += i32::from(is_ready(pod));
        controller.updated += i32::from(latest && seen);
        if controller.message.is_empty() && !is_ready(pod) {
            controller.message = waiting(pod);
        }
    }
    controller
}

const REVISION: &str = "controller-revision-hash";

/// A controller pod that a StatefulSet waits for in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    pub pod: String,
    /// Its node cannot confirm the deletion.
    pub force: bool,
    pub why: &'static str,
}

/// Finds pods that only somebody else's deletion brings on: a set does not replace a broken pod of an older revision,
/// nor one whose node is gone or does not answer.
pub fn stuck<'a>(
    set: Option<&StatefulSet>,
    pods: impl IntoIterator<Item = &'a Pod>,
    ready_nodes: &BTreeMap<String, bool>,
    now: Timestamp,
) -> Vec<Stuck> {
    let newest = set.and_then(|set| set.status.as_ref()).and_then(|status| status.update_revision.as_ref());
    let find = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let answers = node.map(|node| ready_nodes.get(node));
        let deleted = pod.metadata.deletion_timestamp.as_ref().is_some_and(|at| at.0 <= now);
        let (force, why) = match answers {
            Some(None) => (true, "its node is gone"),
            Some(Some(false)) if deleted => (true, "its node does not answer"),
            _ if pod.metadata.deletion_timestamp.is_none()
                && !is_ready(pod)
                && newest.is_some_and(|newest| pod.labels().get(REVISION) != Some(newest)) =>
            {
                (false, "it has an old revision and is not ready")
            }
            _ => return None,
        };
        Some(Stuck { pod: pod.name_any(), force, why })
    };
    pods.into_iter().filter_map(find).collect()
}

/// Whether each node's kubelet answers.
pub fn ready_nodes<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeMap<String, bool> {
    let ready = |node: &Node| {
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    nodes.into_iter().map(|node| (node.name_any(), ready(node))).collect()
}

#[cfg(test)]
mod tests;
