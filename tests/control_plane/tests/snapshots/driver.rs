//! A CSI driver that takes snapshots in memory, with programmable answers.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::v1::{self, Snapshot, controller_service_capability, plugin_capability};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use controller_service_capability::rpc::Type as Ability;

/// What the next CreateSnapshot does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Fails and takes nothing.
    Fail(Code),
    /// Takes the snapshot and fails all the same.
    TakeAndFail(Code),
    /// Takes the snapshot, which is not ready yet.
    NotReady,
    /// Takes the snapshot and never answers.
    TakeAndHang,
}

#[derive(Default)]
pub(crate) struct State {
    /// Snapshots by their CSI name.
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    pub(crate) creates: Vec<v1::CreateSnapshotRequest>,
    pub(crate) deletes: Vec<v1::DeleteSnapshotRequest>,
    pub(crate) lists: Vec<v1::ListSnapshotsRequest>,
    pub(crate) restores: Vec<v1::CreateVolumeRequest>,
    pub(crate) script: VecDeque<Answer>,
    /// What every CreateSnapshot answers when the script is over.
    pub(crate) always: Option<Code>,
}

/// The driver; clones are the same one.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: String,
    state: Arc<Mutex<State>>,
    directory: Arc<tempfile::TempDir>,
}

impl Driver {
    /// A driver that listens already.
    pub(crate) fn start(name: &str) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let driver = Self { name: name.to_owned(), state: Arc::default(), directory };
        let listener = dunnage_csi::uds::listen(driver.socket().to_str().unwrap()).unwrap();
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
        tokio::spawn(server.serve_with_incoming(listener));
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

    pub(crate) fn answer_next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state().script.extend(answers);
    }

    fn take(&self, request: &v1::CreateSnapshotRequest) -> Snapshot {
        let mut state = self.state();
        let made = state.snapshots.entry(request.name.clone()).or_insert_with(|| Snapshot {
            snapshot_id: format!("id-of-{}", request.name),
            source_volume_id: request.source_volume_id.clone(),
            size_bytes: 1 << 30,
            ready_to_use: true,
            ..Snapshot::default()
        });
        made.clone()
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let name = self.name.clone();
        Ok(Response::new(v1::GetPluginInfoResponse { name, ..Default::default() }))
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
        let capability = |rpc: Ability| {
            let rpc = controller_service_capability::Rpc { r#type: rpc.into() };
            v1::ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(rpc)) }
        };
        let can = [Ability::CreateDeleteVolume, Ability::CreateDeleteSnapshot, Ability::ListSnapshots];
        let capabilities = can.map(capability).into();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let answer = {
            let mut state = self.state();
            state.creates.push(request.clone());
            let always = state.always;
            state.script.pop_front().or(always.map(Answer::TakeAndFail))
        };
        let mut snapshot = match answer {
            Some(Answer::Fail(code)) => return Err(Status::new(code, "as told")),
            _ => self.take(&request),
        };
        match answer {
            Some(Answer::TakeAndFail(code)) => return Err(Status::new(code, "as told")),
            Some(Answer::TakeAndHang) => std::future::pending::<()>().await,
            Some(Answer::NotReady) => snapshot.ready_to_use = false,
            _ => {}
        }
        Ok(Response::new(v1::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        state.snapshots.retain(|_, snapshot| snapshot.snapshot_id != request.snapshot_id);
        state.deletes.push(request);
        Ok(Response::new(v1::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        let of = |snapshot: &&Snapshot| snapshot.snapshot_id == request.snapshot_id;
        let entry =
            |snapshot: &Snapshot| v1::list_snapshots_response::Entry { snapshot: Some(snapshot.clone()) };
        let entries = state.snapshots.values().filter(of).map(entry).collect();
        state.lists.push(request);
        Ok(Response::new(v1::ListSnapshotsResponse { entries, next_token: String::new() }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = v1::Volume {
            volume_id: request.name.clone(),
            capacity_bytes: request.capacity_range.map_or(0, |range| range.required_bytes),
            content_source: request.volume_content_source.clone(),
            ..Default::default()
        };
        self.state().restores.push(request);
        Ok(Response::new(v1::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        _: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn list_volumes(
        &self,
        _: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn get_capacity(
        &self,
        _: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn get_snapshot(
        &self,
        _: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<v1::ControllerGetVolumeRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("not of snapshots"))
    }
}
