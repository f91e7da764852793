//! The provisioner between a real API server and controller manager, with exactly upstream's rights, and a driver
//! with programmable answers.

mod csi;
mod deletion;
mod provisioning;
mod room;
mod world;
