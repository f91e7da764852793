//! A small disk of its own for a pool: an image on a loop device, mounted and unmounted at will.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{eventually, must, text};

/// A file system to mount. Unmounted when dropped.
pub struct Disk {
    image: PathBuf,
    mount_point: Option<PathBuf>,
}

impl Disk {
    /// Makes a disk of so many MiB in `directory`.
    pub fn make(directory: &Path, mebibytes: u64) -> Self {
        let image = directory.join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        must("mkfs.ext4", &["-q", "-m", "0", text(&image)]);
        Self { image, mount_point: None }
    }

    /// The same with xfs, whose files can share blocks.
    pub fn xfs(directory: &Path, mebibytes: u64) -> Self {
        let image = directory.join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        must("mkfs.xfs", &["-q", "-m", "reflink=1", text(&image)]);
        Self { image, mount_point: None }
    }

    pub fn mount(&mut self, at: &Path) {
        must("mount", &["-o", "loop", text(&self.image), text(at)]);
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
