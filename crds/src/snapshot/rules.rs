//! What the API server refuses in snapshots.

use kube::core::{Message, Rule};

fn rule(expression: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Message(message.into()))
}

/// Exactly one of two fields.
pub(super) fn one_of(one: &str, other: &str) -> Rule {
    rule(
        format!("has(self.{one}) != has(self.{other})"),
        format!("set either {one} or {other}, and only one"),
    )
}

/// A field that keeps its value. The rule holds between two values only: [`stays`] holds when the field is taken away.
pub(super) fn immutable(field: &str) -> Rule {
    rule("self == oldSelf", format!("{field} is immutable: make another object"))
}

/// A field that is never taken away.
pub(super) fn stays(field: &str) -> Rule {
    rule(
        format!("!has(oldSelf.{field}) || has(self.{field})"),
        format!("{field} cannot be taken away once it is set: make another object"),
    )
}

pub(super) fn not_empty(field: &str) -> Rule {
    rule(
        "self.size() > 0",
        format!("{field} must not be the empty string: leave it out to have the default class"),
    )
}

/// The word `namespace` is reserved in the expressions.
pub(super) fn names_a_snapshot() -> Rule {
    rule(
        "has(self.name) && has(self.__namespace__)",
        "volumeSnapshotRef must have the name and the namespace of a VolumeSnapshot",
    )
}
