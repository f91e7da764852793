//! The identity service of the router.

use dunnage_csi::v1::identity_server::Identity;
use dunnage_csi::v1::plugin_capability::service::Type as Service;
use dunnage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, plugin_capability,
};
use tonic::{Request, Response, Status};

use super::agents::Agents;

pub(crate) struct RouterIdentity {
    pub(crate) driver: String,
    pub(crate) agents: Agents,
}

#[tonic::async_trait]
impl Identity for RouterIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [("mode".to_owned(), "router".to_owned())].into(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |service: Service| PluginCapability {
            r#type: Some(plugin_capability::Type::Service(plugin_capability::Service {
                r#type: service.into(),
            })),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: [Service::ControllerService, Service::VolumeAccessibilityConstraints]
                .map(service)
                .to_vec(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(self.agents.ready().is_ok()) }))
    }
}
