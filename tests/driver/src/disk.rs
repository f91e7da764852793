//! A small disk of its own for a pool: an image on a loop device, mounted and unmounted at will.

use std::path::{Path, PathBuf};
use std::process::Command;

use dunnage_host::btrfs::quota;
use dunnage_host::dir::Dir;

use crate::{Lab, eventually, must, text};

/// A file system to mount. Unmounted when dropped.
pub struct Disk {
    image: PathBuf,
    options: &'static str,
    /// Options for a copy that is mounted beside this one.
    copy_options: &'static str,
    /// To be switched on when it is first mounted.
    quotas: Option<Quotas>,
    is_btrfs: bool,
    mount_point: Option<PathBuf>,
}

/// The quotas of a disk with btrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotas {
    Full,
    Simple,
}

impl Disk {
    /// Makes a disk of so many MiB with ext4 in `directory`.
    pub fn make(directory: &Path, mebibytes: u64) -> Self {
        Self::format(directory, mebibytes, &["mkfs.ext4", "-q", "-m", "0"], "loop")
    }

    /// Makes a disk of so many MiB whose file system keeps to project limits.
    pub fn with_project_quota(directory: &Path, mebibytes: u64, filesystem: &str) -> Self {
        let mkfs: &[&str] = match filesystem {
            "ext4" => &["mkfs.ext4", "-q", "-m", "0", "-O", "project,quota"],
            "xfs" => &["mkfs.xfs", "-q"],
            other => panic!("{other} has no project quota"),
        };
        Self::format(directory, mebibytes, mkfs, "loop,prjquota")
    }

    /// Makes a disk of so many MiB with this file system.
    pub fn of(directory: &Path, mebibytes: u64, filesystem: &str) -> Self {
        match filesystem {
            "ext4" => Self::make(directory, mebibytes),
            "xfs" => Self::format(directory, mebibytes, &["mkfs.xfs", "-q", "-f"], "loop"),
            "btrfs" => Self::btrfs(directory, mebibytes),
            other => panic!("no disk with {other}"),
        }
    }

    /// The disk as a power cut would leave it now: what the file system on it has not written is lost.
    #[must_use]
    pub fn copy_without_what_is_unsynced(&self, directory: &Path, name: &str) -> Self {
        let image = directory.join(name);
        must("cp", &["--sparse=always", text(&self.image), text(&image)]);
        // Both may be mounted at a time, which xfs allows no two file systems of one id.
        let copy_options = self.copy_options;
        // The file system on it has what quotas it had.
        Self {
            image,
            options: copy_options,
            copy_options,
            quotas: None,
            is_btrfs: self.is_btrfs,
            mount_point: None,
        }
    }

    fn format(directory: &Path, mebibytes: u64, mkfs: &[&str], options: &'static str) -> Self {
        let image = directory.join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        must(mkfs[0], &[&mkfs[1..], &[text(&image)]].concat());
        let copy_options = if mkfs[0] == "mkfs.xfs" { "loop,nouuid" } else { "loop" };
        let is_btrfs = mkfs[0] == "mkfs.btrfs";
        Self { image, options, copy_options, quotas: None, is_btrfs, mount_point: None }
    }

    /// Makes a disk of so many MiB with btrfs and full quotas.
    pub fn btrfs(directory: &Path, mebibytes: u64) -> Self {
        let mut disk = Self::btrfs_without_quotas(directory, mebibytes);
        disk.quotas = Some(Quotas::Full);
        disk
    }

    /// Makes a disk of so many MiB with btrfs and simple quotas.
    pub fn btrfs_with_simple_quotas(directory: &Path, mebibytes: u64) -> Self {
        let mut disk = Self::btrfs_without_quotas(directory, mebibytes);
        disk.quotas = Some(Quotas::Simple);
        disk
    }

    /// Makes a disk of so many MiB with btrfs, whose quotas are off.
    pub fn btrfs_without_quotas(directory: &Path, mebibytes: u64) -> Self {
        Self::format(directory, mebibytes, &["mkfs.btrfs", "-q", "-f"], "loop")
    }

    /// Makes a disk of so many MiB with xfs, whose files can share blocks.
    pub fn xfs(directory: &Path, mebibytes: u64) -> Self {
        Self::of(directory, mebibytes, "xfs")
    }

    pub fn mount(&mut self, at: &Path) {
        must("mount", &["-o", self.options, text(&self.image), text(at)]);
        self.mount_point = Some(at.to_owned());
        if let Some(quotas) = self.quotas.take() {
            self.switch_on(quotas);
        }
    }

    /// Switches the quotas of the mounted btrfs on.
    pub fn switch_on(&self, quotas: Quotas) {
        let at = Dir::open(self.mount_point.as_ref().unwrap()).unwrap();
        quota::switch_on(&at, quotas == Quotas::Simple).unwrap();
        eventually("what is there is counted", || {
            at.sync_filesystem().unwrap();
            match quota::quotas(&at).unwrap() {
                quota::Quotas::Full(counts) => counts == quota::Counts::Right,
                told => told == quota::Quotas::Simple,
            }
        });
    }

    /// Switches them off, and forgets all limits.
    pub fn switch_off(&self) {
        quota::switch_off(&Dir::open(self.mount_point.as_ref().unwrap()).unwrap()).unwrap();
    }

    /// Unmounts it from under a node, which goes.
    pub fn unmount_of(&mut self, mut lab: Lab) {
        lab.driver = None;
        self.unmount();
    }

    pub fn unmount(&mut self) {
        if let Some(at) = &self.mount_point {
            // The driver's last thread may hold it for a moment after the driver is gone.
            eventually("the disk is unmounted", || {
                Command::new("umount").arg(at).output().is_ok_and(|output| output.status.success())
            });
            self.mount_point = None;
            if self.is_btrfs {
                // Older kernels remember it, and then refuse an earlier copy.
                let _ = Command::new("btrfs").args(["device", "scan", "--forget"]).output();
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(at) = &self.mount_point {
            // The pool may be open still; the kernel lets go of it with the last handle.
            let _ = Command::new("umount").args(["-l", text(at)]).status();
        }
    }
}
