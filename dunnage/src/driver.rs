//! `dunnage driver`: the flags of the CSI driver in its two modes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Serve CSI: on a node for its own pool, or in the controller pod as the router to all nodes.
#[derive(Args, Debug)]
pub(crate) struct DriverArgs {
    /// What this driver is: a node's own (Identity, Node and Controller for its pool), or the router to all of them
    #[arg(long, value_enum)]
    pub(crate) mode: Mode,
    /// Unix socket to serve CSI on
    #[arg(long, default_value = "unix:///csi/csi.sock", value_name = "SOCKET")]
    pub(crate) endpoint: String,
    /// Name of the CSI driver, such as local.csi.dunnage.dev
    #[arg(long, value_name = "NAME")]
    pub(crate) driver_name: String,
    /// How volumes are made
    #[arg(long, value_enum)]
    pub(crate) engine: Engine,
    /// Directory with ca.crt, tls.crt and tls.key for the connection between router and nodes
    #[arg(long, default_value = "/tls", value_name = "DIRECTORY")]
    pub(crate) tls_dir: PathBuf,
    /// Advertise ControllerPublishVolume, so that a volume is given to one node at a time
    #[arg(long)]
    pub(crate) attach: bool,
    /// Address of /healthz, /readyz and /metrics; none when not given
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) http_endpoint: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// What only `--mode=node` takes.
#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Name of this node, which is its CSI node id
    #[arg(long, env = "NODE_NAME", required_if_eq("mode", "node"), value_name = "NAME")]
    pub(crate) node_id: Option<String>,
    /// Directory that holds the pool
    #[arg(long, required_if_eq("mode", "node"), value_name = "DIRECTORY")]
    pub(crate) pool_path: Option<PathBuf>,
    /// Uid of the StorageBackend that the pool must belong to
    #[arg(long, required_if_eq("mode", "node"), value_name = "UID")]
    pub(crate) backend_uid: Option<String>,
    /// Refuse a pool path that is not a mount point
    #[arg(long)]
    pub(crate) require_mount_point: bool,
    /// Address to serve the router and the operator on, with mutual TLS
    #[arg(long, default_value = "0.0.0.0:9741", value_name = "ADDRESS:PORT")]
    pub(crate) agent_address: SocketAddr,
    /// Kubelet's directory: volumes are mounted nowhere else
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIRECTORY")]
    pub(crate) kubelet_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Node,
    Router,
}

/// Spelled as in `spec.type` of a StorageBackend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    #[value(name = "Directory")]
    Directory,
    #[value(name = "LoopFile")]
    LoopFile,
}
