//! What kubelet asks and tells on the registration socket.

use dunnage_csi::registration::registration_server;
use dunnage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{error, info};

/// Where the registration stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Registered,
    Refused(String),
}

pub(super) struct Registration {
    info: PluginInfo,
    told: watch::Sender<State>,
}

impl Registration {
    /// Answers for `driver`, whose socket kubelet finds at `endpoint`; notes in `told` what kubelet says.
    pub(super) fn new(driver: &str, endpoint: &str, told: watch::Sender<State>) -> Self {
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            // Of the registration protocol's CSI flavour, not of CSI.
            supported_versions: vec!["1.0.0".to_owned()],
        };
        Self { info, told }
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            info!(driver = self.info.name, "kubelet has registered the driver");
            self.told.send_replace(State::Registered);
        } else {
            error!(driver = self.info.name, error = status.error, "kubelet refuses to register the driver");
            self.told.send_replace(State::Refused(status.error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
