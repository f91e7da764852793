//! Starts what the tests need: a real control plane, the embedded cluster, drivers and sidecars.
