//! Everything that touches Linux: mounts, loop devices, file systems, confined paths, running programs.

pub mod btrfs;
pub mod command;
pub mod copy;
pub mod dir;
mod error;
pub mod facts;
pub mod filesystem;
pub mod freeze;
pub mod loopdev;
pub mod mount;
pub mod mountinfo;
pub mod options;
pub mod quota;
pub mod space;
pub mod stream;
pub mod superblock;
mod sys;
pub mod usage;
pub mod uuid;

pub use error::{Error, Result};

/// The running kernel's release, such as 6.12.0.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
