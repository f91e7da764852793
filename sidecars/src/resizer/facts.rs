//! What a claim and its volume say of sizes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;

pub(super) const RESIZING: &str = "Resizing";
pub(super) const FILE_SYSTEM_PENDING: &str = "FileSystemResizePending";
pub(super) const CONTROLLER_ERROR: &str = "ControllerResizeError";
pub(super) const NODE_ERROR: &str = "NodeResizeError";

/// On a claim: the node has nothing to do when the volume has grown.
pub(super) const NO_NODE_EXPANSION: &str = "volume.kubernetes.io/node-expansion-not-required";
/// On a volume: its size before it grew, until the node has done its part.
pub(super) const SIZE_BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// On a claim: who is to grow it.
pub(super) const RESIZER: &str = "volume.kubernetes.io/storage-resizer";

/// How far an attempt to grow a claim has come, as its status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    None,
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
    /// A word of a later time.
    Other,
}

pub(super) const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
pub(super) const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
pub(super) const NODE_PENDING: &str = "NodeResizePending";

impl State {
    pub(super) fn of(claim: &PersistentVolumeClaim) -> Self {
        let statuses = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
        match statuses.and_then(|statuses| statuses.get("storage")).map(String::as_str) {
            None | Some("") => Self::None,
            Some(CONTROLLER_IN_PROGRESS) => Self::ControllerInProgress,
            Some(CONTROLLER_INFEASIBLE) => Self::ControllerInfeasible,
            Some(NODE_PENDING) => Self::NodePending,
            Some("NodeResizeInProgress") => Self::NodeInProgress,
            Some("NodeResizeInfeasible") => Self::NodeInfeasible,
            Some(_) => Self::Other,
        }
    }
}

/// All that counts for growing, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// What the claim asks for.
    pub(super) requested: i64,
    /// What the claim has.
    pub(super) actual: i64,
    /// What the last attempt was for.
    pub(super) allocated: Option<i64>,
    /// What the volume's object says.
    pub(super) volume: i64,
    pub(super) state: State,
    /// A node is to grow the file system.
    pub(super) awaits_node: bool,
    /// The status tells of an error, so that the last call has ended without a change.
    pub(super) told_error: bool,
}

impl Sizes {
    /// None when a size is missing or is no size.
    pub(super) fn of(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Self> {
        let status = claim.status.as_ref()?;
        Some(Self {
            requested: requested(claim)?,
            actual: actual(claim)?,
            allocated: storage(status.allocated_resources.as_ref()),
            volume: storage(volume.spec.as_ref()?.capacity.as_ref())?,
            state: State::of(claim),
            awaits_node: has_condition(claim, FILE_SYSTEM_PENDING),
            told_error: has_condition(claim, CONTROLLER_ERROR),
        })
    }
}

/// What a claim asks for.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<i64> {
    storage(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref())
}

/// What a claim has.
pub(super) fn actual(claim: &PersistentVolumeClaim) -> Option<i64> {
    storage(claim.status.as_ref()?.capacity.as_ref())
}

pub(super) fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> Option<i64> {
    quantity::parse(amounts?.get("storage")?)
}

/// Whether a condition holds.
pub(super) fn has_condition(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Whether a condition is there, whatever it says.
pub(super) fn mentions(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == kind)
}

/// The volume of a claim that is bound.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let bound = claim.status.as_ref()?.phase.as_deref() == Some("Bound");
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| bound && !name.is_empty())
}

/// Whether `volume` is the driver's, and its claim is `claim`.
pub(super) fn is_pair(claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver: &str) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == driver);
    ours && spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.namespace == claim.metadata.namespace
            && reference.uid.is_some()
            && reference.uid == claim.metadata.uid
    })
}

/// Whether a claim asks for more than it has.
pub(super) fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    requested(claim).zip(actual(claim)).is_some_and(|(requested, actual)| requested > actual)
}

/// Whether the note of the size before is of no use any more: the claim has all that the volume has.
pub(super) fn has_grown(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let noted = volume.metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(SIZE_BEFORE));
    let capacity = volume.spec.as_ref().and_then(|spec| storage(spec.capacity.as_ref()));
    noted
        && !wants_more(claim)
        && actual(claim).zip(capacity).is_some_and(|(actual, volume)| actual >= volume)
}
