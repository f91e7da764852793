//! Snapshots through the router: each call goes to the agent whose pool has the volume or the snapshot.

use dunnage_csi::agent;
use dunnage_csi::v1::list_snapshots_response::Entry;
use dunnage_csi::v1::{
    self, CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};

use super::controller::{RouterController, need, page_asked};
use super::forward::Deadline;
use super::index::snapshots::Filter;
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};

impl RouterController {
    pub(super) async fn make_snapshot(
        &self,
        deadline: &Deadline,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse> {
        need(!request.name.is_empty(), "name")?;
        need(!request.source_volume_id.is_empty(), "source_volume_id")?;
        let pool = request.source_volume_id.parse::<VolumeId>()?.pool();
        // Two of one name on two pools would be made at once otherwise. A volume can have that name too.
        let _guard = self.creating.take(&format!("snapshot {}", request.name))?;
        self.forward.agents.ready()?;
        let name = request.name.clone();
        if let Some(id) = self.forward.agents.ask(|index| index.same_name_elsewhere(&name, &pool)) {
            let source_volume = format!("one of pool {}", id.pool());
            return Err(Error::SnapshotConflict { id: id.to_string(), source_volume });
        }
        let made = self
            .forward
            .call(&pool, "CreateSnapshot", deadline, request, |mut agent, request| async move {
                agent.create_snapshot(request).await
            })
            .await?;
        // Before the agent tells of it: a list or a call of the same name may come first.
        if let Some((id, snapshot)) = made.snapshot.as_ref().and_then(|made| noted(&name, made)) {
            self.forward.agents.tell(|index| index.snapshot_created(&id, snapshot));
        }
        Ok(made)
    }

    pub(super) async fn remove_snapshot(
        &self,
        deadline: &Deadline,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse> {
        need(!request.snapshot_id.is_empty(), "snapshot_id")?;
        // Not ours, so it is not there, which is what the caller wants.
        let Ok(id) = request.snapshot_id.parse::<SnapshotId>() else { return Ok(DeleteSnapshotResponse {}) };
        let deleted = self
            .remove(&id, &id.pool(), "DeleteSnapshot", deadline, request, |mut agent, request| async move {
                agent.delete_snapshot(request).await
            })
            .await?;
        self.forward.agents.tell(|index| index.snapshot_deleted(&id));
        Ok(deleted)
    }

    /// Answered from what the agents tell, as the list is.
    pub(super) fn found_snapshot(&self, request: &GetSnapshotRequest) -> Result<GetSnapshotResponse> {
        need(!request.snapshot_id.is_empty(), "snapshot_id")?;
        let id: SnapshotId = request.snapshot_id.parse()?;
        self.forward.agents.ready()?;
        match self.forward.agents.ask(|index| index.snapshot(&id))? {
            Some(snapshot) => Ok(GetSnapshotResponse { snapshot: Some(told(snapshot)) }),
            None => Err(Error::NoSuchSnapshot { id: id.to_string() }),
        }
    }

    pub(super) fn list_of_snapshots(&self, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse> {
        let (limit, after) = page_asked(request.max_entries, &request.starting_token)?;
        let Some(filter) = filter(request) else { return Ok(ListSnapshotsResponse::default()) };
        self.forward.agents.ready()?;
        let page = self.forward.agents.ask(|index| index.snapshot_page(&filter, after.as_ref(), limit))?;
        let entries = page.entries.into_iter().map(|snapshot| Entry { snapshot: Some(told(snapshot)) });
        Ok(ListSnapshotsResponse {
            entries: entries.collect(),
            next_token: page.next.map(|id| id.to_string()).unwrap_or_default(),
        })
    }
}

/// What is asked for; none when an id is none of ours, so that nothing is.
fn filter(request: &ListSnapshotsRequest) -> Option<Filter> {
    let mut filter = Filter::default();
    if !request.snapshot_id.is_empty() {
        filter.snapshot = Some(request.snapshot_id.parse().ok()?);
    }
    if !request.source_volume_id.is_empty() {
        filter.volume = Some(request.source_volume_id.parse().ok()?);
    }
    Some(filter)
}

/// What an agent has made, as it will tell it.
pub(super) fn noted(name: &str, made: &v1::Snapshot) -> Option<(SnapshotId, agent::Snapshot)> {
    let snapshot = agent::Snapshot {
        id: made.snapshot_id.clone(),
        name: name.to_owned(),
        source_volume_id: made.source_volume_id.clone(),
        size_bytes: made.size_bytes.try_into().unwrap_or(0),
        creation_time: made.creation_time,
        group_snapshot_id: made.group_snapshot_id.clone(),
    };
    Some((made.snapshot_id.parse().ok()?, snapshot))
}

pub(super) fn told(snapshot: agent::Snapshot) -> v1::Snapshot {
    v1::Snapshot {
        snapshot_id: snapshot.id,
        source_volume_id: snapshot.source_volume_id,
        size_bytes: snapshot.size_bytes.try_into().unwrap_or(i64::MAX),
        creation_time: snapshot.creation_time,
        ready_to_use: true,
        group_snapshot_id: snapshot.group_snapshot_id,
    }
}
