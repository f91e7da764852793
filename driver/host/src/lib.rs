//! Everything that touches Linux: mounts, loop devices, file systems, confined paths, running programs.

pub mod command;
pub mod dir;
mod error;
pub mod filesystem;
pub mod loopdev;
pub mod mount;
pub mod mountinfo;
pub mod options;
pub mod space;
pub mod superblock;
mod sys;
pub mod usage;

pub use error::{Error, Result};
