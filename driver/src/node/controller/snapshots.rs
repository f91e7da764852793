//! Snapshots of the node's own pool.

use dunnage_csi::v1::list_snapshots_response::Entry;
use dunnage_csi::v1::{
    self, CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotResponse, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse,
};
use tracing::info;

use super::page::page;
use super::wanted::{check_known, check_name};
use crate::error::{Error, Result};
use crate::id::{PoolId, SnapshotId, VolumeId};
use crate::node::Driver;
use crate::snapshot::Snapshot;

impl Driver {
    pub(super) fn create_snapshot(&self, request: &CreateSnapshotRequest) -> Result<CreateSnapshotResponse> {
        check_name(&request.name)?;
        if request.source_volume_id.is_empty() {
            return Err(Error::Missing { field: "source_volume_id" });
        }
        check_known("VolumeSnapshotClass parameter", &request.parameters, &[])?;
        let source: VolumeId = request.source_volume_id.parse().and_then(VolumeId::not_inline)?;
        let store = self.store()?;
        if source.pool() != store.id {
            return Err(Error::Unavailable(format!(
                "volume {source} is on pool {}, and this node has pool {}",
                source.pool(),
                store.id
            )));
        }
        let id = SnapshotId::make(&store.id, &request.name);
        let _guard = self.lock_snapshot(&id)?;
        let found = store.snapshot(&id);
        let snapshot = match found {
            Some(snapshot) if snapshot.source_volume_id == source => snapshot,
            Some(snapshot) => {
                let source_volume = snapshot.source_volume_id.to_string();
                return Err(Error::SnapshotConflict { id: id.to_string(), source_volume });
            }
            None => {
                self.check_fence()?;
                let _data = self.lock_data(&source)?;
                let volume = store.volume(&source)?;
                let snapshot = store.take_snapshot(id, &request.name, &volume)?;
                info!(
                    snapshot = %snapshot.id,
                    volume = %source,
                    name = request.name,
                    made = ?snapshot.taken.made,
                    state = snapshot.taken.source.words(),
                    "snapshot made"
                );
                snapshot
            }
        };
        Ok(CreateSnapshotResponse { snapshot: Some(describe(&snapshot)) })
    }

    pub(super) fn delete_snapshot(&self, id: &str) -> Result<DeleteSnapshotResponse> {
        if id.is_empty() {
            return Err(Error::Missing { field: "snapshot_id" });
        }
        // An id that cannot be ours names no snapshot, and that is what is wanted.
        let Ok(id) = id.parse::<SnapshotId>() else { return Ok(DeleteSnapshotResponse {}) };
        let store = self.store()?;
        check_pool(&id, &store.id)?;
        let _guard = self.lock_snapshot(&id)?;
        store.delete_snapshot(&id)?;
        info!(snapshot = %id, "snapshot deleted");
        Ok(DeleteSnapshotResponse {})
    }

    pub(super) fn get_snapshot(&self, id: &str) -> Result<GetSnapshotResponse> {
        if id.is_empty() {
            return Err(Error::Missing { field: "snapshot_id" });
        }
        let id: SnapshotId = id.parse()?;
        let store = self.store()?;
        check_pool(&id, &store.id)?;
        let snapshot = store.snapshot(&id).ok_or_else(|| Error::NoSuchSnapshot { id: id.to_string() })?;
        Ok(GetSnapshotResponse { snapshot: Some(describe(&snapshot)) })
    }

    pub(super) fn list_snapshots(&self, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse> {
        let mut snapshots = self.store()?.snapshots();
        let asked = |wanted: &str, id: &dyn std::fmt::Display| wanted.is_empty() || wanted == id.to_string();
        snapshots.retain(|snapshot| {
            asked(&request.snapshot_id, &snapshot.id)
                && asked(&request.source_volume_id, &snapshot.source_volume_id)
        });
        let page = page(&snapshots, |snapshot| &snapshot.id, request.max_entries, &request.starting_token)?;
        let entries = page.entries.iter().map(|snapshot| Entry { snapshot: Some(describe(snapshot)) });
        Ok(ListSnapshotsResponse { entries: entries.collect(), next_token: page.next })
    }
}

/// Not here is not gone: a snapshot may well be on its own pool.
fn check_pool(id: &SnapshotId, here: &PoolId) -> Result<()> {
    if id.pool() == *here {
        return Ok(());
    }
    Err(Error::Unavailable(format!("snapshot {id} is on pool {}, and this node has pool {here}", id.pool())))
}

/// A snapshot that is there is ready: until its data are whole, it is under no name.
pub(super) fn describe(snapshot: &Snapshot) -> v1::Snapshot {
    v1::Snapshot {
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source_volume_id.to_string(),
        size_bytes: i64::try_from(snapshot.size_bytes).unwrap_or(i64::MAX),
        creation_time: Some(snapshot.created()),
        ready_to_use: true,
        group_snapshot_id: snapshot.group.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}
