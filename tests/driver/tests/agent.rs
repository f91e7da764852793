//! A whole node's driver behind its sockets: what the operator and the router may do, and how changes are told.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dunnage_csi::agent::agent_client::AgentClient;
use dunnage_csi::agent::pool::State;
use dunnage_csi::agent::{
    DescribeRequest, DescribeResponse, FenceRequest, InitPoolRequest, RemovePoolRequest,
};
use dunnage_csi::tls::{self, AGENT, Material, OPERATOR, ROUTER};
use dunnage_csi::uds;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::group_controller_client::GroupControllerClient;
use dunnage_csi::v1::identity_client::IdentityClient;
use dunnage_csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetPluginInfoRequest, ProbeRequest,
};
use dunnage_driver::EngineKind;
use dunnage_driver::node::{ServeConfig, ServeError, serve};
use dunnage_telemetry::health::Checks;
use dunnage_telemetry::metrics::Metrics;
use dunnage_tests_driver::{
    Authority, BACKEND, DRIVER, Expected, Lab, NODE, POOL, Sockets, free_address, group_request, mount, run,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// A node's driver, served.
struct Served {
    lab: Lab,
    authority: Authority,
    address: SocketAddr,
    endpoint: String,
    metrics: Metrics,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    async fn start(engine: EngineKind) -> Self {
        let mut lab = Lab::without_pool(engine, |_| {});
        lab.driver = None;
        let authority = Authority::default();
        let root = lab.root().to_owned();
        let address = free_address();
        let endpoint = format!("unix://{}", root.join("csi.sock").display());
        let config = ServeConfig {
            driver: lab.config.clone(),
            endpoint: endpoint.clone(),
            agent_address: address,
            tls_dir: authority.write(&root, AGENT),
        };
        let (stop, metrics) = (CancellationToken::new(), Metrics::default());
        let serving = tokio::spawn(serve(config, stop.clone(), metrics.clone(), Checks::default()));
        let served = Self { lab, authority, address, endpoint, metrics, stop, serving };
        served.until_listening().await;
        served
    }

    async fn until_listening(&self) {
        for _ in 0..200 {
            if let Ok(channel) = uds::connect(&self.endpoint).await
                && IdentityClient::new(channel).probe(ProbeRequest {}).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the driver does not serve");
    }

    fn material(&self, name: &str) -> PathBuf {
        self.authority.write(self.lab.root(), name)
    }

    fn channel(&self, name: &str) -> Channel {
        tls::connect(self.address, Material::open(self.material(name)).unwrap(), AGENT)
    }

    async fn describe(&self) -> Streaming<DescribeResponse> {
        let mut client = AgentClient::new(self.channel(ROUTER));
        client.describe(DescribeRequest {}).await.unwrap().into_inner()
    }

    async fn init(&self) {
        let request = InitPoolRequest { pool_id: POOL.into(), backend_uid: BACKEND.into() };
        AgentClient::new(self.channel(OPERATOR)).init_pool(request).await.unwrap();
    }

    async fn stop(self) -> Lab {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
        self.lab
    }
}

fn create(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![mount("")],
        ..CreateVolumeRequest::default()
    }
}

async fn next(stream: &mut Streaming<DescribeResponse>) -> DescribeResponse {
    timeout(Duration::from_secs(20), stream.message()).await.expect("no message in time").unwrap().unwrap()
}

/// The next message that shows what is waited for.
async fn until(
    stream: &mut Streaming<DescribeResponse>,
    shows: impl Fn(&DescribeResponse) -> bool,
) -> DescribeResponse {
    loop {
        let message = next(stream).await;
        if shows(&message) {
            return message;
        }
    }
}

#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let served = Served::start(EngineKind::Directory).await;
    let mut stream = served.describe().await;
    let first = next(&mut stream).await;
    assert_eq!((first.node.as_str(), first.driver.as_str()), (NODE, DRIVER));
    assert!(!first.kernel.is_empty() && first.volumes.is_empty());
    let pool = first.pool.unwrap();
    assert_eq!(pool.state(), State::Empty);

    served.init().await;
    let ready = until(&mut stream, |seen| seen.pool.as_ref().unwrap().state() == State::Ready).await;
    let pool = ready.pool.unwrap();
    assert_eq!((pool.id.as_str(), pool.backend_uid.as_str()), (POOL, BACKEND));
    assert!(pool.total_bytes > pool.available_bytes && pool.available_bytes > 0);
    assert_eq!(pool.limits_enforced, pool.limits_message.is_empty());
    assert!(!ready.filesystem.is_empty());

    let mut router = ControllerClient::new(served.channel(ROUTER));
    let volume = router.create_volume(create("pvc-1")).await.unwrap().into_inner().volume.unwrap();
    let told = until(&mut stream, |seen| seen.volumes.len() == 1).await;
    assert_eq!(
        (told.volumes[0].id.as_str(), told.volumes[0].name.as_str()),
        (volume.volume_id.as_str(), "pvc-1")
    );
    assert_eq!(told.volumes[0].capacity_bytes, 1 << 30);
    let request = DeleteVolumeRequest { volume_id: volume.volume_id, ..DeleteVolumeRequest::default() };
    router.delete_volume(request).await.unwrap();
    until(&mut stream, |seen| seen.volumes.is_empty()).await;

    let request = RemovePoolRequest { pool_id: POOL.into() };
    AgentClient::new(served.channel(OPERATOR)).remove_pool(request).await.unwrap();
    until(&mut stream, |seen| seen.pool.as_ref().unwrap().state() == State::Empty).await;
    drop(stream);
    served.stop().await;
}

#[tokio::test]
async fn a_fence_stops_new_volumes_and_stages_until_it_is_lifted() {
    let served = Served::start(EngineKind::Directory).await;
    served.init().await;
    let mut router = ControllerClient::new(served.channel(ROUTER));
    let mut agent = AgentClient::new(served.channel(ROUTER));
    let volume = router.create_volume(create("pvc-1")).await.unwrap().into_inner().volume.unwrap();
    let larger = |more| ControllerExpandVolumeRequest {
        volume_id: volume.volume_id.clone(),
        capacity_range: Some(CapacityRange { required_bytes: volume.capacity_bytes + more, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    };
    agent.fence(FenceRequest { fenced: true, reason: "pool is on two nodes".into() }).await.unwrap();
    let status = router.create_volume(create("pvc-2")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("pool is on two nodes"), "{status}");
    // What exists is still answered.
    router.create_volume(create("pvc-1")).await.unwrap();
    router.controller_expand_volume(larger(0)).await.unwrap();
    let status = router.controller_expand_volume(larger(1)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let mut stream = served.describe().await;
    assert!(next(&mut stream).await.pool.unwrap().fenced);
    agent.fence(FenceRequest::default()).await.unwrap();
    router.create_volume(create("pvc-2")).await.unwrap();
    router.controller_expand_volume(larger(1)).await.unwrap();
    drop(stream);
    served.stop().await;
}

#[tokio::test]
async fn each_peer_may_do_its_own_part_only() {
    let served = Served::start(EngineKind::Directory).await;
    let init = InitPoolRequest { pool_id: POOL.into(), backend_uid: BACKEND.into() };
    let status = AgentClient::new(served.channel(ROUTER)).init_pool(init).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let remove = RemovePoolRequest { pool_id: POOL.into() };
    let status = AgentClient::new(served.channel(ROUTER)).remove_pool(remove).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let status =
        ControllerClient::new(served.channel(OPERATOR)).create_volume(create("pvc-1")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let mut groups = GroupControllerClient::new(served.channel(OPERATOR));
    let status = groups.create_volume_group_snapshot(group_request("g", &["v"])).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(std::fs::read_dir(&served.lab.config.pool_path).unwrap().count(), 0);
    // Another CA's router gets nowhere.
    let stranger = Authority::default().write(&served.lab.root().join("stranger"), ROUTER);
    let channel = tls::connect(served.address, Material::open(stranger).unwrap(), AGENT);
    assert!(IdentityClient::new(channel).get_plugin_info(GetPluginInfoRequest {}).await.is_err());
    served.stop().await;
}

#[tokio::test]
async fn calls_are_measured_by_method_and_outcome() {
    let served = Served::start(EngineKind::Directory).await;
    let channel = uds::connect(&served.endpoint).await.unwrap();
    let status = ControllerClient::new(channel).create_volume(create("")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let text = served.metrics.render();
    for labels in [
        r#"method="/csi.v1.Controller/CreateVolume",grpc_status_code="InvalidArgument""#,
        r#"method="/csi.v1.Identity/Probe",grpc_status_code="OK""#,
    ] {
        assert!(text.contains(labels), "{text}");
    }
    served.stop().await;
}

/// What kubelet meets: the served sockets, not the services alone.
#[tokio::test]
async fn the_served_driver_is_sane() {
    let served = Served::start(EngineKind::LoopFile).await;
    served.init().await;
    let (endpoint, root) = (served.endpoint.clone(), served.lab.root().to_owned());
    let kubelet_dir = served.lab.config.kubelet_dir.clone();
    let outcome = tokio::task::spawn_blocking(move || {
        run(
            &Sockets { node: &endpoint, controller: &endpoint, attributes: &[] },
            &kubelet_dir,
            &root,
            64 << 20,
        )
    })
    .await
    .unwrap();
    assert_eq!(outcome.failed, Vec::<String>::new(), "{}", outcome.output);
    assert_eq!(outcome.wrongly_skipped(Expected::NoAttach), Vec::<&String>::new());
    served.stop().await.assert_clean();
}
