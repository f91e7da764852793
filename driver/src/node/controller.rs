//! The controller service for the node's own pool.

use dunnage_csi::v1::controller_server::Controller;
use dunnage_csi::v1::list_volumes_response::Entry;
use dunnage_csi::v1::validate_volume_capabilities_response::Confirmed;
use dunnage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
    CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume,
};
use tonic::{Request, Response, Status};
use tracing::{info, instrument};

use super::copies::Offer;
use super::{Driver, blocking};
use crate::advertised;
use crate::capability;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::record::Record;
use crate::size::choose;
use crate::store::{Origin, Store};

mod attributes;
mod expand;
mod groups;
mod modify;
mod page;
mod snapshots;
pub(super) mod source;
pub(super) mod wanted;

use wanted::Wanted;
pub(crate) use wanted::read_parameters;
pub(super) use wanted::{INFORMATION, allocation_of, check_known, check_use, require_limit, same_content};

/// CSI Controller.
#[derive(Clone, Debug)]
pub struct ControllerService {
    driver: Driver,
}

impl ControllerService {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver }
    }
}

type Answer<T> = std::result::Result<Response<T>, Status>;

impl Driver {
    fn create(&self, request: &CreateVolumeRequest, offer: Offer) -> Result<CreateVolumeResponse> {
        let wanted = Wanted::parse(request, self.engine())?;
        let store = self.store()?;
        wanted::check_topology(request.accessibility_requirements.as_ref(), &self.topology_key(), &store.id)?;
        let id = VolumeId::make(&store.id, &wanted.name);
        let guard = self.lock(&id)?;
        if let Some(record) = store.record(&id) {
            let record = wanted.matches(record)?;
            return Ok(CreateVolumeResponse { volume: Some(self.describe(&record)) });
        }
        self.check_fence()?;
        if let Some(obstacle) = self.engine().unfit(store.root())? {
            return Err(Error::Precondition(obstacle));
        }
        if wanted.require_limit {
            self.check_limits("the class", &store)?;
        }
        let claim = wanted::claim(&request.parameters);
        if wanted.source.as_ref().is_some_and(|source| source.pool() != store.id) {
            let record = self.copy_here(&store, wanted, &id, offer, guard)?;
            info!(volume = %record.id, name = record.name, claim, source = ?record.source, "volume made by a copy from another pool");
            return Ok(CreateVolumeResponse { volume: Some(self.describe(&record)) });
        }
        if let Some(arrival) = store.arrival(&id) {
            wanted.matches(arrival.record)?;
        }
        let found = wanted.source.as_ref().map(|source| self.find(source, &store)).transpose()?;
        let range =
            found.as_ref().map_or(Ok(wanted.range), |found| source::at_least(found.bytes, wanted.range))?;
        let capacity_bytes = choose(range, self.engine().sizes(wanted.content))?;
        let content = found.as_ref().map_or(wanted.content, |found| wanted.applied_to(found.content));
        let (name, source) = (wanted.name.clone(), wanted.source.clone());
        let record = Record { id, name, capacity_bytes, content, published_node: None, source, inline: None };
        if let Some(source) = &record.source {
            wanted
                .check_content(&record)
                .map_err(|error| Error::Invalid(format!("a volume cannot be made from {source}: {error}")))?;
        }
        let taken = store.create(&record, found.as_ref().map_or(&Origin::Nothing, |found| &found.origin))?;
        info!(volume = %record.id, name = record.name, claim, capacity_bytes, source = ?record.source, ?taken, "volume made");
        Ok(CreateVolumeResponse { volume: Some(self.describe(&record)) })
    }

    /// Refuses what asks for limits where a volume can outgrow its size.
    pub(super) fn check_limits(&self, who: &str, store: &Store) -> Result<()> {
        match self.engine().unlimited(store)? {
            None => Ok(()),
            Some(obstacle) => {
                Err(Error::Precondition(format!("{who} requires limits (requireLimit), and here {obstacle}")))
            }
        }
    }

    fn delete(&self, id: &str) -> Result<DeleteVolumeResponse> {
        // An id that cannot be ours names no volume, and that is what is wanted.
        let Ok(id) = parse(id)? else { return Ok(DeleteVolumeResponse {}) };
        let store = self.store()?;
        if id.pool() != store.id {
            // Not here is not gone: it may well be on its own pool.
            return Err(Error::Unavailable(format!(
                "volume {id} is on pool {}, and this node has pool {}",
                id.pool(),
                store.id
            )));
        }
        let _guard = self.lock(&id)?;
        let _data = self.lock_data(&id)?;
        if let Some(node) = store.record(&id).and_then(|record| record.published_node) {
            return Err(Error::Precondition(format!("volume {id} is still attached to node {node}")));
        }
        self.cancel_copy(&store, &id)?;
        store.delete(&id)?;
        info!(volume = %id, "volume deleted");
        Ok(DeleteVolumeResponse {})
    }

    fn attach(&self, request: &ControllerPublishVolumeRequest) -> Result<ControllerPublishVolumeResponse> {
        let id = parse(&request.volume_id)?;
        if request.node_id.is_empty() {
            return Err(Error::Missing { field: "node_id" });
        }
        let capability = capability::parse(request.volume_capability.as_ref())?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let mut volume = store.volume(&id)?;
        self.check_use(&volume.record, &capability)?;
        let own = &self.config().node_id;
        if request.node_id != *own {
            return Err(Error::NoSuchNode {
                node: request.node_id.clone(),
                reason: format!("volume {id} lives on node {own}"),
            });
        }
        match &volume.record.published_node {
            Some(node) if node != own => Err(Error::Precondition(format!(
                "volume {id} is still attached to node {node}: detach it there first"
            ))),
            _ => {
                volume.note(|record| record.published_node = Some(own.clone()))?;
                Ok(ControllerPublishVolumeResponse::default())
            }
        }
    }

    fn detach(
        &self,
        request: &ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse> {
        let done = ControllerUnpublishVolumeResponse {};
        let Ok(id) = parse(&request.volume_id)? else { return Ok(done) };
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        if store.record(&id).is_none() {
            return Ok(done);
        }
        let mut volume = store.volume(&id)?;
        // Without a node, it is taken from all.
        let node = &request.node_id;
        if node.is_empty() || volume.record.published_node.as_ref() == Some(node) {
            volume.note(|record| record.published_node = None)?;
        }
        Ok(done)
    }

    fn validate(
        &self,
        request: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse> {
        let id = parse(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Error::Missing { field: "volume_capabilities" });
        }
        let volume = self.store()?.volume(&id?)?;
        let checked = capability::parse_all(&request.volume_capabilities)
            .and_then(|all| all.iter().try_for_each(|one| self.check_use(&volume.record, one)))
            .and_then(|()| wanted::check_allocation(&volume.record, &request.parameters, self.engine()))
            .and_then(|()| require_limit(wanted::CLASS, &request.parameters).map(drop));
        Ok(match checked {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context.clone(),
                    volume_capabilities: request.volume_capabilities.clone(),
                    parameters: request.parameters.clone(),
                    ..Confirmed::default()
                }),
                message: String::new(),
            },
            Err(error) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() },
        })
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse> {
        let mut records = self.store()?.records();
        records.retain(|record| record.inline.is_none());
        let page = page::page(&records, |record| &record.id, request.max_entries, &request.starting_token)?;
        Ok(ListVolumesResponse {
            entries: page
                .entries
                .iter()
                .map(|record| Entry { volume: Some(self.describe(record)), ..Entry::default() })
                .collect(),
            next_token: page.next,
        })
    }

    /// Ignores what the class asks otherwise: a mistake there shall show when a claim is served, not as lack of space.
    fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse> {
        let store = self.store()?;
        let key = self.topology_key();
        let here = request
            .accessible_topology
            .as_ref()
            .is_none_or(|topology| topology.segments.get(&key).is_none_or(|pool| pool == store.id.as_str()));
        let available = if here && !self.is_fenced() { store.available()? } else { 0 };
        let allocation = wanted::allocation(&request.parameters, self.engine()).ok().flatten();
        let available = self.engine().room(allocation.unwrap_or_default(), available);
        let available = i64::try_from(available).unwrap_or(i64::MAX);
        Ok(GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(available),
            minimum_volume_size: None,
        })
    }

    fn describe(&self, record: &Record) -> Volume {
        Volume {
            volume_id: record.id.to_string(),
            capacity_bytes: i64::try_from(record.capacity_bytes).unwrap_or(i64::MAX),
            accessible_topology: vec![self.topology(&record.id.pool())],
            content_source: source::told(record),
            ..Volume::default()
        }
    }
}

/// The outer error: no id at all. The inner one: none that this driver could have made.
pub(super) fn parse(id: &str) -> Result<Result<VolumeId>> {
    match id.parse() {
        _ if id.is_empty() => Err(Error::Missing { field: "volume_id" }),
        Ok(id) => VolumeId::not_inline(id).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    #[instrument(skip_all, fields(name = request.get_ref().name))]
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let (driver, offer) = (self.driver.clone(), Offer::of(&request));
        let request = request.into_inner();
        blocking(move || driver.create(&request, offer)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.delete(&request.volume_id)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id, node = request.get_ref().node_id))]
    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        if !self.driver.config().attach {
            return Err(Error::Unsupported("ControllerPublishVolume").into());
        }
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.attach(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id, node = request.get_ref().node_id))]
    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        if !self.driver.config().attach {
            return Err(Error::Unsupported("ControllerUnpublishVolume").into());
        }
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.detach(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.validate(&request)).await
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.list(&request)).await
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.capacity(&request)).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let modify = !self.driver.engine().mutable_parameters().is_empty();
        let capabilities = advertised::controller(self.driver.config().attach, modify);
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    #[instrument(skip_all, fields(name = request.get_ref().name, volume = request.get_ref().source_volume_id))]
    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.create_snapshot(&request)).await
    }

    #[instrument(skip_all, fields(snapshot = request.get_ref().snapshot_id))]
    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.delete_snapshot(&request.snapshot_id)).await
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.list_snapshots(&request)).await
    }

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.get_snapshot(&request.snapshot_id)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.expand(&request)).await
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        Err(Error::Unsupported("ControllerGetVolume").into())
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.modify(&request)).await
    }
}
