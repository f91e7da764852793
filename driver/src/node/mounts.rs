//! The node service: the way of a volume into a pod and back.

use std::path::Path;

use dunnage_csi::v1::node_server::Node;
use dunnage_csi::v1::node_service_capability::{Rpc, Type, rpc};
use dunnage_csi::v1::volume_usage::Unit;
use dunnage_csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};
use dunnage_host::mount::Place;
use dunnage_host::mountinfo::Mount;
use dunnage_host::options::Options;
use dunnage_host::space::Space;
use tonic::{Request, Response, Status};
use tracing::{info, instrument, warn};

use super::controller::{check_use, parse};
use super::{Driver, blocking};
use crate::capability::{self, Access, Capability};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::record::Record;
use crate::store::Volume;

mod condition;
mod expand;
mod inline;
mod publish;

use publish::{Seen, Step, next};

/// CSI Node.
#[derive(Clone, Debug)]
pub struct NodeService {
    driver: Driver,
}

impl NodeService {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver }
    }
}

type Answer<T> = std::result::Result<Response<T>, Status>;

impl Driver {
    fn stage(&self, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse> {
        let id = parse(&request.volume_id)?;
        let capability = capability::parse(request.volume_capability.as_ref())?;
        let staging = self.need_place("staging_target_path", &request.staging_target_path)?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let _data = self.lock_staged_data(&id)?;
        let mut volume = store.volume(&id)?;
        self.check_use(&volume.record, &capability)?;
        self.check_attached(&volume.record)?;
        self.check_fence()?;
        self.engine().stage(&mut volume, &staging, &capability)?;
        info!("volume staged");
        Ok(NodeStageVolumeResponse {})
    }

    /// Needs no pool for its main work: a disk that failed must not keep its mounts.
    fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse> {
        let id = parse(&request.volume_id)?;
        let staging = self.place("staging_target_path", &request.staging_target_path)?;
        let id = id?;
        let _guard = self.lock(&id)?;
        let _data = self.lock_staged_data(&id)?;
        if let Some(staging) = staging {
            staging.unmount()?;
            self.config().steps.reach("staging unmounted");
        }
        let released = match self.store().and_then(|store| store.volume(&id)) {
            Ok(volume) => {
                let released = self.engine().release(&volume)?;
                self.engine().persist(&volume)?;
                released
            }
            // Nothing to release without a volume; without a pool, the last unmount has released most.
            Err(Error::NoSuchVolume { .. }) => true,
            Err(Error::Unavailable(_)) => self.engine().release_lost(&id)?,
            Err(error) => return Err(error),
        };
        if !released {
            warn!("volume is unmounted here, but another mount or its copy elsewhere still holds it");
        }
        info!("volume unstaged");
        Ok(NodeUnstageVolumeResponse {})
    }

    fn publish(&self, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse> {
        if inline::is_asked(&request.volume_context) {
            return self.publish_inline(request);
        }
        let id = parse(&request.volume_id)?;
        let capability = capability::parse(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Error::Precondition(
                "staging_target_path is missing: the volume has to be staged first".into(),
            ));
        }
        let staging = self.need_place("staging_target_path", &request.staging_target_path)?;
        let target = self.need_place("target_path", &request.target_path)?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let volume = store.volume(&id)?;
        self.check_use(&volume.record, &capability)?;
        let options = if request.readonly || capability.access == Access::ReadOnly {
            capability.options.read_only()
        } else {
            capability.options
        };
        self.bind(&volume, &staging, &target, &options, capability.access)?;
        info!(target_path = request.target_path, "volume published");
        Ok(NodePublishVolumeResponse {})
    }

    fn bind(
        &self,
        volume: &Volume,
        staging: &Place,
        target: &Place,
        options: &Options,
        access: Access,
    ) -> Result<()> {
        let source = self.engine().source(volume, staging)?;
        let mut mounts = self.engine().mounts(volume)?;
        mounts.retain(|mount| self.engine().is_whole(volume, mount));
        let kubelet_dir = &self.config().kubelet_dir;
        let block = volume.record.content.is_block();
        let seen = Seen {
            target: target.mounted()?,
            mounts: &mounts,
            access,
            read_only: options.is_read_only(),
            block,
            elsewhere: &|mount: &Mount| {
                // Kubelet mounts a device once more, at a path that ends with the same pod's uid.
                let same_pod = block && mount.mount_point.file_name() == target.path().file_name();
                !same_pod && is_elsewhere(mount, kubelet_dir, [staging.path(), target.path()])
            },
        };
        let step = next(&seen);
        if matches!(step, Step::Bind | Step::Again) {
            self.engine().open_for(volume, options.is_read_only())?;
            volume.reach("volume opened for the pod");
        }
        if step == Step::Again {
            target.unmount()?;
            volume.reach("target unmounted");
        }
        match step {
            Step::Bind | Step::Again => {
                if block { target.make_file() } else { target.make() }?;
                volume.reach("target made");
                target.bind(source, options)?;
                volume.reach("target mounted");
                Ok(())
            }
            Step::Finished => Ok(()),
            Step::Refuse(why) => Err(Error::Precondition(format!(
                "volume {} cannot be published at {}: {why}",
                volume.id(),
                target.path().display()
            ))),
        }
    }

    /// Needs no pool either, nor the volume: what is mounted there has to go.
    fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<NodeUnpublishVolumeResponse> {
        if let Ok(id) = request.volume_id.parse() {
            return self.unpublish_inline(&id, request);
        }
        let id = parse(&request.volume_id)?;
        let target = self.place("target_path", &request.target_path)?;
        let id = id?;
        let _guard = self.lock(&id)?;
        if let Some(target) = target {
            target.unmount()?;
            self.config().steps.reach("target unmounted");
            target.remove()?;
        }
        info!(target_path = request.target_path, "volume unpublished");
        Ok(NodeUnpublishVolumeResponse {})
    }

    fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse> {
        let id = parse(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Error::Missing { field: "volume_path" });
        }
        let store = self.store()?;
        let id = request.volume_id.parse().map(|inline| VolumeId::inline(&store.id, &inline)).or(id)?;
        let volume = store.volume(&id)?;
        let gone = || Error::NoSuchVolume { id: format!("{} at {}", volume.id(), request.volume_path) };
        let place = match self.place("volume_path", &request.volume_path) {
            // No volume can be where none is ever mounted.
            Err(Error::Invalid(_)) => return Err(gone()),
            place => place?.ok_or_else(gone)?,
        };
        let mount = place.mounted()?.ok_or_else(gone)?;
        if !self.engine().mounts(&volume)?.iter().any(|own| own.id == mount.id) {
            return Err(gone());
        }
        let space = self.engine().stats(&volume, &place)?;
        let usage = if volume.record.content.is_block() { device_usage(space) } else { usage(space) };
        let shares = self.engine().shares_space(volume.record.content);
        let pool = volume.space()?;
        let condition = condition::of(shares, pool, store.kept_back(pool));
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
    }

    fn info(&self) -> Result<NodeGetInfoResponse> {
        let store = self.store()?;
        Ok(NodeGetInfoResponse {
            node_id: self.config().node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.topology(&store.id)),
        })
    }

    fn check_attached(&self, record: &Record) -> Result<()> {
        let own = &self.config().node_id;
        if !self.config().attach || record.published_node.as_ref() == Some(own) {
            return Ok(());
        }
        Err(Error::Precondition(format!("volume {} is not attached to node {own}", record.id)))
    }

    /// Whether the volume can be used so.
    pub(super) fn check_use(&self, record: &Record, capability: &Capability) -> Result<()> {
        check_use(record, capability, self.engine()).map_err(|error| Error::Invalid(error.to_string()))
    }
}

/// Whether a mount is a use of the volume at another path than these.
fn is_elsewhere(mount: &Mount, kubelet_dir: &Path, own: [&Path; 2]) -> bool {
    mount.mount_point.starts_with(kubelet_dir) && !own.contains(&mount.mount_point.as_path())
}

/// How full a device is, its pod alone knows.
fn device_usage(space: Space) -> Vec<VolumeUsage> {
    let total = i64::try_from(space.total).unwrap_or(i64::MAX);
    vec![VolumeUsage { unit: Unit::Bytes.into(), total, ..VolumeUsage::default() }]
}

fn usage(space: Space) -> Vec<VolumeUsage> {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let entry = |unit: Unit, total, available, used| VolumeUsage {
        unit: unit.into(),
        total: signed(total),
        available: signed(available),
        used: signed(used),
    };
    let bytes = entry(Unit::Bytes, space.total, space.available, space.used);
    // btrfs counts no inodes.
    let inodes = (space.inodes > 0).then(|| {
        entry(Unit::Inodes, space.inodes, space.inodes_free, space.inodes.saturating_sub(space.inodes_free))
    });
    [bytes].into_iter().chain(inodes).collect()
}

#[tonic::async_trait]
impl Node for NodeService {
    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.stage(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.unstage(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.publish(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.unpublish(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.stats(&request)).await
    }

    #[instrument(skip_all, fields(volume = request.get_ref().volume_id))]
    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || driver.expand_staged(&request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let capabilities = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
        ]
        .into_iter()
        .map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) })
        .collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let driver = self.driver.clone();
        blocking(move || driver.info()).await
    }
}
