//! The command lines of upstream's sidecars: what they mean and how they are written.

mod argv;
mod values;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::client::Limit;

pub use argv::{Normalised, normalise};
pub use values::{FeatureGates, duration, http_address, labels};

/// Flags that do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Two spellings of one thing.
    #[error("--{0} and --{1} mean the same: give only one of them")]
    Both(&'static str, &'static str),
    /// A number of workers that works nothing.
    #[error("--{0} must be at least 1")]
    Zero(&'static str),
    /// A flag without which the role cannot work.
    #[error("--{0} is needed")]
    Missing(&'static str),
    /// A flag of upstream's that cannot be honoured.
    #[error("--{0} is not supported: leave it out")]
    Unsupported(&'static str),
}

/// The flags of every sidecar that serves a controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Standard {
    /// Path of a kubeconfig; without it the cluster that this runs in is used.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub kubeconfig: String,
    /// The driver's socket.
    #[arg(long, default_value = "/run/csi/socket")]
    pub csi_address: String,
    /// Works only while holding a Lease, so that one of several replicas works.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub leader_election: bool,
    /// Namespace of the Lease; without it the one of this pod.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub leader_election_namespace: String,
    /// How long others wait for a leader that does not renew.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub leader_election_lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub leader_election_renew_deadline: Duration,
    /// Time between two tries.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub leader_election_retry_period: Duration,
    /// Labels for the Lease: `key:value`, by commas.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = labels)]
    pub leader_election_labels: BTreeMap<String, String>,
    /// Requests a second to the Kubernetes API; without it the server decides.
    #[arg(long)]
    pub kube_api_qps: Option<f32>,
    /// Requests at once to the Kubernetes API; without it the server decides.
    #[arg(long)]
    pub kube_api_burst: Option<u32>,
    /// `host:port` for health and metrics; without it there is no server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub http_endpoint: String,
    /// Older name of --http-endpoint.
    #[arg(long, default_value = "", hide = true)]
    pub metrics_address: String,
    /// Where the metrics are.
    #[arg(long, default_value = "/metrics")]
    pub metrics_path: String,
    /// `Gate=true`, by commas.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub feature_gates: FeatureGates,
}

impl Standard {
    /// The kubeconfig, if one is given.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        (!self.kubeconfig.is_empty()).then(|| self.kubeconfig.clone().into())
    }

    /// The client-side limit, if one is asked for. Half of it is completed as upstream has it.
    pub fn limit(&self) -> Option<Limit> {
        match (self.kube_api_qps, self.kube_api_burst) {
            (None, None) => None,
            (qps, burst) => Some(Limit { qps: qps.unwrap_or(5.0), burst: burst.unwrap_or(10) }),
        }
    }

    /// Where to serve health and metrics, if anywhere.
    pub fn http_address(&self) -> Result<Option<SocketAddr>, InvalidAddress> {
        either(("http-endpoint", &self.http_endpoint), ("metrics-address", &self.metrics_address))
    }
}

/// An address that cannot be listened on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// Both spellings are given.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// No address.
    #[error("--{flag}: {message}")]
    Address {
        /// The flag.
        flag: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

/// The address in one of two flags that mean the same.
pub(crate) fn either(
    (name, value): (&'static str, &str),
    (older, older_value): (&'static str, &str),
) -> Result<Option<SocketAddr>, InvalidAddress> {
    let (flag, text) = match (value.is_empty(), older_value.is_empty()) {
        (true, true) => return Ok(None),
        (false, false) => return Err(Conflict::Both(name, older).into()),
        (false, true) => (name, value),
        (true, false) => (older, older_value),
    };
    http_address(text).map(Some).map_err(|message| InvalidAddress::Address { flag, message })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Role {
        #[command(flatten)]
        standard: Standard,
    }

    fn parse(flags: &[&str]) -> Result<Standard, clap::Error> {
        Role::try_parse_from(["role"].iter().chain(flags)).map(|role| role.standard)
    }

    #[test]
    fn the_defaults_are_upstreams_but_for_the_throttle() {
        let standard = parse(&[]).expect("no flags");
        assert_eq!(standard.csi_address, "/run/csi/socket");
        assert!(!standard.leader_election);
        assert_eq!(standard.leader_election_lease_duration, Duration::from_secs(15));
        assert_eq!((standard.limit(), standard.kubeconfig()), (None, None));
        assert_eq!(standard.http_address(), Ok(None));
        assert_eq!(standard.metrics_path, "/metrics");
    }

    #[test]
    fn a_boolean_needs_no_value_and_takes_one_only_after_an_equals_sign() {
        for (flags, expected) in [
            (vec!["--leader-election"], Some(true)),
            (vec!["--leader-election=true"], Some(true)),
            (vec!["--leader-election=false"], Some(false)),
            (vec!["--leader-election", "false"], None),
        ] {
            assert_eq!(parse(&flags).ok().map(|standard| standard.leader_election), expected, "{flags:?}");
        }
    }

    #[test]
    fn half_a_limit_is_completed() {
        for (flags, expected) in [
            (vec!["--kube-api-qps=50"], Limit { qps: 50.0, burst: 10 }),
            (vec!["--kube-api-burst=7"], Limit { qps: 5.0, burst: 7 }),
            (vec!["--kube-api-qps=1.5", "--kube-api-burst=3"], Limit { qps: 1.5, burst: 3 }),
        ] {
            assert_eq!(parse(&flags).expect("flags").limit(), Some(expected));
        }
    }

    #[test]
    fn the_older_name_of_the_http_endpoint_does_as_well_but_not_both() {
        let all = SocketAddr::from(([0, 0, 0, 0], 8080));
        let flags = |list: &[&str]| parse(list).expect("flags").http_address();
        assert_eq!(flags(&["--http-endpoint=:8080"]), Ok(Some(all)));
        assert_eq!(flags(&["--metrics-address=0.0.0.0:8080"]), Ok(Some(all)));
        assert!(flags(&["--metrics-address=:1", "--http-endpoint=:2"]).is_err());
        assert!(flags(&["--http-endpoint=8080"]).is_err());
    }
}
