//! Where a volume may be made: requisite and preferred segments, equal over retries.

mod order;

use std::collections::BTreeMap;

use dunnage_csi::v1::{Topology, TopologyRequirement};
use k8s_openapi::api::core::v1::TopologySelectorTerm;
use serde::{Deserialize, Serialize};

/// One place: labels that a node must carry.
pub type Segment = BTreeMap<String, String>;

/// What was asked of the driver; kept for a claim until its outcome is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub requisite: Vec<Segment>,
    /// The place in `requisite` that the preferred list starts at.
    pub first: usize,
}

/// A node as far as topology goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub labels: Option<Segment>,
    pub driver: Driver,
}

/// What a node's CSINode says of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// There is no CSINode.
    NoNode,
    NotRegistered,
    Registered(Vec<String>),
}

/// What the choice depends on.
pub struct Inputs<'a> {
    pub claim: &'a str,
    /// The node that the scheduler chose, by name; none with immediate binding.
    pub selected: Option<(&'a str, Node)>,
    pub allowed: &'a [TopologySelectorTerm],
    pub strict: bool,
    pub immediate: bool,
    /// All nodes, asked for only where they are needed.
    pub nodes: &'a dyn Fn() -> Vec<Node>,
}

/// Why no place can be named now.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The scheduler must choose again.
    #[error("node {0:?} is gone")]
    NodeGone(String),
    #[error("the driver is not registered on node {0:?} yet")]
    NotRegistered(String),
    #[error("node {node:?} lacks the topology label {key:?}; its node plugin may still be starting")]
    NoLabel { node: String, key: String },
    #[error("the driver is not registered with topology keys on any node")]
    NoKeys,
    #[error("no node carries all topology labels {0:?}")]
    NoNode(Vec<String>),
    #[error("node {0:?} lies in none of the StorageClass's allowedTopologies")]
    NotAllowed(String),
}

/// Chooses; `None` when nothing is to be asked of the driver.
pub fn ask(inputs: &Inputs<'_>) -> Result<Option<Asked>, Unknown> {
    let allowed = flatten(inputs.allowed);
    let Some((name, node)) = &inputs.selected else {
        let requisite = match allowed {
            Some(allowed) => allowed,
            None if inputs.immediate => {
                let nodes = (inputs.nodes)();
                let keys = common_keys(&nodes).ok_or(Unknown::NoKeys)?;
                aggregate(&nodes, &keys)?
            }
            None => return Ok(None),
        };
        let first = order::spread(inputs.claim, requisite.len());
        return Ok(Some(Asked { requisite, first }));
    };
    let (keys, segment) = segment_of(name, node)?;
    let within = |term: &Segment| term.iter().all(|(key, value)| segment.get(key) == Some(value));
    if inputs.strict {
        if allowed.is_some_and(|allowed| !allowed.iter().any(within)) {
            return Err(Unknown::NotAllowed((*name).to_owned()));
        }
        return Ok(Some(Asked { requisite: vec![segment], first: 0 }));
    }
    let requisite = match allowed {
        Some(allowed) => allowed,
        None => aggregate(&(inputs.nodes)(), &keys)?,
    };
    let first = requisite.iter().position(within).ok_or_else(|| Unknown::NotAllowed((*name).to_owned()))?;
    Ok(Some(Asked { requisite, first }))
}

impl Asked {
    pub fn requirement(&self) -> TopologyRequirement {
        let topology = |segment: &Segment| Topology { segments: segment.clone().into_iter().collect() };
        let requisite: Vec<Topology> = self.requisite.iter().map(topology).collect();
        let mut preferred = requisite.clone();
        preferred.rotate_left(self.first.min(requisite.len()));
        TopologyRequirement { requisite, preferred }
    }
}

/// A registered node's keys and its segment.
pub fn segment_of(name: &str, node: &Node) -> Result<(Vec<String>, Segment), Unknown> {
    let keys = match &node.driver {
        Driver::NoNode => return Err(Unknown::NodeGone(name.to_owned())),
        Driver::Registered(keys) if !keys.is_empty() => keys.clone(),
        Driver::NotRegistered | Driver::Registered(_) => return Err(Unknown::NotRegistered(name.to_owned())),
    };
    let Some(labels) = &node.labels else { return Err(Unknown::NodeGone(name.to_owned())) };
    let mut segment = Segment::new();
    for key in &keys {
        let Some(value) = labels.get(key) else {
            return Err(Unknown::NoLabel { node: name.to_owned(), key: key.clone() });
        };
        segment.insert(key.clone(), value.clone());
    }
    Ok((keys, segment))
}

/// The keys that most nodes list, so that one odd node does not decide for all.
fn common_keys(nodes: &[Node]) -> Option<Vec<String>> {
    let mut counts: BTreeMap<&Vec<String>, usize> = BTreeMap::new();
    for node in nodes {
        if let Driver::Registered(keys) = &node.driver
            && !keys.is_empty()
        {
            *counts.entry(keys).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(keys, _)| keys.clone())
}

/// One segment for each distinct set of values among the nodes that carry all keys.
fn aggregate(nodes: &[Node], keys: &[String]) -> Result<Vec<Segment>, Unknown> {
    let segment = |node: &Node| -> Option<Segment> {
        let labels = node.labels.as_ref()?;
        keys.iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
    };
    let segments = order::sorted(nodes.iter().filter_map(segment).collect());
    if segments.is_empty() { Err(Unknown::NoNode(keys.to_vec())) } else { Ok(segments) }
}

/// The terms of a class multiplied out; `None` when they say nothing.
fn flatten(terms: &[TopologySelectorTerm]) -> Option<Vec<Segment>> {
    let mut segments = Vec::new();
    for term in terms {
        let mut product = vec![Segment::new()];
        for expression in term.match_label_expressions.iter().flatten() {
            let grown = |segment: &Segment| {
                let segment = segment.clone();
                expression.values.iter().map(move |value| {
                    let mut segment = segment.clone();
                    segment.insert(expression.key.clone(), value.clone());
                    segment
                })
            };
            product = product.iter().flat_map(grown).collect();
        }
        segments.extend(product.into_iter().filter(|segment| !segment.is_empty()));
    }
    let segments = order::sorted(segments);
    (!segments.is_empty()).then_some(segments)
}

#[cfg(test)]
mod tests;
