//! Tells kubelet whether the driver answers, so that a driver that hangs is started again.
//!
//! It needs no Kubernetes API. The liveness probe is that of the driver's container and asks the port here.

use std::net::SocketAddr;
use std::time::Duration;

use dunnage_csi::uds;
use dunnage_telemetry::metrics::{CsiOperations, Metrics};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::{InvalidAddress, duration, either};
use crate::runtime::{Driver, Error, Page, Pages};

/// Where nearly all manifests have the port.
const PORT: u16 = 9808;
/// How often the wait for the driver is told of.
const TELL: Duration = Duration::from_secs(10);

/// The flags of upstream's livenessprobe.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The driver's socket.
    #[arg(long, default_value = "/run/csi/socket")]
    pub csi_address: String,
    /// `host:port` for health and metrics, in place of --health-port.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub http_endpoint: String,
    /// Port for health, on all addresses.
    #[arg(long, default_value_t = PORT)]
    pub health_port: u16,
    /// Limit for an answer of the driver.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub probe_timeout: Duration,
    /// `host:port` for metrics alone, where health is on --health-port.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub metrics_address: String,
    /// Where the metrics are.
    #[arg(long, default_value = "/metrics")]
    pub metrics_path: String,
}

impl Args {
    /// Where health is served, and where metrics are served besides.
    fn addresses(&self) -> Result<(SocketAddr, Option<SocketAddr>), InvalidAddress> {
        let port = if self.health_port == PORT { String::new() } else { format!(":{}", self.health_port) };
        let endpoint = ("http-endpoint", self.http_endpoint.as_str());
        let health = either(endpoint, ("health-port", &port))?;
        let metrics = either(endpoint, ("metrics-address", &self.metrics_address))?;
        let all = SocketAddr::from(([0, 0, 0, 0], PORT));
        Ok((health.unwrap_or(all), metrics.filter(|_| self.http_endpoint.is_empty())))
    }
}

/// Answers kubelet until `stop`. A driver that is down is told, and never ends this process.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    let (health, scraped) = args.addresses()?;
    uds::path(&args.csi_address)?;
    let metrics = Metrics::default();
    let driver = Asked {
        address: args.csi_address,
        operations: CsiOperations::new(&metrics),
        limit: args.probe_timeout,
    };
    let mut pages = Pages::new(metrics.clone(), &args.metrics_path);
    pages.ask("/healthz", {
        let driver = driver.clone();
        move || {
            let driver = driver.clone();
            async move { driver.check().await }
        }
    });
    pages.start(health, &stop).await?;
    if let Some(address) = scraped {
        Pages::new(metrics, &args.metrics_path).start(address, &stop).await?;
    }
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = driver.learn_name() => {}
    }
    stop.cancelled().await;
    Ok(())
}

/// The driver, to which every question has a connection of its own: an old one may be that of a process that is gone.
#[derive(Clone)]
struct Asked {
    address: String,
    operations: CsiOperations,
    limit: Duration,
}

impl Asked {
    async fn check(&self) -> Page {
        let end = Instant::now() + self.limit;
        let dialled = timeout_at(end, Driver::dial(&self.address, &self.operations)).await;
        let answer = match dialled {
            Ok(Ok(driver)) => match driver.probe(end.saturating_duration_since(Instant::now())).await {
                Ok(answer) if answer.ready.unwrap_or(true) => Ok(()),
                Ok(_) => Err("the driver says that it is not ready".to_owned()),
                Err(status) => {
                    Err(format!("the driver's Probe failed: {:?}: {}", status.code(), status.message()))
                }
            },
            Ok(Err(error)) => Err(dunnage_cluster::error::chain(&error)),
            Err(_elapsed) => Err(format!("no connection to {} within {:?}", self.address, self.limit)),
        };
        if let Err(reason) = &answer {
            warn!(reason, "the driver is not well");
        }
        Page::from(answer)
    }

    /// Asks for the driver's name until it is told, for the metrics.
    async fn learn_name(&self) {
        let mut told: Option<Instant> = None;
        loop {
            match timeout(self.limit, self.name()).await {
                Ok(Ok(name)) => {
                    info!(driver = name, "probing");
                    return;
                }
                Ok(Err(error)) if told.is_none_or(|at| at.elapsed() >= TELL) => {
                    told = Some(Instant::now());
                    let error = dunnage_cluster::error::chain(&error);
                    warn!(error, "waiting for the driver's name");
                }
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn name(&self) -> Result<String, Error> {
        let mut driver = Driver::dial(&self.address, &self.operations).await?;
        driver.read_name(self.limit).await?;
        Ok(driver.name().to_owned())
    }
}

#[cfg(test)]
mod tests;
