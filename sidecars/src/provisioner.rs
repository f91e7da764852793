//! The provisioner: makes volumes for claims, deletes them, and publishes how much room there is.

pub mod access;
pub mod capacity;
pub mod claim;
pub mod delete;
pub mod journal;
pub mod metrics;
pub mod names;
pub mod outcome;
pub mod params;
pub mod progress;
pub mod quantity;
pub mod request;
pub mod secrets;
pub mod source;
pub mod topology;
pub mod volume;
