//! Group snapshots through the router.

use dunnage_csi::agent;
use dunnage_csi::v1::group_controller_server::GroupController;
use dunnage_csi::v1::plugin_capability::{Type, service};
use dunnage_csi::v1::{
    self, CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse, GetPluginCapabilitiesRequest,
    GetSnapshotRequest, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, ListSnapshotsRequest,
    VolumeGroupSnapshot,
};
use tonic::{Code, Request, Response, Status};

use super::fake::{Do, Fake, Lab, until};
use super::{A, B};
use crate::id::{GroupId, SnapshotId, VolumeId};

#[tonic::async_trait]
impl GroupController for Fake {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.note("CreateVolumeGroupSnapshot", &request.name).await?;
        let id = GroupId::make(&self.pool, &request.name);
        let snapshots: Vec<_> = request
            .source_volume_ids
            .iter()
            .map(|volume| v1::Snapshot {
                snapshot_id: SnapshotId::in_group(&id, &volume.parse::<VolumeId>().unwrap()).to_string(),
                source_volume_id: volume.clone(),
                ready_to_use: true,
                group_snapshot_id: id.to_string(),
                ..v1::Snapshot::default()
            })
            .collect();
        let told = snapshots.iter().map(|snapshot| agent::Snapshot {
            id: snapshot.snapshot_id.clone(),
            name: request.name.clone(),
            source_volume_id: snapshot.source_volume_id.clone(),
            group_snapshot_id: id.to_string(),
            ..agent::Snapshot::default()
        });
        self.said.send_modify(|said| said.snapshots.extend(told));
        let group = VolumeGroupSnapshot {
            group_snapshot_id: id.to_string(),
            snapshots,
            ready_to_use: true,
            ..VolumeGroupSnapshot::default()
        };
        Ok(Response::new(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let id = request.into_inner().group_snapshot_id;
        self.note("DeleteVolumeGroupSnapshot", &id).await?;
        self.said.send_modify(|said| said.snapshots.retain(|snapshot| snapshot.group_snapshot_id != id));
        Ok(Response::new(DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        _: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

async fn make(lab: &Lab, name: &str, volumes: &[&str]) -> Result<VolumeGroupSnapshot, Status> {
    let request = CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let made = lab.group_controller().create_volume_group_snapshot(request).await?;
    Ok(made.into_inner().group_snapshot.unwrap())
}

async fn get(lab: &Lab, id: &str, snapshots: &[String]) -> Result<VolumeGroupSnapshot, Status> {
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let found = lab.group_controller().get_volume_group_snapshot(request).await?;
    Ok(found.into_inner().group_snapshot.unwrap())
}

async fn delete(lab: &Lab, id: &str, snapshots: &[String]) -> Result<(), Status> {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    lab.group_controller().delete_volume_group_snapshot(request).await.map(drop)
}

async fn listed(lab: &Lab) -> Vec<v1::Snapshot> {
    let list = lab.controller().list_snapshots(ListSnapshotsRequest::default()).await.unwrap().into_inner();
    list.entries.into_iter().map(|entry| entry.snapshot.unwrap()).collect()
}

fn ids(group: &VolumeGroupSnapshot) -> Vec<String> {
    group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

#[tokio::test]
async fn a_group_is_made_where_its_volumes_are_found_and_goes_as_a_whole() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let (one, two) = (lab.create("pvc-1", &[B]).await.unwrap(), lab.create("pvc-2", &[B]).await.unwrap());
    let group = make(&lab, "g1", &[&one, &two]).await.unwrap();
    assert!(group.group_snapshot_id.starts_with(B) && group.ready_to_use);
    assert_eq!(b.calls().last().unwrap(), "CreateVolumeGroupSnapshot g1");
    assert!(a.calls().is_empty());
    let snapshots = ids(&group);
    assert_eq!(snapshots.len(), 2);
    // At once, and when the agent has told of it.
    for _ in 0..2 {
        let mut found = get(&lab, &group.group_snapshot_id, &snapshots).await.unwrap();
        found.snapshots.sort_by_key(|snapshot| snapshots.iter().position(|id| *id == snapshot.snapshot_id));
        assert_eq!(found, group);
        assert!(listed(&lab).await.iter().all(|it| it.group_snapshot_id == group.group_snapshot_id));
        assert_eq!(make(&lab, "g1", &[&one, &two]).await.unwrap(), group, "the agent knows it");
    }
    let request = GetSnapshotRequest { snapshot_id: snapshots[0].clone(), ..GetSnapshotRequest::default() };
    let member = lab.controller().get_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(member.group_snapshot_id, group.group_snapshot_id);
    let other = [snapshots[0].clone()];
    let mismatch = get(&lab, &group.group_snapshot_id, &other).await.unwrap_err();
    assert_eq!(mismatch.code(), Code::InvalidArgument, "{mismatch}");
    delete(&lab, &group.group_snapshot_id, &snapshots).await.unwrap();
    assert_eq!(b.calls().last().unwrap(), &format!("DeleteVolumeGroupSnapshot {}", group.group_snapshot_id));
    assert_eq!(listed(&lab).await, []);
    let gone = get(&lab, &group.group_snapshot_id, &snapshots).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
}

#[tokio::test]
async fn a_group_of_several_pools_is_refused_with_their_nodes_and_one_of_its_name_with_its_pool() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let (one, two) = (lab.create("pvc-1", &[A]).await.unwrap(), lab.create("pvc-2", &[B]).await.unwrap());
    let refused = make(&lab, "g1", &[&one, &two]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let where_they_lie = format!("1 on pool {A} (node na), 1 on pool {B} (node nb): make a group snapshot");
    assert!(refused.message().contains(&where_they_lie), "{refused}");
    assert!(a.calls().iter().chain(&b.calls()).all(|call| call.starts_with("CreateVolume pvc")));
    make(&lab, "g1", &[&one]).await.unwrap();
    let taken = make(&lab, "g1", &[&two]).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
    assert!(taken.message().contains(A), "{taken}");
    // Under the name of a volume, too.
    make(&lab, "pvc-1", &[&two]).await.unwrap();
}

#[tokio::test]
async fn a_request_for_a_group_that_is_none_of_ours_is_answered_without_an_agent() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let calls = a.calls().len();
    for (name, volumes, code) in [
        ("", vec![volume.as_str()], Code::InvalidArgument),
        ("g", vec![], Code::InvalidArgument),
        ("g", vec![&volume, &volume], Code::InvalidArgument),
        ("g", vec!["somebody-elses"], Code::NotFound),
    ] {
        assert_eq!(make(&lab, name, &volumes).await.unwrap_err().code(), code, "{name} {volumes:?}");
    }
    let nobodys = format!("cccccccccccccccc-group-{}", "0".repeat(32));
    for (id, got, deleted) in [
        ("", Code::InvalidArgument, Code::InvalidArgument),
        ("somebody-elses", Code::NotFound, Code::Ok),
        (volume.as_str(), Code::NotFound, Code::Ok),
        (&nobodys, Code::Unavailable, Code::Unavailable),
    ] {
        assert_eq!(get(&lab, id, &[]).await.unwrap_err().code(), got, "{id}");
        let answer = delete(&lab, id, &[]).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |()| Code::Ok), deleted, "{id}");
    }
    assert_eq!(a.calls().len(), calls);
}

#[tokio::test]
async fn a_group_outlives_its_agent_until_its_pool_is_given_up() {
    let a = Fake::new("na", A);
    let mut lab = Lab::with(&[&a]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let group = make(&lab, "g1", &[&volume]).await.unwrap();
    let (id, snapshots) = (group.group_snapshot_id.as_str(), ids(&group));
    a.instead("DeleteVolumeGroupSnapshot", Do::Refuse(Status::aborted("a volume is being made from it")));
    assert_eq!(delete(&lab, id, &snapshots).await.unwrap_err().code(), Code::Aborted);
    lab.kill("na");
    lab.until_connected(0).await;
    assert_eq!(get(&lab, id, &snapshots).await.unwrap(), group);
    assert_eq!(delete(&lab, id, &snapshots).await.unwrap_err().code(), Code::Unavailable);
    lab.announce_with(&[A]);
    until("the group is given up", async || delete(&lab, id, &snapshots).await.is_ok()).await;
    assert_eq!(get(&lab, id, &snapshots).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_member_is_refused_by_its_agent_and_stays_on_the_list() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let group = make(&lab, "g1", &[&volume]).await.unwrap();
    a.instead("DeleteSnapshot", Do::Refuse(Status::invalid_argument("it is a part of a group")));
    let request =
        DeleteSnapshotRequest { snapshot_id: ids(&group).remove(0), ..DeleteSnapshotRequest::default() };
    assert_eq!(lab.controller().delete_snapshot(request).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(listed(&lab).await.len(), 1);
}

#[tokio::test]
async fn the_plugin_tells_that_it_has_groups() {
    let lab = Lab::start(false).await;
    let told = lab.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    let is_group = |capability: &v1::PluginCapability| match &capability.r#type {
        Some(Type::Service(service)) => service.r#type() == service::Type::GroupControllerService,
        _ => false,
    };
    assert!(told.into_inner().capabilities.iter().any(is_group));
    let asked = GroupControllerGetCapabilitiesRequest {};
    let told = lab.group_controller().group_controller_get_capabilities(asked).await.unwrap().into_inner();
    assert_eq!(told.capabilities.len(), 1);
}
