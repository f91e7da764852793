//! The identity service: who this is, and whether it can work.

use dunnage_csi::agent::pool::State;
use dunnage_csi::v1::identity_server::Identity;
use dunnage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use super::{Driver, blocking};
use crate::advertised;

/// CSI Identity.
#[derive(Clone, Debug)]
pub struct IdentityService {
    driver: Driver,
}

impl IdentityService {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let config = self.driver.config();
        Ok(Response::new(GetPluginInfoResponse {
            name: config.driver_name.clone(),
            vendor_version: config.version.clone(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: advertised::plugin() }))
    }

    /// Not ready without a pool: our registrar waits with the registration until there is one.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let driver = self.driver.clone();
        blocking(move || {
            let (state, _) = driver.pool_state();
            Ok(ProbeResponse { ready: Some(state == State::Ready) })
        })
        .await
    }
}
