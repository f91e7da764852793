//! Everything that touches Linux: mounts, loop devices, file systems, confined paths, running programs.

mod error;

pub use error::{Error, Result};
