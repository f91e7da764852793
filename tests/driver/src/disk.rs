//! A small disk of its own for a pool: an image on a loop device, mounted and unmounted at will.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{eventually, must, text};

/// A file system to mount. Unmounted when dropped.
pub struct Disk {
    image: PathBuf,
    options: &'static str,
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

    fn format(directory: &Path, mebibytes: u64, mkfs: &[&str], options: &'static str) -> Self {
        let image = directory.join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        must(mkfs[0], &[&mkfs[1..], &[text(&image)]].concat());
        Self { image, options, mount_point: None }
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
