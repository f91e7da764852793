//! The CSI sidecars, one module a role, on one shared runtime.

pub mod provisioner;
