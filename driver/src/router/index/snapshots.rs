//! The snapshots of all pools.

use dunnage_csi::agent::Snapshot;

use super::kept::{self, Page};
use super::{Holder, Index};
use crate::error::Result;
use crate::id::{PoolId, SnapshotId, VolumeId};

/// Which snapshots are asked for; all of them when nothing is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) volume: Option<VolumeId>,
}

impl Filter {
    /// The only pool that can have such snapshots.
    fn pool(&self) -> Option<PoolId> {
        self.snapshot.as_ref().map(SnapshotId::pool).or_else(|| self.volume.as_ref().map(VolumeId::pool))
    }

    fn takes(&self, id: &SnapshotId, snapshot: &Snapshot) -> bool {
        self.snapshot.as_ref().is_none_or(|asked| asked == id)
            && self.volume.as_ref().is_none_or(|asked| asked.as_str() == snapshot.source_volume_id)
    }
}

impl Index {
    /// Notes a snapshot that a call through this router has made.
    pub(crate) fn snapshot_created(&mut self, id: &SnapshotId, snapshot: Snapshot) {
        if let Some(pool) = self.pools.get_mut(&id.pool()) {
            pool.snapshots.created(id, snapshot);
        }
    }

    /// Notes a snapshot that a call through this router has removed.
    pub(crate) fn snapshot_deleted(&mut self, id: &SnapshotId) {
        if let Some(pool) = self.pools.get_mut(&id.pool()) {
            pool.snapshots.deleted(id);
        }
    }

    /// A snapshot, as its pool has told or a call has made it; none when it is not there.
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let pool = id.pool();
        match self.holder(&pool) {
            Holder::GivenUp => Ok(None),
            // It may well be there.
            Holder::Unknown => self.route(&pool).map(|_| None),
            Holder::Live { .. } | Holder::Contested { .. } | Holder::Away { .. } => {
                Ok(self.pools.get(&pool).and_then(|pool| pool.snapshots.get(id)).cloned())
            }
        }
    }

    /// A snapshot of this name on another pool than this.
    pub(crate) fn same_name_elsewhere(&self, name: &str, here: &PoolId) -> Option<SnapshotId> {
        let others = self.pools.iter().filter(|(id, _)| *id != here);
        let live = others.filter(|(id, _)| matches!(self.holder(id), Holder::Live { .. }));
        live.map(|(id, pool)| (SnapshotId::make(id, name), pool))
            .find(|(id, pool)| pool.snapshots.has(id))
            .map(|(id, _)| id)
    }

    /// The snapshots after an id, in the order of their ids; `limit` 0 means all.
    pub(crate) fn snapshot_page(
        &self,
        filter: &Filter,
        after: Option<&SnapshotId>,
        limit: usize,
    ) -> Result<Page<Snapshot, SnapshotId>> {
        let only = filter.pool();
        if only.as_ref().is_none_or(|pool| !self.pools.contains_key(pool)) {
            self.check_complete()?;
        }
        let pools = self.kept_pools().filter(|(id, _)| only.as_ref().is_none_or(|only| only == *id));
        let rest = pools.flat_map(|(_, pool)| {
            let later = pool.snapshots.after(after).filter(|(id, snapshot)| filter.takes(id, snapshot));
            later.map(|(id, snapshot)| (id.clone(), snapshot.clone()))
        });
        Ok(kept::page(rest, limit))
    }
}
