//! A node's driver in a temporary directory, with real mounts and loop devices, and requests to make of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(clippy::disallowed_methods, reason = "tests start programs; the rule guards the product")]

mod attributes;
mod call;
mod certificates;
mod disk;
mod groups;
mod inline;
mod kill;
mod lab;
mod sanity;
mod snapshots;

pub use attributes::compression;
pub use call::{block, block_as, mount, mount_as};
pub use certificates::Authority;
pub use disk::{Disk, Quotas};
pub use groups::{group_request, members};
pub use inline::{id_in_pool, inline_id};
pub use kill::Killer;
pub use lab::{BACKEND, DRIVER, Lab, NODE, POOL, eventually, free_address, grows_ext4_mounted, pool_id};
pub use sanity::{Expected, Outcome, Sockets, program, run, run_block};
pub use snapshots::{from_snapshot, from_volume, fsfreeze, shell};

use std::path::Path;
use std::process::Command;

/// Runs a program that must succeed.
fn must(program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {words}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
