//! The resizer between a real API server, with exactly upstream's rights, and a driver with programmable answers. The
//! test plays the users, the binder and the nodes.
#![expect(clippy::unwrap_used, reason = "what helps a test fails by panicking, as the test does")]

mod classes;
mod csi;
mod sizes;
mod world;
