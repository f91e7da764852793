//! The CSI driver: identity, controller and node services, the router, and the storage engines.

pub mod error;
pub mod id;
pub mod router;
mod status;

pub use status::chain;
