//! Snapshot controller and snapshotter between a real API server, with exactly upstream's rights, and a driver with
//! programmable answers.
#![expect(clippy::unwrap_used, reason = "what helps a test fails by panicking, as the test does")]

mod crashes;
mod definitions;
mod deletion;
mod driver;
mod rights;
mod taking;
mod world;
