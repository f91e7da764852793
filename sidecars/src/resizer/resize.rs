//! Growing one claim. Each step may be the last before a kill: what is to be asked of the driver is in the claim's
//! status before it is asked, and the volume's size is written before the claim's.

use std::time::Duration;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, Key};
use dunnage_csi::v1;
use dunnage_telemetry::metrics::code_name;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::Value;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, info, warn};

use super::facts::{self, CONTROLLER_ERROR, Sizes, State};
use super::memory::Memory;
use super::outcome::{self, Class};
use super::patches::{self, Told};
use super::plan::{self, Way};
use super::world::World;
use crate::runtime::rpc_error;
use crate::{access, secret};

/// How often an answer of the driver is written against changes that come in between.
const WRITES: usize = 5;

/// What holds for all claims of a process.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) driver: String,
    pub(super) way: Way,
    pub(super) access: access::Rules,
    /// Volumes that a node has to grow keep a note of their size before.
    pub(super) annotate: bool,
    /// A refusal because of use is remembered.
    pub(super) mind_use: bool,
    /// How long the same is not asked for again after the driver has called it impossible.
    pub(super) rest: Duration,
}

/// Why a claim is not as large as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("PersistentVolume {0:?} is not there")]
    NoVolume(String),
    #[error("the driver grows no volume in use, and pod {0:?} uses this one")]
    InUse(String),
    #[error("the driver was asked for {asked} bytes and gave {given}")]
    TooSmall { asked: i64, given: i64 },
    #[error(transparent)]
    Access(#[from] access::Invalid),
    #[error(transparent)]
    Secret(#[from] secret::Error),
    #[error(transparent)]
    Api(#[from] Error),
    #[error("{}", rpc_error(.0))]
    Driver(Status),
}

impl Failure {
    /// An object that has changed meanwhile: looked at again, it will do. Nobody need know.
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_stale())
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Driver(status) => code_name(status.code().into()),
            _ => "InvalidAnswer",
        }
    }
}

/// A claim and its volume as they are now.
pub(super) struct Pair {
    pub(super) key: Key,
    pub(super) claim: PersistentVolumeClaim,
    pub(super) volume: PersistentVolume,
}

impl Pair {
    pub(super) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn volume_name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn handle(&self) -> String {
        let csi = self.volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default()
    }
}

/// Reads what a claim's work begins with; else how it ends at once.
pub(super) async fn begin<W: World>(world: &W, key: &Key, driver: &str) -> Result<Pair, Outcome> {
    match read(world, key, driver).await {
        Ok(pair) => pair.ok_or(Outcome::Done),
        Err(failure) => {
            warn!(claim = %key, error = chain(&failure), "trying again later");
            Err(Outcome::Retry)
        }
    }
}

/// Tells what was in the way of `work`, by an event with the message that `words` make of the error, and tries again.
pub(super) fn retry<W: World>(
    world: &W,
    pair: &Pair,
    failure: &Failure,
    (work, reason): (&str, &'static str),
    words: impl FnOnce(&str) -> String,
) -> Outcome {
    let (claim, volume, error) = (&pair.key, pair.volume_name(), chain(failure));
    if failure.is_stale() {
        debug!(%claim, volume, error, "the object has changed, trying again");
    } else {
        warn!(%claim, volume, error, "cannot {work} the volume, trying again later");
        world.tell(&pair.claim, Kind::Warning, reason, words(&error));
    }
    Outcome::Retry
}

/// Reads the claim and its volume, if the driver is to look after them.
pub(super) async fn read<W: World>(world: &W, key: &Key, driver: &str) -> Result<Option<Pair>, Failure> {
    let Some(claim) = world.claim(key).await? else { return Ok(None) };
    let Some(name) = facts::volume_name(&claim) else { return Ok(None) };
    let volume = world.volume(name).await?.ok_or_else(|| Failure::NoVolume(name.to_owned()))?;
    let ours = facts::is_pair(&claim, &volume, driver);
    Ok(ours.then(|| Pair { key: key.clone(), claim, volume }))
}

/// Brings the claim `key` to the size that it asks for.
pub(super) async fn sync<W: World>(world: &W, memory: &Memory, rules: &Rules, key: &Key) -> Outcome {
    let mut pair = match begin(world, key, &rules.driver).await {
        Ok(pair) => pair,
        Err(outcome) => return outcome,
    };
    match grow(world, memory, rules, &mut pair).await {
        Ok(outcome) => outcome,
        Err(failure) => retry(world, &pair, &failure, ("grow", "VolumeResizeFailed"), |error| {
            let volume = pair.volume_name();
            format!("resize of volume {volume:?} by driver {:?} failed: {error}", rules.driver)
        }),
    }
}

async fn grow<W: World>(
    world: &W,
    memory: &Memory,
    rules: &Rules,
    pair: &mut Pair,
) -> Result<Outcome, Failure> {
    if facts::has_grown(&pair.claim, &pair.volume) {
        let patch = patches::forget_size_before(&pair.volume);
        world.patch_volume(pair.volume_name(), patch).await?;
        return Ok(Outcome::Done);
    }
    let Some(sizes) = Sizes::of(&pair.claim, &pair.volume) else { return Ok(Outcome::Done) };
    let note = memory.of(pair.uid());
    let Some(target) = plan::target(&sizes, rules.way, note.ended || sizes.told_error) else {
        return Ok(Outcome::Done);
    };
    if sizes.allocated == Some(target)
        && let Some(rest) = note.rest(rules.rest, Instant::now())
    {
        return Ok(Outcome::Again(rest));
    }
    if note.in_use
        && rules.mind_use
        && let Some(pod) = world.user(&pair.key).await?
    {
        return Err(Failure::InUse(pod));
    }
    let request = match rules.way {
        Way::Controller => Some(request(world, rules, pair, target).await?),
        Way::Node => None,
    };
    memory.begin(pair.uid());
    if let Some(patch) = patches::begin(&pair.claim, target, jiff::Timestamp::now()) {
        pair.claim = world.patch_claim(&pair.key, patch).await?;
    }
    let volume = pair.volume_name().to_owned();
    info!(claim = %pair.key, volume, bytes = target, "growing");
    world.tell(&pair.claim, Kind::Normal, "Resizing", format!("growing volume {volume:?}"));
    let answer = match request {
        Some(request) => world.expand(request).await,
        None => {
            Ok(v1::ControllerExpandVolumeResponse { capacity_bytes: target, node_expansion_required: true })
        }
    };
    match answer {
        Ok(answer) if answer.capacity_bytes >= target => {
            grown(world, rules, pair, &answer).await?;
            if sizes.state == State::NodeInfeasible {
                memory.rests(pair.uid(), Instant::now());
            } else {
                memory.forget(pair.uid());
            }
            Ok(Outcome::Done)
        }
        Ok(answer) => {
            let failure = Failure::TooSmall { asked: target, given: answer.capacity_bytes };
            Err(refused(world, memory, pair, failure, Class::Final).await)
        }
        Err(status) => {
            let class = outcome::of_growth(&status);
            Err(refused(world, memory, pair, Failure::Driver(status), class).await)
        }
    }
}

async fn request<W: World>(
    world: &W,
    rules: &Rules,
    pair: &Pair,
    target: i64,
) -> Result<v1::ControllerExpandVolumeRequest, Failure> {
    let spec = pair.volume.spec.as_ref().ok_or_else(|| Failure::NoVolume(pair.volume_name().to_owned()))?;
    let reference = spec.csi.as_ref().and_then(|csi| csi.controller_expand_secret_ref.as_ref());
    let place = secret::place("controllerExpandSecretRef", reference).map_err(secret::Error::from)?;
    Ok(v1::ControllerExpandVolumeRequest {
        volume_id: pair.handle(),
        capacity_range: Some(v1::CapacityRange { required_bytes: target, ..v1::CapacityRange::default() }),
        secrets: world.secret(place).await?,
        volume_capability: Some(access::capability(spec, &rules.access)?),
    })
}

/// The driver has done its part: the volume's object says so first, then the claim.
async fn grown<W: World>(
    world: &W,
    rules: &Rules,
    pair: &mut Pair,
    answer: &v1::ControllerExpandVolumeResponse,
) -> Result<(), Failure> {
    let size = answer.capacity_bytes;
    let node = answer.node_expansion_required;
    let before = facts::actual(&pair.claim).filter(|_| node && rules.annotate);
    write_volume(world, pair, |volume| patches::of_volume(volume, size, before)).await?;
    let volume = pair.volume_name().to_owned();
    if node {
        write(world, pair, is_same_attempt, patches::node_pending).await?;
        info!(claim = %pair.key, volume, bytes = size, "grown, a node has to grow the file system");
        let message = "a node has to grow the file system of the volume".to_owned();
        world.tell(&pair.claim, Kind::Normal, "FileSystemResizeRequired", message);
    } else {
        write(world, pair, is_same_attempt, |claim, now| patches::done(claim, size, now)).await?;
        info!(claim = %pair.key, volume, bytes = size, "grown");
        let message = format!("volume {volume:?} has grown");
        world.tell(&pair.claim, Kind::Normal, "VolumeResizeSuccessful", message);
    }
    Ok(())
}

/// Notes what a failure means; what cannot be written is found out by another call.
async fn refused<W: World>(
    world: &W,
    memory: &Memory,
    pair: &mut Pair,
    failure: Failure,
    class: Class,
) -> Failure {
    memory.failed(pair.uid(), class, Instant::now());
    if class == Class::Unfinished {
        return failure;
    }
    let message = chain(&failure);
    let told = Told { kind: CONTROLLER_ERROR, reason: failure.reason(), message: &message };
    let infeasible = class == Class::Infeasible;
    let patch = |claim: &PersistentVolumeClaim, now| patches::failed(claim, told, infeasible, now);
    let written = write(world, pair, is_same_attempt, patch).await;
    if let Err(error) = written {
        debug!(claim = %pair.key, error = chain(&error), "cannot write the error into the status");
    }
    failure
}

/// Writes what came of a call into the volume's object, made anew when a change came in between.
pub(super) async fn write_volume<W: World>(
    world: &W,
    pair: &mut Pair,
    patch: impl Fn(&PersistentVolume) -> Option<Value>,
) -> Result<(), Failure> {
    let mut tries = 1..WRITES;
    while let Some(patch) = patch(&pair.volume) {
        match world.patch_volume(pair.volume_name(), patch).await {
            Ok(volume) => {
                pair.volume = volume;
                break;
            }
            Err(error) if error.is_conflict() && tries.next().is_some() => {
                let fresh = world.volume(pair.volume_name()).await?;
                pair.volume = fresh.ok_or_else(|| Failure::NoVolume(pair.volume_name().to_owned()))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes what came of a call. A change that came in between is read and the patch made anew, as long as `is_same`
/// holds for the claim as it was and as it is: then the status still tells of this call.
pub(super) async fn write<W: World>(
    world: &W,
    pair: &mut Pair,
    is_same: impl Fn(&PersistentVolumeClaim, &PersistentVolumeClaim) -> bool,
    patch: impl Fn(&PersistentVolumeClaim, jiff::Timestamp) -> Option<Value>,
) -> Result<(), Error> {
    let mut tries = 1..WRITES;
    while let Some(patch) = patch(&pair.claim, jiff::Timestamp::now()) {
        match world.patch_claim(&pair.key, patch).await {
            Ok(claim) => {
                pair.claim = claim;
                break;
            }
            Err(error) if error.is_conflict() && tries.next().is_some() => {
                let fresh = world.claim(&pair.key).await?;
                pair.claim = fresh.filter(|fresh| is_same(&pair.claim, fresh)).ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_same_attempt(before: &PersistentVolumeClaim, now: &PersistentVolumeClaim) -> bool {
    let recorded = |claim: &PersistentVolumeClaim| {
        let status = claim.status.clone().unwrap_or_default();
        (status.allocated_resources, status.allocated_resource_statuses)
    };
    before.metadata.uid == now.metadata.uid && recorded(before) == recorded(now)
}

#[cfg(test)]
mod tests;
