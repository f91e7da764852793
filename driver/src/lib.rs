//! The CSI driver: identity, controller and node services, the router, and the storage engines.
