//! The operator: from a StorageBackend to a working CSI driver.

pub mod plan;
