//! What ends a sidecar.

use std::io;
use std::net::SocketAddr;

use dunnage_telemetry::metrics::code_name;
use tonic::Status;

use crate::flags::{Conflict, InvalidAddress};

/// Why a sidecar cannot go on; the process exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Flags that make no sense together.
    #[error("the command line is not usable")]
    Flags(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The driver's address is no socket.
    #[error("--csi-address is not usable")]
    Address(#[from] dunnage_csi::uds::NotASocket),
    /// The driver did not come up in time.
    #[error(
        "no driver at {address} within {seconds} s: is its container running, and the socket's directory shared?"
    )]
    NoDriver {
        /// The socket.
        address: String,
        /// The limit.
        seconds: u64,
        /// The last try's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The driver does not listen.
    #[error("nobody listens at {address}")]
    Unreachable {
        /// The socket.
        address: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The driver answered one of the first calls with an error.
    #[error("the driver refuses {method}")]
    Refused {
        /// The gRPC method.
        method: &'static str,
        /// Its answer.
        source: Box<Status>,
    },
    /// The driver has no name.
    #[error("the driver gives an empty name in GetPluginInfo")]
    NoName,
    /// The role has nothing to do for this driver.
    #[error("the driver does not support this role: {0}")]
    NothingToDo(&'static str),
    /// The connection broke.
    #[error("lost the connection to the driver at {address}")]
    ConnectionLost {
        /// The socket.
        address: String,
    },
    /// The HTTP server cannot listen.
    #[error("cannot serve health and metrics on {address}")]
    Http {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A socket or file of ours cannot be made or removed.
    #[error("cannot {action}")]
    File {
        /// What was tried.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// Kubelet did not take the driver.
    #[error("kubelet refuses to register the driver: {0}")]
    NotRegistered(String),
    /// The kinds of snapshots are not there.
    #[error(
        "the cluster does not know the snapshot kinds: install them (`dunnage crd snapshot | kubectl apply -f -`)"
    )]
    NoDefinitions(#[source] dunnage_cluster::Error),
    /// The Kubernetes side.
    #[error(transparent)]
    Cluster(#[from] dunnage_cluster::Error),
    /// Asked to stop before the start was complete.
    #[error("asked to stop before the driver was ready")]
    Stopped,
}

/// An error that the driver answered a call with, as upstream's sidecars word it in events and statuses.
pub(crate) fn rpc_error(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", code_name(status.code().into()), status.message())
}

impl From<InvalidAddress> for Error {
    fn from(error: InvalidAddress) -> Self {
        Self::Flags(error.into())
    }
}

impl From<Conflict> for Error {
    fn from(error: Conflict) -> Self {
        Self::Flags(error.into())
    }
}

impl Error {
    /// Whether the process was merely asked to stop: then it exits with 0.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Stopped | Self::Cluster(dunnage_cluster::Error::Stopped { .. }))
    }
}
