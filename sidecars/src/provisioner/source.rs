//! What a volume is to be filled from: which object a claim names, and whether it can serve.

use dunnage_csi::v1::VolumeContentSource;
use dunnage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{claim, names, request};
use crate::quantity;

/// A source as the driver knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Snapshot(String),
    Volume(String),
}

/// The object that a claim names, in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    None,
    Snapshot(&'a str),
    Claim(&'a str),
    /// Some other controller fills the claim.
    Populator(&'a str),
}

/// A source that cannot serve now.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("the claim's data source has no name")]
    NoName,
    #[error("a {kind} of API group {group:?} is no data source")]
    Group { kind: String, group: String },
    #[error("data sources in another namespace ({0:?}) are not supported")]
    OtherNamespace(String),
    #[error("source {kind} {name:?} {problem}")]
    Unfit { kind: &'static str, name: String, problem: String },
}

const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
const CLAIM: &str = "PersistentVolumeClaim";
const SNAPSHOT: &str = "VolumeSnapshot";

impl Source {
    pub fn content(&self) -> VolumeContentSource {
        let source = match self.clone() {
            Self::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
            Self::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
        };
        VolumeContentSource { r#type: Some(source) }
    }
}

/// The object that fills the claim; the older field goes first.
pub fn reference(claim: &PersistentVolumeClaim) -> Result<Reference<'_>, Invalid> {
    let Some(spec) = &claim.spec else { return Ok(Reference::None) };
    let (kind, name, group) = match (&spec.data_source, &spec.data_source_ref) {
        (Some(source), _) => (&source.kind, &source.name, &source.api_group),
        (None, Some(source)) => {
            if let Some(namespace) = source.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
                return Err(Invalid::OtherNamespace(namespace.to_owned()));
            }
            (&source.kind, &source.name, &source.api_group)
        }
        (None, None) => return Ok(Reference::None),
    };
    if name.is_empty() {
        return Err(Invalid::NoName);
    }
    let group = group.as_deref().unwrap_or_default();
    match (kind.as_str(), group) {
        (SNAPSHOT, SNAPSHOT_GROUP) => Ok(Reference::Snapshot(name)),
        (SNAPSHOT, _) => Err(Invalid::Group { kind: kind.clone(), group: group.to_owned() }),
        (CLAIM, "") => Ok(Reference::Claim(name)),
        _ => Ok(Reference::Populator(kind)),
    }
}

/// The kind of source, as the metrics name it.
pub fn kind(claim: &PersistentVolumeClaim) -> &'static str {
    match reference(claim) {
        Ok(Reference::Snapshot(_)) => SNAPSHOT,
        Ok(Reference::Claim(_)) => CLAIM,
        _ => "",
    }
}

/// Checks a claim to be cloned and the volume that is bound to it.
pub fn from_claim(
    claim: &PersistentVolumeClaim,
    driver: &str,
    source: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
) -> Result<Source, Invalid> {
    let unfit = |problem: &str| Invalid::Unfit {
        kind: CLAIM,
        name: source.metadata.name.clone().unwrap_or_default(),
        problem: problem.to_owned(),
    };
    if source.metadata.deletion_timestamp.is_some() {
        return Err(unfit("is being deleted"));
    }
    if phase(source.status.as_ref().and_then(|status| status.phase.as_ref())) != "Bound" {
        return Err(unfit("is not bound"));
    }
    if claim::class_name(claim).is_none() || claim::class_name(source).is_none() {
        return Err(unfit("and the claim must both name a StorageClass"));
    }
    let volume = volume.ok_or_else(|| unfit("has no PersistentVolume"))?;
    let spec = volume.spec.as_ref();
    let csi = spec.and_then(|spec| spec.csi.as_ref()).filter(|csi| csi.driver == driver);
    let csi = csi.ok_or_else(|| unfit("is on another driver"))?;
    let bound = spec.and_then(|spec| spec.claim_ref.as_ref());
    let same = |bound: &k8s_openapi::api::core::v1::ObjectReference| {
        bound.namespace == source.metadata.namespace
            && bound.name == source.metadata.name
            && bound.uid == source.metadata.uid
    };
    if !bound.is_some_and(same)
        || phase(volume.status.as_ref().and_then(|status| status.phase.as_ref())) != "Bound"
    {
        return Err(unfit("and its PersistentVolume are not bound to each other"));
    }
    if request::is_block(claim) != request::is_block(source) {
        return Err(unfit("has another volumeMode"));
    }
    let (asked, there) = (request::size(claim).ok(), request::size(source).ok());
    if asked < there {
        return Err(unfit("is larger than the claim asks for"));
    }
    Ok(Source::Volume(csi.volume_handle.clone()))
}

/// A `VolumeSnapshot` as far as it is read here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub metadata: ObjectMeta,
    pub status: Option<SnapshotStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SnapshotStatus {
    pub bound_volume_snapshot_content_name: Option<String>,
    pub ready_to_use: Option<bool>,
    pub restore_size: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

/// A `VolumeSnapshotContent` as far as it is read here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Content {
    pub metadata: ObjectMeta,
    pub spec: ContentSpec,
    pub status: Option<ContentStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContentSpec {
    pub driver: String,
    pub source_volume_mode: Option<String>,
    pub volume_snapshot_ref: k8s_openapi::api::core::v1::ObjectReference,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContentStatus {
    pub snapshot_handle: Option<String>,
}

/// The content that a snapshot is bound to, when it may be restored.
pub fn content_name(snapshot: &Snapshot) -> Result<&str, Invalid> {
    let unfit = |problem: &str| unfit_snapshot(snapshot, problem);
    let ours = snapshot.metadata.finalizers.iter().flatten().any(|found| found == names::SNAPSHOT_FINALIZER);
    // With our finalizer a restore has begun already: stopping it now could leave a volume behind.
    if snapshot.metadata.deletion_timestamp.is_some() && !ours {
        return Err(unfit("is being deleted"));
    }
    let status = snapshot.status.as_ref();
    status
        .and_then(|status| status.bound_volume_snapshot_content_name.as_deref())
        .ok_or_else(|| unfit("is not bound to a VolumeSnapshotContent yet"))
}

/// Checks a snapshot and its content.
pub fn from_snapshot(
    claim: &PersistentVolumeClaim,
    driver: &str,
    keep_mode: bool,
    snapshot: &Snapshot,
    content: &Content,
) -> Result<Source, Invalid> {
    let unfit = |problem: &str| unfit_snapshot(snapshot, problem);
    let of = &content.spec.volume_snapshot_ref;
    let metadata = &snapshot.metadata;
    if of.uid != metadata.uid || of.name != metadata.name || of.namespace != metadata.namespace {
        return Err(unfit("and its VolumeSnapshotContent are not bound to each other"));
    }
    if content.spec.driver != driver {
        return Err(unfit("is on another driver"));
    }
    if snapshot.status.as_ref().and_then(|status| status.ready_to_use) != Some(true) {
        return Err(unfit("is not ready to use"));
    }
    let least = snapshot.status.as_ref().and_then(|status| quantity::parse(status.restore_size.as_ref()?));
    if least.is_some() && request::size(claim).ok() < least {
        return Err(unfit("is larger than the claim asks for"));
    }
    let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    let changed =
        content.spec.source_volume_mode.as_deref().is_some_and(|of| mode.is_some_and(|to| of != to));
    if keep_mode && changed && !allows_mode_change(content) {
        return Err(unfit("has another volumeMode, and its content does not allow to change it"));
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    handle.map(Source::Snapshot).ok_or_else(|| unfit("has no handle yet"))
}

fn allows_mode_change(content: &Content) -> bool {
    let value = content
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(names::ALLOW_MODE_CHANGE));
    value.is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value.as_str()))
}

fn unfit_snapshot(snapshot: &Snapshot, problem: &str) -> Invalid {
    let name = snapshot.metadata.name.clone().unwrap_or_default();
    Invalid::Unfit { kind: SNAPSHOT, name, problem: problem.to_owned() }
}

fn phase(phase: Option<&String>) -> &str {
    phase.map_or("", String::as_str)
}

#[cfg(test)]
mod tests;
