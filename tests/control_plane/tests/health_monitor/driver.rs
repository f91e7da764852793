//! A driver that says what it is told of its volumes' condition, and can nothing else.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::v1::{self, controller_service_capability, plugin_capability};
use dunnage_csi::{uds, v1::list_volumes_response::Entry, v1::list_volumes_response::VolumeStatus};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub(super) const NAME: &str = "fake.csi.dunnage.dev";

#[derive(Clone)]
pub(super) struct Driver {
    lists: bool,
    /// What is wrong with each volume, if anything.
    conditions: Arc<Mutex<BTreeMap<String, Option<&'static str>>>>,
}

impl Driver {
    /// One that lists its volumes, or that has to be asked for each.
    pub(super) fn serve(socket: &Path, lists: bool) -> Result<Self> {
        let driver = Self { lists, conditions: Arc::default() };
        let incoming = uds::listen(&socket.to_string_lossy())?;
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        Ok(driver)
    }

    pub(super) fn set(&self, volume: &str, wrong: Option<&'static str>) {
        self.conditions.lock().expect("lock").insert(volume.to_owned(), wrong);
    }
}

fn condition(wrong: Option<&str>) -> v1::VolumeCondition {
    let message = wrong.unwrap_or("all is well").to_owned();
    v1::VolumeCondition { abnormal: wrong.is_some(), message }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse { name: NAME.to_owned(), ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let service =
            plugin_capability::Service { r#type: plugin_capability::service::Type::ControllerService.into() };
        let capability = v1::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        use controller_service_capability::rpc::Type;
        let way = if self.lists { Type::ListVolumes } else { Type::GetVolume };
        let capability = |kind: Type| v1::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: kind.into(),
            })),
        };
        let capabilities = [Type::VolumeCondition, way].map(capability).into();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn list_volumes(
        &self,
        _: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let conditions = self.conditions.lock().expect("lock");
        let entries = conditions.iter().map(|(volume, wrong)| Entry {
            volume: Some(v1::Volume { volume_id: volume.clone(), ..v1::Volume::default() }),
            status: Some(VolumeStatus {
                volume_condition: Some(condition(*wrong)),
                ..VolumeStatus::default()
            }),
        });
        let entries = entries.collect();
        Ok(Response::new(v1::ListVolumesResponse { entries, next_token: String::new() }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let wrong = self.conditions.lock().expect("lock").get(&id).copied();
        let wrong = wrong.ok_or_else(|| Status::not_found(id))?;
        let status = v1::controller_get_volume_response::VolumeStatus {
            volume_condition: Some(condition(wrong)),
            ..Default::default()
        };
        Ok(Response::new(v1::ControllerGetVolumeResponse { status: Some(status), ..Default::default() }))
    }

    async fn create_volume(
        &self,
        _: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn delete_volume(
        &self,
        _: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn get_capacity(
        &self,
        _: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn create_snapshot(
        &self,
        _: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn list_snapshots(
        &self,
        _: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn get_snapshot(
        &self,
        _: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("not the monitor's"))
    }
}
