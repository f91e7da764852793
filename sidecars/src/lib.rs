//! The CSI sidecars, one module a role, on one shared runtime.

mod access;
pub mod attacher;
mod claims;
pub mod discovery;
pub mod flags;
pub mod health_monitor;
pub mod livenessprobe;
pub mod provisioner;
pub mod quantity;
pub mod registrar;
pub mod resizer;
pub mod runtime;
mod secret;
mod snapshot;
pub mod snapshot_controller;
pub mod snapshotter;
mod untyped;
