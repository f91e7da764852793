//! `ControllerExpandVolume`: the volume's space and its record grow here, what is staged grows by `NodeExpandVolume`.

use dunnage_csi::v1::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};
use tracing::info;

use super::parse;
use crate::error::{Error, Result};
use crate::node::Driver;
use crate::size::{grown, range};

impl Driver {
    pub(super) fn expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse> {
        let id = parse(&request.volume_id)?;
        let asked = request.capacity_range.as_ref().ok_or(Error::Missing { field: "capacity_range" })?;
        let range = range(Some(asked))?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let _data = self.lock_data(&id)?;
        let mut volume = store.volume(&id)?;
        self.engine().settle(&mut volume)?;
        let present = volume.record.capacity_bytes;
        let size = grown(present, range, self.engine().sizes(volume.record.content))?;
        if size > present {
            self.check_fence()?;
            volume.expand(size)?;
            info!(capacity_bytes = size, before = present, "volume grown");
        }
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: i64::try_from(size).unwrap_or(i64::MAX),
            node_expansion_required: self.engine().grows_on_node(),
        })
    }
}
