//! The kinds of pools that are measured, each on a file system of its own.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Authority, Disk};
use tempfile::TempDir;

/// More than is ever written; the image has holes.
const DISK_MIB: u64 = 100 << 10;

/// A kind of pool.
pub(crate) struct Pool {
    pub(crate) name: &'static str,
    pub(crate) engine: EngineKind,
    /// File system of the pool.
    pub(crate) disk: &'static str,
    /// File system of its volumes, where they have one of their own.
    pub(crate) fs_type: &'static str,
}

impl Pool {
    pub(crate) fn all() -> [Self; 5] {
        let pool = |name, engine, disk, fs_type| Self { name, engine, disk, fs_type };
        [
            pool("Directory on ext4", EngineKind::Directory, "ext4", ""),
            pool("Directory on xfs", EngineKind::Directory, "xfs", ""),
            pool("LoopFile on ext4", EngineKind::LoopFile, "ext4", "ext4"),
            pool("LoopFile on xfs", EngineKind::LoopFile, "xfs", "xfs"),
            pool("Btrfs", EngineKind::Btrfs, "btrfs", ""),
        ]
    }

    /// As `--engine` wants it.
    pub(crate) fn engine_name(&self) -> &'static str {
        match self.engine {
            EngineKind::Directory => "Directory",
            EngineKind::LoopFile => "LoopFile",
            EngineKind::Btrfs => "Btrfs",
        }
    }
}

/// Where a pool is measured: its disk, kubelet's directory and the certificates. Gone when dropped.
pub(crate) struct Place {
    // Unmounted before the folder with its image goes.
    _disk: Disk,
    folder: TempDir,
    pub(crate) tls: PathBuf,
}

impl Place {
    pub(crate) fn make(parent: &Path, pool: &Pool) -> anyhow::Result<Self> {
        let parent = parent.canonicalize().with_context(|| parent.display().to_string())?;
        let folder = tempfile::Builder::new().prefix("engines-").tempdir_in(parent)?;
        for name in ["disk", "kubelet/plugins", "kubelet/pods"] {
            std::fs::create_dir_all(folder.path().join(name))?;
        }
        let mut disk = Disk::of(folder.path(), DISK_MIB, pool.disk);
        disk.mount(&folder.path().join("disk"));
        for name in ["pool", "bare"] {
            std::fs::create_dir(folder.path().join("disk").join(name))?;
        }
        let tls = Authority::default().write(folder.path(), "node");
        Ok(Self { _disk: disk, folder, tls })
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.folder.path().join("disk/pool")
    }

    /// A directory of the same file system that no driver knows of.
    pub(crate) fn bare(&self) -> PathBuf {
        self.folder.path().join("disk/bare")
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.folder.path().join("kubelet")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }
}
