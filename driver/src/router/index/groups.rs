//! The group snapshots of all pools, known by their snapshots: a group has at least one, and all of them at once.

use dunnage_csi::agent::Snapshot;

use super::{Holder, Index};
use crate::error::Result;
use crate::id::{GroupId, PoolId, SnapshotId};

impl Index {
    /// Notes a group that a call through this router has removed.
    pub(crate) fn group_deleted(&mut self, id: &GroupId) {
        let Some(pool) = self.pools.get_mut(&id.pool()) else { return };
        let is_member = |(_, snapshot): &(&SnapshotId, &Snapshot)| snapshot.group_snapshot_id == id.as_str();
        let members = pool.snapshots.after(None).filter(is_member);
        let members: Vec<_> = members.map(|(id, _)| id.clone()).collect();
        for member in members {
            pool.snapshots.deleted(&member);
        }
    }

    /// The snapshots of a group, in the order of their volumes; none when it is not there.
    pub(crate) fn group(&self, id: &GroupId) -> Result<Vec<Snapshot>> {
        let pool = id.pool();
        match self.holder(&pool) {
            Holder::GivenUp => Ok(Vec::new()),
            // It may well be there.
            Holder::Unknown => self.route(&pool).map(|_| Vec::new()),
            Holder::Live { .. } | Holder::Contested { .. } | Holder::Away { .. } => Ok(self.members(id)),
        }
    }

    /// A group of this name on another pool than this.
    pub(crate) fn same_group_elsewhere(&self, name: &str, here: &PoolId) -> Option<GroupId> {
        let others = self.pools.keys().filter(|id| *id != here);
        let live = others.filter(|id| matches!(self.holder(id), Holder::Live { .. }));
        live.map(|pool| GroupId::make(pool, name)).find(|group| !self.members(group).is_empty())
    }

    fn members(&self, id: &GroupId) -> Vec<Snapshot> {
        let Some(pool) = self.pools.get(&id.pool()) else { return Vec::new() };
        let all = pool.snapshots.after(None).map(|(_, snapshot)| snapshot);
        let mut members: Vec<_> =
            all.filter(|snapshot| snapshot.group_snapshot_id == id.as_str()).cloned().collect();
        members.sort_by(|one, other| one.source_volume_id.cmp(&other.source_volume_id));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{A, B, C, announced, pool, ready};
    use super::*;
    use crate::id::VolumeId;

    fn member(group: &GroupId, of: &str) -> (SnapshotId, Snapshot) {
        let volume = VolumeId::make(&group.pool(), of);
        let id = SnapshotId::in_group(group, &volume);
        let snapshot = Snapshot {
            id: id.to_string(),
            source_volume_id: volume.to_string(),
            group_snapshot_id: group.to_string(),
            ..Snapshot::default()
        };
        (id, snapshot)
    }

    #[test]
    fn a_group_is_known_by_its_snapshots_until_it_is_removed_or_its_pool_given_up() {
        let mut index = announced(&["n1", "n2"]);
        let group = GroupId::make(&pool(A), "g");
        let members = ["v1", "v2"].map(|of| member(&group, of));
        let mut said = ready(A, 1, &["v1", "v2"]);
        said.snapshots = members.iter().map(|(_, snapshot)| snapshot.clone()).collect();
        index.describe("n1", said.clone());
        index.describe("n2", ready(B, 1, &[]));
        let found = index.group(&group).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.is_sorted_by_key(|snapshot| &snapshot.source_volume_id));
        assert_eq!(index.same_group_elsewhere("g", &pool(B)), Some(group.clone()));
        assert_eq!(index.same_group_elsewhere("g", &pool(A)), None, "that is this one");
        assert_eq!(index.same_group_elsewhere("h", &pool(B)), None);
        assert!(index.group(&GroupId::make(&pool(C), "g")).is_err(), "it may well be there");
        assert_eq!(index.group(&GroupId::make(&pool(B), "g")).unwrap(), []);
        index.group_deleted(&group);
        assert_eq!(index.group(&group).unwrap(), []);
        index.describe("n1", said);
        assert_eq!(index.group(&group).unwrap(), [], "what the agent says is older than the call");
        for (id, snapshot) in members {
            index.snapshot_created(&id, snapshot);
        }
        index.lost("n1");
        assert_eq!(index.group(&group).unwrap().len(), 2);
        index.announce(&["n2".to_owned()].into(), [pool(A)].into());
        assert_eq!(index.group(&group).unwrap(), []);
    }
}
