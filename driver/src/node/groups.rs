//! The group controller service for the node's own pool.

use dunnage_csi::v1::group_controller_server::GroupController;
use dunnage_csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
};
use tonic::{Request, Response, Status};
use tracing::instrument;

use super::{Driver, blocking};
use crate::advertised;

type Answer<T> = Result<Response<T>, Status>;

/// CSI `GroupController`.
#[derive(Clone, Debug)]
pub struct GroupControllerService {
    driver: Driver,
}

impl GroupControllerService {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver }
    }
}

#[tonic::async_trait]
impl GroupController for GroupControllerService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        Ok(Response::new(advertised::group_controller()))
    }

    #[instrument(skip_all, fields(name = request.get_ref().name))]
    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.create_group(&request)).await
    }

    #[instrument(skip_all, fields(group = request.get_ref().group_snapshot_id))]
    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.delete_group(&request)).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.get_group(&request)).await
    }
}
