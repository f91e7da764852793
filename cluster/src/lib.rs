//! The Kubernetes side that operator and sidecars share: apply, finalizers, leader election, events, caches and the work queue.
