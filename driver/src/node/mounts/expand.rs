//! `NodeExpandVolume`: what is staged takes the size that the volume's record has.

use dunnage_csi::v1::{NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use tracing::info;

use crate::error::{Error, Result};
use crate::node::Driver;
use crate::node::controller::parse;
use crate::size::range;

impl Driver {
    /// Takes no notice of where the volume is said to be: it grows wherever it is mounted on this node.
    pub(super) fn expand_staged(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse> {
        let id = parse(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Error::Missing { field: "volume_path" });
        }
        let range = range(request.capacity_range.as_ref())?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let mut volume = store.volume(&id)?;
        self.engine().settle(&mut volume)?;
        let size = volume.record.capacity_bytes;
        if size < range.required || size > range.limit {
            return Err(Error::OutOfRange(format!(
                "volume {id} has {size} bytes, asked are {} to {}: ControllerExpandVolume has to come first",
                range.required, range.limit
            )));
        }
        self.engine().grow_staged(&mut volume)?;
        info!(capacity_bytes = size, "volume grown on this node");
        Ok(NodeExpandVolumeResponse { capacity_bytes: i64::try_from(size).unwrap_or(i64::MAX) })
    }
}
