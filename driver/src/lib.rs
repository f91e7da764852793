//! The CSI driver: identity, controller and node services, the router, and the storage engines.

mod advertised;
mod capability;
mod copies;
pub mod doctor;
mod engine;
pub mod error;
mod group;
pub mod id;
mod locks;
pub mod node;
mod overcommit;
mod pool;
mod quantity;
mod record;
mod remedy;
mod reserve;
pub mod router;
mod size;
mod snapshot;
mod status;
pub mod steps;
mod store;
#[doc(hidden)]
pub mod untrusted;

pub use copies::{CopySettings, Rate};
pub use engine::EngineKind;
pub use overcommit::Overcommit;
pub use reserve::Reserve;
pub use status::chain;
