//! The end of a backend: held while anything of it is in use, then taken apart so that nothing is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, finalizer};
use dunnage_crds::{FINALIZER, StorageBackend};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use tracing::{info, warn};

use super::report::{Findings, holding};
use super::{Context, PassError, Subject, pools, report, secrets};
use crate::agents::Agent;
use crate::pools::State;
use crate::removal::{Uses, summary};
use crate::{live, teardown, views};

/// Pods and snapshots are not watched as a whole: what holds a deletion is looked for again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(2);
/// How long an agent that does not answer may keep its empty pool's backend.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn pass(context: &Context, subject: &Subject) -> Result<Outcome, PassError> {
    if !finalizer::has(&subject.backend.metadata, FINALIZER) {
        return Ok(Outcome::Done);
    }
    // First, so that no new claim comes.
    teardown::classes(&context.client, &subject.name).await?;

    let uses = in_use(context, subject).await?;
    let blockers = holding(subject, &uses);
    if !blockers.is_empty() {
        let before = subject.backend.status.as_ref().map(|status| &status.blocking);
        if before.is_none_or(|before| *before != blockers) {
            let message = format!("the deletion waits: {}", summary(&blockers));
            context.events.tell(&*subject.backend, Kind::Warning, "InUse", message);
        }
        report::write(context, subject, &uses, Findings::default()).await?;
        return Ok(Outcome::Again(LOOK_AGAIN));
    }

    report::write(context, subject, &uses, Findings::default()).await?;
    if !give_up_pools(context, subject).await? {
        return Ok(Outcome::Again(SOON));
    }
    let scope = teardown::Scope {
        backend: &subject.name,
        namespace: &subject.namespace,
        driver: owns_driver(context, subject).then_some(&subject.driver),
    };
    let nodes = context.world.nodes.all();
    let ready = views::ready_nodes(nodes.iter().map(|node| -> &Node { node }));
    if !teardown::workloads(&context.client, &scope, &ready).await? {
        return Ok(Outcome::Again(SOON));
    }
    // A kubelet that is slow to notice, or ends meanwhile, holds nothing up for long.
    if is_registered(context, subject, &ready) && context.taking_apart(&subject.name) < 2 * PATIENCE {
        return Ok(Outcome::Again(SOON));
    }
    tell_what_stays(context, subject).await;
    teardown::rest(&context.client, &scope).await?;
    let api: Api<StorageBackend> = Api::all(context.client.clone());
    match finalizer::remove_from(&api, &*subject.backend, FINALIZER).await {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    context.forget(&subject.name);
    if context.world.backends.all().iter().all(|other| other.name_any() == subject.name)
        && let Err(error) = context.policy.lift(&context.client).await
    {
        warn!(error = chain(&error), "cannot remove the deletion policy, which nothing needs any more");
    }
    info!("the backend is gone");
    Ok(Outcome::Done)
}

/// Whether a kubelet that answers still lists the driver.
fn is_registered(context: &Context, subject: &Subject, ready: &BTreeMap<String, bool>) -> bool {
    context.world.csi_nodes.all().iter().any(|node| {
        let lists = node.spec.drivers.iter().any(|driver| driver.name == subject.driver);
        lists && ready.get(&node.name_any()).copied().unwrap_or(false)
    })
}

/// Whether the driver of this name is, or was, this backend's: one that was refused the name has made nothing, and what
/// exists under that name is not to be touched. A lost label alone proves nothing.
fn owns_driver(context: &Context, subject: &Subject) -> bool {
    let driver = context.world.drivers.named(&subject.driver);
    let labelled = driver.is_none_or(|driver| {
        driver.labels().get(crate::world::BACKEND).is_some_and(|owner| *owner == subject.name)
    });
    let world = &context.world;
    labelled
        || !world.daemon_sets(&subject.name).is_empty()
        || world.stateful_sets.get(&super::controller_key(subject)).is_some()
}

/// The caches may lag, and decide only against the deletion.
async fn in_use(context: &Context, subject: &Subject) -> Result<Uses, Error> {
    if !owns_driver(context, subject) {
        return Ok(Uses::default());
    }
    let mut uses = context.uses(subject);
    if uses.is_empty() {
        live::uses(&context.client, &subject.driver).await
    } else {
        live::unwatched(&context.client, &subject.driver, &mut uses).await?;
        Ok(uses)
    }
}

/// Has the agents remove their empty pools, so that a backend of this name can come again. Pools with volumes that no
/// PersistentVolume speaks of stay on their disks. Whether all is done that can be.
async fn give_up_pools(context: &Context, subject: &Subject) -> Result<bool, PassError> {
    if let Some(material) = secrets::ensure(context, subject).await? {
        let targets = views::targets(context.world.pods(&subject.name, "node").iter().map(AsRef::as_ref));
        context.agents.sync(&subject.name, targets, &material.operator)?;
    }
    let waited = context.taking_apart(&subject.name) > PATIENCE;
    let (mut open, mut removed) = (Vec::new(), Vec::new());
    for (node, agent) in context.agents.of(&subject.name) {
        match agent {
            Agent::Connected(facts)
                if facts.pool.state == State::Ready
                    && facts.volumes.is_empty()
                    && facts.inline_pods.is_empty() =>
            {
                let pool = facts.pool.pool;
                match context.agents.remove_pool(&subject.name, &node, &pool).await {
                    Ok(()) => removed.push(pool),
                    Err(error) => {
                        warn!(node, pool, error = chain(&error), "the empty pool is not removed yet");
                        open.push(node);
                    }
                }
            }
            Agent::Connected(_) => {}
            Agent::Connecting | Agent::Unreachable(_) => open.push(node),
        }
    }
    pools::forget(context, subject, &removed).await?;
    Ok(open.is_empty() || waited)
}

/// Pools on nodes that could not be reached, and pools with volumes that no PersistentVolume speaks of.
async fn tell_what_stays(context: &Context, subject: &Subject) {
    for (pool, entry) in pools::read(context, subject).await.unwrap_or_default() {
        let message = format!(
            "pool {pool} stays on node {} at {}: remove the directory's content when its data is no longer needed",
            entry.node, entry.path
        );
        context.events.tell(&*subject.backend, Kind::Warning, "PoolLeft", message);
    }
}
