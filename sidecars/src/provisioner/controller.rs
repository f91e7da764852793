//! From watches to queues to steps: the provisioner as a leader runs it.

mod trim;
mod watch;

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::client::Limit;
use dunnage_cluster::events::Recorder;
use dunnage_cluster::queue::{self, Backoff, Outcome, Queue};
use dunnage_cluster::{client, leader};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::args::Args;
use super::capacity::owner::{self, NoOwner};
use super::capacity::plan::Owner;
use super::context::{Context, Queues};
use super::driver::Driver;
use super::journal::{self, Opened};
use super::metrics::Metrics;
use super::progress::Progress;
use super::sources::sweep;
use super::{delete, provision};
use crate::runtime::{Error, identity, namespace};

/// What a leader starts with.
pub(super) struct Start {
    pub(super) args: Args,
    pub(super) driver: Driver,
    pub(super) client: Client,
    pub(super) metrics: Metrics,
    pub(super) queue_metrics: queue::Metrics,
    pub(super) surroundings: Surroundings,
}

/// What the environment says.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// Where the capacity objects are.
    pub(super) namespace: String,
    /// The pod that this runs in.
    pub(super) pod: Option<String>,
}

/// Works until `stop`, and then until what was begun has ended.
pub(super) async fn lead(start: Start, stop: CancellationToken) -> Result<(), Error> {
    let Start { args, driver, client, metrics, queue_metrics, surroundings } = start;
    let lease_namespace = namespace(&args.standard.leader_election_namespace);
    let lease = format!("{}-journal", leader::lock_name(&lock(&driver.name)));
    let Opened { journal, owed, mut adopted, writer } =
        journal::open(client.clone(), &lease_namespace, &lease, &identity()).await?;
    let progress = Arc::new(Progress::default());
    let queues = queues(&args, &queue_metrics);
    for (uid, entry) in owed {
        info!(claim = uid, "a volume of an earlier leader may be half made");
        progress.begin(&uid, entry);
        queues.claims.add(uid);
    }
    let owner = capacity_owner(&args, &driver, &client, &surroundings).await?;
    let capacity_client = capacity_client(&args, &client).await?;
    let items = Queue::new("csistoragecapacity", backoff(&args), &queue_metrics);
    let watches = watch::start(
        &watch::Setup {
            args: &args,
            driver: &driver,
            client: &client,
            capacity: owner.map(|owner| (owner, capacity_client, items)),
            progress: &progress,
            queues: &queues,
            metrics: &metrics,
        },
        &stop,
    );
    watches.ready(&stop).await?;
    let watch::Watches { watched, capacity, .. } = watches;
    // The journal and events are written until the last worker has ended.
    let done = CancellationToken::new();
    let component = format!("{}_{}", driver.name, identity());
    let context = Arc::new(Context {
        identity: volume_identity(&driver.name, Timestamp::now()),
        events: Recorder::start(client.clone(), &component, &identity(), &done),
        args,
        driver,
        client,
        watched,
        journal,
        progress,
        metrics,
        capacity,
        queues,
    });
    let writing = tokio::spawn(writer.run(done.clone()));
    let mut tasks = workers(&context, &stop);
    {
        let (context, stop) = (Arc::clone(&context), stop.clone());
        tasks.spawn(async move {
            while let Some(Some((uid, entry))) = stop.run_until_cancelled(adopted.recv()).await {
                context.progress.begin(&uid, entry);
                context.queues.claims.add(uid);
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    done.cancel();
    if writing.await.is_err() {
        warn!("the journal's last write was cut short; what it says too much is harmless");
    }
    Ok(())
}

/// Which process made a volume, as upstream writes it: time, chance, driver.
fn volume_identity(driver: &str, now: Timestamp) -> String {
    format!("{}-{}-{driver}", now.as_millisecond(), now.subsec_nanosecond() % 10_000)
}

/// The name of the leader's Lease before it is made a valid one.
pub(super) fn lock(driver: &str) -> String {
    driver.replace('/', "-")
}

fn queues(args: &Args, metrics: &queue::Metrics) -> Queues {
    Queues {
        claims: Queue::new("claims", backoff(args), metrics),
        volumes: Queue::new("volumes", backoff(args), metrics),
        clones: Queue::new("clones", backoff(args), metrics),
    }
}

fn backoff(args: &Args) -> Backoff {
    Backoff { start: args.retry_interval_start, max: args.retry_interval_max }
}

fn workers(context: &Arc<Context>, stop: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (args, queues) = (&context.args, &context.queues);
    let threads = args.worker_threads;
    spawn(&mut tasks, context, &queues.claims, threads, stop, |context, uid| async move {
        // Boxed, for these are the two large futures.
        Box::pin(provision::sync(&context, uid)).await
    });
    spawn(&mut tasks, context, &queues.volumes, threads, stop, |context, name| async move {
        Box::pin(delete::run::sync(&context, name)).await
    });
    if context.driver.can.clone {
        let threads = args.cloning_protection_threads;
        spawn(&mut tasks, context, &queues.clones, threads, stop, sweep::release_claim);
    }
    let every = args.snapshot_orphan_sweep_interval;
    if context.driver.can.snapshot && !every.is_zero() {
        tasks.spawn(sweep::sweep_snapshots(Arc::clone(context), every, stop.clone()));
    }
    if let Some(capacity) = &context.capacity {
        tasks.spawn(capacity.clone().run(stop.clone()));
    }
    tasks.spawn(count_entries(Arc::clone(context), stop.clone()));
    tasks
}

fn spawn<K, W>(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    queue: &Queue<K>,
    workers: usize,
    stop: &CancellationToken,
    work: impl Fn(Arc<Context>, K) -> W + Send + 'static,
) where
    K: Clone + Eq + Hash + Send + 'static,
    W: Future<Output = Outcome> + Send + 'static,
{
    let context = Arc::clone(context);
    let handler = move |key| work(Arc::clone(&context), key);
    tasks.spawn(queue::run(queue.clone(), workers, stop.clone(), handler));
}

/// Shows how many volumes may exist without a PersistentVolume.
async fn count_entries(context: Arc<Context>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(Duration::from_secs(5));
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        context.metrics.journal_entries.set(i64::try_from(context.journal.len()).unwrap_or(i64::MAX));
    }
}

/// Its own client where a limit is set for it, so that capacity never keeps claims waiting.
async fn capacity_client(args: &Args, client: &Client) -> Result<Client, Error> {
    let limit = match (args.kube_api_capacity_qps, args.kube_api_capacity_burst) {
        (None, None) => return Ok(client.clone()),
        (qps, burst) => Limit { qps: qps.unwrap_or(1.0), burst: burst.unwrap_or(5) },
    };
    Ok(client::connect(args.standard.kubeconfig().as_deref(), Some(limit)).await?)
}

async fn capacity_owner(
    args: &Args,
    driver: &Driver,
    client: &Client,
    surroundings: &Surroundings,
) -> Result<Option<Owner>, Error> {
    if !args.enable_capacity {
        return Ok(None);
    }
    if !driver.can.tell_capacity {
        warn!("no capacity is published: the driver lacks GET_CAPACITY");
        return Ok(None);
    }
    let flags = |error: NoOwner| Error::Flags(error.into());
    let namespace = surroundings.namespace.clone();
    let level = args.capacity_ownerref_level;
    let pod = match &surroundings.pod {
        Some(pod) => pod.as_str(),
        None if level == -1 => "",
        None => return Err(flags(NoOwner::Environment("POD_NAME"))),
    };
    let reference = match owner::find(client, &namespace, pod, level).await {
        Ok(reference) => reference,
        Err(NoOwner::Api(error)) => return Err(error.into()),
        Err(error) => return Err(flags(error)),
    };
    Ok(Some(Owner { driver: driver.name.clone(), namespace, reference }))
}
