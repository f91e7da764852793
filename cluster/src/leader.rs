//! Leader election by a Lease, in the record format that client-go uses, so that both can follow each other.

mod decide;
mod hold;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::Error;
use hold::Holder;

/// How long a leader may be wedged beyond its lease before its health check fails.
const TOLERANCE: Duration = Duration::from_secs(20);

/// Which Lease, for whom, and how long.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease; see [`lock_name`].
    pub name: String,
    /// Who this process is: the pod's name.
    pub identity: String,
    /// How long others wait for a leader that does not renew.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Time between two tries.
    pub retry_period: Duration,
    /// Labels for the Lease.
    pub labels: BTreeMap<String, String>,
    /// How long running work may take to end when the process is asked to stop.
    pub grace: Duration,
}

impl Config {
    /// The usual times for the Lease `namespace`/`name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
            labels: BTreeMap::new(),
            grace: Duration::from_secs(20),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A Lease's name: what a name may not have becomes `-`, and it never ends in one.
pub fn lock_name(wanted: &str) -> String {
    let mut name: String = wanted.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// Whether this process leads, for metrics and health. Clones are the same.
#[derive(Clone, Default)]
pub struct Status {
    gauge: Family<Labels, Gauge>,
    /// While leading: the last renewal, and how old it may become.
    renewed: Arc<Mutex<Option<(Instant, Duration)>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    name: String,
}

impl Status {
    /// Shows `leader_election_master_status` in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("leader_election_master_status", "1 while this process leads", self.gauge.clone());
    }

    /// Fails when this process believes to lead but has not renewed for too long: it is wedged.
    pub fn check(&self) -> Result<(), String> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        match renewed {
            Some((at, limit)) if at.elapsed() > limit => {
                Err(format!("leading, but the lease was last renewed {} s ago", at.elapsed().as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, config: &Config, renewed: Option<Instant>) {
        self.gauge.get_or_create(&Labels { name: config.name.clone() }).set(renewed.is_some().into());
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) =
            renewed.map(|at| (at, config.lease_duration + TOLERANCE));
    }
}

/// Waits for the Lease, then runs `work` while renewing it.
///
/// `work` gets a token that is cancelled when `stop` is; it should end soon then, and has [`Config::grace`] for it.
/// Then the Lease is released. When the Lease is lost, `work` is aborted and the error must end the process.
/// `client` should be this election's own, so that nothing else can keep its requests waiting.
pub async fn run<W, F, E>(
    client: Client,
    config: Config,
    status: Status,
    stop: CancellationToken,
    work: W,
) -> Result<Result<(), E>, Error>
where
    W: FnOnce(CancellationToken) -> F,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Send + 'static,
{
    status.set(&config, None);
    let mut holder = Holder::new(client, config.clone());
    let Some(since) = holder.acquire(&stop).await else { return Ok(Ok(())) };
    info!(lease = config.lease(), identity = config.identity, "became leader");
    status.set(&config, Some(since));

    // Aborted also when this future is dropped: nothing may work without a lease.
    let mut work = AbortOnDropHandle::new(tokio::spawn(work(stop.child_token())));
    let ended = tokio::select! {
        ended = &mut work => Some(ended),
        error = holder.renew(since, |at| status.set(&config, Some(at))) => {
            work.abort();
            return Err(error);
        }
        // Renewed up to the last moment that work may go on.
        () = async { stop.cancelled().await; tokio::time::sleep(config.grace).await } => None,
    };
    status.set(&config, None);
    match ended {
        Some(Ok(result)) => {
            holder.release().await;
            if result.is_ok() && !stop.is_cancelled() {
                return Err(Error::WorkEnded { lease: config.lease() });
            }
            Ok(result)
        }
        Some(Err(_panicked)) => Err(Error::WorkEnded { lease: config.lease() }),
        None => {
            // Released now, another process could begin while a call of this one is still under way.
            warn!(lease = config.lease(), "work has not ended in time: the lease is left to run out");
            work.abort();
            Ok(Ok(()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_name_has_only_what_a_name_may_have() {
        for (wanted, expected) in [
            ("hostpath.csi.k8s.io", "hostpath-csi-k8s-io"),
            (
                "external-attacher-leader-local.csi.dunnage.dev",
                "external-attacher-leader-local-csi-dunnage-dev",
            ),
            ("a/b_c", "a-b-c"),
            ("driver.", "driver-X"),
            ("ünï", "-n-X"),
        ] {
            assert_eq!(lock_name(wanted), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_leader_that_does_not_renew_is_unhealthy() {
        let (status, config) = (Status::default(), Config::new("ns", "lock", "me"));
        assert_eq!(status.check(), Ok(()));
        status.set(&config, Some(Instant::now()));
        tokio::time::advance(Duration::from_secs(35)).await;
        assert_eq!((status.check(), status.leads()), (Ok(()), true));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(status.check().is_err());
        status.set(&config, None);
        assert_eq!((status.check(), status.leads()), (Ok(()), false));
    }
}
