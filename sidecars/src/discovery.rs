//! Tells the router where the node agents are and which pools are given up: the driver's own container has no way to the
//! Kubernetes API.

mod agents;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ArgAction;
use dunnage_cluster::cache::{Builder, Cache, Change};
use dunnage_cluster::client;
use dunnage_cluster::error::chain;
use dunnage_csi::agent::AgentList;
use dunnage_csi::agent::directory_client::DirectoryClient;
use dunnage_csi::uds;
use dunnage_telemetry::metrics::Metrics;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodSpec, PodStatus};
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::flags::either;
use crate::runtime::{Error, Page, Pages, namespace};

/// Pause before the router is called again.
const PAUSE: Duration = Duration::from_secs(1);

/// The flags of agent-discovery.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The router's socket.
    #[arg(long, default_value = "/run/csi/socket")]
    pub csi_address: String,
    /// Namespace of the node pods; without it the one of this pod.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Labels of the node pods.
    #[arg(long)]
    pub selector: String,
    /// Name of the ConfigMap in that namespace that has the record of the pools; without it no pool is given up.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub pool_record: String,
    /// The agents' port.
    #[arg(long, default_value_t = 9741)]
    pub port: u16,
    /// Path of a kubeconfig; without it the cluster that this runs in is used.
    #[arg(long, default_value = "", hide_default_value = true, action = ArgAction::Set)]
    pub kubeconfig: String,
    /// `host:port` for health, readiness and metrics; without it there is no server.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub http_endpoint: String,
}

/// Watches the node pods and tells the router of each change until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    let connected = Arc::new(AtomicBool::new(false));
    if let Some(address) = either(("http-endpoint", &args.http_endpoint), ("metrics-address", ""))? {
        pages(&connected).start(address, &stop).await?;
    }
    let path = (!args.kubeconfig.is_empty()).then(|| args.kubeconfig.as_ref());
    let client = client::connect(path, None).await?;
    let seen = Seen::watch(&client, &args, &stop);
    // Half a list would take the other half's agents from the router.
    if !seen.ready(&stop).await {
        return Ok(());
    }
    let (list, lists) = watch::channel(seen.list());
    tokio::select! {
        () = stop.cancelled() => {}
        () = seen.follow(&list) => {}
        () = announce(&args.csi_address, lists, &connected) => {}
    }
    Ok(())
}

/// What the list is made of.
struct Seen {
    pods: Cache<Pod>,
    port: u16,
    record: Option<Cache<ConfigMap>>,
    changed: Arc<Notify>,
}

impl Seen {
    /// Begins to watch.
    fn watch(client: &Client, args: &Args, stop: &CancellationToken) -> Self {
        let namespace = namespace(&args.namespace);
        let changed = Arc::new(Notify::new());
        let api = Api::namespaced(client.clone(), &namespace);
        let mut pods = Builder::<Pod>::new(api).labels(&args.selector).trim(trim);
        pods.listen(told(&changed));
        let record = (!args.pool_record.is_empty()).then(|| {
            let api = Api::namespaced(client.clone(), &namespace);
            let only = format!("metadata.name={}", args.pool_record);
            let mut record = Builder::<ConfigMap>::new(api).fields(only);
            record.listen(told(&changed));
            record.start(stop)
        });
        Self { pods: pods.start(stop), port: args.port, record, changed }
    }

    /// Waits until everything has been listed; false when `stop` came first.
    async fn ready(&self, stop: &CancellationToken) -> bool {
        let record = async {
            match &self.record {
                Some(record) => record.ready(stop).await.is_ok(),
                None => true,
            }
        };
        self.pods.ready(stop).await.is_ok() && record.await
    }

    /// Keeps `list` up to date.
    async fn follow(&self, list: &watch::Sender<AgentList>) {
        loop {
            self.changed.notified().await;
            let now = self.list();
            list.send_if_modified(|before| {
                let differs = *before != now;
                if differs {
                    let (agents, given_up) = (now.agents.len(), &now.given_up_pools);
                    info!(agents, ?given_up, "the node agents or their pools have changed");
                    *before = now;
                }
                differs
            });
        }
    }

    fn list(&self) -> AgentList {
        let record = self.record.as_ref().map(Cache::all).unwrap_or_default();
        AgentList {
            agents: agents::addresses(self.pods.all().iter().map(|pod| &**pod), self.port),
            given_up_pools: record.first().map(|record| agents::given_up(record)).unwrap_or_default(),
        }
    }
}

fn told<K>(changed: &Arc<Notify>) -> impl Fn(&Change<K>) + Send + Sync + 'static {
    let changed = Arc::clone(changed);
    move |_| changed.notify_one()
}

/// Keeps a stream to the router open for ever; each begins with the whole list.
async fn announce(address: &str, lists: watch::Receiver<AgentList>, connected: &AtomicBool) {
    loop {
        match uds::connect(address).await {
            Ok(channel) => {
                info!(address, "telling the router of the node agents");
                connected.store(true, Ordering::Relaxed);
                let ended = DirectoryClient::new(channel).announce(WatchStream::new(lists.clone())).await;
                connected.store(false, Ordering::Relaxed);
                let error = ended.err().map(|status| status.message().to_owned());
                warn!(address, error, "the router has ended the stream, connecting again");
            }
            Err(error) => warn!(address, error = chain(&error), "cannot reach the router yet"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps what the list is made of.
fn trim(pod: &mut Pod) {
    pod.metadata.annotations = None;
    pod.metadata.labels = None;
    pod.spec = pod.spec.take().map(|spec| PodSpec { node_name: spec.node_name, ..PodSpec::default() });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        ..PodStatus::default()
    });
}

fn pages(connected: &Arc<AtomicBool>) -> Pages {
    let mut pages = Pages::new(Metrics::default(), "/metrics");
    pages.check("/healthz", Page::ok);
    let connected = Arc::clone(connected);
    pages.check("/readyz", move || {
        let connected = connected.load(Ordering::Relaxed);
        Page::from(if connected { Ok(()) } else { Err("not connected to the router".to_owned()) })
    });
    pages
}
