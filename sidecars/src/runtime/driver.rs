//! The driver as a sidecar sees it: ready, named, with known capabilities, every call measured.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use dunnage_csi::uds::MAX_MESSAGE;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::identity_client::IdentityClient;
use dunnage_csi::v1::node_client::NodeClient;
use dunnage_csi::v1::{self, controller_service_capability, node_service_capability, plugin_capability};
use dunnage_telemetry::metrics::CsiOperations;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tracing::{debug, info, warn};

use super::{Connection, Error};

/// What a controller can do.
pub use controller_service_capability::rpc::Type as ControllerCapability;
/// What a node's part can do.
pub use node_service_capability::rpc::Type as NodeCapability;
/// What a plugin can do as a whole.
pub use plugin_capability::service::Type as PluginCapability;

/// A driver that answers. Its capabilities are read once: when it restarts, so does the sidecar.
#[derive(Clone)]
pub struct Driver {
    connection: Connection,
    operations: CsiOperations,
    name: String,
    plugin: HashSet<i32>,
    controller: HashSet<i32>,
}

/// What an error of the driver's Probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// The driver cannot work: the process ends.
    Ends,
    /// The driver counts as ready: only a clear `ready=false` is waited for.
    Passes,
}

impl Driver {
    /// Connects, waits until the driver is ready, and asks for its name and capabilities.
    pub async fn connect(
        address: &str,
        operations: &CsiOperations,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        let mut driver = Self::connect_named(address, operations, timeout, ProbeError::Ends, stop).await?;
        driver.read_capabilities(timeout).await?;
        Ok(driver)
    }

    /// As [`Driver::connect`], without the capabilities, which a role on a node does not use.
    pub async fn connect_named(
        address: &str,
        operations: &CsiOperations,
        timeout: Duration,
        on_error: ProbeError,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        let mut driver = Self::over(Connection::open(address, stop).await?, operations);
        driver.await_ready(address, timeout, on_error, stop).await?;
        driver.read_name(timeout).await?;
        info!(driver = driver.name, "the driver is ready");
        Ok(driver)
    }

    /// Connects to a driver that listens already, of which nothing is known yet.
    pub async fn dial(address: &str, operations: &CsiOperations) -> Result<Self, Error> {
        Ok(Self::over(Connection::dial(address).await?, operations))
    }

    fn over(connection: Connection, operations: &CsiOperations) -> Self {
        let (operations, plugin, controller) = (operations.clone(), HashSet::new(), HashSet::new());
        Self { connection, operations, name: String::new(), plugin, controller }
    }

    /// Asks the driver for its name, under which its calls are then counted.
    pub async fn read_name(&mut self, timeout: Duration) -> Result<(), Error> {
        let method = "/csi.v1.Identity/GetPluginInfo";
        let info =
            self.identity(method, timeout, v1::GetPluginInfoRequest {}, async |mut client, request| {
                client.get_plugin_info(request).await
            });
        self.name = info.await.map_err(refused(method))?.name;
        if self.name.is_empty() {
            return Err(Error::NoName);
        }
        self.operations.set_driver(&self.name);
        Ok(())
    }

    /// Asks the driver whether it is ready.
    pub async fn probe(&self, timeout: Duration) -> Result<v1::ProbeResponse, Status> {
        self.identity(PROBE, timeout, v1::ProbeRequest {}, async |mut client, request| {
            client.probe(request).await
        })
        .await
    }

    /// Asks until the driver is ready.
    async fn await_ready(
        &self,
        address: &str,
        timeout: Duration,
        on_error: ProbeError,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut told: Option<Instant> = None;
        loop {
            let probed = self.probe(timeout).await;
            match probe(&probed) {
                Probed::Ready => return Ok(()),
                Probed::NotReady => {}
                Probed::Failed if on_error == ProbeError::Passes => return Ok(()),
                Probed::Failed => return probed.map(drop).map_err(refused(PROBE)),
            }
            if told.is_none_or(|at| at.elapsed() >= Duration::from_secs(10)) {
                told = Some(Instant::now());
                warn!("the driver is not ready yet, waiting");
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Error::Stopped),
                () = self.lost() => return Err(Error::ConnectionLost { address: address.to_owned() }),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    async fn read_capabilities(&mut self, timeout: Duration) -> Result<(), Error> {
        let method = "/csi.v1.Identity/GetPluginCapabilities";
        let request = v1::GetPluginCapabilitiesRequest {};
        let answer = self
            .identity(method, timeout, request, async |mut client, request| {
                client.get_plugin_capabilities(request).await
            })
            .await
            .map_err(refused(method))?;
        self.plugin = services(&answer);
        if !self.has(PluginCapability::ControllerService) {
            return Ok(());
        }
        let method = "/csi.v1.Controller/ControllerGetCapabilities";
        let request = v1::ControllerGetCapabilitiesRequest {};
        let answer = self
            .controller(method, timeout, request, async |mut client, request| {
                client.controller_get_capabilities(request).await
            })
            .await
            .map_err(refused(method))?;
        self.controller = rpcs(&answer);
        Ok(())
    }

    /// The driver's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the plugin as a whole can do this.
    pub fn has(&self, capability: PluginCapability) -> bool {
        self.plugin.contains(&i32::from(capability))
    }

    /// Whether the controller can do this.
    pub fn can(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&i32::from(capability))
    }

    /// Asks the node's part behind the same socket whether it can do this.
    pub async fn node_can(&self, capability: NodeCapability, timeout: Duration) -> Result<bool, Error> {
        let method = "/csi.v1.Node/NodeGetCapabilities";
        let client = NodeClient::new(self.connection.channel());
        let request = v1::NodeGetCapabilitiesRequest {};
        let answer = self
            .measured(method, timeout, request, async |request| {
                let mut client = client;
                client.node_get_capabilities(request).await
            })
            .await
            .map_err(refused(method))?;
        Ok(node_rpcs(&answer).contains(&i32::from(capability)))
    }

    /// Waits until the connection is broken.
    pub async fn lost(&self) {
        self.connection.lost().await;
    }

    /// Calls a method of the Identity service. `method` is its full name, for metrics and logs.
    pub async fn identity<Q, A, F>(
        &self,
        method: &'static str,
        timeout: Duration,
        request: Q,
        call: impl FnOnce(IdentityClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Debug,
        A: Debug,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let client = IdentityClient::new(self.connection.channel());
        self.measured(method, timeout, request, |request| call(client, request)).await
    }

    /// Calls a method of the Controller service. `method` is its full name, for metrics and logs.
    pub async fn controller<Q, A, F>(
        &self,
        method: &'static str,
        timeout: Duration,
        request: Q,
        call: impl FnOnce(ControllerClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Debug,
        A: Debug,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let client = ControllerClient::new(self.connection.channel()).max_decoding_message_size(MAX_MESSAGE);
        self.measured(method, timeout, request, |request| call(client, request)).await
    }

    /// The messages' `Debug` form leaves out their secrets.
    async fn measured<Q, A, F>(
        &self,
        method: &'static str,
        timeout: Duration,
        request: Q,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Debug,
        A: Debug,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        debug!(method, ?request, "calling the driver");
        let mut request = Request::new(request);
        // A little more, so that our own limit is the one that is seen: it has the right code.
        request.set_timeout(timeout + Duration::from_secs(1));
        let start = Instant::now();
        let answer = match tokio::time::timeout(timeout, call(request)).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_elapsed) => Err(Status::deadline_exceeded(format!("no answer within {timeout:?}"))),
        };
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.operations.observe(method, code.into(), start.elapsed());
        match &answer {
            Ok(answer) => debug!(method, ?answer, "the driver answered"),
            Err(status) => {
                debug!(method, ?code, message = status.message(), "the driver answered with an error");
            }
        }
        answer
    }
}

const PROBE: &str = "/csi.v1.Identity/Probe";

fn refused(method: &'static str) -> impl FnOnce(Status) -> Error {
    move |status| Error::Refused { method, source: Box::new(status) }
}

/// What a Probe means for the wait.
#[derive(Debug, PartialEq, Eq)]
enum Probed {
    Ready,
    NotReady,
    Failed,
}

fn probe(answer: &Result<v1::ProbeResponse, Status>) -> Probed {
    match answer {
        // A driver that says nothing of it is ready.
        Ok(response) if response.ready.unwrap_or(true) => Probed::Ready,
        Ok(_) => Probed::NotReady,
        Err(status) if status.code() == Code::DeadlineExceeded => Probed::NotReady,
        Err(_) => Probed::Failed,
    }
}

fn services(answer: &v1::GetPluginCapabilitiesResponse) -> HashSet<i32> {
    let service = |capability: &v1::PluginCapability| match &capability.r#type {
        Some(plugin_capability::Type::Service(service)) => Some(service.r#type),
        _ => None,
    };
    answer.capabilities.iter().filter_map(service).collect()
}

fn rpcs(answer: &v1::ControllerGetCapabilitiesResponse) -> HashSet<i32> {
    let rpc = |capability: &v1::ControllerServiceCapability| {
        capability.r#type.as_ref().map(|controller_service_capability::Type::Rpc(rpc)| rpc.r#type)
    };
    answer.capabilities.iter().filter_map(rpc).collect()
}

fn node_rpcs(answer: &v1::NodeGetCapabilitiesResponse) -> HashSet<i32> {
    let rpc = |capability: &v1::NodeServiceCapability| {
        capability.r#type.as_ref().map(|node_service_capability::Type::Rpc(rpc)| rpc.r#type)
    };
    answer.capabilities.iter().filter_map(rpc).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_says_nothing_of_readiness_is_ready_and_a_slow_one_is_asked_again() {
        let ready = |ready| Ok(v1::ProbeResponse { ready });
        for (answer, expected) in [
            (ready(None), Probed::Ready),
            (ready(Some(true)), Probed::Ready),
            (ready(Some(false)), Probed::NotReady),
            (Err(Status::deadline_exceeded("slow")), Probed::NotReady),
            (Err(Status::failed_precondition("no disk")), Probed::Failed),
            (Err(Status::unavailable("gone")), Probed::Failed),
        ] {
            assert_eq!(probe(&answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn capabilities_are_read_from_their_wrappers() {
        let service = plugin_capability::Service { r#type: PluginCapability::ControllerService.into() };
        let plugin = v1::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        let answer = v1::GetPluginCapabilitiesResponse {
            capabilities: vec![plugin, v1::PluginCapability { r#type: None }],
        };
        assert_eq!(services(&answer), HashSet::from([PluginCapability::ControllerService.into()]));
        let rpc = controller_service_capability::Rpc { r#type: ControllerCapability::ListVolumes.into() };
        let controller =
            v1::ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(rpc)) };
        let answer = v1::ControllerGetCapabilitiesResponse { capabilities: vec![controller] };
        assert_eq!(rpcs(&answer), HashSet::from([ControllerCapability::ListVolumes.into()]));
        let rpc = node_service_capability::Rpc { r#type: NodeCapability::ExpandVolume.into() };
        let node = v1::NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(rpc)) };
        let answer = v1::NodeGetCapabilitiesResponse { capabilities: vec![node] };
        assert_eq!(node_rpcs(&answer), HashSet::from([NodeCapability::ExpandVolume.into()]));
    }
}
