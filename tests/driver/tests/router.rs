//! The router with the drivers of two nodes: csi-sanity through it, and what happens when nodes and disks come and go.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "router/copies.rs"]
mod copies;
#[path = "router/copy_crash.rs"]
mod copy_crash;
#[path = "router/nodes.rs"]
mod nodes;
#[path = "router/tickets.rs"]
mod tickets;
#[path = "router/trees.rs"]
mod trees;

use std::time::Duration;

use dunnage_csi::uds;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::{
    DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest, ListSnapshotsRequest, Snapshot,
    VolumeGroupSnapshot,
};
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Expected, Sockets, group_request, members, run, run_block};
use nodes::{Cluster, create, until};
use tonic::{Code, Status};

const A: &str = "aaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbb";
const MIB: u64 = 1 << 20;

/// The node's calls go to the first node, all of the controller's to the router.
async fn sanity(engine: EngineKind, expected: Expected, block: bool) {
    let cluster = Cluster::start(engine, expected, &[A, B]).await;
    let (node, controller) = (cluster.nodes[0].socket(), cluster.endpoint());
    let lab = &cluster.nodes[0].lab;
    let (kubelet_dir, root) = (lab.config.kubelet_dir.clone(), lab.root().to_owned());
    let attributes: &[_] = if engine == EngineKind::Btrfs { &[("compression", "zstd")] } else { &[] };
    let outcome = tokio::task::spawn_blocking(move || {
        let run = if block { run_block } else { run };
        let sockets = Sockets { node: &node, controller: &controller, attributes };
        run(&sockets, &kubelet_dir, &root, 64 * MIB)
    })
    .await
    .unwrap();
    assert_eq!(outcome.failed, Vec::<String>::new(), "{}", outcome.output);
    assert_eq!(outcome.wrongly_skipped(expected), Vec::<&String>::new());
    assert!(outcome.passed > 30, "{outcome:?}");
    assert!(cluster.list().await.is_empty());
    for node in &cluster.nodes {
        node.lab.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_through_the_router_are_sane() {
    sanity(EngineKind::Directory, Expected::NoAttach, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subvolumes_through_the_router_are_sane() {
    sanity(EngineKind::Btrfs, Expected::NoAttach, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loop_files_with_attach_through_the_router_are_sane() {
    sanity(EngineKind::LoopFile, Expected::Attach, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loop_files_in_block_mode_through_the_router_are_sane() {
    sanity(EngineKind::LoopFile, Expected::NoAttach, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_keeps_its_place_in_the_list_and_serves_again_when_it_is_back() {
    let mut cluster = Cluster::start(EngineKind::Directory, Expected::NoAttach, &[A, B]).await;
    let pools = cluster.nodes.iter().map(|node| node.pool.clone()).collect::<Vec<_>>();
    let volumes = [
        cluster.create("pvc-0", &pools[0]).await.unwrap(),
        cluster.create("pvc-1", &pools[1]).await.unwrap(),
    ];
    cluster.nodes[0].kill();
    cluster.until_connected(1).await;
    assert_eq!(cluster.list().await, volumes);
    assert_eq!(cluster.delete(&volumes[0]).await.unwrap_err().code(), Code::Unavailable);
    // The scheduler is asked for another node.
    assert_eq!(cluster.create("pvc-2", &pools[0]).await.unwrap_err().code(), Code::ResourceExhausted);
    let elsewhere = cluster.create("pvc-2", &pools[1]).await.unwrap();
    cluster.boot(0);
    cluster.until_connected(2).await;
    cluster.delete(&volumes[0]).await.unwrap();
    assert_eq!(cluster.list().await.len(), 2);
    assert!(cluster.nodes[1].lab.volume_dir(&elsewhere).exists());
    assert!(!cluster.nodes[0].lab.volume_dir(&volumes[0]).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_asked_to_stop_does_not_wait_for_the_router_that_follows_it() {
    let mut cluster = Cluster::start(EngineKind::Directory, Expected::NoAttach, &[A]).await;
    cluster.nodes[0].stop(Duration::from_secs(5)).await;
    cluster.until_connected(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_left_on_a_node_that_is_no_longer_allowed_is_removed_first() {
    let mut cluster = Cluster::start(EngineKind::Directory, Expected::NoAttach, &[A, B]).await;
    let pools = cluster.nodes.iter().map(|node| node.pool.clone()).collect::<Vec<_>>();
    let old = cluster.create("pvc-1", &pools[0]).await.unwrap();
    // The node dies before the claim is bound, and the claim goes on elsewhere.
    cluster.nodes[0].kill();
    cluster.until_connected(1).await;
    let new = cluster.create("pvc-1", &pools[1]).await.unwrap();
    cluster.boot(0);
    cluster.until_connected(2).await;
    assert_eq!(cluster.list().await, [old.clone(), new.clone()], "one is an orphan, and seen");
    assert_eq!(cluster.create("pvc-1", &pools[1]).await.unwrap(), new);
    assert_eq!(cluster.list().await, std::slice::from_ref(&new));
    assert!(!cluster.nodes[0].lab.volume_dir(&old).exists());
    // And the other way about: nothing is made before the old one is gone.
    let back = cluster.create("pvc-1", &pools[0]).await.unwrap();
    assert_eq!(cluster.list().await, std::slice::from_ref(&back));
    assert!(!cluster.nodes[1].lab.volume_dir(&new).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_disk_is_refused_on_both_nodes_until_one_of_them_is_gone() {
    let mut cluster = Cluster::start(EngineKind::Directory, Expected::NoAttach, &[A, A]).await;
    let pool = cluster.nodes[0].pool.clone();
    for node in &cluster.nodes {
        // Asked past the router, so that it is the agent that refuses.
        let socket = uds::connect(&node.socket()).await.unwrap();
        until("the agent is fenced", async || {
            let made = create(ControllerClient::new(socket.clone()), "pvc-1", &pool).await;
            made.is_err_and(|refused| {
                refused.code() == Code::FailedPrecondition && refused.message().contains("node-0, node-1")
            })
        })
        .await;
    }
    let refused = cluster.create("pvc-2", &pool).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("node-0, node-1"), "{}", refused.message());
    // The copy is taken away, and the node that keeps the disk starts anew.
    cluster.nodes[1].kill();
    cluster.nodes[0].kill();
    cluster.until_connected(0).await;
    cluster.boot(0);
    cluster.until_connected(1).await;
    cluster.create("pvc-2", &pool).await.unwrap();
}

async fn group(cluster: &Cluster, name: &str, volumes: &[&str]) -> Result<VolumeGroupSnapshot, Status> {
    let made = cluster.group_controller().create_volume_group_snapshot(group_request(name, volumes)).await?;
    Ok(made.into_inner().group_snapshot.unwrap())
}

async fn snapshots(cluster: &Cluster) -> Vec<Snapshot> {
    let listed = cluster.controller().list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    listed.into_inner().entries.into_iter().map(|entry| entry.snapshot.unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_snapshot_is_made_on_the_node_of_its_volumes_and_on_no_two() {
    let mut cluster = Cluster::start(EngineKind::LoopFile, Expected::NoAttach, &[A, B]).await;
    let pools = cluster.nodes.iter().map(|node| node.pool.clone()).collect::<Vec<_>>();
    let mut volumes = Vec::new();
    for (name, pool) in [("pvc-0", 0), ("pvc-1", 1), ("pvc-2", 1)] {
        volumes.push(cluster.create(name, &pools[pool]).await.unwrap());
    }
    let all: Vec<_> = volumes.iter().map(String::as_str).collect();
    let refused = group(&cluster, "group-1", &all).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let where_they_lie = format!("1 on pool {A} (node node-0), 2 on pool {B} (node node-1)");
    assert!(refused.message().contains(&where_they_lie), "{refused}");
    assert_eq!(snapshots(&cluster).await, []);
    let made = group(&cluster, "group-1", &all[1..]).await.unwrap();
    let elsewhere = group(&cluster, "group-1", &all[..1]).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::AlreadyExists, "{elsewhere}");
    let (id, ids) = (made.group_snapshot_id.clone(), members(&made));
    assert!(id.starts_with(B) && ids.len() == 2, "{made:?}");
    // Its node starts anew, and is not there for a while.
    cluster.nodes[1].kill();
    cluster.until_connected(1).await;
    let get = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.clone(),
        snapshot_ids: ids.clone(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let asked = || cluster.group_controller();
    let found = asked().get_volume_group_snapshot(get.clone()).await.unwrap().into_inner();
    assert_eq!(found.group_snapshot.as_ref(), Some(&made));
    let delete = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id,
        snapshot_ids: ids,
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    let away = asked().delete_volume_group_snapshot(delete.clone()).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away}");
    cluster.boot(1);
    cluster.until_connected(2).await;
    assert_eq!(group(&cluster, "group-1", &all[1..]).await.unwrap(), made);
    let listed = snapshots(&cluster).await;
    assert!(
        listed.len() == 2 && listed.iter().all(|snapshot| made.snapshots.contains(snapshot)),
        "{listed:?}"
    );
    // Asked again, it is still gone.
    for _ in 0..2 {
        cluster.group_controller().delete_volume_group_snapshot(delete.clone()).await.unwrap();
        assert_eq!(snapshots(&cluster).await, []);
    }
    let gone = cluster.group_controller().get_volume_group_snapshot(get).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    for volume in &volumes {
        cluster.delete(volume).await.unwrap();
    }
    for node in &cluster.nodes {
        node.lab.assert_clean();
    }
}
