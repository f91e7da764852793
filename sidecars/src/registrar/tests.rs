//! The registrar between a driver and a kubelet that are played by the test.

use std::sync::atomic::{AtomicBool, Ordering};

use dunnage_csi::registration::registration_client::RegistrationClient;
use dunnage_csi::registration::{InfoRequest, RegistrationStatus};
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::{uds, v1};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use super::*;

const NAME: &str = "test.csi.dunnage.dev";

struct FakeDriver {
    ready: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse { name: NAME.to_owned(), ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("the registrar must not ask for it"))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(self.ready.load(Ordering::SeqCst)) }))
    }
}

/// A driver and a registrar in a directory of their own.
struct Scene {
    directory: TempDir,
    ready: Arc<AtomicBool>,
    stop: CancellationToken,
    registrar: JoinHandle<Result<(), Error>>,
}

impl Scene {
    fn start(ready: bool) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let (ready, stop) = (Arc::new(AtomicBool::new(ready)), CancellationToken::new());
        let address = directory.path().join("csi.sock");
        let incoming = uds::listen(&address.to_string_lossy()).expect("listen");
        let driver = IdentityServer::new(FakeDriver { ready: Arc::clone(&ready) });
        tokio::spawn(Server::builder().add_service(driver).serve_with_incoming(incoming));
        let args = Args {
            csi_address: address.to_string_lossy().into_owned(),
            kubelet_registration_path: "/var/lib/kubelet/plugins/x/csi.sock".to_owned(),
            plugin_registration_path: directory.path().to_owned(),
            timeout: Duration::from_secs(5),
            http_endpoint: String::new(),
            health_port: 0,
            mode: String::new(),
        };
        let registrar = tokio::spawn(run(args, stop.clone()));
        Self { directory, ready, stop, registrar }
    }

    fn socket(&self) -> PathBuf {
        socket_path(self.directory.path(), NAME)
    }

    /// Kubelet's side, when the socket is there.
    async fn kubelet(&self) -> RegistrationClient<tonic::transport::Channel> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Ok(channel) = uds::connect(&self.socket().to_string_lossy()).await {
                return RegistrationClient::new(channel);
            }
            assert!(tokio::time::Instant::now() < deadline, "no registration socket");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn kubelet_learns_where_the_driver_is_and_the_socket_goes_with_the_process() {
    let scene = Scene::start(true);
    let mut kubelet = scene.kubelet().await;
    let info = kubelet.get_info(InfoRequest {}).await.expect("info").into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", NAME));
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/x/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(status).await.expect("noted");
    assert_eq!(health::check(&scene.socket(), NAME, Duration::from_secs(5)).await, Page::ok());
    scene.stop.cancel();
    scene.registrar.await.expect("task").expect("a stop is no error");
    assert!(!scene.directory.path().join(format!("{NAME}-reg.sock")).exists());
}

#[tokio::test]
async fn a_driver_without_its_pool_is_not_shown_to_kubelet() {
    let scene = Scene::start(false);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!scene.socket().exists());
    scene.ready.store(true, Ordering::SeqCst);
    scene.kubelet().await;
    scene.stop.cancel();
    scene.registrar.await.expect("task").expect("a stop is no error");
}

#[tokio::test]
async fn a_refusal_of_kubelet_ends_the_process_with_the_reason() {
    let scene = Scene::start(true);
    let status = RegistrationStatus { plugin_registered: false, error: "NodeGetInfo failed".to_owned() };
    scene.kubelet().await.notify_registration_status(status).await.expect("answered before the end");
    let error = scene.registrar.await.expect("task").expect_err("refused");
    assert!(matches!(&error, Error::NotRegistered(reason) if reason == "NodeGetInfo failed"), "{error:?}");
}

#[tokio::test]
async fn health_tells_a_missing_socket_from_a_wrong_one() {
    let scene = Scene::start(true);
    scene.kubelet().await;
    let timeout = Duration::from_secs(5);
    assert_eq!(health::check(&scene.socket(), "other", timeout).await.status.as_u16(), 500);
    std::fs::remove_file(scene.socket()).expect("remove");
    assert_eq!(health::check(&scene.socket(), NAME, timeout).await.status.as_u16(), 404);
    std::fs::write(scene.socket(), "").expect("write");
    assert_eq!(health::check(&scene.socket(), NAME, timeout).await.status.as_u16(), 500);
    scene.stop.cancel();
    scene.registrar.await.expect("task").expect("a stop is no error");
}

#[tokio::test]
async fn the_older_probe_mode_ends_at_once_and_a_missing_path_is_named() {
    let args = |mode: &str| Args {
        csi_address: "/nowhere".to_owned(),
        kubelet_registration_path: String::new(),
        plugin_registration_path: "/nowhere".into(),
        timeout: Duration::from_secs(1),
        http_endpoint: String::new(),
        health_port: 0,
        mode: mode.to_owned(),
    };
    run(args(PROBE_MODE), CancellationToken::new()).await.expect("nothing to do");
    let error = run(args(""), CancellationToken::new()).await.expect_err("no path");
    assert!(matches!(error, Error::Flags(_)), "{error:?}");
}
