//! What the two snapshot roles have in common: the marks by which they speak to each other, and the parameters of
//! classes.

pub(crate) mod params;

use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Keeps a content until its snapshot on the storage is deleted or let go.
pub(crate) const CONTENT_FINALIZER: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Keeps a snapshot while a volume may be made from it.
pub(crate) const SOURCE_FINALIZER: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Keeps a snapshot until its content is gone.
pub(crate) const BOUND_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Keeps a claim while a snapshot of it is being taken.
pub(crate) const CLAIM_FINALIZER: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";

/// On a content, by the controller: its snapshot is being deleted, so the driver's side may act.
pub(crate) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a content, by the driver's side: a CreateSnapshot may be under way, so nothing may be deleted.
pub(crate) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a content: where the secret for making and deleting the snapshot is.
pub(crate) const SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// The namespace to it.
pub(crate) const SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a class.
pub(crate) const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// On a content whose snapshot was taken, and is deleted, together with others.
const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
/// What owns the snapshots of a group.
const GROUP_KIND: &str = "VolumeGroupSnapshot";

/// The value of an annotation.
pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the annotation is there, whatever its value.
pub(crate) fn is_marked(meta: &ObjectMeta, key: &str) -> bool {
    annotation(meta, key).is_some()
}

pub(crate) fn is_deleting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// Whether the content belongs to a group, whose own controller takes and deletes it.
pub(crate) fn is_group_content(content: &VolumeSnapshotContent) -> bool {
    is_marked(&content.metadata, GROUP_HANDLE)
}

/// Whether the snapshot belongs to a group, whose own controller binds it.
pub(crate) fn is_group_member(snapshot: &VolumeSnapshot) -> bool {
    let owned = snapshot.metadata.owner_references.iter().flatten().any(|owner| owner.kind == GROUP_KIND);
    owned || snapshot.status.as_ref().is_some_and(|status| status.volume_group_snapshot_name.is_some())
}

/// Whether the content names a snapshot of this uid; an unbound one names none.
pub(crate) fn bound_uid(content: &VolumeSnapshotContent) -> Option<&str> {
    content.spec.volume_snapshot_ref.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// Whether volumes can be made from the content's snapshot.
pub(crate) fn is_ready(content: &VolumeSnapshotContent) -> bool {
    content.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
}
