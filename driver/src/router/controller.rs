//! The controller service of the router: each call goes to the agent that has the pool.

use std::fmt::Display;
use std::str::FromStr;

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
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tracing::{instrument, warn};

use super::choose::{self, CrossPool};
use super::forward::{Deadline, Forward};
use super::index::Holder;
use crate::advertised;
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::locks::Locks;

type Answer<T> = std::result::Result<Response<T>, Status>;

pub(crate) struct RouterController {
    pub(crate) topology_key: String,
    pub(crate) attach: bool,
    /// Whether anything of a volume can be modified.
    pub(crate) modify: bool,
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
    /// Whether nobody waits for a pool any more, so that there is nothing to do for what was on it.
    fn is_given_up(&self, pool: &PoolId) -> bool {
        self.forward.agents.ask(|index| index.settled() && index.holder(pool) == Holder::GivenUp)
    }

    /// The same for a removal, which then has nothing to do.
    pub(super) fn is_lost(&self, id: &dyn Display, pool: &PoolId, method: &'static str) -> bool {
        let lost = self.is_given_up(pool);
        if lost {
            warn!(%id, %pool, method, "the pool is given up: nothing was removed");
        }
        lost
    }

    /// Passes a removal on to the pool of what is removed. There is nothing to do once nobody waits for that pool any more.
    pub(super) async fn remove<Q, A: Default, F>(
        &self,
        id: &(dyn Display + Sync),
        pool: &PoolId,
        method: &'static str,
        deadline: &Deadline,
        request: Q,
        call: impl FnOnce(ControllerClient<Channel>, Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = Answer<A>>,
    {
        if self.is_lost(id, pool, method) {
            return Ok(A::default());
        }
        self.forward.call(pool, method, deadline, request, call).await
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
            capabilities: advertised::controller(self.attach, self.modify),
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

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        Ok(Response::new(self.found_snapshot(request.get_ref())?))
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

    #[instrument(skip_all, fields(volume = %request.get_ref().volume_id), err(Debug))]
    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        if !self.modify {
            return unsupported("ControllerModifyVolume of such volumes");
        }
        let (metadata, _, request) = request.into_parts();
        let id = request.volume_id.clone();
        self.by_volume(
            "ControllerModifyVolume",
            &id,
            &Deadline::of(&metadata),
            request,
            |mut agent, request| async move { agent.controller_modify_volume(request).await },
        )
        .await
    }
}
