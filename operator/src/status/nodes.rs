//! The nodes' part of the status: the pod, kubelet's registration, the Node's label and the agent must agree.

use std::collections::BTreeMap;

use dunnage_crds::conditions::{Status, problems, reasons};
use dunnage_crds::{NodeProblem, NodesStatus};

use super::{Inputs, count};
use crate::agents::Agent;
use crate::pools::State;

const SHOWN: usize = 50;

/// A node that should have the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub pod: Option<PodView>,
    /// Whether CSINode lists the driver.
    pub registered: bool,
    /// Value of the topology label.
    pub label: Option<String>,
}

/// The backend's pod on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodView {
    pub ready: bool,
    /// Whether it has the latest revision.
    pub updated: bool,
    /// What it waits for.
    pub message: String,
}

/// What keeps a node from being ready. The pool comes first: everything else follows from it.
pub fn node_problem(node: &NodeView, inputs: &Inputs<'_>) -> Option<(&'static str, String)> {
    let name = &node.name;
    if let Some(problem) = inputs.problems.get(name) {
        return Some((problem.reason, problem.message.clone()));
    }
    let Some(pod) = &node.pod else {
        return Some((problems::POD_NOT_READY, format!("node {name} has no pod of the backend yet")));
    };
    let facts = match inputs.agents.get(name) {
        Some(Agent::Connected(facts)) => facts,
        // A pod that does not run explains it better.
        Some(Agent::Unreachable(why)) if pod.ready || pod.message.is_empty() => {
            let message = format!(
                "the agent of node {name} does not answer the operator ({why}): is a NetworkPolicy in the way?"
            );
            return Some((problems::AGENT_UNREACHABLE, message));
        }
        _ if pod.ready => {
            return Some((
                problems::AGENT_UNREACHABLE,
                format!("the agent of node {name} is being connected to"),
            ));
        }
        _ => return Some((problems::POD_NOT_READY, not_ready(name, &pod.message))),
    };
    if facts.pool.state == State::Empty {
        return Some((problems::POOL_UNAVAILABLE, format!("the pool of node {name} is being made")));
    }
    let label = node.label.as_deref();
    if let Some(label) = label.filter(|label| *label != facts.pool.pool) {
        let message = format!(
            "node {name} is labelled {}={label}, but its agent has pool {}; the label is replaced when the driver \
             registers again",
            inputs.topology_key, facts.pool.pool
        );
        return Some((problems::TOPOLOGY_STALE, message));
    }
    if !pod.ready {
        return Some((problems::POD_NOT_READY, not_ready(name, &pod.message)));
    }
    if !node.registered || label.is_none() {
        let message = format!(
            "kubelet of node {name} does not list the driver: does it use another directory than the one it is \
             registered in (spec.nodes.kubeletDir)?"
        );
        return Some((problems::NOT_REGISTERED, message));
    }
    None
}

fn not_ready(node: &str, message: &str) -> String {
    let why = if message.is_empty() { "it is starting" } else { message };
    format!("the pod on node {node} is not ready: {why}")
}

pub(super) fn summarise(inputs: &Inputs<'_>) -> NodesStatus {
    let mut found: Vec<NodeProblem> = Vec::new();
    for node in inputs.nodes {
        if let Some((reason, message)) = node_problem(node, inputs) {
            found.push(NodeProblem { node: node.name.clone(), reason: reason.to_owned(), message });
        }
    }
    let (desired, failing) = (inputs.nodes.len(), found.len());
    let updated = inputs.nodes.iter().filter(|node| node.pod.as_ref().is_some_and(|pod| pod.updated)).count();
    found.sort_by(|a, b| a.node.cmp(&b.node));
    found.truncate(SHOWN);
    NodesStatus {
        desired: count(desired),
        registered: count(desired - failing),
        updated: count(updated),
        summary: format!("{}/{desired}", desired - failing),
        problems: found,
    }
}

pub(super) fn ready(nodes: &NodesStatus) -> (Status, &'static str, String) {
    if nodes.desired == 0 {
        let text = "no node of the cluster is selected: check spec.nodes.selector".to_owned();
        return (Status::False, reasons::NO_NODES, text);
    }
    if nodes.registered == nodes.desired {
        return (Status::True, reasons::ALL_REGISTERED, format!("{} nodes have the driver", nodes.summary));
    }
    let shown: Vec<&str> = nodes.problems.iter().take(3).map(|problem| problem.message.as_str()).collect();
    let more = usize::try_from(nodes.desired - nodes.registered).unwrap_or(0).saturating_sub(shown.len());
    let more = if more > 0 { format!("; and {more} more nodes") } else { String::new() };
    // One common reason is told as such, so that programs can wait for it.
    let reason = match nodes.problems.first() {
        Some(first)
            if nodes.problems.iter().all(|p| p.reason == first.reason)
                && first.reason == problems::POOL_MISSING =>
        {
            problems::POOL_MISSING
        }
        _ => reasons::NODES_MISSING,
    };
    (Status::False, reason, format!("{} nodes have the driver; {}{more}", nodes.summary, shown.join("; ")))
}

pub(super) fn limits(agents: &BTreeMap<String, Agent>) -> (Status, &'static str, String) {
    let mut ready = 0_usize;
    let mut lax: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, agent) in agents {
        if let Some(facts) = agent.facts().filter(|facts| facts.pool.state == State::Ready) {
            ready += 1;
            if !facts.limits_enforced {
                lax.entry(&facts.limits_message).or_default().push(node);
            }
        }
    }
    if ready == 0 {
        return (Status::Unknown, reasons::UNKNOWN, "no node has told yet".to_owned());
    }
    if lax.is_empty() {
        return (Status::True, reasons::ENFORCED, "a volume cannot grow beyond its size".to_owned());
    }
    let texts = lax.iter().map(|(message, nodes)| {
        let shown = nodes.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = nodes.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("on {shown}{more}: {message}")
    });
    (Status::False, reasons::ACCOUNTING_ONLY, texts.collect::<Vec<_>>().join("; "))
}
