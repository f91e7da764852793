//! Conditions: their types and reasons, and how a new list follows from the old one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Types of conditions.
pub mod types {
    /// The summary: claims can be served on every node that should.
    pub const READY: &str = "Ready";
    /// Something is being changed.
    pub const PROGRESSING: &str = "Progressing";
    /// The spec makes sense in this cluster.
    pub const CONFIG_ACCEPTED: &str = "ConfigAccepted";
    /// The controller plugin runs.
    pub const CONTROLLER_READY: &str = "ControllerReady";
    /// The driver is registered on every node that should have it.
    pub const NODES_READY: &str = "NodesReady";
    /// A volume's size is a hard limit on every node.
    pub const LIMITS_ENFORCED: &str = "LimitsEnforced";
    /// The cluster has one default class at most.
    pub const DEFAULT_CLASS_UNIQUE: &str = "DefaultClassUnique";
    /// Nothing is in use: the backend could be deleted.
    pub const REMOVABLE: &str = "Removable";
}

/// Reasons of conditions.
pub mod reasons {
    /// All is well.
    pub const READY: &str = "Ready";
    /// Everything is as the spec says.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// Objects are being written or pods replaced.
    pub const UPDATING: &str = "Updating";
    /// The spec is accepted.
    pub const ACCEPTED: &str = "Accepted";
    /// The spec cannot work here.
    pub const INVALID: &str = "Invalid";
    /// An object of a name that is needed belongs to somebody else.
    pub const FOREIGN_OBJECT: &str = "ForeignObject";
    /// A field that cannot be changed in place differs.
    pub const IMMUTABLE_FIELD: &str = "ImmutableField";
    /// The API server refused an object.
    pub const APPLY_FAILED: &str = "ApplyFailed";
    /// The pods that are wanted are ready.
    pub const PODS_READY: &str = "PodsReady";
    /// Pods are not ready.
    pub const PODS_NOT_READY: &str = "PodsNotReady";
    /// All nodes have the driver.
    pub const ALL_REGISTERED: &str = "AllRegistered";
    /// Some nodes lack the driver.
    pub const NODES_MISSING: &str = "NodesMissing";
    /// The backend selects no node.
    pub const NO_NODES: &str = "NoNodes";
    /// Sizes are hard limits.
    pub const ENFORCED: &str = "Enforced";
    /// Sizes are accounted for but not enforced.
    pub const ACCOUNTING_ONLY: &str = "AccountingOnly";
    /// No agent has told yet.
    pub const UNKNOWN: &str = "Unknown";
    /// There is one default class, or none.
    pub const UNIQUE: &str = "Unique";
    /// There are several default classes.
    pub const SEVERAL_DEFAULTS: &str = "SeveralDefaults";
    /// Nothing uses the backend.
    pub const UNUSED: &str = "Unused";
    /// Something uses the backend.
    pub const IN_USE: &str = "InUse";
    /// The backend is being deleted.
    pub const DELETING: &str = "Deleting";
}

/// Reasons of problems on a node.
pub mod problems {
    /// The node has no pod of the backend, or the pod is not ready.
    pub const POD_NOT_READY: &str = "PodNotReady";
    /// The kubelet does not list the driver.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// The node's label names another pool than its agent.
    pub const TOPOLOGY_STALE: &str = "TopologyStale";
    /// The agent does not answer.
    pub const AGENT_UNREACHABLE: &str = "AgentUnreachable";
    /// The node had a pool and its path is empty now.
    pub const POOL_MISSING: &str = "PoolMissing";
    /// The path has other files.
    pub const POOL_NOT_EMPTY: &str = "PoolNotEmpty";
    /// The path cannot be used.
    pub const POOL_UNAVAILABLE: &str = "PoolUnavailable";
    /// Nothing is mounted at the path.
    pub const POOL_NOT_MOUNTED: &str = "PoolNotMounted";
    /// The pool is another backend's.
    pub const POOL_FOREIGN: &str = "PoolForeign";
    /// The pool was written by a newer version.
    pub const POOL_NEWER_FORMAT: &str = "PoolNewerFormat";
    /// The pool's marker cannot be read.
    pub const POOL_DAMAGED: &str = "PoolDamaged";
    /// The same pool is on two nodes.
    pub const POOL_DUPLICATE: &str = "PoolDuplicate";
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody can tell yet.
    Unknown,
}

impl Status {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Builds a list of conditions that follows from the last one.
pub struct Conditions<'a> {
    last: &'a [Condition],
    now: &'a Time,
    generation: Option<i64>,
    list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// Starts from the conditions that the status has.
    pub fn following(last: &'a [Condition], generation: Option<i64>, now: &'a Time) -> Self {
        Self { last, now, generation, list: Vec::new() }
    }

    /// Sets one condition; its transition time moves only when its status does.
    #[must_use]
    pub fn set(mut self, type_: &str, status: Status, reason: &str, message: impl Into<String>) -> Self {
        let unchanged = self.last.iter().find(|c| c.type_ == type_ && c.status == status.as_str());
        self.list.retain(|c| c.type_ != type_);
        self.list.push(Condition {
            type_: type_.to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.to_owned(),
            message: bounded(message.into()),
            observed_generation: self.generation,
            last_transition_time: unchanged.map_or(self.now, |c| &c.last_transition_time).clone(),
        });
        self
    }

    /// The new list, in the order in which the conditions were set.
    pub fn build(self) -> Vec<Condition> {
        self.list
    }
}

/// Cuts a message to what the API server takes.
fn bounded(mut message: String) -> String {
    const LIMIT: usize = 32_768;
    if message.len() > LIMIT {
        let end = (0..=LIMIT - '…'.len_utf8()).rev().find(|&at| message.is_char_boundary(at));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    message
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of a type is there and holds.
pub fn holds(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == Status::True.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: u32) -> Time {
        serde_json::from_value(format!("2026-01-01T00:00:{second:02}Z").into()).expect("a time")
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let (then, now) = (time(1), time(2));
        let first = Conditions::following(&[], Some(1), &then)
            .set(types::READY, Status::False, reasons::UPDATING, "waiting")
            .build();
        for (status, expected) in [(Status::False, &then), (Status::True, &now), (Status::Unknown, &now)] {
            let next = Conditions::following(&first, Some(2), &now)
                .set(types::READY, status, reasons::READY, "other words")
                .build();
            assert_eq!(&next[0].last_transition_time, expected, "{status:?}");
            assert_eq!(next[0].message, "other words");
            assert_eq!(next[0].observed_generation, Some(2));
        }
    }

    #[test]
    fn a_condition_set_twice_has_its_last_value() {
        let now = time(1);
        let list = Conditions::following(&[], None, &now)
            .set(types::READY, Status::True, reasons::READY, "")
            .set(types::READY, Status::False, reasons::INVALID, "")
            .build();
        assert_eq!(list.len(), 1);
        assert!(!holds(&list, types::READY));
    }

    #[test]
    fn a_condition_that_is_not_set_again_is_gone() {
        let now = time(1);
        let first = Conditions::following(&[], None, &now)
            .set(types::REMOVABLE, Status::True, reasons::UNUSED, "")
            .build();
        assert!(Conditions::following(&first, None, &now).build().is_empty());
    }

    #[test]
    fn a_message_is_cut_to_what_the_api_server_takes() {
        let now = time(1);
        let list = Conditions::following(&[], None, &now)
            .set(types::READY, Status::False, reasons::INVALID, "ä".repeat(40_000))
            .build();
        assert!(list[0].message.len() <= 32_768);
        assert!(list[0].message.ends_with('…'));
    }
}
