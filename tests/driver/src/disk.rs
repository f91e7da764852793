//! A small disk of its own for a pool: an image on a loop device, mounted and unmounted at will.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{eventually, must, text};

/// A file system to mount. Unmounted when dropped.
pub struct Disk {
    image: PathBuf,
    options: &'static str,
    /// Options for a copy that is mounted beside this one.
    copy_options: &'static str,
    mount_point: Option<PathBuf>,
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
            other => panic!("no disk with {other}"),
        }
    }

    /// The disk as a power cut would leave it now: what the file system on it has not written is lost.
    #[must_use]
    pub fn copy_without_what_is_unsynced(&self, directory: &Path, name: &str) -> Self {
        let image = directory.join(name);
        must("cp", &["--sparse=always", text(&self.image), text(&image)]);
        // Both may be mounted at a time, which xfs allows no two file systems of one id.
        Self { image, options: self.copy_options, copy_options: self.copy_options, mount_point: None }
    }

    fn format(directory: &Path, mebibytes: u64, mkfs: &[&str], options: &'static str) -> Self {
        let image = directory.join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        must(mkfs[0], &[&mkfs[1..], &[text(&image)]].concat());
        let copy_options = if mkfs[0] == "mkfs.xfs" { "loop,nouuid" } else { "loop" };
        Self { image, options, copy_options, mount_point: None }
    }

    /// Makes a disk of so many MiB with xfs, whose files can share blocks.
    pub fn xfs(directory: &Path, mebibytes: u64) -> Self {
        Self::of(directory, mebibytes, "xfs")
    }

    pub fn mount(&mut self, at: &Path) {
        must("mount", &["-o", self.options, text(&self.image), text(at)]);
        self.mount_point = Some(at.to_owned());
    }

    pub fn unmount(&mut self) {
        if let Some(at) = &self.mount_point {
            // The driver's last thread may hold it for a moment after the driver is gone.
            eventually("the disk is unmounted", || {
                Command::new("umount").arg(at).output().is_ok_and(|output| output.status.success())
            });
            self.mount_point = None;
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
