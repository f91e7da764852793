//! The operator: from a StorageBackend to a working CSI driver.

pub mod agents;
pub mod apply;
pub mod certs;
pub mod live;
pub mod metrics;
pub mod plan;
pub mod policy;
pub mod pools;
pub mod reconcile;
pub mod removal;
pub mod run;
pub mod status;
pub mod teardown;
pub mod uninstall;
pub mod views;
pub mod world;
