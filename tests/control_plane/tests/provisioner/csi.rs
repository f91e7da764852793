//! A CSI driver with programmable answers, in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, GetSnapshotRequest,
    GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest,
    ListVolumesResponse, PluginCapability, ProbeRequest, ProbeResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, controller_service_capability, plugin_capability,
};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use controller_service_capability::rpc::Type as Ability;
use plugin_capability::service::Type as Service;

/// What the next CreateVolume does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Fails and makes nothing.
    Fail(Code),
    /// Makes the volume and fails all the same.
    MakeAndFail(Code),
    /// Makes the volume and never answers.
    MakeAndHang,
}

#[derive(Default)]
pub(crate) struct State {
    /// Volumes by their CSI name.
    pub(crate) volumes: BTreeMap<String, Volume>,
    pub(crate) creates: Vec<CreateVolumeRequest>,
    pub(crate) deletes: Vec<DeleteVolumeRequest>,
    pub(crate) script: VecDeque<Answer>,
    /// Bytes left in each pool; a pool that is not here has no limit.
    pub(crate) room: HashMap<String, i64>,
    /// Requests with this parameter are invalid.
    pub(crate) invalid_parameter: Option<String>,
    pub(crate) capacity_calls: usize,
}

/// What the driver says it can do.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub(crate) struct Abilities {
    pub(crate) topology: bool,
    pub(crate) publish: bool,
    pub(crate) capacity: bool,
    pub(crate) clone: bool,
    pub(crate) snapshot: bool,
}

/// The driver; clones are the same one.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) name: String,
    abilities: Abilities,
    state: Arc<Mutex<State>>,
    directory: Arc<tempfile::TempDir>,
}

impl Driver {
    /// A driver that listens already.
    pub(crate) fn start(name: &str, abilities: Abilities) -> Self {
        let driver = Self {
            name: name.to_owned(),
            abilities,
            state: Arc::default(),
            directory: Arc::new(tempfile::tempdir().unwrap()),
        };
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

    fn key(&self) -> String {
        format!("topology.{}/pool", self.name)
    }

    fn make(&self, request: &CreateVolumeRequest) -> Result<Volume, Status> {
        let mut state = self.state();
        if let Some(volume) = state.volumes.get(&request.name) {
            return Ok(volume.clone());
        }
        let asked = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let places = request.accessibility_requirements.as_ref();
        let place = places.and_then(|places| places.preferred.first()).cloned();
        let pool =
            place.as_ref().and_then(|place| place.segments.get(&self.key())).cloned().unwrap_or_default();
        if let Some(room) = state.room.get_mut(&pool) {
            if *room < asked {
                return Err(Status::resource_exhausted(format!("pool {pool:?} has {room} bytes free")));
            }
            *room -= asked;
        }
        let volume = Volume {
            volume_id: format!("{pool}-{}", request.name),
            capacity_bytes: asked,
            accessible_topology: place.into_iter().collect(),
            content_source: request.volume_content_source.clone(),
            ..Volume::default()
        };
        state.volumes.insert(request.name.clone(), volume.clone());
        Ok(volume)
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.name.clone();
        Ok(Response::new(GetPluginInfoResponse { name, ..GetPluginInfoResponse::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let mut found = vec![Service::ControllerService];
        if self.abilities.topology {
            found.push(Service::VolumeAccessibilityConstraints);
        }
        let capability = |service: Service| {
            let service = plugin_capability::Service { r#type: service.into() };
            PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
        };
        let capabilities = found.into_iter().map(capability).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let answer = {
            let mut state = self.state();
            state.creates.push(request.clone());
            let invalid = state.invalid_parameter.clone();
            if invalid.is_some_and(|parameter| request.parameters.contains_key(&parameter)) {
                return Err(Status::invalid_argument("there is no such parameter"));
            }
            state.script.pop_front()
        };
        match answer {
            None => {}
            Some(Answer::Fail(code)) => return Err(Status::new(code, "as told")),
            Some(Answer::MakeAndFail(code)) => {
                self.make(&request)?;
                return Err(Status::new(code, "as told"));
            }
            Some(Answer::MakeAndHang) => {
                self.make(&request)?;
                std::future::pending::<()>().await;
            }
        }
        Ok(Response::new(CreateVolumeResponse { volume: Some(self.make(&request)?) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        let name = state.volumes.iter().find(|(_, volume)| volume.volume_id == request.volume_id);
        if let Some(name) = name.map(|(name, _)| name.clone()) {
            let volume = state.volumes.remove(&name).unwrap();
            let pool = volume.accessible_topology.first().and_then(|place| place.segments.get(&self.key()));
            if let Some(room) = state.room.get_mut(pool.map(String::as_str).unwrap_or_default()) {
                *room += volume.capacity_bytes;
            }
        }
        state.deletes.push(request);
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let place = request.into_inner().accessible_topology.unwrap_or_default();
        let mut state = self.state();
        state.capacity_calls += 1;
        let pool = place.segments.get(&self.key()).cloned().unwrap_or_default();
        let available_capacity = state.room.get(&pool).copied().unwrap_or(1 << 40);
        Ok(Response::new(GetCapacityResponse { available_capacity, ..GetCapacityResponse::default() }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let found = [
            (true, Ability::CreateDeleteVolume),
            (self.abilities.publish, Ability::PublishUnpublishVolume),
            (self.abilities.capacity, Ability::GetCapacity),
            (self.abilities.clone, Ability::CloneVolume),
            (self.abilities.snapshot, Ability::CreateDeleteSnapshot),
        ];
        let capability = |rpc: Ability| {
            let rpc = controller_service_capability::Rpc { r#type: rpc.into() };
            ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(rpc)) }
        };
        let capabilities =
            found.into_iter().filter(|(can, _)| *can).map(|(_, rpc)| capability(rpc)).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn list_volumes(
        &self,
        _: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn create_snapshot(
        &self,
        _: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn get_snapshot(
        &self,
        _: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("not the provisioner's"))
    }
}
