//! What the router knows of agents, pools and volumes. Pure: events change it, calls ask it.

use std::collections::{BTreeMap, BTreeSet};

use dunnage_csi::agent::pool::State;
use dunnage_csi::agent::{DescribeResponse, Snapshot, Volume};

use super::keeper::{Keeper, judge};
use crate::error::{Error, Result};
use crate::id::{PoolId, SnapshotId, VolumeId};

mod groups;
mod kept;
pub(crate) mod snapshots;

use kept::{Kept, Page};

/// The whole picture. Nothing in it must survive the process: it is built again from what the agents say.
#[derive(Debug, Default)]
pub(crate) struct Index {
    agents: BTreeMap<String, Agent>,
    /// By id, and kept when the agent goes: its volumes exist all the same.
    pools: BTreeMap<PoolId, Pool>,
    /// Nobody waits for these any more, unless an agent shows them.
    given_up: BTreeSet<PoolId>,
    /// Whether every agent of the first list has been tried, so that what is not known is not there.
    settled: bool,
}

#[derive(Debug)]
struct Agent {
    link: Link,
    /// What it said last.
    said: Option<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Not yet tried.
    New,
    Up,
    Down,
}

#[derive(Debug)]
struct Said {
    /// The pool, if it is there and ours.
    pool: Option<PoolId>,
    fenced: bool,
}

#[derive(Debug)]
struct Pool {
    /// The node that it was last seen on.
    node: String,
    available: u64,
    volumes: Kept<VolumeId, Volume>,
    snapshots: Kept<SnapshotId, Snapshot>,
    /// Volumes that are being copied there from another pool.
    arriving: BTreeSet<VolumeId>,
    /// The agent that has it; none while several contend for it.
    keeper: Option<Keeper>,
}

/// Who has a pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// This node's agent, which answers.
    Live {
        node: &'a str,
        fenced: bool,
    },
    /// Agents of several nodes, and nobody has chosen between them.
    Contested {
        nodes: Vec<&'a str>,
    },
    /// Last this node's agent, which does not answer or no longer has it.
    Away {
        node: &'a str,
    },
    /// No agent that answers has it, and nobody waits for it any more.
    GivenUp,
    Unknown,
}

/// An order to an agent to take no new volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) node: String,
    pub(crate) reason: String,
}

impl Index {
    /// Takes a new list of the nodes that have an agent, and of the pools that are given up.
    pub(crate) fn announce(&mut self, nodes: &BTreeSet<String>, given_up: BTreeSet<PoolId>) {
        self.given_up = given_up;
        self.agents.retain(|node, _| nodes.contains(node));
        for node in nodes {
            self.agents.entry(node.clone()).or_insert(Agent { link: Link::New, said: None });
        }
        self.review(None);
    }

    /// Takes what an agent says, and gives back who has to be fenced because of it.
    pub(crate) fn describe(&mut self, node: &str, said: DescribeResponse) -> Vec<Fence> {
        let Some(agent) = self.agents.get_mut(node) else { return Vec::new() };
        let about = said.pool.unwrap_or_default();
        // Only on a living connection: an agent that has restarted has merely forgotten its fence.
        let was_fenced = agent.link == Link::Up && agent.said.as_ref().is_some_and(|said| said.fenced);
        let pool = (about.state() == State::Ready).then(|| about.id.parse::<PoolId>().ok()).flatten();
        agent.link = Link::Up;
        agent.said = Some(Said { pool: pool.clone(), fenced: about.fenced });
        if let Some(id) = &pool {
            self.pools.entry(id.clone()).or_insert_with(|| Pool::new(node));
        }
        self.review((was_fenced && !about.fenced).then_some(node));
        // The other copy of a pool has no say about the keeper's volumes.
        let known = pool.as_ref().and_then(|id| self.pools.get_mut(id));
        if let Some(known) =
            known.filter(|pool| pool.keeper.as_ref().is_none_or(|keeper| keeper.node == node))
        {
            known.update(node, about.available_bytes, said.volumes, said.snapshots);
            known.arriving = said.arriving_volume_ids.iter().filter_map(|id| id.parse().ok()).collect();
        }
        pool.map(|id| self.fences(&id)).unwrap_or_default()
    }

    /// Notes that an agent cannot be reached, or no longer.
    pub(crate) fn lost(&mut self, node: &str) {
        if let Some(agent) = self.agents.get_mut(node) {
            agent.link = Link::Down;
        }
        self.review(None);
    }

    /// Notes that a node's agent is now to be found elsewhere.
    pub(crate) fn moved(&mut self, node: &str) {
        if self.is_connected(node) {
            self.lost(node);
        }
    }

    /// Notes a volume that a call through this router has made.
    pub(crate) fn created(&mut self, id: &VolumeId, volume: Volume) {
        if let Some(pool) = self.pools.get_mut(&id.pool()) {
            pool.volumes.created(id, volume);
        }
    }

    /// Notes a volume that a call through this router has made larger.
    pub(crate) fn grown(&mut self, id: &VolumeId, bytes: u64) {
        let Some(pool) = self.pools.get_mut(&id.pool()) else { return };
        pool.volumes.change(id, |volume| {
            let grown = volume.capacity_bytes < bytes;
            volume.capacity_bytes = volume.capacity_bytes.max(bytes);
            grown
        });
    }

    /// Notes a volume that a call through this router has removed.
    pub(crate) fn deleted(&mut self, id: &VolumeId) {
        if let Some(pool) = self.pools.get_mut(&id.pool()) {
            pool.volumes.deleted(id);
        }
    }

    /// Whether a volume that is not in the index is on no agent that answers.
    pub(crate) fn settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn agents(&self) -> usize {
        self.agents.len()
    }

    pub(crate) fn connected(&self) -> usize {
        self.agents.values().filter(|agent| agent.link == Link::Up).count()
    }

    pub(crate) fn is_connected(&self, node: &str) -> bool {
        self.agents.get(node).is_some_and(|agent| agent.link == Link::Up)
    }

    pub(crate) fn holder(&self, id: &PoolId) -> Holder<'_> {
        let live = self.live(id);
        if live.is_empty() && self.given_up.contains(id) {
            return Holder::GivenUp;
        }
        let Some(pool) = self.pools.get(id) else { return Holder::Unknown };
        let keeps =
            |(node, _): &&(&str, bool)| pool.keeper.as_ref().is_some_and(|keeper| keeper.node == *node);
        match (live.as_slice(), live.iter().find(keeps)) {
            ([], _) => Holder::Away { node: &pool.node },
            (_, Some((node, fenced))) => Holder::Live { node, fenced: *fenced },
            (_, None) => Holder::Contested { nodes: live.iter().map(|(node, _)| *node).collect() },
        }
    }

    /// The node to ask about a pool, or why there is none.
    pub(crate) fn route(&self, id: &PoolId) -> Result<&str> {
        match self.holder(id) {
            Holder::Live { node, .. } => Ok(node),
            Holder::Contested { nodes } => Err(Error::Precondition(contested(id, &nodes))),
            Holder::Away { node } => Err(Error::Unavailable(format!(
                "pool {id} was last seen on node {node}, whose agent does not answer or no longer has it"
            ))),
            Holder::GivenUp => Err(Error::Precondition(format!(
                "pool {id} is given up: its node is gone from the cluster, or somebody has said that it is lost"
            ))),
            Holder::Unknown => Err(Error::Unavailable(format!("no agent has been seen with pool {id}"))),
        }
    }

    /// A pool for people, with the node that it was last seen on.
    pub(crate) fn place(&self, id: &PoolId) -> String {
        match self.pools.get(id) {
            Some(pool) => format!("pool {id} (node {})", pool.node),
            None => format!("pool {id}"),
        }
    }

    /// Every pool that was ever seen, with its free bytes.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (&PoolId, u64)> {
        self.pools.iter().map(|(id, pool)| (id, pool.available))
    }

    pub(crate) fn has(&self, id: &VolumeId) -> bool {
        self.pools.get(&id.pool()).is_some_and(|pool| pool.volumes.has(id))
    }

    /// Whether a volume is being copied to its pool from another.
    pub(crate) fn is_arriving(&self, id: &VolumeId) -> bool {
        self.pools.get(&id.pool()).is_some_and(|pool| pool.arriving.contains(id))
    }

    /// The volumes after an id, in the order of their ids; `limit` 0 means all.
    pub(crate) fn page(
        &self,
        after: Option<&VolumeId>,
        limit: usize,
    ) -> Result<Page<(PoolId, Volume), VolumeId>> {
        self.check_complete()?;
        // A volume's id begins with its pool's, so that the pools in their order give the volumes in theirs.
        let rest = self.kept_pools().flat_map(|(pool, kept)| {
            let later = kept.volumes.after(after);
            later.map(move |(id, volume)| (id.clone(), (pool.clone(), volume.clone())))
        });
        Ok(kept::page(rest, limit))
    }

    /// The pools whose things are listed, in the order of their ids.
    fn kept_pools(&self) -> impl Iterator<Item = (&PoolId, &Pool)> {
        self.pools.iter().filter(|(id, _)| !matches!(self.holder(id), Holder::GivenUp))
    }

    /// Whether a list of all pools would lack what an agent has not told yet.
    fn check_complete(&self) -> Result<()> {
        let heard_of = |(node, agent): (&String, &Agent)| {
            agent.said.is_some() || self.pools.values().any(|pool| pool.node == *node)
        };
        let silent = self.agents.iter().filter(|agent| !heard_of(*agent));
        let silent: Vec<_> = silent.map(|(node, _)| node.as_str()).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(Error::Unavailable(format!(
            "the list is not complete: nothing has been heard yet from the agents of {}",
            names(&silent)
        )))
    }

    /// The agents that answer and have the pool, and whether they are fenced.
    fn live(&self, id: &PoolId) -> Vec<(&str, bool)> {
        let has = |agent: &Agent| {
            let said = agent.said.as_ref().filter(|said| said.pool.as_ref() == Some(id))?;
            (agent.link == Link::Up).then_some(said.fenced)
        };
        self.agents.iter().filter_map(|(node, agent)| Some((node.as_str(), has(agent)?))).collect()
    }

    /// Everyone but the keeper has to be fenced where several have the pool.
    fn fences(&self, id: &PoolId) -> Vec<Fence> {
        let live = self.live(id);
        let nodes: Vec<_> = live.iter().map(|(node, _)| *node).collect();
        let keeper = self.pools.get(id).and_then(|pool| pool.keeper.as_ref());
        let others = live.iter().filter(|(node, fenced)| !fenced && keeper.is_none_or(|it| it.node != *node));
        others.map(|(node, _)| Fence { node: (*node).to_owned(), reason: contested(id, &nodes) }).collect()
    }

    /// Draws the conclusions from a change; `lifted` is a node whose fence has just gone.
    fn review(&mut self, lifted: Option<&str>) {
        let settled = self.settled;
        if !self.agents.is_empty() && self.agents.values().all(|agent| agent.link != Link::New) {
            self.settled = true;
        }
        let ids: Vec<PoolId> = self.pools.keys().cloned().collect();
        for id in ids {
            let live = self.live(&id);
            let keeper = self.pools.get(&id).and_then(|pool| pool.keeper.as_ref());
            let keeper = judge(keeper, &live, lifted, settled);
            if let Some(pool) = self.pools.get_mut(&id) {
                pool.keeper = keeper;
            }
        }
    }
}

impl Pool {
    fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            available: 0,
            volumes: Kept::new(),
            snapshots: Kept::new(),
            arriving: BTreeSet::new(),
            keeper: None,
        }
    }

    fn update(&mut self, node: &str, available: u64, volumes: Vec<Volume>, snapshots: Vec<Snapshot>) {
        if self.node != node {
            node.clone_into(&mut self.node);
            self.volumes.forget();
            self.snapshots.forget();
        }
        self.available = available;
        let volumes = volumes.into_iter().filter_map(|v| Some((v.id.parse().ok()?, v))).collect();
        self.volumes.update(volumes, |said, noted| {
            // Volumes never shrink.
            let grown = said.capacity_bytes < noted.capacity_bytes;
            said.capacity_bytes = said.capacity_bytes.max(noted.capacity_bytes);
            grown
        });
        let snapshots = snapshots.into_iter().filter_map(|s| Some((s.id.parse().ok()?, s))).collect();
        self.snapshots.update(snapshots, |_, _| false);
    }
}

/// Says that a pool is on several nodes, and what to do about it.
fn contested(id: &PoolId, nodes: &[&str]) -> String {
    format!(
        "pool {id} is on several nodes at once ({}), which happens when a disk is copied or shared: \
         choose the node that keeps it and take it from the others",
        names(nodes)
    )
}

/// Node names for people: not more than anyone would read.
fn names(nodes: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = nodes[..nodes.len().min(SHOWN)].join(", ");
    match nodes.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
