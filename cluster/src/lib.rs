//! The Kubernetes side that operator and sidecars share: apply, finalizers, leader election, events, caches and the
//! work queue.

pub mod apply;
pub mod cache;
pub mod client;
pub mod error;
pub mod events;
pub mod finalizer;
pub mod key;
pub mod leader;
pub mod queue;

pub use error::{Category, Error};
pub use key::Key;
