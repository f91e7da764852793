//! From what was seen to the status of a backend. Pure.

mod nodes;

use std::collections::BTreeMap;

use dunnage_crds::conditions::{Conditions, Status, find, holds, reasons, types};
use dunnage_crds::{Blocker, Capacity, StorageBackendStatus, Usage, Versions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
pub use nodes::{NodeView, PodView, node_problem};

use crate::agents::Agent;
use crate::pools::Problem;
use crate::removal::{self, Uses};

/// Why the spec cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub reason: &'static str,
    pub message: String,
}

/// The controller's pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller {
    pub desired: i32,
    pub ready: i32,
    pub updated: i32,
    /// What the pods that are not ready wait for.
    pub message: String,
}

/// All that the status depends on.
pub struct Inputs<'a> {
    pub last: Option<&'a StorageBackendStatus>,
    pub generation: Option<i64>,
    pub driver: &'a str,
    pub topology_key: &'a str,
    pub deleting: bool,
    pub rejected: Option<&'a Rejected>,
    pub controller: &'a Controller,
    pub nodes: &'a [NodeView],
    pub agents: &'a BTreeMap<String, Agent>,
    pub problems: &'a BTreeMap<String, Problem>,
    /// All default classes of the cluster.
    pub default_classes: &'a [String],
    pub uses: &'a Uses,
    pub blockers: &'a [Blocker],
    pub version: &'a str,
    pub now: &'a Time,
}

/// The new status.
pub fn status(inputs: &Inputs<'_>) -> StorageBackendStatus {
    let nodes = nodes::summarise(inputs);
    let last = inputs.last.map_or(&[][..], |status| &status.conditions);
    let (accepted, accepted_why, accepted_text) = match inputs.rejected {
        None => (Status::True, reasons::ACCEPTED, "the spec is carried out".to_owned()),
        Some(rejected) => (Status::False, rejected.reason, rejected.message.clone()),
    };
    let (controller, controller_why, controller_text) = controller(inputs.controller);
    let (nodes_ready, nodes_why, nodes_text) = nodes::ready(&nodes);
    let (limits, limits_why, limits_text) = nodes::limits(inputs.agents);
    let (unique, unique_why, unique_text) = defaults(inputs.default_classes);
    let (removable, removable_why, removable_text) = removable(inputs);

    let updating = inputs.controller.updated < inputs.controller.desired || nodes.updated < nodes.desired;
    let (progressing, progressing_why, progressing_text) = if inputs.deleting {
        (Status::True, reasons::DELETING, "the backend is being deleted".to_owned())
    } else if updating {
        let text = format!(
            "{} of {} controller pods and {} of {} nodes have the latest version",
            inputs.controller.updated, inputs.controller.desired, nodes.updated, nodes.desired
        );
        (Status::True, reasons::UPDATING, text)
    } else {
        (Status::False, reasons::UP_TO_DATE, "everything is as the spec says".to_owned())
    };

    let (ready, ready_why, ready_text) = if inputs.deleting {
        (Status::False, reasons::DELETING, removable_text.clone())
    } else if accepted != Status::True {
        (Status::False, accepted_why, accepted_text.clone())
    } else if controller != Status::True {
        (Status::False, controller_why, controller_text.clone())
    } else if nodes_ready != Status::True {
        (Status::False, nodes_why, nodes_text.clone())
    } else {
        (Status::True, reasons::READY, format!("claims are served on {} nodes", nodes.summary))
    };

    let conditions = Conditions::following(last, inputs.generation, inputs.now)
        .set(types::READY, ready, ready_why, ready_text)
        .set(types::PROGRESSING, progressing, progressing_why, progressing_text)
        .set(types::CONFIG_ACCEPTED, accepted, accepted_why, accepted_text)
        .set(types::CONTROLLER_READY, controller, controller_why, controller_text)
        .set(types::NODES_READY, nodes_ready, nodes_why, nodes_text)
        .set(types::LIMITS_ENFORCED, limits, limits_why, limits_text)
        .set(types::DEFAULT_CLASS_UNIQUE, unique, unique_why, unique_text)
        .set(types::REMOVABLE, removable, removable_why, removable_text)
        .build();

    StorageBackendStatus {
        observed_generation: inputs.generation,
        conditions,
        driver_name: Some(inputs.driver.to_owned()),
        nodes: Some(nodes),
        capacity: capacity(inputs.agents),
        usage: Some(usage(inputs)),
        versions: Some(versions(inputs)),
        blocking: if inputs.deleting { inputs.blockers.to_vec() } else { Vec::new() },
    }
}

fn controller(seen: &Controller) -> (Status, &'static str, String) {
    let count = format!("{} of {} controller pods are ready", seen.ready, seen.desired);
    // One pod serves all claims; the second is for the day that its node dies.
    match (seen.ready > 0, seen.message.is_empty()) {
        (true, _) => (Status::True, reasons::PODS_READY, count),
        (false, true) => (Status::False, reasons::PODS_NOT_READY, count),
        (false, false) => (Status::False, reasons::PODS_NOT_READY, format!("{count}: {}", seen.message)),
    }
}

fn defaults(classes: &[String]) -> (Status, &'static str, String) {
    match classes {
        [] => (Status::True, reasons::UNIQUE, "the cluster has no default class".to_owned()),
        [one] => (Status::True, reasons::UNIQUE, format!("{one} is the cluster's default class")),
        several => {
            let text = format!(
                "the cluster has several default classes ({}), the newest is used: take the annotation \
                 storageclass.kubernetes.io/is-default-class off all but one",
                several.join(", ")
            );
            (Status::False, reasons::SEVERAL_DEFAULTS, text)
        }
    }
}

fn removable(inputs: &Inputs<'_>) -> (Status, &'static str, String) {
    if inputs.blockers.is_empty() {
        let text =
            if inputs.deleting { "nothing is in use, all is being removed" } else { "nothing is in use" };
        return (Status::True, reasons::UNUSED, text.to_owned());
    }
    let held = removal::summary(inputs.blockers);
    let text = if inputs.deleting { format!("the deletion waits for {held}") } else { held };
    (Status::False, reasons::IN_USE, text)
}

fn capacity(agents: &BTreeMap<String, Agent>) -> Option<Capacity> {
    let mut facts = agents.values().filter_map(Agent::facts).filter(|facts| facts.total_bytes > 0).peekable();
    facts.peek()?;
    let (total, available) = facts.fold((0, 0), |(total, available), facts| {
        (total + facts.total_bytes, available + facts.available_bytes)
    });
    Some(Capacity { total: bytes(total), available: bytes(available) })
}

/// Three digits or so, in binary units: precise enough for people, coarse enough not to change all the time.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let power = (0..UNITS.len()).rev().find(|power| count >> (10 * power) > 0).unwrap_or(0);
    let scale = 1_u64 << (10 * power);
    let (whole, tenth) = (count / scale, count % scale / (scale / 10).max(1));
    match UNITS[power] {
        unit if power > 0 && whole < 100 => format!("{whole}.{}{unit}", tenth.min(9)),
        unit => format!("{whole}{unit}"),
    }
}

fn usage(inputs: &Inputs<'_>) -> Usage {
    let known: std::collections::BTreeSet<&str> =
        inputs.uses.volumes.iter().map(|volume| volume.handle.as_str()).collect();
    let present = inputs.agents.values().filter_map(Agent::facts).flat_map(|facts| &facts.volumes);
    // While a volume is being made it has no PersistentVolume yet, and is no orphan.
    let orphans = if inputs.uses.claims.is_empty() {
        present.filter(|id| !known.contains(id.as_str())).count()
    } else {
        inputs
            .last
            .and_then(|last| last.usage.as_ref())
            .map_or(0, |usage| usize::try_from(usage.orphans).unwrap_or(0))
    };
    Usage {
        volumes: count(inputs.uses.volumes.len()),
        attachments: count(inputs.uses.attachments.len()),
        orphans: count(orphans),
    }
}

fn versions(inputs: &Inputs<'_>) -> Versions {
    let mut drivers: Vec<String> =
        inputs.agents.values().filter_map(Agent::facts).map(|facts| facts.version.clone()).collect();
    drivers.sort();
    drivers.dedup();
    drivers.truncate(16);
    Versions { operator: inputs.version.to_owned(), drivers }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// An event that tells of a condition that turned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub reason: &'static str,
    pub message: String,
    pub warning: bool,
}

/// What is worth an event between two statuses: a condition that people count on turned.
pub fn turns(last: Option<&StorageBackendStatus>, new: &StorageBackendStatus) -> Vec<Turn> {
    let before = last.map_or(&[][..], |status| &status.conditions);
    let mut turns = Vec::new();
    for (type_, good, bad) in [
        (types::CONFIG_ACCEPTED, None, "ConfigRejected"),
        (types::DEFAULT_CLASS_UNIQUE, None, "SeveralDefaults"),
        (types::READY, Some("Ready"), "NotReady"),
    ] {
        let (Some(now), was) = (find(&new.conditions, type_), find(before, type_)) else { continue };
        let turned = was.is_some_and(|was| was.status != now.status);
        // At the start nothing is ready yet, and that is no news; a refused spec is, and so is another refusal.
        let refused = type_ == types::CONFIG_ACCEPTED && was.is_none_or(|was| was.message != now.message);
        let message = now.message.clone();
        match (holds(&new.conditions, type_), good) {
            (true, Some(reason)) if turned => turns.push(Turn { reason, message, warning: false }),
            (false, _) if turned || refused => turns.push(Turn { reason: bad, message, warning: true }),
            _ => {}
        }
    }
    turns
}

#[cfg(test)]
mod tests;
