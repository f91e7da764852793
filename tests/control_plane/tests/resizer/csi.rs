//! A driver that grows and modifies volumes in memory, and answers what it is told to.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::v1::{self, controller_service_capability, plugin_capability};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

/// What the next call does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Grows, and a node has to do its part.
    ForNode,
    Fail(Code),
    /// Does it and never answers.
    Hang,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) script: VecDeque<Next>,
    pub(crate) grown: Vec<v1::ControllerExpandVolumeRequest>,
    pub(crate) modified: Vec<v1::ControllerModifyVolumeRequest>,
}

/// The driver; clones are the same one.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: String,
    state: Arc<Mutex<State>>,
    directory: Arc<tempfile::TempDir>,
}

type Answer<T> = Result<Response<T>, Status>;

fn others<T>() -> Answer<T> {
    Err(Status::unimplemented("not the resizer's"))
}

impl Driver {
    /// A driver that listens already.
    pub(crate) fn start(name: &str) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let driver = Self { name: name.to_owned(), state: Arc::default(), directory };
        let incoming = dunnage_csi::uds::listen(driver.socket().to_str().unwrap()).unwrap();
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        driver
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder().join("csi.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next(&self, next: Next) {
        self.state().script.push_back(next);
    }

    /// The sizes that were asked for, in GiB.
    pub(crate) fn asked(&self) -> Vec<i64> {
        let size = |request: &v1::ControllerExpandVolumeRequest| {
            request.capacity_range.as_ref().unwrap().required_bytes >> 30
        };
        self.state().grown.iter().map(size).collect()
    }

    async fn answer(&self) -> Result<bool, Status> {
        let next = self.state().script.pop_front();
        match next {
            None => Ok(false),
            Some(Next::ForNode) => Ok(true),
            Some(Next::Fail(code)) => Err(Status::new(code, "as told")),
            Some(Next::Hang) => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Answer<v1::GetPluginInfoResponse> {
        let name = self.name.clone();
        Ok(Response::new(v1::GetPluginInfoResponse { name, ..v1::GetPluginInfoResponse::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        let service =
            plugin_capability::Service { r#type: plugin_capability::service::Type::ControllerService.into() };
        let capability = v1::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        use controller_service_capability::rpc::Type;
        let capability = |kind: Type| v1::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: kind.into(),
            })),
        };
        let kinds = [Type::ExpandVolume, Type::ModifyVolume, Type::SingleNodeMultiWriter];
        let capabilities = kinds.map(capability).into();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let capacity_bytes = request.capacity_range.as_ref().unwrap().required_bytes;
        self.state().grown.push(request);
        let node_expansion_required = self.answer().await?;
        Ok(Response::new(v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Answer<v1::ControllerModifyVolumeResponse> {
        self.state().modified.push(request.into_inner());
        self.answer().await?;
        Ok(Response::new(v1::ControllerModifyVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        others()
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Answer<v1::ControllerUnpublishVolumeResponse> {
        others()
    }

    async fn list_volumes(&self, _: Request<v1::ListVolumesRequest>) -> Answer<v1::ListVolumesResponse> {
        others()
    }

    async fn create_volume(&self, _: Request<v1::CreateVolumeRequest>) -> Answer<v1::CreateVolumeResponse> {
        others()
    }

    async fn delete_volume(&self, _: Request<v1::DeleteVolumeRequest>) -> Answer<v1::DeleteVolumeResponse> {
        others()
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<v1::ValidateVolumeCapabilitiesResponse> {
        others()
    }

    async fn get_capacity(&self, _: Request<v1::GetCapacityRequest>) -> Answer<v1::GetCapacityResponse> {
        others()
    }

    async fn create_snapshot(
        &self,
        _: Request<v1::CreateSnapshotRequest>,
    ) -> Answer<v1::CreateSnapshotResponse> {
        others()
    }

    async fn delete_snapshot(
        &self,
        _: Request<v1::DeleteSnapshotRequest>,
    ) -> Answer<v1::DeleteSnapshotResponse> {
        others()
    }

    async fn list_snapshots(
        &self,
        _: Request<v1::ListSnapshotsRequest>,
    ) -> Answer<v1::ListSnapshotsResponse> {
        others()
    }

    async fn get_snapshot(&self, _: Request<v1::GetSnapshotRequest>) -> Answer<v1::GetSnapshotResponse> {
        others()
    }

    async fn controller_get_volume(
        &self,
        _: Request<v1::ControllerGetVolumeRequest>,
    ) -> Answer<v1::ControllerGetVolumeResponse> {
        others()
    }
}
