//! What a node's kernel, programs and file system have, looked at without changing anything.

use std::path::{Path, PathBuf};

use crate::btrfs::is_btrfs;
use crate::btrfs::quota::{Quotas, quotas};
use crate::command;
use crate::copy::can_reflink;
use crate::dir::Dir;
use crate::error::Result;
use crate::mount::{is_root_of_filesystem, mount_of};
use crate::quota;
use crate::space::{self, Space};

/// A node, as far as it matters for storage.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The kernel's release, such as 6.12.0.
    pub kernel: String,
    /// Whether loop devices can be had.
    pub loop_devices: bool,
    /// File systems that the kernel can mount now; others may come with modules.
    pub filesystems: Vec<String>,
    /// The programs asked for, and where each was found.
    pub programs: Vec<(&'static str, Option<PathBuf>)>,
}

/// A pool's path.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "facts that have nothing to do with one another")]
pub struct PathFacts {
    /// The file system's kind, such as ext4.
    pub filesystem: String,
    /// Whether the path is the root of a file system of its own.
    pub is_mount_point: bool,
    pub read_only: bool,
    pub space: Space,
    /// Whether the limits of projects are kept to.
    pub project_quota: bool,
    /// How a btrfs counts what its subvolumes take up, if it is one and lets itself be asked.
    pub btrfs_quotas: Option<Quotas>,
    /// Whether a file's copy can share its blocks.
    pub reflink: bool,
}

/// Looks at the node.
pub fn node(programs: &[&'static str]) -> NodeFacts {
    let listed = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    NodeFacts {
        kernel: crate::kernel_release(),
        loop_devices: Path::new("/dev/loop-control").exists(),
        filesystems: listed.lines().filter_map(|line| Some(line.split_once('\t')?.1.to_owned())).collect(),
        programs: programs.iter().map(|program| (*program, command::find(program))).collect(),
    }
}

/// Looks at a path. Needs the right to make files there, of which none remains.
pub fn path(path: &Path) -> Result<PathFacts> {
    let dir = Dir::open(path)?;
    let (mount, _) = mount_of(&dir)?;
    Ok(PathFacts {
        is_mount_point: is_root_of_filesystem(&dir)?,
        read_only: mount.read_only,
        space: space::of(&dir, path)?,
        project_quota: quota::is_enforced(&dir)?,
        btrfs_quotas: if is_btrfs(&dir)? { quotas(&dir).ok() } else { None },
        reflink: can_reflink(&dir).unwrap_or(false),
        filesystem: mount.filesystem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_leaves_nothing_behind() {
        let scratch = tempfile::tempdir().unwrap();
        let facts = path(scratch.path()).unwrap();
        assert!(!facts.filesystem.is_empty() && facts.space.total > 0 && !facts.is_mount_point);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        let node = node(&["sh", "no-such-program"]);
        assert!(node.programs[0].1.is_some() && node.programs[1].1.is_none());
        assert!(node.filesystems.contains(&"proc".to_owned()), "{:?}", node.filesystems);
    }
}
