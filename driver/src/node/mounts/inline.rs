//! Volumes that a pod has in its own spec: made by their publish, removed with their data by their unpublish.
//!
//! Kubelet stages no such volume, so its data are mounted at the target itself. They go when kubelet unpublishes them, which
//! it does as long as it knows of them: until then it keeps the directory above the target. Without that directory nobody
//! will ever ask for the volume again, as after a publish that failed for good, or when a disk comes to another node.

use std::path::Path;
use std::sync::Arc;

use dunnage_csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};
use dunnage_host::dir::{Dir, below};
use dunnage_host::mount::Place;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::id::{InlineId, VolumeId};
use crate::locks::Guard;
use crate::node::Driver;
use crate::record::{Inline, Record};
use crate::size::choose;
use crate::status::chain;
use crate::store::{Origin, Store};

mod wanted;

use wanted::Wanted;
pub(super) use wanted::is_asked;

/// Kubelet's own directory of its pods.
const PODS: &str = "pods";

impl Driver {
    pub(super) fn publish_inline(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse> {
        if request.volume_id.is_empty() {
            return Err(Error::Missing { field: "volume_id" });
        }
        let wanted = Wanted::parse(request, self.engine())?;
        let target = self.need_place("target_path", &request.target_path)?;
        let id: InlineId = request.volume_id.parse().map_err(|_| {
            Error::Invalid(format!(
                "volume_id {:?} is not of the form that inline volumes have",
                request.volume_id
            ))
        })?;
        let inline = Inline { pod: wanted.pod.clone(), target: self.below_kubelet(&request.target_path)? };
        let store = self.store()?;
        let _guard = self.lock_inline(&id)?;
        self.check_fence()?;
        let record = match store.record(&VolumeId::inline(&store.id, &id)) {
            Some(record) => wanted.matches(record, self.engine())?,
            None => self.make_inline(&id, &wanted, inline.clone(), &store)?,
        };
        let mut volume = store.volume(&record.id)?;
        volume.note(|record| record.inline = Some(inline))?;
        self.engine().stage(&mut volume, &target, &wanted.capability)?;
        self.config().steps.reach("inline volume staged");
        let (options, access) = (&wanted.capability.options, wanted.capability.access);
        self.bind(&volume, &target, &target, options, access)?;
        info!(pod = wanted.pod, target_path = request.target_path, "inline volume published");
        Ok(NodePublishVolumeResponse {})
    }

    fn make_inline(
        &self,
        id: &InlineId,
        wanted: &Wanted,
        inline: Inline,
        store: &Arc<Store>,
    ) -> Result<Record> {
        if wanted.require_limit {
            self.check_limits("the pod", store)?;
        }
        let record = Record {
            id: VolumeId::inline(&store.id, id),
            name: id.to_string(),
            capacity_bytes: choose(wanted.range, self.engine().sizes(wanted.content))?,
            content: wanted.content,
            published_node: None,
            source: None,
            inline: Some(inline),
        };
        store.create(&record, &Origin::Nothing)?;
        info!(volume = %record.id, capacity_bytes = record.capacity_bytes, "inline volume made");
        Ok(record)
    }

    /// Without a pool it only unmounts; the data go when the pool is back.
    pub(super) fn unpublish_inline(
        &self,
        id: &InlineId,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse> {
        let target = self.place("target_path", &request.target_path)?;
        let _guard = self.lock_inline(id)?;
        if let Some(target) = &target {
            target.unmount()?;
            self.config().steps.reach("target unmounted");
        }
        match self.store() {
            Ok(store) => store.delete(&VolumeId::inline(&store.id, id))?,
            Err(error) => {
                warn!(error = chain(&error), "the inline volume's data stay until their pool is back");
            }
        }
        if let Some(target) = &target {
            target.remove()?;
        }
        info!(target_path = request.target_path, "inline volume unpublished and removed");
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Removes the inline volumes that kubelet will never unpublish.
    pub(in crate::node) fn sweep_inline(&self, store: &Arc<Store>) {
        for record in store.records() {
            if let Err(error) = self.sweep_one(&record, store) {
                warn!(volume = %record.id, error = chain(&error), "cannot tell or remove a left inline volume");
            }
        }
    }

    fn sweep_one(&self, record: &Record, store: &Arc<Store>) -> Result<()> {
        let Some(inline) = &record.inline else { return Ok(()) };
        // A call that works on it has its own idea of it.
        let Ok(_guard) = self.lock_inline(&record.name.parse()?) else { return Ok(()) };
        if store.record(&record.id).as_ref() != Some(record) || self.is_known_to_kubelet(&inline.target)? {
            return Ok(());
        }
        // Nobody unmounts it any more either, but somebody uses it.
        if !self.engine().mounts(&store.volume(&record.id)?)?.is_empty() {
            return Ok(());
        }
        store.delete(&record.id)?;
        info!(volume = %record.id, pod = inline.pod, "inline volume of a pod that is gone removed");
        Ok(())
    }

    /// Whether kubelet may still speak of what is to be at this place below its directory.
    fn is_known_to_kubelet(&self, target: &str) -> Result<bool> {
        let base = Dir::open(&self.config().kubelet_dir)?;
        let path = base.path().join(target);
        // Without pods this is no directory of a kubelet: its disk is not mounted, perhaps.
        Ok(!base.has(PODS)? || Place::find(&base, &path)?.is_some())
    }

    fn below_kubelet(&self, target: &str) -> Result<String> {
        let rest = below(&self.config().kubelet_dir, Path::new(target)).and_then(Path::to_str);
        rest.map(str::to_owned).ok_or_else(|| {
            Error::Invalid(format!(
                "target_path {target} is not below {}",
                self.config().kubelet_dir.display()
            ))
        })
    }

    /// Takes an inline volume for one call, whichever pool is there.
    fn lock_inline(&self, id: &InlineId) -> Result<Guard> {
        self.0.locks.take(id.as_str())
    }
}
