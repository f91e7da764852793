//! `ControllerModifyVolume`: a volume gets other attributes, also while pods use it.

use dunnage_csi::v1::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse};
use tracing::info;

use super::attributes::Attributes;
use super::parse;
use crate::error::{Error, Result};
use crate::node::Driver;

impl Driver {
    pub(super) fn modify(
        &self,
        request: &ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse> {
        if self.engine().mutable_parameters().is_empty() {
            return Err(Error::Unsupported("ControllerModifyVolume"));
        }
        let id = parse(&request.volume_id)?;
        if request.mutable_parameters.is_empty() {
            return Err(Error::Missing { field: "mutable_parameters" });
        }
        let attributes = Attributes::parse(&request.mutable_parameters, self.engine())?;
        let id = id?;
        let store = self.store()?;
        let _guard = self.lock(&id)?;
        let _data = self.lock_data(&id)?;
        let mut volume = store.volume(&id)?;
        let (before, content) = (volume.record.content, attributes.given_to(volume.record.content));
        if before != content {
            self.check_fence()?;
        }
        volume.modify(content)?;
        info!(?content, ?before, "volume has its attributes");
        Ok(ControllerModifyVolumeResponse {})
    }
}
