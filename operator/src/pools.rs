//! Which pool belongs to which node: from the record, what agents describe, and what people said, to what to do.
//!
//! The record is written before anything is done by it, so the operator may die between any two steps: a pool id is
//! recorded as pending, then the agent is asked to make the pool, then the agent's description makes it active.

mod decide;

use std::collections::{BTreeMap, BTreeSet};

pub use decide::decide;
pub use dunnage_crds::pools::{Entry, Phase, Record};
use jiff::Timestamp;

/// Annotation on a StorageBackend: nodes (separated by commas) whose missing pool shall be replaced by a new one.
pub const NEW_POOL: &str = "dunnage.dev/new-pool";
/// Annotation on a StorageBackend: `pool=node` (separated by commas): which node keeps a pool that two nodes have.
pub const POOL_OWNER: &str = "dunnage.dev/pool-owner";

/// What an agent says of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Ready,
    Empty,
    NotEmpty,
    Unavailable,
    NotMounted,
    Foreign,
    NewerFormat,
    Damaged,
}

/// What a connected agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub state: State,
    pub message: String,
    pub pool: String,
    pub path: String,
    pub fenced: bool,
}

/// What matters of a Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub uid: String,
    /// Value of the driver's topology label.
    pub label: Option<String>,
}

/// All that the decision depends on.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    pub record: &'a Record,
    /// Agents that are connected now, by node.
    pub agents: &'a BTreeMap<String, Described>,
    pub nodes: &'a BTreeMap<String, NodeFacts>,
    pub wishes: &'a Wishes,
    /// Key of the topology label.
    pub topology_key: &'a str,
    pub now: Timestamp,
}

/// What people said by annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    pub new_pools: BTreeSet<String>,
    pub owners: BTreeMap<String, String>,
}

impl Wishes {
    /// Reads the annotations of a StorageBackend; what is not understood is left out.
    pub fn parse(annotations: &BTreeMap<String, String>) -> Self {
        let items = |key| {
            let text = annotations.get(key).map_or("", String::as_str);
            text.split(',').map(str::trim).filter(|item| !item.is_empty())
        };
        Self {
            new_pools: items(NEW_POOL).map(str::to_owned).collect(),
            owners: items(POOL_OWNER)
                .filter_map(|item| item.split_once('='))
                .map(|(pool, node)| (pool.trim().to_owned(), node.trim().to_owned()))
                .collect(),
        }
    }
}

/// Something that a person must look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

/// A change that people may want to know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub reason: &'static str,
    pub message: String,
    pub warning: bool,
}

/// A call to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub node: String,
    pub fenced: bool,
    pub reason: String,
}

/// What to do. The record is stored first; the calls hold for the record as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub record: Record,
    /// Nodes that get a new pending pool id, put into the record.
    pub starts: Vec<String>,
    /// Node and pool id of `InitPool` calls.
    pub inits: Vec<(String, String)>,
    pub fences: Vec<Fence>,
    /// Nodes whose topology label names a pool that is elsewhere or given up.
    pub stale_labels: Vec<String>,
    /// Nodes that have a pool and lack its label, with the pool.
    pub missing_labels: Vec<(String, String)>,
    /// Nodes whose wish for a new pool is fulfilled: the annotation can go.
    pub fulfilled: BTreeSet<String>,
    pub problems: BTreeMap<String, Problem>,
    pub notes: Vec<Note>,
}

#[cfg(test)]
mod tests;
