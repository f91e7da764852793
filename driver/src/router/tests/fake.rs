//! Agents that remember what they were asked, and a router that talks to them over real mutual TLS.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunnage_csi::agent::agent_server::{Agent, AgentServer};
use dunnage_csi::agent::directory_client::DirectoryClient;
use dunnage_csi::agent::{
    AgentAddress, AgentList, CopyHint, DescribeRequest, DescribeResponse, FenceRequest, FenceResponse,
    InitPoolRequest, InitPoolResponse, Pool, RemovePoolRequest, RemovePoolResponse, pool,
};
use dunnage_csi::metadata::COPY;
use dunnage_csi::tls::{self, Material};
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::controller_server::{Controller, ControllerServer};
use dunnage_csi::v1::group_controller_client::GroupControllerClient;
use dunnage_csi::v1::group_controller_server::GroupControllerServer;
use dunnage_csi::v1::identity_client::IdentityClient;
use dunnage_csi::v1::{self, CreateVolumeRequest, CreateVolumeResponse, ProbeRequest};
use dunnage_csi::{agent, uds};
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use prost::Message as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{UnboundedReceiverStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use crate::engine::EngineKind;
use crate::id::{PoolId, SnapshotId, VolumeId};
use crate::record::Source;
use crate::router::{Config, Error, serve};

pub(super) const DRIVER: &str = "local.csi.dunnage.dev";
pub(super) const KEY: &str = "topology.local.csi.dunnage.dev/pool";

type Answer<T> = Result<Response<T>, Status>;

/// What a fake does instead of a `CreateVolume` or `DeleteVolume`.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Refuse(Status),
    Hang,
}

#[derive(Clone)]
pub(super) struct Fake {
    pub(super) node: String,
    pub(super) pool: PoolId,
    pub(super) said: Arc<watch::Sender<DescribeResponse>>,
    /// Every call in its order, such as `CreateVolume pvc-1`.
    pub(super) calls: Arc<Mutex<Vec<String>>>,
    pub(super) instead: Arc<Mutex<BTreeMap<&'static str, Do>>>,
}

/// Notes that a call was dropped before its end.
struct Dropped(Arc<Mutex<Vec<String>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("dropped".to_owned());
    }
}

impl Fake {
    pub(super) fn new(node: &str, pool: &str) -> Self {
        let id = pool.to_owned();
        let about =
            Pool { state: pool::State::Ready.into(), id, available_bytes: 1 << 30, ..Pool::default() };
        let said = DescribeResponse {
            node: node.to_owned(),
            driver: DRIVER.to_owned(),
            pool: Some(about),
            ..DescribeResponse::default()
        };
        Self {
            node: node.to_owned(),
            pool: pool.parse().unwrap(),
            said: Arc::new(watch::Sender::new(said)),
            calls: Arc::default(),
            instead: Arc::default(),
        }
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub(super) fn instead(&self, method: &'static str, what: Do) {
        self.instead.lock().unwrap().insert(method, what);
    }

    pub(super) async fn note(&self, method: &'static str, about: &str) -> Result<(), Status> {
        self.calls.lock().unwrap().push(format!("{method} {about}"));
        let instead = self.instead.lock().unwrap().get(method).cloned();
        match instead {
            None => Ok(()),
            Some(Do::Refuse(status)) => Err(status),
            Some(Do::Hang) => {
                let _dropped = Dropped(Arc::clone(&self.calls));
                std::future::pending().await
            }
        }
    }
}

#[tonic::async_trait]
impl Agent for Fake {
    type DescribeStream = BoxStream<'static, Result<DescribeResponse, Status>>;

    async fn describe(&self, request: Request<DescribeRequest>) -> Answer<Self::DescribeStream> {
        tls::require_peer(&request, &[tls::ROUTER])?;
        Ok(Response::new(WatchStream::new(self.said.subscribe()).map(Ok).boxed()))
    }

    async fn init_pool(&self, _: Request<InitPoolRequest>) -> Answer<InitPoolResponse> {
        Err(Status::permission_denied("the router makes no pools"))
    }

    async fn remove_pool(&self, _: Request<RemovePoolRequest>) -> Answer<RemovePoolResponse> {
        Err(Status::permission_denied("the router removes no pools"))
    }

    async fn fence(&self, request: Request<FenceRequest>) -> Answer<FenceResponse> {
        let FenceRequest { fenced, reason } = request.into_inner();
        self.calls.lock().unwrap().push(format!("Fence {fenced} {reason}"));
        self.said.send_modify(|said| said.pool.as_mut().unwrap().fenced = fenced);
        Ok(Response::new(FenceResponse {}))
    }
}

#[tonic::async_trait]
impl Controller for Fake {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let copy = request.metadata().get_bin(COPY).map(|hint| hint.to_bytes().unwrap());
        let request = request.into_inner();
        self.note("CreateVolume", &request.name).await?;
        if let Some(copy) = copy {
            self.note("copy from", &CopyHint::decode(copy).unwrap().address).await?;
        }
        let id = VolumeId::make(&self.pool, &request.name).to_string();
        let content_source = request.volume_content_source;
        let source = Source::parse(content_source.as_ref()).unwrap().map(|source| source.to_agent());
        let made = agent::Volume { id: id.clone(), name: request.name, source, ..agent::Volume::default() };
        self.said.send_modify(|said| said.volumes.push(made));
        let volume =
            v1::Volume { volume_id: id, capacity_bytes: 1 << 20, content_source, ..v1::Volume::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Answer<v1::DeleteVolumeResponse> {
        let id = request.into_inner().volume_id;
        self.note("DeleteVolume", &id).await?;
        self.said.send_modify(|said| said.volumes.retain(|volume| volume.id != id));
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }

    async fn get_capacity(&self, _: Request<v1::GetCapacityRequest>) -> Answer<v1::GetCapacityResponse> {
        self.note("GetCapacity", "").await?;
        let available = self.said.borrow().pool.as_ref().unwrap().available_bytes;
        let available_capacity = available.try_into().unwrap();
        let answer = v1::GetCapacityResponse { available_capacity, ..v1::GetCapacityResponse::default() };
        Ok(Response::new(answer))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        self.note("ControllerPublishVolume", &request.into_inner().node_id).await?;
        Ok(Response::new(v1::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Answer<v1::ControllerUnpublishVolumeResponse> {
        self.note("ControllerUnpublishVolume", &request.into_inner().node_id).await?;
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<v1::ValidateVolumeCapabilitiesResponse> {
        self.note("ValidateVolumeCapabilities", &request.into_inner().volume_id).await?;
        Ok(Response::new(v1::ValidateVolumeCapabilitiesResponse::default()))
    }

    async fn list_volumes(&self, _: Request<v1::ListVolumesRequest>) -> Answer<v1::ListVolumesResponse> {
        Err(Status::unimplemented(""))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        Err(Status::unimplemented(""))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Answer<v1::CreateSnapshotResponse> {
        let request = request.into_inner();
        self.note("CreateSnapshot", &request.name).await?;
        let id = SnapshotId::make(&self.pool, &request.name).to_string();
        let source_volume_id = request.source_volume_id;
        let made = agent::Snapshot {
            id: id.clone(),
            name: request.name,
            source_volume_id: source_volume_id.clone(),
            ..agent::Snapshot::default()
        };
        self.said.send_modify(|said| said.snapshots.push(made));
        let snapshot = v1::Snapshot { snapshot_id: id, source_volume_id, ..v1::Snapshot::default() };
        Ok(Response::new(v1::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Answer<v1::DeleteSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        self.note("DeleteSnapshot", &id).await?;
        self.said.send_modify(|said| said.snapshots.retain(|snapshot| snapshot.id != id));
        Ok(Response::new(v1::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        _: Request<v1::ListSnapshotsRequest>,
    ) -> Answer<v1::ListSnapshotsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn get_snapshot(&self, _: Request<v1::GetSnapshotRequest>) -> Answer<v1::GetSnapshotResponse> {
        Err(Status::unimplemented(""))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        self.note("ControllerExpandVolume", &request.volume_id).await?;
        let capacity_bytes = request.capacity_range.unwrap().required_bytes;
        Ok(Response::new(v1::ControllerExpandVolumeResponse {
            capacity_bytes,
            node_expansion_required: true,
        }))
    }

    async fn controller_get_volume(
        &self,
        _: Request<v1::ControllerGetVolumeRequest>,
    ) -> Answer<v1::ControllerGetVolumeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Answer<v1::ControllerModifyVolumeResponse> {
        self.note("ControllerModifyVolume", &request.into_inner().volume_id).await?;
        Ok(Response::new(v1::ControllerModifyVolumeResponse {}))
    }
}

/// A running router and what it needs.
pub(super) struct Lab {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
    lists: mpsc::UnboundedSender<AgentList>,
    /// By node: the address, and the runtime that takes the connections along when it goes.
    agents: BTreeMap<String, (String, Option<Runtime>)>,
    pub(super) stop: CancellationToken,
    pub(super) router: JoinHandle<Result<(), Error>>,
    pub(super) metrics: Metrics,
    channel: Channel,
}

impl Lab {
    pub(super) async fn start(attach: bool) -> Self {
        Self::of(EngineKind::Btrfs, attach).await
    }

    pub(super) async fn of(engine: EngineKind, attach: bool) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let tls_dir = directory.path().join("router");
        write_set(&tls_dir, tls::ROUTER, &ca);
        let endpoint = format!("unix://{}", directory.path().join("csi.sock").display());
        let cross_pool = super::super::CrossPool::Copy;
        let config = Config {
            endpoint: endpoint.clone(),
            driver_name: DRIVER.to_owned(),
            engine,
            attach,
            cross_pool,
            tls_dir,
        };
        let (stop, metrics) = (CancellationToken::new(), Metrics::default());
        let router = tokio::spawn(serve(config, stop.clone(), metrics.clone(), Checks::default()));
        until("the router listens", async || uds::connect(&endpoint).await.is_ok()).await;
        let channel = uds::connect(&endpoint).await.unwrap();
        let (lists, receiver) = mpsc::unbounded_channel();
        let mut announcer = DirectoryClient::new(channel.clone());
        tokio::spawn(async move { announcer.announce(UnboundedReceiverStream::new(receiver)).await });
        Self { directory, ca, lists, agents: BTreeMap::new(), stop, router, metrics, channel }
    }

    /// A lab whose router is connected to these agents.
    pub(super) async fn with(agents: &[&Fake]) -> Self {
        let mut lab = Self::start(false).await;
        for agent in agents {
            lab.serve(agent).await;
        }
        lab.announce();
        lab.until_connected(agents.len()).await;
        lab
    }

    /// Starts an agent, at a new address.
    pub(super) async fn serve(&mut self, fake: &Fake) {
        self.serve_as(fake, &fake.node).await;
    }

    /// Starts an agent where the list will say that another node's is.
    pub(super) async fn serve_as(&mut self, fake: &Fake, node: &str) {
        let set = self.directory.path().join("agent");
        write_set(&set, tls::AGENT, &self.ca);
        let material = Material::open(&set).unwrap();
        let server = Server::builder()
            .add_service(AgentServer::new(fake.clone()))
            .add_service(ControllerServer::new(fake.clone()))
            .add_service(GroupControllerServer::new(fake.clone()));
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listening = runtime.spawn(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            tokio::spawn(server.serve_with_incoming(tls::incoming(listener, material)));
            address
        });
        self.kill(node);
        self.agents.insert(node.to_owned(), (listening.await.unwrap(), Some(runtime)));
    }

    /// Where the router reaches an agent.
    pub(super) fn address(&self, node: &str) -> &str {
        &self.agents[node].0
    }

    /// Stops an agent as a crash would.
    pub(super) fn kill(&mut self, node: &str) {
        if let Some(runtime) = self.agents.get_mut(node).and_then(|(_, runtime)| runtime.take()) {
            runtime.shutdown_background();
        }
    }

    pub(super) fn announce(&self) {
        self.announce_with(&[]);
    }

    /// Announces the agents, and pools that are given up.
    pub(super) fn announce_with(&self, given_up: &[&str]) {
        let address = |(node, (address, _)): (&String, &(String, Option<Runtime>))| AgentAddress {
            node: node.clone(),
            address: address.clone(),
        };
        let agents = self.agents.iter().map(address).collect();
        let given_up_pools = given_up.iter().map(|pool| (*pool).to_owned()).collect();
        self.lists.send(AgentList { agents, given_up_pools }).unwrap();
    }

    /// Ends the stream of lists, as when the discovery restarts.
    pub(super) fn hang_up(&mut self) {
        self.lists = mpsc::unbounded_channel().0;
    }

    pub(super) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(super) fn group_controller(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub(super) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(super) async fn probe(&self) -> bool {
        self.identity().probe(ProbeRequest {}).await.unwrap().into_inner().ready.unwrap()
    }

    pub(super) async fn until_connected(&self, count: usize) {
        let wanted = format!("dunnage_router_agents_connected {count}\n");
        until(&wanted, async || self.metrics.render().contains(&wanted)).await;
    }

    /// Makes a volume on one of these pools and gives back its id.
    pub(super) async fn create(&self, name: &str, pools: &[&str]) -> Result<String, Status> {
        let response = self.controller().create_volume(create_request(name, pools)).await?;
        Ok(response.into_inner().volume.unwrap().volume_id)
    }

    pub(super) async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(super) async fn list(&self) -> Result<Vec<String>, Status> {
        let response = self.controller().list_volumes(v1::ListVolumesRequest::default()).await?.into_inner();
        Ok(response.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.router.abort();
        let nodes: Vec<_> = self.agents.keys().cloned().collect();
        for node in &nodes {
            self.kill(node);
        }
    }
}

pub(super) fn topology(pool: &str) -> v1::Topology {
    v1::Topology { segments: [(KEY.to_owned(), pool.to_owned())].into() }
}

pub(super) fn create_request(name: &str, pools: &[&str]) -> CreateVolumeRequest {
    let terms: Vec<_> = pools.iter().map(|pool| topology(pool)).collect();
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![v1::VolumeCapability::default()],
        accessibility_requirements: Some(v1::TopologyRequirement {
            requisite: terms.clone(),
            preferred: terms,
        }),
        ..CreateVolumeRequest::default()
    }
}

fn write_set(directory: &Path, name: &str, ca: &CertifiedIssuer<'static, KeyPair>) {
    std::fs::create_dir_all(directory).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, ca).unwrap();
    for (file, content) in
        [("ca.crt", ca.pem()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())]
    {
        std::fs::write(directory.join(file), content).unwrap();
    }
}

/// Waits for something that must become true.
pub(super) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let mut left = 400;
    while !check().await {
        left -= 1;
        assert!(left > 0, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
