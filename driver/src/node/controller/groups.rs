//! Group snapshots of the node's own pool: what the calls do.

use std::collections::BTreeSet;

use dunnage_csi::v1::{
    self, CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotResponse,
};
use tracing::info;

use super::snapshots::describe;
use super::wanted::{check_known, check_name};
use crate::error::{Error, Result};
use crate::group::{self, Group};
use crate::id::{GroupId, PoolId, SnapshotId, VolumeId};
use crate::locks::Guard;
use crate::node::Driver;
use crate::snapshot::Snapshot;
use crate::store::Store;

impl Driver {
    pub(in crate::node) fn create_group(
        &self,
        request: &CreateVolumeGroupSnapshotRequest,
    ) -> Result<CreateVolumeGroupSnapshotResponse> {
        check_name(&request.name)?;
        let sources = group::sources(&request.source_volume_ids)?;
        check_known("VolumeGroupSnapshotClass parameter", &request.parameters, &[])?;
        let store = self.store()?;
        let pool = group::pool(&sources, |pool| format!("pool {pool}"))?;
        if pool != store.id {
            return Err(elsewhere("the volumes are", &pool, &store.id));
        }
        let id = GroupId::make(&store.id, &request.name);
        let _guard = self.lock_group(&id)?;
        if let Some(group) = store.group(&id) {
            let members = store.members(&group);
            let has = members.iter().map(|member| member.source_volume_id.clone()).collect();
            group::same_sources(&id, &has, &sources)?;
            let group_snapshot = Some(described(&group, &members));
            return Ok(CreateVolumeGroupSnapshotResponse { group_snapshot });
        }
        self.check_fence()?;
        let _still = self.hold_still(&sources)?;
        let volumes = sources.iter().map(|source| store.volume(source)).collect::<Result<Vec<_>>>()?;
        let group = store.take_group(&id, &request.name, &volumes)?;
        let members = store.members(&group);
        for member in &members {
            info!(
                snapshot = %member.id,
                volume = %member.source_volume_id,
                made = ?member.taken.made,
                state = member.taken.source.words(),
                "snapshot made in a group"
            );
        }
        info!(group = %id, name = request.name, volumes = members.len(), "group snapshot made");
        Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(described(&group, &members)) })
    }

    pub(in crate::node) fn delete_group(
        &self,
        request: &DeleteVolumeGroupSnapshotRequest,
    ) -> Result<DeleteVolumeGroupSnapshotResponse> {
        // An id that cannot be ours names no group, and that is what is wanted.
        let Ok(id) = parse(&request.group_snapshot_id)? else {
            return Ok(DeleteVolumeGroupSnapshotResponse {});
        };
        let store = self.store()?;
        check_pool(&id, &store)?;
        let _guard = self.lock_group(&id)?;
        if let Some(group) = store.group(&id) {
            check_snapshots(&group, &request.snapshot_ids)?;
            // A volume may be being made from one of them.
            let lock = |member: &SnapshotId| self.lock_snapshot(member);
            let _members = group.snapshots.iter().map(lock).collect::<Result<Vec<_>>>()?;
            store.delete_group(&id)?;
        }
        info!(group = %id, "group snapshot deleted");
        Ok(DeleteVolumeGroupSnapshotResponse {})
    }

    pub(in crate::node) fn get_group(
        &self,
        request: &GetVolumeGroupSnapshotRequest,
    ) -> Result<GetVolumeGroupSnapshotResponse> {
        let id = parse(&request.group_snapshot_id)??;
        let store = self.store()?;
        check_pool(&id, &store)?;
        let group = store.group(&id).ok_or_else(|| Error::NoSuchGroup { id: id.to_string() })?;
        check_snapshots(&group, &request.snapshot_ids)?;
        let group_snapshot = Some(described(&group, &store.members(&group)));
        Ok(GetVolumeGroupSnapshotResponse { group_snapshot })
    }

    /// Keeps volumes from being deleted and resized, and those that are at rest from being used. Pods go on using the
    /// others.
    fn hold_still(&self, volumes: &BTreeSet<VolumeId>) -> Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for id in volumes {
            // Where staging does not bring a volume into use, publishing does.
            if !self.engine().stages_data() {
                guards.push(self.lock(id)?);
            }
            guards.push(self.lock_data(id)?);
        }
        Ok(guards)
    }
}

/// The id in a request, and whether this driver can have made it.
fn parse(id: &str) -> Result<Result<GroupId>> {
    if id.is_empty() {
        return Err(Error::Missing { field: "group_snapshot_id" });
    }
    Ok(id.parse())
}

/// Not here is not gone: a group may well be on its own pool.
fn check_pool(id: &GroupId, store: &Store) -> Result<()> {
    if id.pool() == store.id {
        return Ok(());
    }
    Err(elsewhere(&format!("group snapshot {id} is"), &id.pool(), &store.id))
}

fn elsewhere(what: &str, there: &PoolId, here: &PoolId) -> Error {
    Error::Unavailable(format!("{what} on pool {there}, and this node has pool {here}"))
}

fn check_snapshots(group: &Group, asked: &[String]) -> Result<()> {
    group::same_snapshots(&group.id, group.snapshots.iter().map(SnapshotId::as_str), asked)
}

fn described(group: &Group, members: &[Snapshot]) -> v1::VolumeGroupSnapshot {
    v1::VolumeGroupSnapshot {
        group_snapshot_id: group.id.to_string(),
        snapshots: members.iter().map(describe).collect(),
        creation_time: Some(group.created()),
        ready_to_use: true,
    }
}
