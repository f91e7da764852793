//! Group snapshots through the router: a group lies on one pool, and each call goes to the agent that has it.

use dunnage_csi::v1::group_controller_server::GroupController;
use dunnage_csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, VolumeGroupSnapshot,
};
use tonic::{Request, Response, Status};
use tracing::instrument;

use super::controller::{RouterController, need};
use super::forward::Deadline;
use super::snapshots::{noted, told};
use crate::advertised;
use crate::error::{Error, Result};
use crate::group;
use crate::id::GroupId;

type Answer<T> = std::result::Result<Response<T>, Status>;

impl RouterController {
    async fn make_group(
        &self,
        deadline: &Deadline,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<CreateVolumeGroupSnapshotResponse> {
        need(!request.name.is_empty(), "name")?;
        let sources = group::sources(&request.source_volume_ids)?;
        let agents = &self.forward.agents;
        let pool = group::pool(&sources, |pool| agents.ask(|index| index.place(pool)))?;
        // Two of one name on two pools would be made at once otherwise. A volume or a snapshot can have that name too.
        let _guard = self.creating.take(&format!("group snapshot {}", request.name))?;
        agents.ready()?;
        if let Some(id) = agents.ask(|index| index.same_group_elsewhere(&request.name, &pool)) {
            let source_volumes = format!("some of pool {}", id.pool());
            return Err(Error::GroupConflict { id: id.to_string(), source_volumes });
        }
        let name = request.name.clone();
        let made = self
            .forward
            .call_group(
                &pool,
                "CreateVolumeGroupSnapshot",
                deadline,
                request,
                |mut agent, request| async move { agent.create_volume_group_snapshot(request).await },
            )
            .await?;
        if let Some(group) = &made.group_snapshot {
            self.note_group(&name, group);
        }
        Ok(made)
    }

    /// Before the agent tells of it: a list or a call of the same name may come first.
    fn note_group(&self, name: &str, group: &VolumeGroupSnapshot) {
        let members = group.snapshots.iter().filter_map(|member| noted(name, member));
        self.forward.agents.tell(|index| {
            for (id, member) in members {
                index.snapshot_created(&id, member);
            }
        });
    }

    async fn remove_group(
        &self,
        deadline: &Deadline,
        request: DeleteVolumeGroupSnapshotRequest,
    ) -> Result<DeleteVolumeGroupSnapshotResponse> {
        const METHOD: &str = "DeleteVolumeGroupSnapshot";
        need(!request.group_snapshot_id.is_empty(), "group_snapshot_id")?;
        // Not ours, so it is not there, which is what the caller wants.
        let Ok(id) = request.group_snapshot_id.parse::<GroupId>() else {
            return Ok(DeleteVolumeGroupSnapshotResponse {});
        };
        let pool = id.pool();
        if self.is_lost(&id, &pool, METHOD) {
            return Ok(DeleteVolumeGroupSnapshotResponse {});
        }
        let deleted = self
            .forward
            .call_group(&pool, METHOD, deadline, request, |mut agent, request| async move {
                agent.delete_volume_group_snapshot(request).await
            })
            .await?;
        self.forward.agents.tell(|index| index.group_deleted(&id));
        Ok(deleted)
    }

    /// Answered from what the agents tell, as the list of snapshots is.
    fn found_group(&self, request: &GetVolumeGroupSnapshotRequest) -> Result<GetVolumeGroupSnapshotResponse> {
        need(!request.group_snapshot_id.is_empty(), "group_snapshot_id")?;
        let id: GroupId = request.group_snapshot_id.parse()?;
        self.forward.agents.ready()?;
        let members = self.forward.agents.ask(|index| index.group(&id))?;
        // All of them are of one moment.
        let Some(first) = members.first() else { return Err(Error::NoSuchGroup { id: id.to_string() }) };
        group::same_snapshots(&id, members.iter().map(|member| member.id.as_str()), &request.snapshot_ids)?;
        let creation_time = first.creation_time;
        let group = VolumeGroupSnapshot {
            group_snapshot_id: id.to_string(),
            snapshots: members.into_iter().map(told).collect(),
            creation_time,
            ready_to_use: true,
        };
        Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) })
    }
}

#[tonic::async_trait]
impl GroupController for RouterController {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        Ok(Response::new(advertised::group_controller()))
    }

    #[instrument(skip_all, fields(name = %request.get_ref().name), err(Debug))]
    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        let (metadata, _, request) = request.into_parts();
        Ok(Response::new(self.make_group(&Deadline::of(&metadata), request).await?))
    }

    #[instrument(skip_all, fields(group = %request.get_ref().group_snapshot_id), err(Debug))]
    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        let (metadata, _, request) = request.into_parts();
        Ok(Response::new(self.remove_group(&Deadline::of(&metadata), request).await?))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        Ok(Response::new(self.found_group(request.get_ref())?))
    }
}
