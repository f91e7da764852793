//! `snapshot.storage.k8s.io/v1`: the kinds by which Kubernetes asks for snapshots. The API is the community's and
//! approved as such; the types are read and written by our snapshot roles, and their definitions are the same to
//! clients as those that clusters already have.

#![expect(unreachable_pub, reason = "KubeSchema copies each type into a function, where pub reaches nothing")]
#![expect(clippy::duplicated_attributes, reason = "columns of two kinds have the same type and description")]
#![expect(clippy::doc_markdown, reason = "the comments are what kubectl explain shows")]

mod class;
mod definitions;
mod rules;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use class::VolumeSnapshotClass;
pub use definitions::{definitions, snapshot_crds_yaml};

/// The API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// What a snapshot is taken of or bound to, and by which class.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    shortname = "vs",
    namespaced,
    doc = "A VolumeSnapshot asks for a snapshot of a claim's volume, or stands for one that exists already.",
    status = "VolumeSnapshotStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "ReadyToUse",
        type_ = "boolean",
        json_path = ".status.readyToUse",
        description = "Whether volumes can be made from the snapshot."
    ),
    printcolumn(
        name = "SourcePVC",
        type_ = "string",
        json_path = ".spec.source.persistentVolumeClaimName",
        description = "The claim of which the snapshot was, or will be, taken."
    ),
    printcolumn(
        name = "SourceSnapshotContent",
        type_ = "string",
        json_path = ".spec.source.volumeSnapshotContentName",
        description = "The VolumeSnapshotContent of a snapshot that existed already."
    ),
    printcolumn(
        name = "RestoreSize",
        type_ = "string",
        json_path = ".status.restoreSize",
        description = "The least size of a volume made from the snapshot."
    ),
    printcolumn(
        name = "SnapshotClass",
        type_ = "string",
        json_path = ".spec.volumeSnapshotClassName",
        description = "The VolumeSnapshotClass asked for."
    ),
    printcolumn(
        name = "SnapshotContent",
        type_ = "string",
        json_path = ".status.boundVolumeSnapshotContentName",
        description = "The VolumeSnapshotContent that this is bound to, once that one points back."
    ),
    printcolumn(
        name = "CreationTime",
        type_ = "date",
        json_path = ".status.creationTime",
        description = "When the storage took the snapshot."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Where the snapshot comes from. Immutable.
    #[x_kube(
        validation = rules::one_of("persistentVolumeClaimName", "volumeSnapshotContentName"),
        validation = rules::stays("persistentVolumeClaimName"),
        validation = rules::stays("volumeSnapshotContentName")
    )]
    pub source: SnapshotSource,

    /// The VolumeSnapshotClass. Without one, the default class of the volume's driver is taken and written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::not_empty("volumeSnapshotClassName"))]
    pub volume_snapshot_class_name: Option<String>,
}

/// Where a snapshot comes from: exactly one of the two.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// The claim, in the same namespace, of whose volume a snapshot is to be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::immutable("persistentVolumeClaimName"))]
    pub persistent_volume_claim_name: Option<String>,

    /// The VolumeSnapshotContent of a snapshot that exists already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::immutable("volumeSnapshotContentName"))]
    pub volume_snapshot_content_name: Option<String>,
}

/// What is known of a snapshot. Whoever uses it checks that its content points back at it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// The VolumeSnapshotContent that this is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,

    /// When the storage took the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,

    /// Whether volumes can be made from the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,

    /// The least size of a volume made from the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub restore_size: Option<Quantity>,

    /// The last failure; gone once the snapshot is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,

    /// The VolumeGroupSnapshot that this is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_name: Option<String>,
}

/// Why a snapshot is not ready. It may be logged and holds no secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotError {
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A snapshot on the storage, and the VolumeSnapshot that it belongs to.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    plural = "volumesnapshotcontents",
    shortname = "vsc",
    shortname = "vscs",
    doc = "A VolumeSnapshotContent stands for one snapshot on the storage.",
    status = "VolumeSnapshotContentStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "ReadyToUse",
        type_ = "boolean",
        json_path = ".status.readyToUse",
        description = "Whether volumes can be made from the snapshot."
    ),
    printcolumn(
        name = "RestoreSize",
        type_ = "integer",
        json_path = ".status.restoreSize",
        description = "The snapshot's size in bytes."
    ),
    printcolumn(
        name = "DeletionPolicy",
        type_ = "string",
        json_path = ".spec.deletionPolicy",
        description = "Whether this and the snapshot on the storage go with the VolumeSnapshot."
    ),
    printcolumn(
        name = "Driver",
        type_ = "string",
        json_path = ".spec.driver",
        description = "The CSI driver that has the snapshot."
    ),
    printcolumn(
        name = "VolumeSnapshotClass",
        type_ = "string",
        json_path = ".spec.volumeSnapshotClassName",
        description = "The class by which the snapshot was taken."
    ),
    printcolumn(
        name = "VolumeSnapshot",
        type_ = "string",
        json_path = ".spec.volumeSnapshotRef.name",
        description = "The VolumeSnapshot that this is bound to."
    ),
    printcolumn(
        name = "VolumeSnapshotNamespace",
        type_ = "string",
        json_path = ".spec.volumeSnapshotRef.namespace",
        description = "The namespace of that VolumeSnapshot."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::stays("sourceVolumeMode"))]
pub struct VolumeSnapshotContentSpec {
    /// The VolumeSnapshot that this is bound to, or is to be bound to: then it has a name and a namespace, and no uid.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    #[x_kube(validation = rules::names_a_snapshot())]
    pub volume_snapshot_ref: ObjectReference,

    /// Whether this and the snapshot on the storage go with the VolumeSnapshot.
    pub deletion_policy: DeletionPolicy,

    /// The CSI driver that has the snapshot.
    pub driver: String,

    /// The class by which the snapshot was taken. It may be gone, or another, since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,

    /// What the snapshot is taken of, or which it is. Immutable.
    #[x_kube(
        validation = rules::one_of("volumeHandle", "snapshotHandle"),
        validation = rules::stays("volumeHandle"),
        validation = rules::stays("snapshotHandle")
    )]
    pub source: ContentSource,

    /// Filesystem or Block: how the volume was used of which the snapshot was taken. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::immutable("sourceVolumeMode"))]
    pub source_volume_mode: Option<String>,
}

/// What a snapshot is taken of, or which it is: exactly one of the two.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// The driver's id of the volume of which a snapshot is to be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::immutable("volumeHandle"))]
    pub volume_handle: Option<String>,

    /// The driver's id of a snapshot that exists already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::immutable("snapshotHandle"))]
    pub snapshot_handle: Option<String>,
}

/// What becomes of the snapshot on the storage when its VolumeSnapshot is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It is kept.
    Retain,
}

/// What the driver says of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentStatus {
    /// The driver's id of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,

    /// When the storage took the snapshot, in nanoseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,

    /// The snapshot's size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub restore_size: Option<i64>,

    /// Whether volumes can be made from the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,

    /// The last failure; gone after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,

    /// The driver's id of the group that the snapshot is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
}

/// A quantity is a number or a string; the schema of the type has a page of description more.
fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "The least size of a volume made from the snapshot.",
        "x-kubernetes-int-or-string": true,
        "pattern": r"^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
    })
}

impl VolumeSnapshotStatus {
    /// The content that this is bound to.
    pub fn bound(&self) -> Option<&str> {
        self.bound_volume_snapshot_content_name.as_deref().filter(|name| !name.is_empty())
    }
}
