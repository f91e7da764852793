//! Tells kubelet of the driver, once the driver can work.

mod health;
mod service;
mod socket;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use dunnage_csi::authority::Mended;
use dunnage_csi::registration::registration_server::RegistrationServer;
use dunnage_telemetry::metrics::{CsiOperations, Metrics};
use futures::TryStreamExt as _;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::{info, warn};

use crate::flags::{Conflict, duration, either};
use crate::runtime::{Driver, Error, Page, Pages, ProbeError};
use service::{Registration, State};
use socket::Socket;

/// The flags of upstream's node-driver-registrar.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The driver's socket as this container sees it.
    #[arg(long, default_value = "/run/csi/socket")]
    pub csi_address: String,
    /// The driver's socket as kubelet sees it, on the node.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub kubelet_registration_path: String,
    /// Kubelet's directory for registration sockets as this container sees it.
    #[arg(long, default_value = "/registration")]
    pub plugin_registration_path: PathBuf,
    /// Limit for each call to the driver.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub timeout: Duration,
    /// `host:port` for health, readiness and metrics; without it there is no server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub http_endpoint: String,
    /// Older form of --http-endpoint: a port.
    #[arg(long, default_value = "0", hide = true)]
    pub health_port: u16,
    /// `kubelet-registration-probe` ends at once with success: the probe of older manifests.
    #[arg(long, default_value = "", hide = true, action = ArgAction::Set)]
    pub mode: String,
}

/// The word of older manifests' exec probe, which has had nothing to do for long.
const PROBE_MODE: &str = "kubelet-registration-probe";

/// Registers the driver and stays there for kubelet until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    if args.mode == PROBE_MODE {
        return Ok(());
    }
    if args.kubelet_registration_path.is_empty() {
        return Err(Conflict::Missing("kubelet-registration-path").into());
    }
    let metrics = Metrics::default();
    let (told, mut state) = watch::channel(State::Waiting);
    let socket = Arc::new(watch::Sender::new(None));
    let port = if args.health_port == 0 { String::new() } else { format!(":{}", args.health_port) };
    if let Some(address) = either(("http-endpoint", &args.http_endpoint), ("health-port", &port))? {
        pages(&metrics, &told, &socket, args.timeout).start(address, &stop).await?;
    }
    let name = match driver_name(&args, &metrics, &stop).await {
        Ok(name) => name,
        Err(error) if error.is_stop() => return Ok(()),
        Err(error) => return Err(error),
    };

    let ours = Socket::bind(&args.plugin_registration_path, &name)?;
    socket.send_replace(Some((ours.path().to_owned(), name.clone())));
    info!(driver = name, socket = %ours.path().display(), "waiting for kubelet");
    let registration = Registration::new(&name, &args.kubelet_registration_path, told);
    let ending = CancellationToken::new();
    let serving =
        Server::builder().add_service(RegistrationServer::new(registration)).serve_with_incoming_shutdown(
            // Kubelet sends the socket's path as authority, which HTTP/2 does not allow.
            UnixListenerStream::new(ours.listener()?).map_ok(Mended::new),
            ending.clone().cancelled_owned(),
        );
    let serving = tokio::spawn(serving);
    let refused = tokio::select! {
        () = stop.cancelled() => None,
        refused = refusal(&mut state) => refused,
    };
    // Kubelet gets the answer to its last call; a connection that it keeps open does not keep us.
    ending.cancel();
    if tokio::time::timeout(Duration::from_secs(1), serving).await.is_err() {
        warn!("kubelet keeps its connection open");
    }
    ours.remove();
    match refused {
        Some(reason) => Err(Error::NotRegistered(reason)),
        None => Ok(()),
    }
}

/// The driver's name, when it can work. Kubelet must never see a node whose driver has no pool yet.
async fn driver_name(args: &Args, metrics: &Metrics, stop: &CancellationToken) -> Result<String, Error> {
    let operations = CsiOperations::new(metrics);
    loop {
        let connected =
            Driver::connect_named(&args.csi_address, &operations, args.timeout, ProbeError::Passes, stop)
                .await;
        match connected {
            Ok(driver) => return Ok(driver.name().to_owned()),
            Err(Error::ConnectionLost { address }) => {
                warn!(address, "the driver has restarted, connecting again");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until kubelet refuses the driver.
async fn refusal(state: &mut watch::Receiver<State>) -> Option<String> {
    let refused = state.wait_for(|state| matches!(state, State::Refused(_))).await.ok()?;
    match &*refused {
        State::Refused(reason) => Some(reason.clone()),
        State::Waiting | State::Registered => None,
    }
}

/// The socket and the driver's name, once there is one.
type Announced = Arc<watch::Sender<Option<(PathBuf, String)>>>;

fn pages(metrics: &Metrics, told: &watch::Sender<State>, socket: &Announced, timeout: Duration) -> Pages {
    let mut pages = Pages::new(metrics.clone(), "/metrics");
    let state = told.subscribe();
    pages.check("/readyz", move || {
        let registered = *state.borrow() == State::Registered;
        Page::from(if registered {
            Ok(())
        } else {
            Err("kubelet has not confirmed the registration".to_owned())
        })
    });
    let socket = Arc::clone(socket);
    pages.ask("/healthz", move || {
        let announced = socket.borrow().clone();
        async move {
            match announced {
                Some((path, name)) => health::check(&path, &name, timeout).await,
                None => Page { text: "waiting for the driver".to_owned(), ..Page::ok() },
            }
        }
    });
    pages
}

/// Where the registration socket of `driver` is.
fn socket_path(directory: &Path, driver: &str) -> PathBuf {
    directory.join(format!("{driver}-reg.sock"))
}

#[cfg(test)]
mod tests;
