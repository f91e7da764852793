//! What is to be done for a VolumeSnapshotContent of our driver: pure.

use std::collections::{BTreeMap, HashMap};

use dunnage_cluster::finalizer;
use dunnage_crds::snapshot::{
    DeletionPolicy, SnapshotError, VolumeSnapshotContent, VolumeSnapshotContentStatus,
};
use dunnage_csi::v1::{CreateSnapshotRequest, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tonic::Status;

use crate::provisioner::names::{PARAMETER_PREFIX, volume_name};
use crate::provisioner::outcome::{self, Failure};
use crate::provisioner::secrets::SecretRef;
use crate::snapshot::params;
use crate::snapshot::{
    BEING_CREATED, BEING_DELETED, CONTENT_FINALIZER, SECRET_NAME, SECRET_NAMESPACE, annotation, bound_uid,
    is_deleting, is_group_content, is_marked, is_ready,
};

/// What the command line and the driver's capabilities decide.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) prefix: String,
    pub(super) uuid_length: i32,
    /// The driver is told the names of snapshot and content.
    pub(super) metadata: bool,
    pub(super) look: Look,
}

/// How a snapshot that exists already is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    List,
    Get,
    /// The driver cannot: it counts as ready.
    No,
}

/// The next thing to do for a content.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Nothing,
    /// The snapshot on the storage goes, then the content.
    Delete {
        handle: &'a str,
    },
    /// The content goes; on the storage there is nothing, or it stays.
    LetGo,
    /// CreateSnapshot, which also tells how far the snapshot is.
    Create {
        volume: &'a str,
    },
    /// The snapshot was there before its content.
    Look {
        handle: &'a str,
    },
    /// All is done, but the mark of a CreateSnapshot is left.
    Unmark,
}

/// Plans for a content.
pub(super) fn step(content: &VolumeSnapshotContent) -> Step<'_> {
    let meta = &content.metadata;
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.as_deref());
    if may_go(content) {
        let goes_too = content.spec.deletion_policy == DeletionPolicy::Delete && !is_group_content(content);
        return match handle.filter(|handle| goes_too && !handle.is_empty()) {
            Some(handle) => Step::Delete { handle },
            None if finalizer::has(meta, CONTENT_FINALIZER) => Step::LetGo,
            None => Step::Nothing,
        };
    }
    if is_ready(content) {
        return if is_marked(meta, BEING_CREATED) { Step::Unmark } else { Step::Nothing };
    }
    let source = &content.spec.source;
    match (source.volume_handle.as_deref(), source.snapshot_handle.as_deref()) {
        // What a group's controller takes is not taken here.
        (Some(_), None) if is_group_content(content) => match handle {
            Some(handle) => Step::Look { handle },
            None => Step::Nothing,
        },
        (Some(volume), None) => Step::Create { volume },
        (None, Some(handle)) => Step::Look { handle },
        // Refused by the controller, which also tells.
        _ => Step::Nothing,
    }
}

/// Whether the content's end may begin: asked for, wanted by the controller, and with no CreateSnapshot whose end is
/// not known.
fn may_go(content: &VolumeSnapshotContent) -> bool {
    let meta = &content.metadata;
    let never_bound = content.spec.source.snapshot_handle.is_some() && bound_uid(content).is_none();
    is_deleting(meta) && (never_bound || (!is_marked(meta, BEING_CREATED) && is_marked(meta, BEING_DELETED)))
}

/// Whether a CreateSnapshot must be noted first: until the driver's id is known, only the mark keeps the content.
pub(super) fn needs_mark(content: &VolumeSnapshotContent) -> bool {
    let known = content.status.as_ref().is_some_and(|status| status.snapshot_handle.is_some());
    !known && !is_marked(&content.metadata, BEING_CREATED)
}

/// The patch that notes a CreateSnapshot. It fails when the content is not what was planned for, and it keeps the
/// content: the controller's finalizer may still be on its way.
pub(super) fn mark(content: &VolumeSnapshotContent) -> Value {
    let meta = &content.metadata;
    let mut patch = json!({"metadata": {
        "resourceVersion": meta.resource_version, "annotations": {BEING_CREATED: "yes"},
    }});
    if !is_deleting(meta) && !finalizer::has(meta, CONTENT_FINALIZER) {
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        finalizers.push(CONTENT_FINALIZER.to_owned());
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    patch
}

/// The patch that takes the mark off.
pub(super) fn unmark() -> Value {
    json!({"metadata": {"annotations": {BEING_CREATED: null}}})
}

/// The secret for taking and deleting the snapshot.
pub(super) fn secret(content: &VolumeSnapshotContent) -> Option<SecretRef> {
    let value = |key| annotation(&content.metadata, key).filter(|value| !value.is_empty());
    let (name, namespace) = (value(SECRET_NAME)?, value(SECRET_NAMESPACE)?);
    Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
}

/// The request for a snapshot, without its secrets: the same at each try.
pub(super) fn request(
    content: &VolumeSnapshotContent,
    volume: &str,
    parameters: &BTreeMap<String, String>,
    rules: &Rules,
) -> Result<CreateSnapshotRequest, params::Invalid> {
    let of = &content.spec.volume_snapshot_ref;
    let mut parameters = params::of_driver(parameters)?;
    if rules.metadata {
        for (key, value) in [
            ("volumesnapshot/name", &of.name),
            ("volumesnapshot/namespace", &of.namespace),
            ("volumesnapshotcontent/name", &content.metadata.name),
        ] {
            parameters.insert(format!("{PARAMETER_PREFIX}{key}"), value.clone().unwrap_or_default());
        }
    }
    Ok(CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: volume_name(&rules.prefix, rules.uuid_length, bound_uid(content).unwrap_or_default()),
        secrets: HashMap::new(),
        parameters: parameters.into_iter().collect(),
    })
}

/// Whether a failed CreateSnapshot has made nothing and makes nothing any more.
pub(super) fn is_final(status: &Status) -> bool {
    matches!(outcome::of(status), Failure::Final | Failure::Infeasible)
}

/// The status that the driver's answer gives a content.
pub(super) fn found(
    content: &VolumeSnapshotContent,
    snapshot: &Snapshot,
    now: Timestamp,
) -> VolumeSnapshotContentStatus {
    let before = content.status.clone().unwrap_or_default();
    let taken = snapshot
        .creation_time
        .as_ref()
        .map(|at| at.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(at.nanos)));
    let now = || i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
    VolumeSnapshotContentStatus {
        snapshot_handle: Some(snapshot.snapshot_id.clone()),
        creation_time: taken.or(before.creation_time).or_else(|| Some(now())),
        restore_size: (snapshot.size_bytes > 0).then_some(snapshot.size_bytes).or(before.restore_size),
        ready_to_use: Some(snapshot.ready_to_use),
        error: None,
        volume_group_snapshot_handle: Some(snapshot.group_snapshot_id.clone())
            .filter(|group| !group.is_empty())
            .or(before.volume_group_snapshot_handle),
    }
}

/// The status of a content whose call has failed. What else is known stays.
pub(super) fn failed(
    content: &VolumeSnapshotContent,
    message: &str,
    now: Timestamp,
) -> VolumeSnapshotContentStatus {
    let mut status = content.status.clone().unwrap_or_default();
    let told = status.error.as_ref().and_then(|error| error.message.as_deref()) == Some(message);
    if !told {
        status.error = Some(SnapshotError { time: Some(Time(now)), message: Some(message.to_owned()) });
    }
    status.ready_to_use = Some(false);
    status
}

/// The status of a content whose snapshot is gone from the storage.
pub(super) fn gone(content: &VolumeSnapshotContent) -> VolumeSnapshotContentStatus {
    let before = content.status.clone().unwrap_or_default();
    VolumeSnapshotContentStatus { error: before.error, ..VolumeSnapshotContentStatus::default() }
}

/// The patch from a content's status to `wanted`; none when it is so already.
pub(super) fn patch(content: &VolumeSnapshotContent, wanted: &VolumeSnapshotContentStatus) -> Option<Value> {
    if content.status.as_ref() == Some(wanted) {
        return None;
    }
    // What is not there any more is removed.
    Some(json!({"status": {
        "snapshotHandle": wanted.snapshot_handle,
        "creationTime": wanted.creation_time,
        "restoreSize": wanted.restore_size,
        "readyToUse": wanted.ready_to_use,
        "error": wanted.error,
        "volumeGroupSnapshotHandle": wanted.volume_group_snapshot_handle,
    }}))
}

#[cfg(test)]
pub(super) mod tests;
