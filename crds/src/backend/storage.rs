//! The kinds of storage, and the settings of each.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// Amounts to keep back.
const RESERVE: &str = "^(0|[1-9][0-9]{0,5}(Mi|Gi|Ti)|([0-9]|[1-8][0-9]|90)%)$";

/// The kinds of storage that this version has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendType {
    /// A volume is a directory.
    #[default]
    Directory,
    /// A volume is an image file on a loop device.
    LoopFile,
    /// A volume is a subvolume of a btrfs file system.
    Btrfs,
}

impl BackendType {
    /// The name, as the spec and the command lines have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "Directory",
            Self::LoopFile => "LoopFile",
            Self::Btrfs => "Btrfs",
        }
    }

    /// The member of the spec with the settings of the type.
    pub fn member(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::LoopFile => "loopFile",
            Self::Btrfs => "btrfs",
        }
    }
}

/// Volumes that are directories under `path`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Directory {
    /// Directory on each node that holds the volumes, for this backend alone. It is made if missing. Immutable.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(
        validation = rules::path_is_absolute(),
        validation = rules::path_is_not_the_root(),
        validation = rules::path_has_plain_characters(),
        validation = rules::path_is_canonical(),
        validation = rules::path_is_not_the_kubelets(),
        validation = rules::path_is_not_the_systems()
    )]
    pub path: String,

    /// Refuses to make or use a pool unless a file system is mounted at `path`, so that a disk that failed to mount
    /// is never mistaken for an empty one.
    #[serde(default)]
    pub require_mount_point: bool,

    /// What volumes leave free of the file system that `path` is on, for everything else that is on it: a percentage
    /// of its size from 0% to 90%, or an amount in Mi, Gi or Ti, as 10Gi. A volume that would take of it is not made,
    /// and while less is free, volumes that share the space are reported as abnormal. Default: 2%, and at most 4Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("pattern" = RESERVE))]
    pub reserve: Option<String>,
}

/// Volumes that are image files under `path`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopFile {
    /// Directory on each node that holds the images, for this backend alone. It is made if missing. Immutable.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(
        validation = rules::path_is_absolute(),
        validation = rules::path_is_not_the_root(),
        validation = rules::path_has_plain_characters(),
        validation = rules::path_is_canonical(),
        validation = rules::path_is_not_the_kubelets(),
        validation = rules::path_is_not_the_systems()
    )]
    pub path: String,

    /// Refuses to make or use a pool unless a file system is mounted at `path`, so that a disk that failed to mount
    /// is never mistaken for an empty one.
    #[serde(default)]
    pub require_mount_point: bool,

    /// What volumes leave free of the file system that `path` is on, for everything else that is on it: a percentage
    /// of its size from 0% to 90%, or an amount in Mi, Gi or Ti, as 10Gi. A volume that would take of it is not made,
    /// and while less is free, volumes that share the space are reported as abnormal. Default: 2%, and at most 4Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("pattern" = RESERVE))]
    pub reserve: Option<String>,

    /// File system of new volumes, where their StorageClass does not name one.
    #[serde(default)]
    pub fs_type: FsType,

    /// How many bytes volumes of classes with allocation: sparse may promise for each 100 bytes that are free, from 100
    /// (no more than there is) to 10000. With more than 100 the pool can become full while volumes still have room, and
    /// writes to them then fail. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 10_000))]
    pub overcommit_percent: Option<u32>,
}

/// Volumes that are subvolumes under `path`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Btrfs {
    /// Directory on each node that holds the subvolumes, for this backend alone. It must lie on a btrfs file system with
    /// quotas switched on (btrfs quota enable PATH). It is made if missing. Immutable.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(
        validation = rules::path_is_absolute(),
        validation = rules::path_is_not_the_root(),
        validation = rules::path_has_plain_characters(),
        validation = rules::path_is_canonical(),
        validation = rules::path_is_not_the_kubelets(),
        validation = rules::path_is_not_the_systems()
    )]
    pub path: String,

    /// Refuses to make or use a pool unless a file system is mounted at `path`, so that a disk that failed to mount
    /// is never mistaken for an empty one.
    #[serde(default)]
    pub require_mount_point: bool,

    /// What volumes leave free of the file system that `path` is on, for everything else that is on it and for what
    /// snapshots keep: a percentage of its size from 0% to 90%, or an amount in Mi, Gi or Ti, as 10Gi. A volume that
    /// would take of it is not made, and while less is free, volumes are reported as abnormal. Default: 2%, and at most
    /// 4Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("pattern" = RESERVE))]
    pub reserve: Option<String>,
}

/// The file systems that a volume can be formatted with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// The common choice.
    #[default]
    Ext4,
    /// For large files and many writers.
    Xfs,
    /// With checksums of all data.
    Btrfs,
}

impl FsType {
    /// The name, as mkfs and the CSI call have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}
