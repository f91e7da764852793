//! `dunnage driver`: the flags of the CSI driver in its two modes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dunnage_driver::router::CrossPool;
use dunnage_driver::steps::Steps;
use dunnage_driver::{CopySettings, EngineKind, Overcommit, Rate, Reserve, node, router};
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::http;
use dunnage_telemetry::metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::Failure;

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
    /// Give a volume to one node at a time, by CSI's controller-publish calls
    #[arg(long)]
    pub(crate) attach: bool,
    /// What the router does about a volume whose data source lies on another pool: copy the data there, or refuse
    #[arg(long, value_enum, default_value = "Copy")]
    pub(crate) cross_pool: Cross,
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
    /// Bytes that sparse volumes may promise for each byte of the pool, from 1 to 100; 1 is no more than there is
    #[arg(long, default_value = "1.0", value_name = "RATIO")]
    pub(crate) overcommit_ratio: Overcommit,
    /// What volumes leave free of the pool's file system: a percentage from 0% to 90%, or bytes such as 10Gi [default: 2%,
    /// at most 4Gi]
    #[arg(long, value_name = "SHARE")]
    pub(crate) reserve: Option<Reserve>,
    /// Bytes a second of volumes' data that this node gives to other nodes, and as many that it takes from them
    #[arg(long, default_value = "100Mi", value_name = "BYTES")]
    pub(crate) copy_rate: Rate,
}

/// Spelled as in `spec.crossPool` of a StorageBackend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cross {
    #[value(name = "Copy")]
    Copy,
    #[value(name = "Refuse")]
    Refuse,
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
    #[value(name = "Btrfs")]
    Btrfs,
}

impl From<Engine> for EngineKind {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Directory => Self::Directory,
            Engine::LoopFile => Self::LoopFile,
            Engine::Btrfs => Self::Btrfs,
        }
    }
}

/// Serves until `stop`.
pub(crate) async fn run(args: DriverArgs, stop: CancellationToken) -> Result<(), Failure> {
    let (metrics, checks) = (Metrics::default(), Checks::default());
    let stopped = stop.clone();
    let (telling, told) = (metrics.clone(), checks.clone());
    let health = async move {
        if let Some(address) = args.http_endpoint {
            http::serve(address, telling, told, stopped).await?;
        } else {
            stopped.cancelled().await;
        }
        Ok::<(), Failure>(())
    };
    let serving = async {
        match args.mode {
            Mode::Node => node::serve(node_config(args)?, stop, metrics, checks).await.map_err(Failure::from),
            Mode::Router => {
                router::serve(router_config(args), stop, metrics, checks).await.map_err(Failure::from)
            }
        }
    };
    tokio::try_join!(health, serving).map(drop)
}

fn router_config(args: DriverArgs) -> router::Config {
    router::Config {
        endpoint: args.endpoint,
        driver_name: args.driver_name,
        engine: args.engine.into(),
        attach: args.attach,
        cross_pool: match args.cross_pool {
            Cross::Copy => CrossPool::Copy,
            Cross::Refuse => CrossPool::Refuse,
        },
        tls_dir: args.tls_dir,
    }
}

fn node_config(args: DriverArgs) -> Result<node::ServeConfig, Failure> {
    let missing = |flag: &str| Failure::from(format!("--{flag} is needed with --mode=node"));
    let driver = node::Config {
        driver_name: args.driver_name,
        node_id: args.node.node_id.ok_or_else(|| missing("node-id"))?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: args.engine.into(),
        pool_path: args.node.pool_path.ok_or_else(|| missing("pool-path"))?,
        backend_uid: args.node.backend_uid.ok_or_else(|| missing("backend-uid"))?,
        require_mount_point: args.node.require_mount_point,
        attach: args.attach,
        kubelet_dir: args.node.kubelet_dir,
        steps: Steps::default(),
        overcommit: args.node.overcommit_ratio,
        reserve: args.node.reserve.unwrap_or_default(),
        copies: CopySettings { rate: args.node.copy_rate, ..CopySettings::default() },
    };
    Ok(node::ServeConfig {
        driver,
        endpoint: args.endpoint,
        agent_address: args.node.agent_address,
        tls_dir: args.tls_dir,
    })
}
