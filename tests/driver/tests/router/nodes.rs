//! A router and the drivers of several nodes, in one process, over real mutual TLS.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dunnage_csi::agent::directory_client::DirectoryClient;
use dunnage_csi::agent::{AgentAddress, AgentList};
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::group_controller_client::GroupControllerClient;
use dunnage_csi::v1::identity_client::IdentityClient;
use dunnage_csi::v1::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, ListVolumesRequest, ProbeRequest, Topology,
    TopologyRequirement,
};
use dunnage_csi::{tls, uds};
use dunnage_driver::EngineKind;
use dunnage_driver::id::PoolId;
use dunnage_driver::node::{self, ServeConfig};
use dunnage_driver::router::{self, Config, CrossPool};
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use dunnage_tests_driver::{Authority, BACKEND, DRIVER, Disk, Expected, Lab};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

const KEY: &str = "topology.local.csi.dunnage.dev/pool";

/// A node whose driver runs in a runtime of its own, so that it can be killed.
pub(crate) struct Node {
    _disk: Option<Disk>,
    pub(crate) lab: Lab,
    pub(crate) pool: PoolId,
    /// Of the process that runs now.
    pub(crate) metrics: Metrics,
    running: Option<(Runtime, CancellationToken, JoinHandle<()>)>,
    pub(crate) address: String,
}

/// The router with its nodes.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
    metrics: Metrics,
    stop: CancellationToken,
    lists: mpsc::UnboundedSender<AgentList>,
    channel: Channel,
}

impl Node {
    fn new(engine: EngineKind, number: usize, pool: &str, change: impl FnOnce(&mut node::Config)) -> Self {
        let mut lab = Lab::without_pool(engine, |config| {
            config.node_id = format!("node-{number}");
            change(config);
        });
        // All but the first have little room, so that what may go anywhere goes to the first.
        let disk = (number > 0).then(|| {
            let mut disk = match engine {
                EngineKind::Btrfs => Disk::btrfs(lab.root(), 512),
                _ => Disk::make(lab.root(), 512),
            };
            disk.mount(&lab.config.pool_path);
            disk
        });
        let pool: PoolId = pool.parse().unwrap();
        lab.restart();
        lab.driver().init_pool(&pool, BACKEND).unwrap();
        // Served by a driver that opens the pool itself.
        lab.driver = None;
        let metrics = Metrics::default();
        Self { _disk: disk, lab, pool, metrics, running: None, address: String::new() }
    }

    pub(crate) fn socket(&self) -> String {
        format!("unix://{}", self.lab.root().join("csi.sock").display())
    }

    /// The driver's process is gone, without a word.
    pub(crate) fn kill(&mut self) {
        if let Some((runtime, stop, _)) = self.running.take() {
            runtime.shutdown_background();
            stop.cancel();
        }
    }

    /// The driver is asked to stop, and has this long for it.
    pub(crate) async fn stop(&mut self, within: Duration) {
        let (runtime, stop, serving) = self.running.take().unwrap();
        stop.cancel();
        tokio::time::timeout(within, serving).await.expect("it goes on").unwrap();
        runtime.shutdown_background();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Cluster {
    /// Starts a router and a node for each of the pools, and waits until it knows all of them.
    pub(crate) async fn start(engine: EngineKind, attach: Expected, pools: &[&str]) -> Self {
        let attach = attach == Expected::Attach;
        let router = |config: &mut Config| config.attach = attach;
        Self::with(engine, pools, router, |config| config.attach = attach).await
    }

    /// The same with settings of the router and of the nodes.
    pub(crate) async fn with(
        engine: EngineKind,
        pools: &[&str],
        router: impl FnOnce(&mut Config),
        node: impl Fn(&mut node::Config),
    ) -> Self {
        let directory = tempfile::Builder::new().prefix("dunnage-router-").tempdir().unwrap();
        let authority = Authority::default();
        let tls_dir = authority.write(directory.path(), tls::ROUTER);
        let endpoint = format!("unix://{}", directory.path().join("csi.sock").display());
        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        let mut config = Config {
            endpoint: endpoint.clone(),
            driver_name: DRIVER.to_owned(),
            engine,
            attach: false,
            cross_pool: CrossPool::Copy,
            tls_dir,
        };
        router(&mut config);
        let serving = router::serve(config, stop.clone(), metrics.clone(), Checks::default());
        tokio::spawn(async move { serving.await.unwrap() });
        until("the router listens", async || uds::connect(&endpoint).await.is_ok()).await;
        let channel = uds::connect(&endpoint).await.unwrap();
        let (lists, receiver) = mpsc::unbounded_channel();
        let mut announcer = DirectoryClient::new(channel.clone());
        tokio::spawn(async move { announcer.announce(UnboundedReceiverStream::new(receiver)).await });
        let nodes: Vec<_> =
            pools.iter().enumerate().map(|(number, pool)| Node::new(engine, number, pool, &node)).collect();
        let mut cluster = Self { nodes, directory, authority, metrics, stop, lists, channel };
        for number in 0..pools.len() {
            cluster.boot(number);
        }
        cluster.until_connected(pools.len()).await;
        let mut identity = IdentityClient::new(cluster.channel.clone());
        let ready = identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready;
        assert_eq!(ready, Some(true));
        cluster
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.directory.path().join("csi.sock").display())
    }

    /// Starts a node's driver at a new address, and announces it.
    pub(crate) fn boot(&mut self, number: usize) {
        // Of its own: another node may be reading its files just now.
        let tls_dir = self.authority.write(&self.directory.path().join(number.to_string()), tls::AGENT);
        let node = &mut self.nodes[number];
        node.kill();
        let free = unused_address();
        node.address = free.to_string();
        let config = ServeConfig {
            driver: node.lab.config.clone(),
            endpoint: node.socket(),
            agent_address: free,
            tls_dir,
        };
        let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let stop = CancellationToken::new();
        node.metrics = Metrics::default();
        let serving = node::serve(config, stop.clone(), node.metrics.clone(), Checks::default());
        let serving = runtime.spawn(async move { serving.await.unwrap() });
        node.running = Some((runtime, stop, serving));
        let agents = self.nodes.iter().filter(|node| !node.address.is_empty());
        let agents = agents.map(|node| AgentAddress {
            node: node.lab.config.node_id.clone(),
            address: node.address.clone(),
        });
        self.lists.send(AgentList { agents: agents.collect(), given_up_pools: Vec::new() }).unwrap();
    }

    pub(crate) async fn until_connected(&self, count: usize) {
        let wanted = format!("dunnage_router_agents_connected {count}\n");
        until(&wanted, async || self.metrics.render().contains(&wanted)).await;
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn group_controller(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    /// Makes a volume of 64 MiB on the pool of a node and gives back its id.
    pub(crate) async fn create(&self, name: &str, on: &PoolId) -> Result<String, Status> {
        create(self.controller(), name, on).await
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn list(&self) -> Vec<String> {
        let response = self.controller().list_volumes(ListVolumesRequest::default()).await.unwrap();
        response.into_inner().entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Asks a controller, the router's or a node's own, for a volume on a pool.
pub(crate) async fn create(
    mut controller: ControllerClient<Channel>,
    name: &str,
    on: &PoolId,
) -> Result<String, Status> {
    Ok(controller.create_volume(request(name, on)).await?.into_inner().volume.unwrap().volume_id)
}

/// A request for a volume on a pool.
pub(crate) fn request(name: &str, on: &PoolId) -> CreateVolumeRequest {
    let here = Topology { segments: [(KEY.to_owned(), on.to_string())].into() };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![dunnage_tests_driver::mount("")],
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![here.clone()],
            preferred: vec![here],
        }),
        ..CreateVolumeRequest::default()
    }
}

/// An address that nobody else in this process or beside it takes meanwhile: each caller has a loopback address alone.
fn unused_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, high, low, NEXT.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()
}

/// Waits for something that must become true.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !check().await {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
