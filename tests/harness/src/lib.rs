//! Starts what the tests need: a real control plane, and the embedded cluster with its nodes.
//!
//! Everything started here ends with the value that stands for it, also when a test panics or its process is killed.
#![expect(clippy::disallowed_methods, reason = "tests start programs; the rule guards the product")]

mod cluster;
mod control_plane;
mod process;
mod rights;
mod tools;
mod wait;

pub use cluster::{Cluster, Node};
pub use control_plane::{Builder, ControlPlane};
pub use rights::{Right, account};
pub use wait::{eventually, wait_for};

/// The root of the workspace, where the scripts are called from.
fn workspace() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
