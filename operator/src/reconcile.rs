//! One pass over one backend: observe, plan, apply, report. Deletion is the first branch and needs nothing but the name.

mod deletion;
mod foreign;
mod pools;
mod report;
mod secrets;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunnage_cluster::error::{Category, chain};
use dunnage_cluster::events::{Kind, Recorder};
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, finalizer};
use dunnage_crds::conditions::reasons;
use dunnage_crds::pools::Unreadable;
use dunnage_crds::validate::shares_no_path;
use dunnage_crds::{FINALIZER, StorageBackend, defaults};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span, warn};

use crate::agents::{Agent, Agents, BadMaterial};
use crate::apply::{Applier, AsyncInUse, Failure};
use crate::plan::facts::Observed;
use crate::plan::{Inputs, plan};
use crate::removal::Uses;
use crate::status::Rejected;
use crate::world::World;
use crate::{certs, live, policy, views};
use report::Findings;

pub use secrets::IssueFailure;

/// Without any change, a backend is looked at this often.
const RESYNC: Duration = Duration::from_secs(600);

/// What all passes share.
pub struct Context {
    pub client: Client,
    pub world: World,
    pub agents: Arc<Agents>,
    pub applier: Applier,
    pub events: Recorder,
    /// The operator's own image and namespace.
    pub image: String,
    pub namespace: String,
    pub metrics: crate::metrics::Passes,
    pub policy: policy::Guard,
    /// Since when backends are being taken apart.
    pub begun: Mutex<HashMap<String, Instant>>,
}

impl Context {
    /// What uses a backend's driver, as far as that is watched or told by its agents.
    fn uses(&self, subject: &Subject) -> Uses {
        let agents = self.agents.of(&subject.name);
        let told = agents.values().filter_map(Agent::facts).flat_map(|facts| &facts.inline_pods);
        self.world.uses(&subject.driver).with_inline(told)
    }

    /// How long a backend has been taken apart by this process.
    fn taking_apart(&self, backend: &str) -> Duration {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.entry(backend.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    /// Forgets a backend that is gone.
    fn forget(&self, backend: &str) {
        self.agents.forget(backend);
        self.applier.forget(backend);
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(backend);
    }
}

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error(transparent)]
    Record(#[from] Unreadable),
    #[error(transparent)]
    Issue(#[from] IssueFailure),
    #[error(transparent)]
    Material(#[from] BadMaterial),
}

impl PassError {
    /// A fixed word for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Cluster(error) => error.category().as_str(),
            Self::Record(_) => "pool_record",
            Self::Issue(_) | Self::Material(_) => "certificates",
        }
    }

    /// What a person must mend, for the status; a server that is away or busy is no such thing.
    fn told(&self) -> Option<Rejected> {
        let told = match self {
            Self::Cluster(error) => matches!(error.category(), Category::Forbidden | Category::Invalid),
            Self::Record(_) | Self::Issue(_) | Self::Material(_) => true,
        };
        told.then(|| Rejected { reason: reasons::APPLY_FAILED, message: chain(self) })
    }
}

/// A backend as the pass works on it.
struct Subject {
    backend: Arc<StorageBackend>,
    name: String,
    namespace: String,
    driver: String,
    topology_key: String,
}

impl Subject {
    fn new(backend: Arc<StorageBackend>, operator_namespace: &str) -> Self {
        let driver = defaults::driver_name(&backend);
        Self {
            name: backend.name_any(),
            namespace: defaults::namespace(&backend, operator_namespace).to_owned(),
            topology_key: defaults::topology_key(&driver),
            driver,
            backend,
        }
    }
}

/// Works one key of the queue.
pub async fn work(context: Arc<Context>, name: String) -> Outcome {
    let Some(backend) = context.world.backends.named(&name) else {
        context.forget(&name);
        return Outcome::Done;
    };
    let span = info_span!("reconcile", backend = name, generation = backend.metadata.generation);
    let subject = Subject::new(backend, &context.namespace);
    let timer = context.metrics.start();
    let mut result = pass(&context, &subject).instrument(span.clone()).await;
    if let Err(error) = &result
        && let Some(rejected) = error.told()
    {
        let uses = context.uses(&subject);
        let findings = Findings { rejected: Some(rejected), ..Findings::default() };
        if let Err(second) = report::write(&context, &subject, &uses, findings).instrument(span.clone()).await
        {
            result = Err(second.into());
        }
    }
    timer.stop(result.as_ref().err().map(PassError::category));
    match result {
        Ok(outcome) => outcome,
        // Somebody wrote in between: the next pass sees it.
        Err(PassError::Cluster(error)) if error.is_conflict() => Outcome::Retry,
        Err(error) => {
            span.in_scope(|| warn!(error = chain(&error), "the pass failed, trying again"));
            Outcome::Retry
        }
    }
}

async fn pass(context: &Context, subject: &Subject) -> Result<Outcome, PassError> {
    let world = &context.world;
    if subject.backend.metadata.deletion_timestamp.is_some() {
        return deletion::pass(context, subject).await;
    }
    let api: Api<StorageBackend> = Api::all(context.client.clone());
    if finalizer::add_to(&api, &*subject.backend, FINALIZER).await?.is_some() {
        // The cache shows it soon, and that wakes this backend again.
        return Ok(Outcome::Again(RESYNC));
    }

    if let Err(error) = context.policy.ensure(&context.client).await {
        // The finalizer protects without it, only later.
        warn!(error = chain(&error), "no quick answer to deletions");
    }

    let uses = context.uses(subject);
    let mut next = RESYNC;
    // The pods mount these.
    let material = secrets::ensure(context, subject).await?;
    let rejected = bring_about(context, subject, &uses).await?.err();
    if let Some(material) = material {
        next = next.min(duration(material.look_again));
        let targets = views::targets(world.pods(&subject.name, "node").iter().map(AsRef::as_ref));
        context.agents.sync(&subject.name, targets, &material.operator)?;
    }
    let pools = pools::pass(context, subject).await?;
    if pools.again {
        next = next.min(Duration::from_secs(1));
    }
    unstick(context, subject).await?;
    report::write(context, subject, &uses, Findings { rejected, problems: pools.problems }).await?;
    Ok(Outcome::Again(next))
}

fn duration(span: SignedDuration) -> Duration {
    span.unsigned_abs()
}

/// Plans and applies. The inner error is the user's to mend; the outer one is tried again.
async fn bring_about(
    context: &Context,
    subject: &Subject,
    uses: &Uses,
) -> Result<Result<(), Rejected>, PassError> {
    let nodes = context.world.nodes.all();
    let classes = context.world.classes.all();
    let nodes_ref = nodes.iter().map(|node| -> &Node { node });
    let observed = Observed::from_objects(nodes_ref, classes.iter().map(|class| -> &StorageClass { class }));
    let snapshots = live::snapshots(&context.client, &subject.name).await?;
    let observed = Observed { snapshots, ..observed };
    let inputs = Inputs {
        backend: &subject.backend,
        operator_namespace: &context.namespace,
        image: &context.image,
        observed: &observed,
    };
    let plan = match plan(&inputs) {
        Ok(plan) => plan,
        Err(invalid) => return Ok(Err(Rejected { reason: reasons::INVALID, message: invalid.to_string() })),
    };
    let backends = context.world.backends.all();
    let labels: Vec<_> = nodes.iter().map(|node| node.labels()).collect();
    if let Err(invalid) = shares_no_path(&subject.backend, backends.iter().map(AsRef::as_ref), &labels) {
        return Ok(Err(Rejected { reason: reasons::INVALID, message: invalid.to_string() }));
    }
    if let Some(rejected) = foreign::check(context, subject, &plan) {
        return Ok(Err(rejected));
    }
    if let Some(rejected) = pools::abandoned(context, subject, uses).await? {
        return Ok(Err(rejected));
    }
    let in_use = PodsInUse { context, subject, uses };
    match context.applier.apply(&subject.name, &subject.namespace, &plan, &context.world, &in_use).await {
        Ok(()) => Ok(Ok(())),
        Err(failure @ Failure::Immutable { .. }) => {
            Ok(Err(Rejected { reason: reasons::IMMUTABLE_FIELD, message: failure.to_string() }))
        }
        // The API server's own words tell what is wrong: a missing namespace, a field it does not take, missing rights.
        Err(Failure::Cluster(error))
            if matches!(error.category(), Category::Invalid | Category::Forbidden | Category::NotFound) =>
        {
            Ok(Err(Rejected { reason: reasons::APPLY_FAILED, message: chain(&error) }))
        }
        Err(Failure::Cluster(error)) => Err(error.into()),
    }
}

struct PodsInUse<'a> {
    context: &'a Context,
    subject: &'a Subject,
    uses: &'a Uses,
}

impl AsyncInUse for PodsInUse<'_> {
    fn in_use(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        let claims: BTreeSet<String> =
            self.uses.volumes.iter().filter_map(|volume| volume.claim.clone()).collect();
        async move { live::pod_using(&self.context.client, &self.subject.driver, &claims).await }.boxed()
    }
}

/// Deletes controller pods that their set waits for in vain.
async fn unstick(context: &Context, subject: &Subject) -> Result<(), Error> {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::DeleteParams;

    let pods = context.world.pods(&subject.name, "controller");
    let sets = context.world.stateful_sets.get(&controller_key(subject));
    let nodes = context.world.nodes.all();
    let ready = views::ready_nodes(nodes.iter().map(|node| -> &Node { node }));
    let now = jiff::Timestamp::now();
    for stuck in views::stuck(sets.as_deref(), pods.iter().map(AsRef::as_ref), &ready, now) {
        let params =
            if stuck.force { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        let api: Api<Pod> = Api::namespaced(context.client.clone(), &subject.namespace);
        let deleted = api.delete(&stuck.pod, &params).await.map(drop);
        crate::apply::ignore_missing(deleted, || format!("delete pod {}", stuck.pod))?;
        let message =
            format!("deleted controller pod {} for its set to replace it: {}", stuck.pod, stuck.why);
        context.events.tell(&*subject.backend, Kind::Normal, "ControllerPodReplaced", message);
    }
    Ok(())
}

fn controller_key(subject: &Subject) -> dunnage_cluster::Key {
    dunnage_cluster::Key::namespaced(
        &subject.namespace,
        crate::plan::meta::Names::of(&subject.name).controller,
    )
}

/// What the agents need to be reached.
struct Material {
    operator: certs::Leaf,
    look_again: SignedDuration,
}
