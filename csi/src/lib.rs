//! The CSI, plugin registration and agent protocols, and their transports: unix sockets and mutual TLS.

pub mod authority;
pub mod mount_options;
pub mod secret;
pub mod tls;
pub mod uds;

/// Metadata that goes along with a CSI call between Dunnage's own parts.
pub mod metadata {
    /// Of a CreateVolume from the router: an [`agent::CopyHint`](crate::agent::CopyHint).
    pub const COPY: &str = "dunnage-copy-bin";
    /// Of a CreateVolume that is repeated only to find out its end: a copy that it would wait for is given up.
    pub const UNWANTED: &str = "dunnage-unwanted";
}

/// CSI 1.12.0.
#[allow(
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
    include!(concat!(env!("OUT_DIR"), "/secret_debug.rs"));
}

/// Kubelet's plugin registration, version v1 (its package has no version in its name).
#[allow(
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated code"
)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The services between Dunnage's own parts.
#[allow(
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated code"
)]
pub mod agent {
    tonic::include_proto!("dunnage.agent.v1");
}
