//! The provisioner between a real API server and controller manager, with exactly the chart's rights, and a driver
//! with programmable answers.
#![expect(clippy::unwrap_used, reason = "what helps a test fails by panicking, as the test does")]

mod csi;
mod deletion;
mod provisioning;
mod restoring;
mod room;
mod world;
