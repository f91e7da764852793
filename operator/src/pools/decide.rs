//! The decision itself.

use std::collections::BTreeMap;

use dunnage_crds::conditions::problems;
use dunnage_crds::pools::is_pool_id;
use jiff::SignedDuration;

use super::{Decision, Described, Entry, Fence, Inputs, Note, Phase, Problem, State};

/// A Node object may be gone for so long before its pool counts as lost: a node that is renamed or set up again is not.
const GRACE: SignedDuration = SignedDuration::from_mins(15);
/// `last_seen` is for people: an hour is exact enough, and spares a write a pass.
const SEEN_STEP: SignedDuration = SignedDuration::from_hours(1);

/// Decides what to do about the pools of one backend.
pub fn decide(inputs: &Inputs<'_>) -> Decision {
    let mut decision = Decision { record: inputs.record.clone(), ..Decision::default() };
    let holders = holders(inputs);
    for (pool, nodes) in &holders {
        match nodes.as_slice() {
            [node] => settle(inputs, &mut decision, pool, node),
            _ => dispute(inputs, &mut decision, pool, nodes),
        }
    }
    for (node, agent) in inputs.agents {
        if agent.state != State::Ready {
            unready(inputs, &mut decision, node, agent);
        }
    }
    absent(inputs, &mut decision, &holders);
    labels(inputs, &mut decision);
    decision
}

/// Nodes by the pool that they have, from agents that are ready.
fn holders(inputs: &Inputs<'_>) -> BTreeMap<String, Vec<String>> {
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, agent) in inputs.agents {
        if agent.state == State::Ready && is_pool_id(&agent.pool) {
            holders.entry(agent.pool.clone()).or_default().push(node.clone());
        }
    }
    holders
}

/// A pool that one node has: it is recorded there, wherever it was before.
fn settle(inputs: &Inputs<'_>, decision: &mut Decision, pool: &str, node: &str) {
    adopt(inputs, decision, pool, node);
    // An id that was chosen for this node before its disk turned up with another pool.
    decision.record.retain(|id, entry| id == pool || entry.node != node || entry.phase != Phase::Pending);
    if inputs.wishes.new_pools.contains(node) {
        decision.fulfilled.insert(node.to_owned());
    }
    if inputs.agents[node].fenced {
        decision.fences.push(Fence { node: node.to_owned(), fenced: false, reason: String::new() });
    }
}

fn adopt(inputs: &Inputs<'_>, decision: &mut Decision, pool: &str, node: &str) {
    let node_uid = inputs.nodes.get(node).map(|facts| facts.uid.clone()).unwrap_or_default();
    let path = inputs.agents[node].path.clone();
    let (now, active) = (inputs.now, Phase::Active);
    let Some(known) = decision.record.get_mut(pool) else {
        let (first_seen, last_seen) = (now, now);
        let entry = Entry {
            node: node.to_owned(),
            node_uid,
            path,
            phase: active,
            first_seen,
            last_seen,
            node_gone: None,
        };
        decision.record.insert(pool.to_owned(), entry);
        decision.notes.push(Note {
            reason: "PoolFound",
            message: format!("node {node} has pool {pool}, which was not on record"),
            warning: false,
        });
        return;
    };
    if known.node != node {
        decision.notes.push(Note {
            reason: "PoolMoved",
            message: format!("pool {pool} moved from node {} to node {node}; its volumes follow", known.node),
            warning: false,
        });
    } else if known.phase == Phase::Pending {
        let message = format!("node {node} has its pool {pool} at {path}");
        decision.notes.push(Note { reason: "PoolCreated", message, warning: false });
    } else if matches!(known.phase, Phase::Lost | Phase::Retired) {
        let message = format!("pool {pool} is back on node {node}");
        decision.notes.push(Note { reason: "PoolReturned", message, warning: false });
    }
    let changed = (&known.node[..], &known.node_uid, &known.path, known.phase, known.node_gone)
        != (node, &node_uid, &path, active, None);
    if changed || now.duration_since(known.last_seen) >= SEEN_STEP {
        let (first_seen, last_seen) = (known.first_seen, now);
        *known = Entry {
            node: node.to_owned(),
            node_uid,
            path,
            phase: active,
            first_seen,
            last_seen,
            node_gone: None,
        };
    }
}

/// The same pool on several nodes at once (a copied disk, a shared one): nothing new is made there until a person chose.
fn dispute(inputs: &Inputs<'_>, decision: &mut Decision, pool: &str, nodes: &[String]) {
    let owner = inputs.wishes.owners.get(pool).filter(|owner| nodes.contains(owner));
    let all = nodes.join(", ");
    for node in nodes {
        let fenced = owner != Some(node);
        if fenced {
            let remedy = match owner {
                Some(owner) => format!("node {owner} was chosen to keep it: unmount it here"),
                None => format!(
                    "unmount it on all but one, or choose: kubectl annotate sb/BACKEND {}={pool}=NODE",
                    super::POOL_OWNER
                ),
            };
            let message =
                format!("pool {pool} is on several nodes at once ({all}), new volumes are refused; {remedy}");
            decision.problems.insert(node.clone(), Problem { reason: problems::POOL_DUPLICATE, message });
        } else {
            adopt(inputs, decision, pool, node);
        }
        if inputs.agents[node].fenced != fenced {
            let reason = if fenced {
                format!("pool {pool} is on several nodes at once: {all}")
            } else {
                String::new()
            };
            decision.fences.push(Fence { node: node.clone(), fenced, reason });
        }
    }
}

/// An agent that has no usable pool.
fn unready(inputs: &Inputs<'_>, decision: &mut Decision, node: &str, agent: &Described) {
    // What moved elsewhere was recorded there by now, so this is what the node had and nobody has.
    let own = decision
        .record
        .iter()
        .find(|(_, e)| e.node == node && matches!(e.phase, Phase::Active | Phase::Lost));
    let own = own.map(|(pool, _)| pool.clone());
    let pending = inputs.record.iter().find(|(_, entry)| entry.node == node && entry.phase == Phase::Pending);
    let wished = inputs.wishes.new_pools.contains(node);
    match (agent.state, own, pending) {
        (State::Empty, _, Some((pool, _))) => {
            decision.inits.push((node.to_owned(), pool.clone()));
            if wished {
                decision.fulfilled.insert(node.to_owned());
            }
        }
        (State::Empty, None, None) => decision.starts.push(node.to_owned()),
        (State::Empty, Some(pool), None) if wished => {
            for entry in decision.record.values_mut() {
                if entry.node == node && matches!(entry.phase, Phase::Active | Phase::Lost) {
                    entry.phase = Phase::Retired;
                }
            }
            decision.starts.push(node.to_owned());
            let message = format!("pool {pool} of node {node} is given up for a new one, as asked");
            decision.notes.push(Note { reason: "PoolRetired", message, warning: true });
        }
        (_, Some(pool), _) => {
            decision.problems.insert(node.to_owned(), missing(node, &pool, agent));
        }
        (state, None, _) => {
            decision.problems.insert(node.to_owned(), obstacle(node, state, agent));
        }
    }
}

fn missing(node: &str, pool: &str, agent: &Described) -> Problem {
    let path = &agent.path;
    let found = if agent.message.is_empty() { "the path is empty" } else { &agent.message };
    let message = format!(
        "pool {pool} of node {node} is not at {path} ({found}): mount its disk again; if it is lost for good, \
         start a new pool: empty the path, then kubectl annotate sb/BACKEND {}={node}",
        super::NEW_POOL
    );
    Problem { reason: problems::POOL_MISSING, message }
}

fn obstacle(node: &str, state: State, agent: &Described) -> Problem {
    let (reason, remedy) = match state {
        State::NotEmpty => {
            (problems::POOL_NOT_EMPTY, "move the files away, or give the backend an empty directory")
        }
        State::NotMounted => (problems::POOL_NOT_MOUNTED, "mount the disk there"),
        State::Foreign => (problems::POOL_FOREIGN, "mount the right disk, or remove that backend's data"),
        State::NewerFormat => (problems::POOL_NEWER_FORMAT, "upgrade Dunnage"),
        State::Damaged => {
            (problems::POOL_DAMAGED, "restore the pool's marker from a backup, or empty the path")
        }
        State::Unavailable | State::Empty | State::Ready => {
            (problems::POOL_UNAVAILABLE, "make it a readable directory")
        }
    };
    let said = if agent.message.is_empty() { "it cannot be used" } else { &agent.message };
    Problem { reason, message: format!("path {} of node {node}: {said}; {remedy}", agent.path) }
}

/// Pools that nobody shows: their node may be gone, or may have another pool where this one was.
fn absent(inputs: &Inputs<'_>, decision: &mut Decision, holders: &BTreeMap<String, Vec<String>>) {
    let mut forgotten = Vec::new();
    for (pool, entry) in &mut decision.record {
        if holders.contains_key(pool) || entry.phase == Phase::Retired {
            continue;
        }
        if inputs.nodes.contains_key(&entry.node) {
            entry.node_gone = None;
            let another = inputs.agents.get(&entry.node).filter(|agent| agent.state == State::Ready);
            if let (Some(another), Phase::Active | Phase::Lost) = (another, entry.phase) {
                let message = format!(
                    "pool {pool} of node {} is not at {}, where pool {} is now: mount the right disk, or give the \
                     old pool up: kubectl annotate sb/BACKEND {}={}",
                    entry.node,
                    another.path,
                    another.pool,
                    super::NEW_POOL,
                    entry.node
                );
                if inputs.wishes.new_pools.contains(&entry.node) {
                    entry.phase = Phase::Retired;
                } else {
                    let problem = Problem { reason: problems::POOL_MISSING, message };
                    decision.problems.entry(entry.node.clone()).or_insert(problem);
                }
            }
            continue;
        }
        let since = *entry.node_gone.get_or_insert(inputs.now);
        if inputs.now.duration_since(since) < GRACE || entry.phase == Phase::Lost {
            continue;
        }
        if entry.phase == Phase::Pending {
            forgotten.push(pool.clone());
        } else {
            entry.phase = Phase::Lost;
            let message = format!("node {} is gone from the cluster and pool {pool} with it", entry.node);
            decision.notes.push(Note { reason: "PoolLost", message, warning: true });
        }
    }
    decision.record.retain(|pool, _| !forgotten.contains(pool));
}

/// Kubelet sets a topology label when it registers the driver and never takes it away. It refuses to register one whose label
/// has another value already, and pods are sent to where the label is.
fn labels(inputs: &Inputs<'_>, decision: &mut Decision) {
    for (node, facts) in inputs.nodes {
        let Some(agent) = inputs.agents.get(node) else { continue };
        let Some(label) = &facts.label else {
            // It went while the pool was elsewhere, and a driver that is still registered is not registered again.
            let own = decision.record.get(&agent.pool).filter(|entry| entry.node == *node);
            if agent.state == State::Ready && own.is_some() && !decision.problems.contains_key(node) {
                decision.missing_labels.push((node.clone(), agent.pool.clone()));
            }
            continue;
        };
        if agent.state == State::Ready && agent.pool == *label {
            continue;
        }
        match decision.record.get(label) {
            Some(entry) if entry.node != *node || entry.phase == Phase::Retired => {
                decision.stale_labels.push(node.clone());
            }
            // The label says where the missing one belongs, which is told already.
            Some(_) => {}
            None if agent.state != State::Ready => {}
            None => {
                let key = inputs.topology_key;
                let message = format!(
                    "node {node} is labelled with pool {label}, which is not on record, but has pool {}: if that \
                     pool is gone, kubectl label node {node} {key}-",
                    agent.pool
                );
                decision
                    .problems
                    .entry(node.clone())
                    .or_insert(Problem { reason: problems::TOPOLOGY_STALE, message });
            }
        }
    }
}
