//! csi-sanity against each engine, with and without attach.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::time::Duration;

use dunnage_csi::uds;
use dunnage_csi::v1::controller_server::ControllerServer;
use dunnage_csi::v1::group_controller_server::GroupControllerServer;
use dunnage_csi::v1::identity_server::IdentityServer;
use dunnage_csi::v1::node_server::NodeServer;
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Expected, Lab, Sockets, run, run_block};
use tonic::transport::Server;

const MIB: u64 = 1 << 20;

async fn sanity(engine: EngineKind, expected: Expected, block: bool) {
    let lab = Lab::with(engine, |config| config.attach = expected == Expected::Attach);
    let endpoint = format!("unix://{}", lab.root().join("csi.sock").display());
    let driver = lab.driver();
    let server = Server::builder()
        .add_service(IdentityServer::new(driver.identity()))
        .add_service(ControllerServer::new(driver.controller()))
        .add_service(GroupControllerServer::new(driver.group_controller()))
        .add_service(NodeServer::new(driver.node()))
        .serve_with_incoming(uds::listen(&endpoint).unwrap());
    // csi-sanity waits for a connection to change its state, and misses it when it is made at once.
    let serving = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.await
    });
    let (kubelet_dir, root) = (lab.config.kubelet_dir.clone(), lab.root().to_owned());
    let attributes: &[_] = if engine == EngineKind::Btrfs { &[("compression", "zstd")] } else { &[] };
    let outcome = tokio::task::spawn_blocking(move || {
        let run = if block { run_block } else { run };
        let sockets = Sockets { node: &endpoint, controller: &endpoint, attributes };
        run(&sockets, &kubelet_dir, &root, 64 * MIB)
    })
    .await
    .unwrap();
    serving.abort();
    let _ = serving.await;
    assert_eq!(outcome.failed, Vec::<String>::new(), "{}", outcome.output);
    assert_eq!(outcome.wrongly_skipped(expected), Vec::<&String>::new());
    assert!(outcome.passed > 30, "{outcome:?}");
    lab.assert_clean();
}

#[tokio::test]
async fn directory_is_sane() {
    sanity(EngineKind::Directory, Expected::NoAttach, false).await;
}

#[tokio::test]
async fn directory_with_attach_is_sane() {
    sanity(EngineKind::Directory, Expected::Attach, false).await;
}

#[tokio::test]
async fn btrfs_is_sane() {
    sanity(EngineKind::Btrfs, Expected::NoAttach, false).await;
}

#[tokio::test]
async fn btrfs_with_attach_is_sane() {
    sanity(EngineKind::Btrfs, Expected::Attach, false).await;
}

#[tokio::test]
async fn loop_file_is_sane() {
    sanity(EngineKind::LoopFile, Expected::NoAttach, false).await;
}

#[tokio::test]
async fn loop_file_with_attach_is_sane() {
    sanity(EngineKind::LoopFile, Expected::Attach, false).await;
}

#[tokio::test]
async fn loop_file_in_block_mode_is_sane() {
    sanity(EngineKind::LoopFile, Expected::NoAttach, true).await;
}

#[tokio::test]
async fn loop_file_in_block_mode_with_attach_is_sane() {
    sanity(EngineKind::LoopFile, Expected::Attach, true).await;
}
