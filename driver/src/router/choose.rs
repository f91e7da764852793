//! Where a `CreateVolume` goes. Pure: from the index and the request to a plan.

use dunnage_csi::v1::{Topology, TopologyRequirement};
use tonic::Status;

use super::index::{Holder, Index};
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::record::Source;

/// Whether data are copied from one pool to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossPool {
    #[default]
    Copy,
    /// A volume is made where the data are, or not at all.
    Refuse,
}

/// What to do for a `CreateVolume`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Volumes of this name where they may no longer be. They go first, so that there are never two.
    pub(crate) remove: Vec<VolumeId>,
    /// Pools to try, best first: the next one only when the one before is full.
    pub(crate) pools: Vec<PoolId>,
    /// The pool that the data are copied from to any of them but itself.
    pub(crate) copy_from: Option<PoolId>,
}

/// The pools that a request allows, best first; `None` when it allows all.
pub(crate) fn allowed(requirement: Option<&TopologyRequirement>, key: &str) -> Result<Option<Vec<PoolId>>> {
    let terms: Vec<_> =
        requirement.into_iter().flat_map(|asked| asked.preferred.iter().chain(&asked.requisite)).collect();
    if terms.is_empty() {
        return Ok(None);
    }
    let mut pools = Vec::new();
    for term in terms {
        let pool = pool(term, key)?;
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    }
    Ok(Some(pools))
}

/// The one pool that a topology stands for.
pub(crate) fn pool(topology: &Topology, key: &str) -> Result<PoolId> {
    if let (Some(value), 1) = (topology.segments.get(key), topology.segments.len()) {
        return value.parse();
    }
    let mut keys: Vec<_> = topology.segments.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let keys = keys.join(", ");
    Err(Error::Invalid(format!("a topology of [{keys}] is asked for, and this driver knows only {key}")))
}

/// Decides where the volume of this name is to be. With a source, that is the source's pool if it can be: nothing needs to
/// be copied to another then.
pub(crate) fn choose(
    index: &Index,
    name: &str,
    allowed: Option<&[PoolId]>,
    source: Option<&Source>,
    cross: CrossPool,
) -> Result<Plan> {
    if !index.settled() {
        // Not final: the provisioner asks again, and by then the volume is found wherever it is.
        return Err(Error::Unavailable("the agents of the nodes are not all known yet".to_owned()));
    }
    let by_room = || {
        let mut pools: Vec<_> = index.pools().collect();
        pools.sort_by(|(a, a_room), (b, b_room)| b_room.cmp(a_room).then(a.cmp(b)));
        pools.into_iter().map(|(id, _)| id.clone()).collect()
    };
    let order: Vec<PoolId> = allowed.map_or_else(by_room, <[_]>::to_vec);
    let live = |pool: &PoolId| matches!(index.holder(pool), Holder::Live { .. });
    let mut existing: Vec<VolumeId> = index
        .pools()
        .map(|(pool, _)| VolumeId::make(pool, name))
        .filter(|id| (index.has(id) || index.is_arriving(id)) && live(&id.pool()))
        .collect();
    let is_whole = |pool: &&PoolId| index.has(&VolumeId::make(pool, name));
    let goes_on = |pool: &&PoolId| cross == CrossPool::Copy && index.is_arriving(&VolumeId::make(pool, name));
    let known = || order.iter().filter(|pool| existing.iter().any(|id| id.pool() == **pool));
    if let Some(home) = known().find(is_whole).or_else(|| known().find(goes_on)).cloned() {
        existing.retain(|id| id.pool() != home);
        let copy_from = source.map(Source::pool).filter(|from| *from != home && !is_whole(&&home));
        return Ok(Plan { remove: existing, pools: vec![home], copy_from });
    }
    let (order, copy_from) = match source {
        Some(source) => near(index, source, order, cross)?,
        None => (order, None),
    };
    let (mut pools, mut reasons) = (Vec::new(), Vec::new());
    for pool in order {
        match unusable(index, &pool) {
            None => pools.push(pool),
            Some(reason) => reasons.push(reason),
        }
    }
    if pools.is_empty() {
        return Err(no_pool(reasons));
    }
    Ok(Plan { remove: existing, pools, copy_from })
}

/// The pools for a volume made from a source, best first, and the pool that the data are copied from to the others.
fn near(
    index: &Index,
    source: &Source,
    order: Vec<PoolId>,
    cross: CrossPool,
) -> Result<(Vec<PoolId>, Option<PoolId>)> {
    let home = source.pool();
    let allowed = order.contains(&home);
    match index.holder(&home) {
        Holder::GivenUp => Err(match source {
            Source::Snapshot(id) => Error::NoSuchSnapshot { id: id.to_string() },
            Source::Volume(id) => Error::NoSuchVolume { id: id.to_string() },
        }),
        // Not known where it is, be it allowed there or not: it may be a pool that is yet to be seen.
        Holder::Unknown => index.route(&home).map(|_| (vec![home.clone()], None)),
        Holder::Live { .. } if cross == CrossPool::Copy => {
            let mut pools = order;
            // What is copied least comes first, and the rest keeps its order.
            pools.sort_by_key(|pool| *pool != home);
            Ok((pools, Some(home)))
        }
        _ if allowed => Ok((vec![home], None)),
        // Nobody can give them now, wherever the volume is to be.
        Holder::Away { .. } | Holder::Contested { .. } if cross == CrossPool::Copy => {
            index.route(&home).map(|_| (vec![home.clone()], None))
        }
        Holder::Live { node, .. } | Holder::Away { node } => {
            Err(elsewhere(format!("{home} (node {node})"), &order))
        }
        Holder::Contested { .. } => Err(elsewhere(home.to_string(), &order)),
    }
}

/// `ResourceExhausted` hands the claim back to the scheduler, which then tries another node.
fn elsewhere(pool: String, order: &[PoolId]) -> Error {
    let asked = order.iter().map(PoolId::as_str).collect::<Vec<_>>().join(", ");
    Error::SourceElsewhere { pool, asked: format!("pools {asked}") }
}

/// Why a pool cannot take a new volume.
fn unusable(index: &Index, pool: &PoolId) -> Option<String> {
    match index.holder(pool) {
        Holder::Live { fenced: false, .. } => None,
        Holder::Live { node, fenced: true } => Some(format!("pool {pool} on node {node} is fenced")),
        Holder::Contested { .. } | Holder::Away { .. } | Holder::GivenUp | Holder::Unknown => {
            index.route(pool).err().map(|error| error.to_string())
        }
    }
}

/// `ResourceExhausted` although an agent that answers no more may hold the volume half made: with `Unavailable` the
/// provisioner would ask for the same dead node for ever, while this hands the claim back to the scheduler. What was
/// half made is found and removed by a later call, or shows as an orphan when the node returns.
fn no_pool(reasons: Vec<String>) -> Error {
    const SHOWN: usize = 5;
    let more = reasons.len().saturating_sub(SHOWN);
    let mut text = reasons.into_iter().take(SHOWN).collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        "no node has a pool yet".clone_into(&mut text);
    }
    if more > 0 {
        text = format!("{text}; and {more} more");
    }
    Status::resource_exhausted(format!("no pool can take the volume now: {text}")).into()
}

#[cfg(test)]
mod tests;
