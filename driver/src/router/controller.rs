//! The controller service of the router: each call goes to the agent that has the pool.

use std::str::FromStr;

use dunnage_csi::agent;
use dunnage_csi::metadata::UNWANTED;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::controller_server::Controller;
use dunnage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
    CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume, list_volumes_response,
};
use futures::future::join_all;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tracing::{info, instrument, warn};

use super::choose::{self, CrossPool, choose};
use super::forward::{Deadline, Forward, tell};
use super::index::Holder;
use crate::advertised;
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::locks::Locks;
use crate::record::Source;

type Answer<T> = std::result::Result<Response<T>, Status>;

pub(crate) struct RouterController {
    pub(crate) topology_key: String,
    pub(crate) attach: bool,
    pub(crate) forward: Forward,
    /// One `CreateVolume` a name at a time: two could otherwise put it on two pools.
    pub(crate) creating: Locks,
    pub(crate) cross_pool: CrossPool,
}

/// The id in a request that names a volume, which this driver must have made.
fn volume_id(text: &str) -> Result<VolumeId> {
    if text.is_empty() {
        return Err(Error::Missing { field: "volume_id" });
    }
    text.parse()
}

pub(super) fn need(present: bool, field: &'static str) -> Result<()> {
    if present { Ok(()) } else { Err(Error::Missing { field }) }
}

/// The length of the page that a list request asks for, 0 for all, and the id that it begins after.
pub(super) fn page_asked<Id: FromStr>(max_entries: i32, token: &str) -> Result<(usize, Option<Id>)> {
    let limit =
        usize::try_from(max_entries).map_err(|_| Error::Invalid("max_entries is negative".to_owned()))?;
    if token.is_empty() {
        return Ok((limit, None));
    }
    let after = token.parse().map_err(|_| {
        Error::Aborted(format!("{token:?} is no page token of this driver: list from the start"))
    })?;
    Ok((limit, Some(after)))
}

impl RouterController {
    async fn create(
        &self,
        deadline: &Deadline,
        request: CreateVolumeRequest,
        unwanted: bool,
    ) -> Result<CreateVolumeResponse> {
        need(!request.name.is_empty(), "name")?;
        need(!request.volume_capabilities.is_empty(), "volume_capabilities")?;
        let allowed = choose::allowed(request.accessibility_requirements.as_ref(), &self.topology_key)?;
        let _guard = self.creating.take(&request.name)?;
        let source = Source::parse(request.volume_content_source.as_ref())?;
        let plan = self.forward.agents.ask(|index| {
            choose(index, &request.name, allowed.as_deref(), source.as_ref(), self.cross_pool)
        })?;
        for id in plan.remove {
            info!(volume = %id, name = %request.name, "removing a volume from a pool where it may no longer be");
            let stale = DeleteVolumeRequest { volume_id: id.to_string(), secrets: request.secrets.clone() };
            // Not final, so that the provisioner asks again and no second volume is made before this one is gone.
            self.delete(deadline, &id, stale).await.map_err(|error| {
                Error::Unavailable(format!(
                    "volume {id} has this name and lies on a pool that is no longer allowed; \
                     it cannot be removed first: {error}"
                ))
            })?;
        }
        let mut full = None;
        for pool in &plan.pools {
            let hint = match (&plan.copy_from, &source) {
                (Some(from), Some(source)) if from != pool => {
                    let target = VolumeId::make(pool, &request.name);
                    Some(self.forward.agents.hint(source.id(), from, &target)?)
                }
                _ => None,
            };
            let created = self
                .forward
                .call(pool, "CreateVolume", deadline, request.clone(), |mut agent, mut request| async move {
                    tell(request.metadata_mut(), hint, unwanted);
                    agent.create_volume(request).await
                })
                .await;
            match created {
                Ok(response) => {
                    self.note_created(&request.name, &response);
                    return Ok(response);
                }
                Err(error) if error.code() == Code::ResourceExhausted => full = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(full.unwrap_or_else(|| Error::Unavailable("no pool could be asked".to_owned())))
    }

    /// Before the agent tells of it: a list or a repeated call may come first.
    fn note_created(&self, name: &str, response: &CreateVolumeResponse) {
        let Some(volume) = &response.volume else { return };
        let Ok(id) = volume.volume_id.parse() else { return };
        let volume = agent::Volume {
            id: volume.volume_id.clone(),
            name: name.to_owned(),
            capacity_bytes: volume.capacity_bytes.try_into().unwrap_or(0),
            published_node: String::new(),
        };
        self.forward.agents.tell(|index| index.created(&id, volume));
    }

    /// Whether nobody waits for a pool any more, so that there is nothing to do for what was on it.
    pub(super) fn is_given_up(&self, pool: &PoolId) -> bool {
        self.forward.agents.ask(|index| index.settled() && index.holder(pool) == Holder::GivenUp)
    }

    async fn delete(
        &self,
        deadline: &Deadline,
        id: &VolumeId,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse> {
        if self.is_given_up(&id.pool()) {
            warn!(volume = %id, pool = %id.pool(), "deleted a volume whose pool is given up: nothing was removed");
            self.forward.agents.tell(|index| index.deleted(id));
            return Ok(DeleteVolumeResponse {});
        }
        let deleted = self
            .forward
            .call(&id.pool(), "DeleteVolume", deadline, request, |mut agent, request| async move {
                agent.delete_volume(request).await
            })
            .await?;
        self.forward.agents.tell(|index| index.deleted(id));
        Ok(deleted)
    }

    /// Passes a call on by the volume that it names.
    async fn by_volume<Q, A, F>(
        &self,
        method: &'static str,
        id: &str,
        deadline: &Deadline,
        request: Q,
        call: impl FnOnce(ControllerClient<Channel>, Request<Q>) -> F,
    ) -> Answer<A>
    where
        F: Future<Output = Answer<A>>,
    {
        let pool = volume_id(id)?.pool();
        Ok(Response::new(self.forward.call(&pool, method, deadline, request, call).await?))
    }

    async fn capacity_of(
        &self,
        pool: &PoolId,
        deadline: &Deadline,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse> {
        let takes_volumes = self.forward.agents.ask(|index| match index.holder(pool) {
            Holder::Live { fenced, .. } => !fenced,
            Holder::Contested { .. } | Holder::GivenUp => false,
            // Not known is not nothing: the error makes the caller keep what it knew and ask again.
            Holder::Away { .. } | Holder::Unknown => true,
        });
        if !takes_volumes {
            return Ok(GetCapacityResponse {
                maximum_volume_size: Some(0),
                ..GetCapacityResponse::default()
            });
        }
        self.forward
            .call(pool, "GetCapacity", deadline, request, |mut agent, request| async move {
                agent.get_capacity(request).await
            })
            .await
    }

    /// The sum over all pools; a volume can be as large as the largest of them takes.
    async fn whole_capacity(
        &self,
        deadline: &Deadline,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse> {
        self.forward.agents.ready()?;
        let live = self.forward.agents.ask(|index| {
            let live = index.pools().filter(|(id, _)| matches!(index.holder(id), Holder::Live { .. }));
            live.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        });
        let answers =
            join_all(live.iter().map(|pool| self.capacity_of(pool, deadline, request.clone()))).await;
        let mut whole: Option<GetCapacityResponse> = None;
        let mut failed = None;
        for answer in answers {
            match answer {
                Ok(answer) => whole = Some(whole.map_or(answer, |whole| add(whole, answer))),
                Err(error) => failed = Some(error),
            }
        }
        match (whole, failed) {
            (Some(whole), _) => Ok(whole),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(GetCapacityResponse::default()),
        }
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse> {
        let (limit, after) = page_asked(request.max_entries, &request.starting_token)?;
        self.forward.agents.ready()?;
        let page = self.forward.agents.ask(|index| index.page(after.as_ref(), limit))?;
        let entries = page.entries.into_iter().map(|(pool, volume)| list_volumes_response::Entry {
            volume: Some(Volume {
                volume_id: volume.id,
                capacity_bytes: volume.capacity_bytes.try_into().unwrap_or(i64::MAX),
                accessible_topology: vec![Topology {
                    segments: [(self.topology_key.clone(), pool.to_string())].into(),
                }],
                ..Volume::default()
            }),
            status: None,
        });
        Ok(ListVolumesResponse {
            entries: entries.collect(),
            next_token: page.next.map(|id| id.to_string()).unwrap_or_default(),
        })
    }
}

fn add(a: GetCapacityResponse, b: GetCapacityResponse) -> GetCapacityResponse {
    let largest =
        |answer: &GetCapacityResponse| answer.maximum_volume_size.unwrap_or(answer.available_capacity);
    let smallest = match (a.minimum_volume_size, b.minimum_volume_size) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => None,
    };
    GetCapacityResponse {
        available_capacity: a.available_capacity.saturating_add(b.available_capacity),
        maximum_volume_size: Some(largest(&a).max(largest(&b))),
        minimum_volume_size: smallest,
    }
}

fn unsupported<T>(call: &'static str) -> Answer<T> {
    Err(Error::Unsupported(call).into())
}

#[tonic::async_trait]
impl Controller for RouterController {
    #[instrument(skip_all, fields(name = %request.get_ref().name), err(Debug))]
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let (metadata, _, request) = request.into_parts();
        let unwanted = metadata.contains_key(UNWANTED);
        Ok(Response::new(self.create(&Deadline::of(&metadata), request, unwanted).await?))
    }

    #[instrument(skip_all, fields(volume = %request.get_ref().volume_id), err(Debug))]
    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        let (metadata, _, request) = request.into_parts();
        match volume_id(&request.volume_id) {
            Ok(id) => Ok(Response::new(self.delete(&Deadline::of(&metadata), &id, request).await?)),
            // Not ours, so it is not there, which is what the caller wants.
            Err(Error::NoSuchVolume { .. }) => Ok(Response::new(DeleteVolumeResponse {})),
            Err(error) => Err(error.into()),
        }
    }

    #[instrument(skip_all, fields(volume = %request.get_ref().volume_id, node = %request.get_ref().node_id), err(Debug))]
    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        if !self.attach {
            return unsupported("ControllerPublishVolume without attach");
        }
        let (metadata, _, request) = request.into_parts();
        need(!request.volume_id.is_empty(), "volume_id")?;
        need(!request.node_id.is_empty(), "node_id")?;
        need(request.volume_capability.is_some(), "volume_capability")?;
        let id = request.volume_id.clone();
        self.by_volume(
            "ControllerPublishVolume",
            &id,
            &Deadline::of(&metadata),
            request,
            |mut agent, request| async move { agent.controller_publish_volume(request).await },
        )
        .await
    }

    #[instrument(skip_all, fields(volume = %request.get_ref().volume_id, node = %request.get_ref().node_id), err(Debug))]
    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        if !self.attach {
            return unsupported("ControllerUnpublishVolume without attach");
        }
        let (metadata, _, request) = request.into_parts();
        let id = request.volume_id.clone();
        // A volume that is not ours is given to nobody, and one that is lost to nobody any more.
        match volume_id(&id) {
            Err(Error::NoSuchVolume { .. }) => {
                return Ok(Response::new(ControllerUnpublishVolumeResponse {}));
            }
            Ok(id) if self.is_given_up(&id.pool()) => {
                return Ok(Response::new(ControllerUnpublishVolumeResponse {}));
            }
            _ => {}
        }
        self.by_volume(
            "ControllerUnpublishVolume",
            &id,
            &Deadline::of(&metadata),
            request,
            |mut agent, request| async move { agent.controller_unpublish_volume(request).await },
        )
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let (metadata, _, request) = request.into_parts();
        need(!request.volume_id.is_empty(), "volume_id")?;
        need(!request.volume_capabilities.is_empty(), "volume_capabilities")?;
        let id = request.volume_id.clone();
        self.by_volume(
            "ValidateVolumeCapabilities",
            &id,
            &Deadline::of(&metadata),
            request,
            |mut agent, request| async move { agent.validate_volume_capabilities(request).await },
        )
        .await
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        Ok(Response::new(self.list(request.get_ref())?))
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        let (metadata, _, request) = request.into_parts();
        let deadline = Deadline::of(&metadata);
        let answer = match request.accessible_topology.as_ref().filter(|asked| !asked.segments.is_empty()) {
            Some(asked) => {
                let pool = choose::pool(asked, &self.topology_key)?;
                self.capacity_of(&pool, &deadline, request).await?
            }
            None => self.whole_capacity(&deadline, request).await?,
        };
        Ok(Response::new(answer))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: advertised::controller(self.attach),
        }))
    }

    #[instrument(skip_all, fields(name = %request.get_ref().name, volume = %request.get_ref().source_volume_id), err(Debug))]
    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        let (metadata, _, request) = request.into_parts();
        Ok(Response::new(self.make_snapshot(&Deadline::of(&metadata), request).await?))
    }

    #[instrument(skip_all, fields(snapshot = %request.get_ref().snapshot_id), err(Debug))]
    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        let (metadata, _, request) = request.into_parts();
        Ok(Response::new(self.remove_snapshot(&Deadline::of(&metadata), request).await?))
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        Ok(Response::new(self.list_of_snapshots(request.get_ref())?))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        unsupported("GetSnapshot")
    }

    #[instrument(skip_all, fields(volume = %request.get_ref().volume_id), err(Debug))]
    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let (metadata, _, request) = request.into_parts();
        need(!request.volume_id.is_empty(), "volume_id")?;
        need(request.capacity_range.is_some(), "capacity_range")?;
        let id = request.volume_id.clone();
        let answer = self
            .by_volume(
                "ControllerExpandVolume",
                &id,
                &Deadline::of(&metadata),
                request,
                |mut agent, request| async move { agent.controller_expand_volume(request).await },
            )
            .await?;
        let bytes = answer.get_ref().capacity_bytes.try_into().unwrap_or(0);
        let id = volume_id(&id)?;
        self.forward.agents.tell(|index| index.grown(&id, bytes));
        Ok(answer)
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        unsupported("ControllerGetVolume")
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        unsupported("ControllerModifyVolume")
    }
}
