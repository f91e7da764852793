//! What the whole-system tests say about a cluster: apply, wait, look, break.
//!
//! The cluster is up before the tests start and goes down after them (`tests/system/run`): each test brings its own
//! namespace and its own backend, and takes them away again.

pub mod cluster;
pub mod disks;
pub mod manifest;
pub mod storage;
