//! The probe before drivers that are well, not ready, broken, hanging, gone and back.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use dunnage_csi::v1::identity_server::{Identity, IdentityServer};
use dunnage_csi::{uds, v1};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;

/// What the driver answers to a Probe; nothing at all while there is no answer.
type Answer = Option<Result<Option<bool>, Status>>;

#[derive(Clone, Default)]
struct FakeDriver(Arc<Mutex<Answer>>);

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: "fake.dunnage.dev".to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("the probe must not ask for it"))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let answer = self.0.lock().expect("lock").clone();
        match answer {
            Some(answer) => answer.map(|ready| Response::new(v1::ProbeResponse { ready })),
            None => std::future::pending().await,
        }
    }
}

struct Scene {
    directory: TempDir,
    driver: FakeDriver,
    metrics: Metrics,
    asked: Asked,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let metrics = Metrics::default();
        let asked = Asked {
            address: directory.path().join("csi.sock").to_string_lossy().into_owned(),
            operations: CsiOperations::new(&metrics),
            limit: Duration::from_millis(500),
        };
        Self { directory, driver: FakeDriver::default(), metrics, asked }
    }

    fn boot(&self) -> JoinHandle<Result<(), tonic::transport::Error>> {
        let incoming = uds::listen(&self.asked.address).expect("listen");
        let driver = IdentityServer::new(self.driver.clone());
        tokio::spawn(Server::builder().add_service(driver).serve_with_incoming(incoming))
    }

    async fn says(&self, answer: Answer) -> (u16, String) {
        *self.driver.0.lock().expect("lock") = answer;
        let page = self.asked.check().await;
        (page.status.as_u16(), page.text)
    }
}

#[tokio::test]
async fn kubelet_is_told_what_the_driver_answers_or_that_it_does_not() {
    let scene = Scene::new();
    let (status, text) = scene.says(Some(Ok(Some(true)))).await;
    assert_eq!(status, 500);
    assert!(text.contains("nobody listens"), "{text}");
    let running = scene.boot();
    for (answer, expected, said) in [
        (Some(Ok(Some(true))), 200, "ok"),
        (Some(Ok(None)), 200, "ok"),
        (Some(Ok(Some(false))), 500, "not ready"),
        (Some(Err(Status::failed_precondition("no disk"))), 500, "FailedPrecondition: no disk"),
        (Some(Err(Status::unimplemented("what?"))), 500, "Unimplemented"),
        (None, 500, "DeadlineExceeded"),
    ] {
        let (status, text) = scene.says(answer.clone()).await;
        assert_eq!(status, expected, "{answer:?}: {text}");
        assert!(text.contains(said), "{answer:?}: {text}");
    }
    running.abort();
    running.await.expect_err("ended");
    let (status, text) = scene.says(Some(Ok(None))).await;
    assert_eq!(status, 500, "{text}");
    std::fs::remove_file(&scene.asked.address).expect("what the killed driver left");
    scene.boot();
    assert_eq!(scene.says(Some(Ok(None))).await.0, 200, "the driver is back");
}

/// A process that listens but accepts nothing, as one that is stopped.
#[tokio::test]
async fn a_driver_that_does_not_even_accept_is_told_within_the_limit() {
    let scene = Scene::new();
    let _listener =
        std::os::unix::net::UnixListener::bind(scene.directory.path().join("csi.sock")).expect("bind");
    let page = timeout(Duration::from_secs(20), scene.asked.check()).await.expect("an answer");
    assert_eq!(page.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", page.text);
}

#[tokio::test]
async fn a_late_driver_is_waited_for_and_its_calls_are_counted_under_its_name() {
    let scene = Scene::new();
    let port = TcpListener::bind("127.0.0.1:0").await.expect("port").local_addr().expect("address").port();
    let stop = CancellationToken::new();
    let args = Args {
        csi_address: scene.asked.address.clone(),
        http_endpoint: format!("127.0.0.1:{port}"),
        health_port: PORT,
        probe_timeout: Duration::from_secs(1),
        metrics_address: String::new(),
        metrics_path: "/metrics".to_owned(),
    };
    let running = tokio::spawn(run(args, stop.clone()));
    sleep(Duration::from_millis(300)).await;
    assert!(!running.is_finished(), "a driver that is late is no error");
    scene.boot();
    timeout(Duration::from_secs(20), scene.asked.learn_name()).await.expect("a name");
    scene.says(Some(Ok(None))).await;
    let rendered = scene.metrics.render();
    let counted = rendered.lines().any(|line| {
        line.starts_with("csi_sidecar_operations_seconds_count")
            && line.contains("fake.dunnage.dev")
            && line.contains("/csi.v1.Identity/Probe")
    });
    assert!(counted, "{rendered}");
    stop.cancel();
    running.await.expect("task").expect("a stop is no error");
}

#[test]
fn health_and_metrics_are_where_the_flags_say() {
    let args = |http_endpoint: &str, health_port, metrics_address: &str| Args {
        csi_address: "/csi.sock".to_owned(),
        http_endpoint: http_endpoint.to_owned(),
        health_port,
        probe_timeout: Duration::from_secs(1),
        metrics_address: metrics_address.to_owned(),
        metrics_path: "/metrics".to_owned(),
    };
    let all = |port| SocketAddr::from(([0, 0, 0, 0], port));
    for (args, expected) in [
        (args("", PORT, ""), Some((all(9808), None))),
        (args("", 9810, ":8080"), Some((all(9810), Some(all(8080))))),
        (args(":8080", PORT, ""), Some((all(8080), None))),
        (args(":8080", 9810, ""), None),
        (args(":8080", PORT, ":8081"), None),
        (args("8080", PORT, ""), None),
    ] {
        assert_eq!(args.addresses().ok(), expected, "{args:?}");
    }
}
