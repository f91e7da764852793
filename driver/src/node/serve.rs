//! Serving: kubelet over the unix socket, the router and the operator over mutual TLS.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dunnage_csi::agent::agent_server::AgentServer;
use dunnage_csi::agent::copies_server::CopiesServer;
use dunnage_csi::agent::pool::State;
use dunnage_csi::tls::{self, AGENT, Material, OPERATOR, ROUTER, require_peer};
use dunnage_csi::uds;
use dunnage_csi::v1::controller_server::ControllerServer;
use dunnage_csi::v1::group_controller_server::GroupControllerServer;
use dunnage_csi::v1::identity_server::IdentityServer;
use dunnage_csi::v1::node_server::NodeServer;
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use futures::TryFutureExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Status};
use tracing::info;

use super::metrics::Calls;
use super::{Config, Driver};

mod watch;

/// How long calls may go on after the stop.
const GRACE: Duration = Duration::from_secs(10);
/// A peer that vanished without a word is found out.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// What serving needs beside the driver itself.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    pub driver: Config,
    /// The unix socket for kubelet and the registrar.
    pub endpoint: String,
    /// Where the router and the operator connect.
    pub agent_address: SocketAddr,
    /// `ca.crt`, `tls.crt` and `tls.key`.
    pub tls_dir: PathBuf,
}

/// Why serving could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}")]
    Listen { address: String, source: io::Error },
    #[error("cannot use the certificates")]
    Tls(#[from] tls::Error),
    #[error("cannot serve on {address}")]
    Serve { address: String, source: tonic::transport::Error },
}

/// Serves until `stop`, and then lets running calls finish for a moment.
pub async fn serve(
    config: ServeConfig,
    stop: CancellationToken,
    metrics: Metrics,
    checks: Checks,
) -> Result<(), ServeError> {
    let ServeConfig { driver: config, endpoint, agent_address, tls_dir } = config;
    let material = Material::open(tls_dir)?;
    let calls = Calls::new(&metrics);
    let listening = |address: String| move |source| ServeError::Listen { address, source };
    let socket = uds::listen(&endpoint).map_err(listening(endpoint.clone()))?;
    let listener = TcpListener::bind(agent_address).await.map_err(listening(agent_address.to_string()))?;

    let driver =
        tokio::task::spawn_blocking(move || Driver::open(config)).await.map_err(|_| ServeError::Listen {
            address: endpoint.clone(),
            source: io::Error::other("the driver could not be opened"),
        })?;
    driver.join(Arc::clone(&material), &metrics);
    let watched = driver.clone();
    checks.ready("pool", move || match watched.known_pool_state() {
        (State::Ready, _) => Ok(()),
        (state, message) => Err(format!("{} {message}", state.as_str_name())),
    });
    let watching = tokio::spawn(watch::watch(driver.clone(), stop.clone()));
    info!(endpoint, agent = %agent_address, driver = driver.config().driver_name, node = driver.config().node_id, "serving");

    let local = Server::builder()
        .layer(calls.clone())
        .add_service(IdentityServer::new(driver.identity()))
        .add_service(ControllerServer::new(driver.controller()))
        .add_service(GroupControllerServer::new(driver.group_controller()))
        .add_service(NodeServer::new(driver.node()))
        .serve_with_incoming_shutdown(socket, stop.clone().cancelled_owned());
    let remote = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .layer(calls)
        .add_service(IdentityServer::with_interceptor(driver.identity(), ours))
        .add_service(ControllerServer::with_interceptor(driver.controller(), from_router))
        .add_service(GroupControllerServer::with_interceptor(driver.group_controller(), from_router))
        .add_service(AgentServer::with_interceptor(driver.agent(stop.clone()), ours))
        .add_service(CopiesServer::with_interceptor(driver.copies_service(stop.clone()), from_agent))
        .serve_with_incoming_shutdown(tls::incoming(listener, material), stop.clone().cancelled_owned());

    // On the heap: together they are tens of kilobytes.
    let (local, remote) = (Box::pin(local), Box::pin(remote));
    let serving = |address: String| move |source| ServeError::Serve { address, source };
    let both = async {
        tokio::try_join!(
            local.map_err(serving(endpoint.clone())),
            remote.map_err(serving(agent_address.to_string()))
        )
    };
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let ended = tokio::select! {
        ended = both => ended.map(|_| ()),
        () = deadline => Ok(()),
    };
    watching.abort();
    ended
}

#[allow(clippy::result_large_err, reason = "tonic's interceptors are of this form")]
fn ours(request: Request<()>) -> Result<Request<()>, Status> {
    require_peer(&request, &[ROUTER, OPERATOR]).map(|()| request)
}

/// Volumes are the router's business alone.
#[allow(clippy::result_large_err, reason = "tonic's interceptors are of this form")]
fn from_router(request: Request<()>) -> Result<Request<()>, Status> {
    require_peer(&request, &[ROUTER]).map(|()| request)
}

/// Other agents may call nothing else.
#[allow(clippy::result_large_err, reason = "tonic's interceptors are of this form")]
fn from_agent(request: Request<()>) -> Result<Request<()>, Status> {
    require_peer(&request, &[AGENT]).map(|()| request)
}
