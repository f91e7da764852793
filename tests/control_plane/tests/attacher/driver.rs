//! A driver that publishes in memory and fails when it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::v1::{self, controller_service_capability, plugin_capability};
use dunnage_csi::{uds, v1::list_volumes_response::Entry, v1::list_volumes_response::VolumeStatus};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub(super) const NAME: &str = "fake.csi.dunnage.dev";

/// What the driver has and was asked.
#[derive(Default)]
pub(super) struct State {
    /// Node ids by volume.
    pub published: BTreeMap<String, BTreeSet<String>>,
    /// Publishing answers `ResourceExhausted`.
    pub full: bool,
    pub requests: Vec<v1::ControllerPublishVolumeRequest>,
    pub unpublished: Vec<v1::ControllerUnpublishVolumeRequest>,
}

#[derive(Clone, Default)]
pub(super) struct Driver {
    state: Arc<Mutex<State>>,
}

impl Driver {
    /// Serves on `socket` until `stop` is cancelled; then its connections end.
    pub(super) fn serve(&self, socket: &Path, stop: CancellationToken) -> Result<()> {
        let incoming = uds::listen(&socket.to_string_lossy())?;
        let server = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()));
        Ok(())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("lock")
    }
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
        let capability = |kind: Type| v1::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: kind.into(),
            })),
        };
        let capabilities = [Type::PublishUnpublishVolume, Type::ListVolumes, Type::ListVolumesPublishedNodes];
        let capabilities = capabilities.map(capability).into();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        state.requests.push(request.clone());
        if state.full {
            return Err(Status::resource_exhausted("the node has no slot left"));
        }
        state.published.entry(request.volume_id).or_default().insert(request.node_id);
        let publish_context = [("slot".to_owned(), "7".to_owned())].into();
        Ok(Response::new(v1::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        if let Some(nodes) = state.published.get_mut(&request.volume_id) {
            nodes.remove(&request.node_id);
        }
        state.unpublished.push(request);
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse {}))
    }

    /// One volume a page.
    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let page: usize = request.into_inner().starting_token.parse().unwrap_or(0);
        let state = self.state();
        let entries = state.published.iter().skip(page).take(1).map(|(volume, nodes)| Entry {
            volume: Some(v1::Volume { volume_id: volume.clone(), ..Default::default() }),
            status: Some(VolumeStatus {
                published_node_ids: nodes.iter().cloned().collect(),
                ..Default::default()
            }),
        });
        let more = page + 1 < state.published.len();
        let next_token = if more { (page + 1).to_string() } else { String::new() };
        Ok(Response::new(v1::ListVolumesResponse { entries: entries.collect(), next_token }))
    }

    async fn create_volume(
        &self,
        _: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn delete_volume(
        &self,
        _: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn get_capacity(
        &self,
        _: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn create_snapshot(
        &self,
        _: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn list_snapshots(
        &self,
        _: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn get_snapshot(
        &self,
        _: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<v1::ControllerGetVolumeRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("not the attacher's"))
    }
}
