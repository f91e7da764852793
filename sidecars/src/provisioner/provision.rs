//! One pass over one claim: from the claim to a saved PersistentVolume.

mod prepare;
mod save;

use std::fmt;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_csi::v1::Volume;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::claim::{self, Next, Standing};
use super::context::Context;
use super::driver::describe;
use super::journal::state::Entry;
use super::metrics::Result as Ended;
use super::outcome::{self, Failure};
use super::progress::Wait;
use super::topology::Segment;
use super::{source, sources, volume};
use prepare::Prepared;
pub(super) use prepare::read_secret;

/// What is worked on: a claim that waits, or what is owed for one that does not any more.
pub(super) struct Job {
    pub(super) uid: String,
    pub(super) claim: PersistentVolumeClaim,
    pub(super) class: StorageClass,
    /// The call begun earlier, whose end is not known.
    pub(super) owed: Option<Entry>,
    pub(super) waits: Waits,
}

/// Whether somebody waits for the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Claim,
    Nobody,
}

/// Why a pass did not end with a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is to be done here.
    Leave(&'static str),
    /// Nothing was asked of the driver in this pass.
    Early { problem: String, wait: Option<Wait> },
    /// The scheduler must choose again.
    HandBack { problem: String },
    /// The driver was asked, and this is what its answer means.
    Driver { failure: Failure, problem: String },
}

impl Stop {
    pub(super) fn early(error: impl fmt::Display) -> Self {
        Self::Early { problem: error.to_string(), wait: None }
    }

    pub(super) fn api(error: &dunnage_cluster::Error) -> Self {
        Self::Early { problem: chain(error), wait: None }
    }
}

/// Works the claim with this UID.
pub async fn sync(context: &Context, uid: String) -> Outcome {
    let claim = context.watched.claims.get(&uid).into_iter().next();
    let name = context.volume_name(&uid);
    let class = claim.as_deref().and_then(claim::class_name);
    let class = class.and_then(|name| context.watched.classes.named(name));
    let owed = context.progress.owed(&uid);
    let seen = context.watched.volumes.named(&name).is_some_and(|volume| is_for(&volume, &uid));
    // Until the watch shows the volume, our own word for it counts.
    let saved = seen || context.progress.is_saved(&uid);
    let certain = seen || claim.as_deref().is_none_or(claim::is_bound);
    let standing = Standing {
        claim: claim.as_deref(),
        class: class.as_deref(),
        volume: &name,
        saved,
        owed: owed.is_some(),
    };
    let job = match (claim::next(&standing, &context.driver.name), claim, class, owed) {
        (Ok(Next::Provision), Some(claim), Some(class), owed) => Job {
            uid,
            claim: claim.as_ref().clone(),
            class: class.as_ref().clone(),
            owed,
            waits: Waits::Claim,
        },
        (Ok(Next::Resume), _, _, Some(entry)) => Job {
            uid,
            claim: entry.claim.clone(),
            class: entry.class.clone(),
            owed: Some(entry),
            waits: Waits::Nobody,
        },
        (Ok(Next::Leave(why)), ..) => {
            debug!(claim = uid, why, "left alone");
            return Outcome::Done;
        }
        (Ok(_), ..) => {
            if certain {
                settle(context, &uid);
            }
            return Outcome::Done;
        }
        (Err(refusal), Some(claim), ..) => {
            failed(context, &claim, &refusal.to_string());
            return Outcome::Retry;
        }
        (Err(_), None, ..) => return Outcome::Done,
    };
    let started = Instant::now();
    if job.waits == Waits::Claim {
        let message = format!("Asking {} for volume {name}", context.driver.name);
        context.tell(&job.claim, Kind::Normal, "Provisioning", message);
    } else {
        info!(volume = name, "finishing a volume that its claim does not wait for any more");
    }
    let class = claim::class_name(&job.claim).unwrap_or_default();
    match attempt(context, &job).await {
        Ok(handle) => {
            context.progress.save(&job.uid);
            context.journal.remove(&job.uid);
            context.metrics.provision(class, source::kind(&job.claim), started.elapsed(), Ended::Done);
            info!(volume = name, handle, claim = %claim_name(&job.claim), "provisioned");
            if job.waits == Waits::Claim {
                let message = format!("Successfully provisioned volume {name}");
                context.tell(&job.claim, Kind::Normal, "ProvisioningSucceeded", message);
            }
            Outcome::Done
        }
        Err(stop) => {
            if !matches!(stop, Stop::Leave(_)) {
                context.metrics.provision(class, source::kind(&job.claim), started.elapsed(), Ended::Failed);
            }
            stopped(context, &job, stop).await
        }
    }
}

/// Asks the driver and saves its answer; the handle of the volume.
async fn attempt(context: &Context, job: &Job) -> Result<String, Stop> {
    let prepared = prepare::prepare(context, job).await?;
    if context.progress.is_refused(&job.uid, &prepared.request, Instant::now()) {
        return Err(Stop::early(
            "the driver has called this request invalid: correct the StorageClass or the claim",
        ));
    }
    still_wanted(context, job).await?;
    context.journal.record(&job.uid, &prepared.entry).await.map_err(Stop::early)?;
    context.progress.begin(&job.uid, prepared.entry.clone());
    let wanted = job.waits != Waits::Nobody;
    let answer = context.driver.create_volume(prepared.request.clone(), wanted).await;
    let volume = match answer {
        Ok(volume) => volume,
        Err(status) => {
            let failure = outcome::of(&status);
            if failure == Failure::Infeasible {
                let until = Instant::now() + context.args.retry_interval_max;
                context.progress.refuse(&job.uid, prepared.request, until);
            }
            return Err(Stop::Driver { failure, problem: describe(&status) });
        }
    };
    if let Err(mismatch) = volume::check(&prepared.request, &volume) {
        let problem = mismatch.to_string();
        let failure = undo(context, &volume, &prepared).await;
        return Err(Stop::Driver { failure, problem });
    }
    if job.waits == Waits::Nobody && save::twin(context, &prepared.request.name, &volume).is_some() {
        settle(context, &job.uid);
        return Err(Stop::Leave("its volume has got another PersistentVolume"));
    }
    let saved = save::save(context, job, &prepared, &volume).await;
    saved.map_err(|problem| Stop::Driver { failure: Failure::Unfinished, problem })?;
    sources::release(context, &job.claim).await;
    refresh_capacity(context, &volume);
    Ok(volume.volume_id)
}

/// Reads the claim anew: a pass on a stale copy could make a second volume after the first one's deletion.
async fn still_wanted(context: &Context, job: &Job) -> Result<(), Stop> {
    if job.waits == Waits::Nobody {
        return Ok(());
    }
    let metadata = &job.claim.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let action = format!("get claim {namespace}/{name}");
    let fresh =
        api.get_opt(name).await.map_err(|error| Stop::api(&dunnage_cluster::Error::api(action)(error)))?;
    let Some(fresh) = fresh.filter(|fresh| fresh.metadata.uid.as_deref() == Some(job.uid.as_str())) else {
        // The watch will say so too; then what is owed is finished.
        return Err(Stop::Leave("it is gone"));
    };
    let standing = Standing {
        claim: Some(&fresh),
        class: Some(&job.class),
        volume: &context.volume_name(&job.uid),
        saved: false,
        owed: job.owed.is_some(),
    };
    match claim::next(&standing, &context.driver.name) {
        Ok(Next::Provision) if claim::selected_node(&fresh) == claim::selected_node(&job.claim) => Ok(()),
        Ok(Next::Leave(why)) => Err(Stop::Leave(why)),
        Ok(_) => Err(Stop::Leave("it has changed meanwhile")),
        Err(refusal) => Err(Stop::early(refusal)),
    }
}

/// Deletes a volume that is not what was asked for.
async fn undo(context: &Context, volume: &Volume, prepared: &Prepared) -> Failure {
    let deadline = Instant::now() + context.args.timeout;
    for _ in 0..5 {
        let secrets = prepared.request.secrets.clone();
        match context.driver.delete_volume(&volume.volume_id, secrets).await {
            Ok(()) => return Failure::Final,
            Err(status) => {
                warn!(handle = volume.volume_id, error = describe(&status), "cannot undo a volume");
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Failure::Unfinished
}

/// Draws the consequences of a pass that made no volume.
async fn stopped(context: &Context, job: &Job, stop: Stop) -> Outcome {
    let (failure, problem) = match stop {
        Stop::Leave(why) => {
            debug!(claim = %claim_name(&job.claim), why, "left alone");
            return Outcome::Done;
        }
        Stop::Early { problem, wait } => {
            context.progress.wait(&job.uid, wait);
            failed(context, &job.claim, &problem);
            return Outcome::Retry;
        }
        Stop::HandBack { problem } => return hand_back(context, job, &problem).await,
        Stop::Driver { failure, problem } => (failure, problem),
    };
    match failure {
        Failure::Unfinished => {
            failed(context, &job.claim, &problem);
            return Outcome::Retry;
        }
        Failure::Busy => {
            failed(context, &job.claim, &problem);
            return Outcome::Again(context.progress.busy(&job.uid, context.args.retry_interval_start));
        }
        Failure::Final | Failure::Infeasible | Failure::NoRoom => {}
    }
    let asked = context.progress.end(&job.uid).and_then(|entry| entry.topology);
    context.journal.remove(&job.uid);
    if job.waits == Waits::Nobody {
        info!(claim = %claim_name(&job.claim), problem, "nothing was made, and nobody waits for it");
        settle(context, &job.uid);
        return Outcome::Done;
    }
    if failure != Failure::NoRoom {
        failed(context, &job.claim, &problem);
        return Outcome::Retry;
    }
    context.progress.wait(&job.uid, Some(Wait::Room));
    // The scheduler looks at these objects: they must be right before it chooses again.
    if let Some(capacity) = &context.capacity {
        let places: Vec<Segment> = asked.map(|asked| asked.requisite).unwrap_or_default();
        capacity.refresh_now(&places).await;
    }
    let chosen = claim::selected_node(&job.claim).is_some();
    if context.driver.can.topology && claim::is_delayed(&job.class) && chosen {
        return hand_back(context, job, &problem).await;
    }
    failed(context, &job.claim, &problem);
    Outcome::Retry
}

/// Takes the chosen node off the claim, at first at once and then ever slower.
async fn hand_back(context: &Context, job: &Job, problem: &str) -> Outcome {
    failed(context, &job.claim, problem);
    if let Err(pause) = context.progress.hand_back(&job.uid, Instant::now()) {
        return Outcome::Again(pause);
    }
    match save::unselect(context, &job.claim).await {
        Ok(()) => Outcome::Done,
        Err(error) => {
            warn!(claim = %claim_name(&job.claim), error = chain(&error), "cannot hand the claim back");
            Outcome::Retry
        }
    }
}

/// Forgets all that was noted about a claim.
fn settle(context: &Context, uid: &str) {
    context.progress.forget(uid);
    context.journal.remove(uid);
}

fn refresh_capacity(context: &Context, volume: &Volume) {
    if let Some(capacity) = &context.capacity {
        let places = volume.accessible_topology.iter();
        capacity
            .refresh(&places.map(|place| place.segments.clone().into_iter().collect()).collect::<Vec<_>>());
    }
}

fn failed(context: &Context, claim: &PersistentVolumeClaim, problem: &str) {
    warn!(claim = %claim_name(claim), problem, "cannot provision");
    context.tell(
        claim,
        Kind::Warning,
        "ProvisioningFailed",
        format!("Failed to provision volume: {problem}"),
    );
}

fn is_for(volume: &PersistentVolume, uid: &str) -> bool {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.and_then(|claim| claim.uid.as_deref()) == Some(uid)
}

fn claim_name(claim: &PersistentVolumeClaim) -> String {
    let metadata = &claim.metadata;
    format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    )
}
