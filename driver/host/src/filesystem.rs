//! File systems on block devices: look, make, check, grow.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use crate::command::run;
use crate::error::{Error, Result, failed};
use crate::superblock::{Content, HEAD};

const FORMAT_TIME: Duration = Duration::from_secs(600);
const CHECK_TIME: Duration = Duration::from_secs(3600);

const NOTHING_LATER: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";

/// A kind of file system that a volume may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// Its name in Kubernetes and in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The least size in bytes: mkfs.xfs and mkfs.btrfs refuse less, and ext4 with a journal would be all overhead.
    pub const fn minimum(self) -> u64 {
        match self {
            Self::Ext4 => 16 << 20,
            Self::Xfs => 300 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    /// Makes an empty file system. It discards nothing and leaves the kernel no tables to zero later: both would punch
    /// holes into an image whose space is promised.
    pub fn format(self, device: &Path) -> Result<()> {
        let device = device.as_os_str();
        let (program, args): (_, &[&str]) = match self {
            Self::Ext4 => ("mkfs.ext4", &["-F", "-q", "-m", "0", "-E", NOTHING_LATER]),
            Self::Xfs => ("mkfs.xfs", &["-f", "-q", "-K"]),
            Self::Btrfs => ("mkfs.btrfs", &["-f", "-q", "-K"]),
        };
        run(program, &with(args, device), &[0], FORMAT_TIME)
    }

    /// Repairs what an unclean stop left. The others do that when they are mounted.
    pub fn check(self, device: &Path) -> Result<()> {
        match self {
            // 1: errors were corrected.
            Self::Ext4 => run("e2fsck", &with(&["-p"], device.as_os_str()), &[0, 1], CHECK_TIME),
            Self::Xfs | Self::Btrfs => Ok(()),
        }
    }

    /// Whether it grows while mounted. ext4 could, but asks for `CAP_SYS_RESOURCE`, which not every container has.
    pub const fn grows_mounted(self) -> bool {
        matches!(self, Self::Xfs | Self::Btrfs)
    }

    /// Grows a file system that is not mounted to its device's size.
    pub fn grow_unmounted(self, device: &Path) -> Result<()> {
        match self {
            Self::Ext4 => {
                // resize2fs wants a full check first.
                run("e2fsck", &with(&["-f", "-p"], device.as_os_str()), &[0, 1], CHECK_TIME)?;
                run("resize2fs", &with(&[], device.as_os_str()), &[0], CHECK_TIME)
            }
            Self::Xfs | Self::Btrfs => Ok(()),
        }
    }

    /// What an administrator can try when it is damaged.
    pub const fn repair(self) -> &'static str {
        match self {
            Self::Ext4 => "e2fsck -b 32768",
            Self::Xfs => "xfs_repair",
            Self::Btrfs => "btrfs rescue super-recover",
        }
    }

    /// Grows a mounted file system to its device's size.
    pub fn grow_mounted(self, device: &Path, mount_point: &Path) -> Result<()> {
        match self {
            Self::Ext4 => run("resize2fs", &with(&[], device.as_os_str()), &[0], CHECK_TIME),
            Self::Xfs => run("xfs_growfs", &with(&[], mount_point.as_os_str()), &[0], CHECK_TIME),
            Self::Btrfs => {
                let args = with(&["filesystem", "resize", "max"], mount_point.as_os_str());
                run("btrfs", &args, &[0], CHECK_TIME)
            }
        }
    }
}

/// Whether a mounted file system did not grow because the kernel asks this process for `CAP_SYS_RESOURCE`.
pub fn is_growth_forbidden(error: &Error) -> bool {
    // resize2fs says only this, and its exit code nothing.
    matches!(error, Error::Program { program: "resize2fs", reason } if reason.contains("Permission denied to resize"))
}

fn with<'a>(args: &[&'a str], last: &'a OsStr) -> Vec<&'a OsStr> {
    args.iter().map(|arg| OsStr::new(*arg)).chain([last]).collect()
}

/// What an open device holds.
pub fn probe(device: &File, path: &Path) -> Result<Content> {
    let mut head = vec![0; HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match device.read_at(&mut head[filled..], filled as u64).map_err(failed("read", path))? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(Content::parse(&head[..filled]))
}
