//! Giving one claim another `VolumeAttributesClass`. Each step may be the last before a kill: what is to be asked of the
//! driver is in the claim's status before it is asked, and the volume's object is written before the claim's.

mod plan;

use std::time::Duration;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, Key};
use dunnage_csi::v1;
use dunnage_telemetry::metrics::code_name;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, info};

use super::memory::Memory;
use super::outcome::{self, Class};
use super::patches::Told;
use super::resize::{Failure, Pair, begin, retry, write, write_volume};
use super::world::World;
use crate::secret;
use plan::{Classes, MODIFY_ERROR, State, Step};

pub(super) use plan::is_due;

/// What holds for all claims of a process.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) driver: String,
    /// The driver is told whose volume it modifies.
    pub(super) names: bool,
    /// How long the same class is not asked for again after the driver has called it impossible.
    pub(super) rest: Duration,
}

/// Brings the claim `key` to the class that it asks for.
pub(super) async fn sync<W: World>(world: &W, memory: &Memory, rules: &Rules, key: &Key) -> Outcome {
    let mut pair = match begin(world, key, &rules.driver).await {
        Ok(pair) => pair,
        Err(outcome) => return outcome,
    };
    match change(world, memory, rules, &mut pair).await {
        Ok(outcome) => outcome,
        Err(failure) => retry(world, &pair, &failure, ("modify", "VolumeModifyFailed"), |error| {
            format!("driver {:?} cannot modify volume {:?}: {error}", rules.driver, pair.volume_name())
        }),
    }
}

async fn change<W: World>(
    world: &W,
    memory: &Memory,
    rules: &Rules,
    pair: &mut Pair,
) -> Result<Outcome, Failure> {
    let uid = pair.uid().to_owned();
    let note = memory.of(&uid);
    let classes = Classes::of(&pair.claim);
    let asked_before = classes.attempt.is_some_and(|(target, _)| target == classes.wanted);
    if asked_before && let Some(rest) = note.rest(rules.rest, Instant::now()) {
        return Ok(Outcome::Again(rest));
    }
    let target = match plan::step(&classes, note.ended) {
        Step::Nothing => return Ok(Outcome::Done),
        Step::Cancel => {
            if let Some(patch) = plan::cancelled(&pair.claim, jiff::Timestamp::now()) {
                pair.claim = world.patch_claim(&pair.key, patch).await?;
            }
            let message = "no other VolumeAttributesClass is wanted any more".to_owned();
            world.tell(&pair.claim, Kind::Normal, "VolumeModifyCanceled", message);
            return Ok(Outcome::Done);
        }
        Step::Modify(target) => target.to_owned(),
    };
    let class = world.class(&target);
    let Some(class) = class.filter(|class| class.driver_name == rules.driver) else {
        return missing(world, rules, pair, &target).await;
    };
    let request = request(world, rules, pair, &class).await?;
    memory.begin(&uid);
    let now = jiff::Timestamp::now();
    if let Some(patch) = plan::attempt(&pair.claim, &target, State::InProgress, now) {
        pair.claim = world.patch_claim(&pair.key, patch).await?;
    }
    let volume = pair.volume_name().to_owned();
    info!(claim = %pair.key, volume, class = target, "modifying");
    let message = format!("driver {:?} is modifying volume {volume:?}", rules.driver);
    world.tell(&pair.claim, Kind::Normal, "VolumeModify", message);
    match world.modify(request).await {
        Ok(_) => {
            modified(world, pair, &target).await?;
            memory.forget(&uid);
            // Meanwhile yet another class may be wanted.
            let more = is_due(&pair.claim);
            Ok(if more { Outcome::Again(Duration::ZERO) } else { Outcome::Done })
        }
        Err(status) => Err(refused(world, memory, pair, &target, status).await),
    }
}

/// A class that is not there, or is another driver's. What was begun for it may be at work and cannot be given up; a new
/// wish waits for the class, and coming into being it brings the claim back here.
async fn missing<W: World>(
    world: &W,
    rules: &Rules,
    pair: &mut Pair,
    target: &str,
) -> Result<Outcome, Failure> {
    let begun = Classes::of(&pair.claim).attempt == Some((target, State::InProgress));
    if !begun && let Some(patch) = plan::attempt(&pair.claim, target, State::Pending, jiff::Timestamp::now())
    {
        pair.claim = world.patch_claim(&pair.key, patch).await?;
    }
    let message = match world.class(target) {
        None => format!("VolumeAttributesClass {target:?} is not there"),
        Some(class) => format!(
            "VolumeAttributesClass {target:?} is for driver {:?}, and the volume is of {:?}",
            class.driver_name, rules.driver
        ),
    };
    debug!(claim = %pair.key, class = target, message, "waiting for the class");
    world.tell(&pair.claim, Kind::Warning, "VolumeModifyFailed", message);
    Ok(Outcome::Done)
}

async fn request<W: World>(
    world: &W,
    rules: &Rules,
    pair: &Pair,
    class: &VolumeAttributesClass,
) -> Result<v1::ControllerModifyVolumeRequest, Failure> {
    let place = plan::secret(&pair.volume).map_err(secret::Error::from)?;
    let parameters = class.parameters.as_ref();
    Ok(v1::ControllerModifyVolumeRequest {
        volume_id: pair.handle(),
        secrets: world.secret(place).await?,
        mutable_parameters: plan::parameters(parameters, &pair.claim, pair.volume_name(), rules.names),
    })
}

/// The driver has done it: the volume's object says so first, then the claim.
async fn modified<W: World>(world: &W, pair: &mut Pair, target: &str) -> Result<(), Failure> {
    write_volume(world, pair, |volume| plan::of_volume(volume, target)).await?;
    write(world, pair, is_same_attempt, |claim, now| plan::done(claim, target, now)).await?;
    let volume = pair.volume_name().to_owned();
    info!(claim = %pair.key, volume, class = target, "modified");
    let message = format!("volume {volume:?} has VolumeAttributesClass {target:?}");
    world.tell(&pair.claim, Kind::Normal, "VolumeModifySuccessful", message);
    Ok(())
}

/// Notes what a refusal means; what cannot be written is found out by another call.
async fn refused<W: World>(
    world: &W,
    memory: &Memory,
    pair: &mut Pair,
    target: &str,
    status: Status,
) -> Failure {
    let class = outcome::of_change(&status);
    memory.failed(pair.uid(), class, Instant::now());
    let reason = code_name(status.code().into());
    let failure = Failure::Driver(status);
    let message = chain(&failure);
    let told = Told { kind: MODIFY_ERROR, reason, message: &message };
    let state = if class == Class::Infeasible { State::Infeasible } else { State::InProgress };
    let patch = |claim: &PersistentVolumeClaim, now| plan::failed(claim, target, state, told, now);
    let written: Result<(), Error> = write(world, pair, is_same_attempt, patch).await;
    if let Err(error) = written {
        debug!(claim = %pair.key, error = chain(&error), "cannot write the error into the status");
    }
    failure
}

fn is_same_attempt(before: &PersistentVolumeClaim, now: &PersistentVolumeClaim) -> bool {
    let recorded = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.modify_volume_status.clone())
    };
    before.metadata.uid == now.metadata.uid && recorded(before) == recorded(now)
}

#[cfg(test)]
mod tests;
