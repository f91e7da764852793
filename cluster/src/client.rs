//! How a process reaches the Kubernetes API.

use std::path::Path;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::limit::RateLimitLayer;

use crate::Error;

/// A client-side limit on requests. Without one, API Priority and Fairness of the server decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Requests a second on average.
    pub qps: f32,
    /// Requests at once.
    pub burst: u32,
}

impl Limit {
    /// `burst` requests in the time that `qps` allows for them; none when either is not positive.
    fn window(self) -> Option<(u64, Duration)> {
        let burst = u16::try_from(self.burst).unwrap_or(u16::MAX);
        let seconds = f32::from(burst) / self.qps;
        (burst > 0 && seconds.is_finite() && seconds > 0.0)
            .then(|| (burst.into(), Duration::from_secs_f32(seconds)))
    }
}

/// A client for the cluster of `kubeconfig`, or for the one that this process runs in.
pub async fn connect(kubeconfig: Option<&Path>, limit: Option<Limit>) -> Result<Client, Error> {
    let config = match kubeconfig {
        Some(path) => from_file(path).await,
        None => Config::incluster().map_err(|error| kube::Error::Service(error.into())),
    };
    build(config.map_err(|error| Error::Config(Box::new(error)))?, limit)
}

async fn from_file(path: &Path) -> Result<Config, kube::Error> {
    let file = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

/// A client for a configuration that the caller has.
pub fn build(config: Config, limit: Option<Limit>) -> Result<Client, Error> {
    let builder = ClientBuilder::try_from(config).map_err(|error| Error::Config(Box::new(error)))?;
    Ok(match limit.and_then(Limit::window) {
        Some((requests, window)) => builder.with_layer(&RateLimitLayer::new(requests, window)).build(),
        None => builder.build(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_allows_its_burst_in_the_time_of_its_rate() {
        for (qps, burst, expected) in [
            (5.0, 10, Some((10, Duration::from_secs(2)))),
            (20.0, 20, Some((20, Duration::from_secs(1)))),
            (0.0, 10, None),
            (-1.0, 10, None),
            (5.0, 0, None),
            (f32::NAN, 10, None),
        ] {
            assert_eq!(Limit { qps, burst }.window(), expected, "{qps} {burst}");
        }
    }
}
