//! The controller service of a backend whose volumes live on many nodes.

mod agents;
mod capacity;
mod choose;
mod controller;
mod directory;
mod forward;
mod groups;
mod identity;
mod index;
mod keeper;
mod metrics;
mod snapshots;
mod volumes;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dunnage_csi::agent::directory_server::DirectoryServer;
use dunnage_csi::tls::{self, Material};
use dunnage_csi::uds;
use dunnage_csi::v1::controller_server::ControllerServer;
use dunnage_csi::v1::group_controller_server::GroupControllerServer;
use dunnage_csi::v1::identity_server::IdentityServer;
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::info;

use agents::Agents;
pub use choose::CrossPool;
use controller::RouterController;
use directory::Announcements;
use forward::Forward;
use identity::RouterIdentity;
use metrics::RouterMetrics;

use crate::engine::EngineKind;
use crate::locks::Locks;

/// How long calls may go on after the stop.
const GRACE: Duration = Duration::from_secs(10);

/// What the router must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The unix socket to serve on.
    pub endpoint: String,
    /// The driver's name, which the agents must have too.
    pub driver_name: String,
    /// The engine of the agents.
    pub engine: EngineKind,
    /// Whether volumes are given to one node at a time by `ControllerPublishVolume`.
    pub attach: bool,
    /// Whether data are copied from one pool to another.
    pub cross_pool: CrossPool,
    /// Holds the router's certificate and key and the CA bundle.
    pub tls_dir: PathBuf,
}

/// Why the router cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no usable TLS material in {}", directory.display())]
    Tls { directory: PathBuf, source: tls::Error },
    #[error("cannot listen on {endpoint}")]
    Listen { endpoint: String, source: io::Error },
    #[error("the server on {endpoint} has failed")]
    Serve { endpoint: String, source: tonic::transport::Error },
}

/// Serves Identity, Controller and Directory until the stop, then ends what is running.
pub async fn serve(
    config: Config,
    stop: CancellationToken,
    metrics: Metrics,
    checks: Checks,
) -> Result<(), Error> {
    let Config { endpoint, driver_name, engine, attach, cross_pool, tls_dir } = config;
    let material = Material::open(&tls_dir).map_err(|source| Error::Tls { directory: tls_dir, source })?;
    let metrics = RouterMetrics::new(&metrics);
    let agents = Agents::new(driver_name.clone(), material, metrics.clone());
    let known = agents.clone();
    checks.ready("agents", move || known.ready().map_err(|error| error.to_string()));

    let socket =
        uds::listen(&endpoint).map_err(|source| Error::Listen { endpoint: endpoint.clone(), source })?;
    let controller = Arc::new(RouterController {
        topology_key: format!("topology.{driver_name}/pool"),
        attach,
        modify: engine.modifies(),
        forward: Forward { agents: agents.clone(), metrics },
        creating: Locks::default(),
        cross_pool,
    });
    let serving = Server::builder()
        .add_service(IdentityServer::new(RouterIdentity {
            driver: driver_name.clone(),
            agents: agents.clone(),
        }))
        .add_service(ControllerServer::from_arc(Arc::clone(&controller)))
        .add_service(GroupControllerServer::from_arc(controller))
        .add_service(DirectoryServer::new(Announcements { agents, stop: stop.clone() }))
        .serve_with_incoming_shutdown(socket, stop.clone().cancelled_owned());
    info!(driver = %driver_name, %endpoint, attach, "routing");
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = serving => result.map_err(|source| Error::Serve { endpoint, source }),
        () = late => Ok(()),
    }
}

#[cfg(test)]
mod tests;
