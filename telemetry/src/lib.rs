//! Logs, metrics, health endpoints and shutdown, the same for every role.

pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod shutdown;
