//! The operator: from a StorageBackend to a working CSI driver.

pub mod agents;
pub mod certs;
pub mod plan;
pub mod pools;
