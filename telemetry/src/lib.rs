//! Logs, metrics, health endpoints and shutdown, the same for every role.
