//! The CSI sidecars, one module a role, on one shared runtime.

pub mod attacher;
pub mod discovery;
pub mod flags;
pub mod provisioner;
pub mod quantity;
pub mod registrar;
pub mod runtime;
mod snapshot;
pub mod snapshot_controller;
pub mod snapshotter;
mod untyped;
