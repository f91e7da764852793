//! Volumes through the router: where one is made, and the list of all of them.

use dunnage_csi::agent;
use dunnage_csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, ListVolumesRequest,
    ListVolumesResponse, Topology, Volume, list_volumes_response,
};
use tonic::Code;
use tracing::info;

use super::choose::{self, choose};
use super::controller::{RouterController, need, page_asked};
use super::forward::{Deadline, tell};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::record::Source;

impl RouterController {
    pub(super) async fn create(
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
            source: Source::parse(volume.content_source.as_ref()).ok().flatten().map(|it| it.to_agent()),
        };
        self.forward.agents.tell(|index| index.created(&id, volume));
    }

    pub(super) async fn delete(
        &self,
        deadline: &Deadline,
        id: &VolumeId,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse> {
        let deleted = self
            .remove(id, &id.pool(), "DeleteVolume", deadline, request, |mut agent, request| async move {
                agent.delete_volume(request).await
            })
            .await?;
        self.forward.agents.tell(|index| index.deleted(id));
        Ok(deleted)
    }

    pub(super) fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse> {
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
                content_source: volume
                    .source
                    .and_then(|told| Source::of_agent(&told).ok())
                    .map(|source| source.to_csi()),
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
