//! What is to be done for a VolumeSnapshot: pure.

pub(super) mod content;
pub(super) mod delete;
pub(super) mod make;
pub(super) mod status;

use std::collections::BTreeMap;

use dunnage_cluster::finalizer;
use dunnage_crds::snapshot::{DeletionPolicy, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

use crate::snapshot::{
    BOUND_FINALIZER, DEFAULT_CLASS, SOURCE_FINALIZER, annotation, bound_uid, is_group_member,
};

/// Why a snapshot is not as it should be: the reason of an event, and words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn problem(reason: &'static str, message: impl Into<String>) -> Problem {
    Problem { reason, message: message.into() }
}

/// Where a snapshot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source<'a> {
    Claim(&'a str),
    Content(&'a str),
}

/// The one source of a snapshot.
pub(super) fn source(snapshot: &VolumeSnapshot) -> Result<Source<'_>, Problem> {
    let source = &snapshot.spec.source;
    match (&source.persistent_volume_claim_name, &source.volume_snapshot_content_name) {
        (Some(claim), None) => Ok(Source::Claim(claim)),
        (None, Some(content)) => Ok(Source::Content(content)),
        _ => Err(problem(
            "SnapshotValidationError",
            "the source must be either a persistentVolumeClaimName or a volumeSnapshotContentName",
        )),
    }
}

/// The name of the content that is made for a snapshot.
pub(super) fn made_name(snapshot: &VolumeSnapshot) -> String {
    format!("snapcontent-{}", snapshot.metadata.uid.as_deref().unwrap_or_default())
}

/// The name of the content that a snapshot is, or is to be, bound to.
pub(super) fn content_name(snapshot: &VolumeSnapshot) -> String {
    let named = snapshot.spec.source.volume_snapshot_content_name.as_deref();
    let bound = snapshot.status.as_ref().and_then(|status| status.bound());
    named.or(bound).map_or_else(|| made_name(snapshot), str::to_owned)
}

/// Whether the content is this snapshot's and no other's.
pub(super) fn is_of(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    bound_uid(content).is_some()
        && bound_uid(content) == snapshot.metadata.uid.as_deref()
        && names(content, snapshot)
}

fn names(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    let of = &content.spec.volume_snapshot_ref;
    of.name == snapshot.metadata.name && of.namespace == snapshot.metadata.namespace
}

pub(super) fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
}

pub(super) fn is_bound(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.bound().is_some())
}

/// Whether the snapshot waits for a class to be chosen for it.
pub(super) fn lacks_class(snapshot: &VolumeSnapshot) -> bool {
    snapshot.spec.volume_snapshot_class_name.is_none()
        && matches!(source(snapshot), Ok(Source::Claim(_)))
        && !is_bound(snapshot)
        && !is_group_member(snapshot)
}

/// The default class of a driver.
pub(super) fn default_class<'a>(
    classes: impl IntoIterator<Item = &'a VolumeSnapshotClass>,
    driver: &str,
) -> Result<String, Problem> {
    let is_default = |class: &&VolumeSnapshotClass| {
        class.driver == driver && annotation(&class.metadata, DEFAULT_CLASS) == Some("true")
    };
    let mut names: Vec<&str> =
        classes.into_iter().filter(is_default).filter_map(|class| class.metadata.name.as_deref()).collect();
    names.sort_unstable();
    let refused = |message: String| problem("SetDefaultSnapshotClassFailed", message);
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        [] => Err(refused(format!(
            "driver {driver} has no default VolumeSnapshotClass: name one in volumeSnapshotClassName, or give one \
             the annotation {DEFAULT_CLASS}: \"true\""
        ))),
        several => Err(refused(format!(
            "driver {driver} has several default VolumeSnapshotClasses ({}): name one in volumeSnapshotClassName",
            several.join(", ")
        ))),
    }
}

/// The finalizers that a snapshot lacks.
pub(super) fn missing_finalizers(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
) -> Vec<&'static str> {
    let goes_too = content.is_some_and(|content| {
        is_of(content, snapshot) && content.spec.deletion_policy == DeletionPolicy::Delete
    });
    let mut wanted = vec![SOURCE_FINALIZER];
    if goes_too {
        wanted.push(BOUND_FINALIZER);
    }
    wanted.retain(|name| !finalizer::has(&snapshot.metadata, name));
    wanted
}

/// The next thing to do for a snapshot that is not being deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// The content is free and meant for this snapshot: it is told so.
    Bind,
    /// The content's status becomes the snapshot's.
    Copy,
    /// A snapshot is to be taken.
    Create,
}

/// Plans for a snapshot; `content` is the object of [`content_name`].
pub(super) fn step(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
) -> Result<Step, Problem> {
    let source = source(snapshot)?;
    let name = content_name(snapshot);
    let missing =
        || problem("SnapshotContentMissing", format!("VolumeSnapshotContent {name} does not exist"));
    if is_ready(snapshot) && is_bound(snapshot) {
        let content = content.ok_or_else(missing)?;
        return if is_of(content, snapshot) {
            Ok(Step::Nothing)
        } else {
            Err(problem("SnapshotMisbound", belongs_to_another(&name)))
        };
    }
    match (source, content) {
        (Source::Content(_), None) => Err(missing()),
        (Source::Content(_), Some(content)) if content.spec.source.snapshot_handle.is_none() => Err(problem(
            "SnapshotContentMismatch",
            format!("VolumeSnapshotContent {name} was made for another snapshot: it has no snapshotHandle"),
        )),
        (Source::Content(_), Some(content)) if names(content, snapshot) && bound_uid(content).is_none() => {
            Ok(Step::Bind)
        }
        (_, Some(content)) if !is_of(content, snapshot) => {
            Err(problem("SnapshotContentMisbound", belongs_to_another(&name)))
        }
        // Whoever takes it together with others binds it.
        (Source::Claim(_), None) if is_group_member(snapshot) => Ok(Step::Nothing),
        (Source::Claim(_), Some(content))
            if content.spec.source.snapshot_handle.is_some() && !is_group_member(snapshot) =>
        {
            Err(problem(
                "SnapshotHandleSet",
                format!("VolumeSnapshotContent {name} stands for a snapshot that was not taken for this one"),
            ))
        }
        (_, Some(_)) => Ok(Step::Copy),
        // It was there once: another snapshot under the same name would be of other data.
        (Source::Claim(_), None) if is_bound(snapshot) => Err(missing()),
        (Source::Claim(_), None) => Ok(Step::Create),
    }
}

fn belongs_to_another(name: &str) -> String {
    format!("VolumeSnapshotContent {name} is bound to another VolumeSnapshot")
}

/// The patch that binds a free content.
pub(super) fn bind(snapshot: &VolumeSnapshot) -> serde_json::Value {
    let mut spec = BTreeMap::from([("volumeSnapshotRef", serde_json::json!({"uid": snapshot.metadata.uid}))]);
    if let Some(class) = &snapshot.spec.volume_snapshot_class_name {
        spec.insert("volumeSnapshotClassName", class.as_str().into());
    }
    serde_json::json!({"spec": spec})
}

#[cfg(test)]
pub(super) mod tests;
