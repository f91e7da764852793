//! Volumes whose data lie on another pool: copied from agent to agent, whatever happens meanwhile.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dunnage_csi::metadata::UNWANTED;
use dunnage_csi::uds;
use dunnage_csi::v1::node_client::NodeClient;
use dunnage_csi::v1::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, NodeStageVolumeRequest,
    NodeUnstageVolumeRequest, Volume, VolumeContentSource,
};
use dunnage_driver::id::VolumeId;
use dunnage_driver::router::CrossPool;
use dunnage_driver::{CopySettings, EngineKind};
use dunnage_tests_driver::{block, from_snapshot, from_volume, mount};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::nodes::{Cluster, request, until};
use super::{A, B, MIB};

/// The pool of the source is the first node's, that of the target the second's.
pub(super) const SOURCE: usize = 0;
pub(super) const TARGET: usize = 1;

pub(super) fn copies(rate: &str) -> CopySettings {
    CopySettings { rate: rate.parse().unwrap(), ..CopySettings::default() }
}

pub(super) async fn cluster(engine: EngineKind, settings: CopySettings) -> Cluster {
    Cluster::with(engine, &[A, B], |_| {}, |config| config.copies = settings).await
}

/// A request for a volume on the target's pool.
pub(super) fn wanted(
    cluster: &Cluster,
    name: &str,
    source: VolumeContentSource,
    blocks: bool,
) -> CreateVolumeRequest {
    let mut request = request(name, &cluster.nodes[TARGET].pool);
    request.volume_content_source = Some(source);
    request.capacity_range = None;
    if blocks {
        request.volume_capabilities = vec![block()];
    }
    request
}

/// Asks as a provisioner does, until the answer is another than that the copy goes on.
pub(super) async fn provision(cluster: &Cluster, request: &CreateVolumeRequest) -> Result<Volume, Status> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match cluster.controller().create_volume(request.clone()).await {
            Ok(made) => return Ok(made.into_inner().volume.unwrap()),
            Err(status) if matches!(status.code(), Code::Aborted | Code::Unavailable) => {
                assert!(Instant::now() < deadline, "not in time: {status}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

pub(super) async fn snapshot(cluster: &Cluster, name: &str, of: &str) -> String {
    let request = CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: of.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let made = cluster.controller().create_snapshot(request).await.unwrap();
    made.into_inner().snapshot.unwrap().snapshot_id
}

/// A block volume of so many MiB on the source's pool.
pub(super) async fn blocks(cluster: &Cluster, name: &str, mebibytes: u64) -> String {
    let mut request = request(name, &cluster.nodes[SOURCE].pool);
    request.volume_capabilities = vec![block()];
    let required_bytes = i64::try_from(mebibytes * MIB).unwrap();
    request.capacity_range = Some(CapacityRange { required_bytes, limit_bytes: 0 });
    let made = cluster.controller().create_volume(request).await.unwrap();
    made.into_inner().volume.unwrap().volume_id
}

pub(super) fn image(cluster: &Cluster, node: usize, id: &str) -> PathBuf {
    cluster.nodes[node].lab.volume_dir(id).join("image")
}

/// Bytes that are not equal from block to block.
pub(super) fn noise(mebibytes: u64) -> Vec<u8> {
    let mut state = 1_u64;
    let bytes = usize::try_from(mebibytes * MIB / 8).unwrap();
    let words = (0..bytes).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    });
    words.collect()
}

/// Fills the beginning of a volume's image.
pub(super) fn fill(cluster: &Cluster, id: &str, mebibytes: u64) {
    let image = std::fs::OpenOptions::new().write(true).open(image(cluster, SOURCE, id)).unwrap();
    image.write_all_at(&noise(mebibytes), 0).unwrap();
    image.sync_all().unwrap();
}

pub(super) fn same(a: &Path, b: &Path) {
    assert!(
        std::fs::read(a).unwrap() == std::fs::read(b).unwrap(),
        "{} and {} differ",
        a.display(),
        b.display()
    );
}

/// Bytes that the process of a node has copied since its start.
pub(super) fn copied(cluster: &Cluster, node: usize, direction: &str) -> u64 {
    let text = cluster.nodes[node].metrics.render();
    let line = format!("dunnage_driver_copied_bytes_total{{direction=\"{direction}\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |bytes| bytes.parse().unwrap())
}

/// What is on its way at a node.
pub(super) fn transit(cluster: &Cluster, node: usize) -> Vec<String> {
    let entries = std::fs::read_dir(cluster.nodes[node].lab.config.pool_path.join("transit")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Nothing of a copy is left at the target, in the books neither.
pub(super) async fn nothing_left(cluster: &Cluster) {
    let node = &cluster.nodes[TARGET].lab.config.pool_path;
    until("the target is empty", async || {
        ["volumes", "transit", "trash"]
            .iter()
            .all(|name| std::fs::read_dir(node.join(name)).unwrap().count() == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_come_to_another_pool_byte_for_byte_from_a_snapshot_and_from_a_volume() {
    let settings = CopySettings { patience: Duration::from_millis(200), ..CopySettings::default() };
    let cluster = cluster(EngineKind::LoopFile, settings).await;
    let id = blocks(&cluster, "pvc-1", 64).await;
    fill(&cluster, &id, 5);
    let file = std::fs::OpenOptions::new().write(true).open(image(&cluster, SOURCE, &id)).unwrap();
    file.write_all_at(b"in the middle", 33 * MIB + 12_345).unwrap();
    file.write_all_at(b"end", 64 * MIB - 3).unwrap();
    let snapshot = snapshot(&cluster, "s1", &id).await;
    for (name, source) in [("pvc-2", from_snapshot(&snapshot)), ("pvc-3", from_volume(&id))] {
        let request = wanted(&cluster, name, source.clone(), true);
        let made = provision(&cluster, &request).await.unwrap();
        assert!(made.volume_id.starts_with(B), "{}", made.volume_id);
        assert_eq!(made.content_source, Some(source));
        assert_eq!(made.capacity_bytes, i64::try_from(64 * MIB).unwrap());
        same(&image(&cluster, SOURCE, &id), &image(&cluster, TARGET, &made.volume_id));
        let again = provision(&cluster, &request).await.unwrap();
        assert_eq!(again.volume_id, made.volume_id);
    }
    assert!(copied(&cluster, TARGET, "in") < 12 * MIB, "holes were sent");
    until("the copy to read from is gone", async || transit(&cluster, SOURCE).is_empty()).await;
    assert!(transit(&cluster, TARGET).is_empty());
    // A larger one is as long as it is asked to be, with what was there at its beginning.
    let mut request = wanted(&cluster, "pvc-4", from_snapshot(&snapshot), true);
    let required_bytes = i64::try_from(80 * MIB).unwrap();
    request.capacity_range = Some(CapacityRange { required_bytes, limit_bytes: 0 });
    let large = provision(&cluster, &request).await.unwrap();
    let (from, to) = (image(&cluster, SOURCE, &id), image(&cluster, TARGET, &large.volume_id));
    let (from, to) = (std::fs::read(from).unwrap(), std::fs::read(to).unwrap());
    assert!(to.len() as u64 == 80 * MIB && to[..from.len()] == from);
}

/// The file system is frozen for the moment, so that what is in the copy is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_is_copied_as_it_is_at_one_moment() {
    let cluster = cluster(EngineKind::LoopFile, CopySettings::default()).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    let at = stage(&cluster, SOURCE, &id).await;
    std::fs::write(at.join("file"), noise(2)).unwrap();
    let made = provision(&cluster, &wanted(&cluster, "pvc-2", from_volume(&id), false)).await.unwrap();
    std::fs::write(at.join("later"), "x").unwrap();
    let copy = stage(&cluster, TARGET, &made.volume_id).await;
    same(&at.join("file"), &copy.join("file"));
    assert!(!copy.join("later").exists());
    unstage(&cluster, TARGET, &made.volume_id).await;
    unstage(&cluster, SOURCE, &id).await;
}

pub(super) async fn stage(cluster: &Cluster, node: usize, id: &str) -> PathBuf {
    let node = &cluster.nodes[node];
    let at = node.lab.staging(id);
    let request = NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: at.to_str().unwrap().to_owned(),
        volume_capability: Some(mount("")),
        ..NodeStageVolumeRequest::default()
    };
    let mut client = NodeClient::new(uds::connect(&node.socket()).await.unwrap());
    client.node_stage_volume(request).await.unwrap();
    at
}

pub(super) async fn unstage(cluster: &Cluster, node: usize, id: &str) {
    let node = &cluster.nodes[node];
    let staging_target_path = node.lab.staging(id).to_str().unwrap().to_owned();
    let request = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path };
    let mut client = NodeClient::new(uds::connect(&node.socket()).await.unwrap());
    client.node_unstage_volume(request).await.unwrap();
}

/// A cluster in which a copy of 16 MiB has begun and is far from its end.
async fn slow(engine: EngineKind) -> (Cluster, String, CreateVolumeRequest) {
    let cluster = cluster(engine, copies("512Ki")).await;
    let id = blocks(&cluster, "pvc-1", 16).await;
    fill(&cluster, &id, 16);
    let snapshot = snapshot(&cluster, "s1", &id).await;
    let request = wanted(&cluster, "pvc-2", from_snapshot(&snapshot), true);
    let running = cluster.controller().create_volume(request.clone()).await.unwrap_err();
    assert_eq!(running.code(), Code::Aborted, "{running}");
    assert!(
        running.message().contains(&snapshot) && running.message().contains("of about 16 MiB"),
        "{running}"
    );
    until("something has come", async || copied(&cluster, TARGET, "in") > MIB / 4).await;
    (cluster, snapshot, request)
}

pub(super) fn rate(cluster: &mut Cluster, node: usize, rate: &str) {
    cluster.nodes[node].lab.config.copies = copies(rate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_connection_is_cut_goes_on_where_it_was() {
    let (mut cluster, _, request) = slow(EngineKind::LoopFile).await;
    cluster.nodes[SOURCE].kill();
    cluster.until_connected(1).await;
    let waiting = cluster.controller().create_volume(request.clone()).await.unwrap_err();
    assert!(matches!(waiting.code(), Code::Unavailable | Code::Aborted), "{waiting}");
    rate(&mut cluster, SOURCE, "1Gi");
    cluster.boot(SOURCE);
    cluster.until_connected(2).await;
    let made = provision(&cluster, &request).await.unwrap();
    let first = VolumeId::make(&cluster.nodes[SOURCE].pool, "pvc-1").to_string();
    same(&image(&cluster, SOURCE, &first), &image(&cluster, TARGET, &made.volume_id));
    assert_eq!(copied(&cluster, TARGET, "in"), 16 * MIB, "nothing has come twice");
    assert!(copied(&cluster, SOURCE, "out") < 16 * MIB, "since its new start");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_target_is_killed_goes_on_near_where_it_was() {
    let mut cluster = cluster(EngineKind::LoopFile, copies("24Mi")).await;
    let id = blocks(&cluster, "pvc-1", 96).await;
    fill(&cluster, &id, 96);
    let request = wanted(&cluster, "pvc-2", from_volume(&id), true);
    let running = cluster.controller().create_volume(request.clone()).await.unwrap_err();
    assert_eq!(running.code(), Code::Aborted, "{running}");
    until("a checkpoint was made", async || copied(&cluster, TARGET, "in") > 36 * MIB).await;
    cluster.nodes[TARGET].kill();
    assert!(copied(&cluster, TARGET, "in") < 90 * MIB);
    cluster.until_connected(1).await;
    rate(&mut cluster, TARGET, "1Gi");
    cluster.boot(TARGET);
    cluster.until_connected(2).await;
    let made = provision(&cluster, &request).await.unwrap();
    same(&image(&cluster, SOURCE, &id), &image(&cluster, TARGET, &made.volume_id));
    assert!(copied(&cluster, TARGET, "in") <= 64 * MIB, "what was noted before the end came again");
    assert!(transit(&cluster, TARGET).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_deleted_meanwhile_is_told_and_what_came_is_removed() {
    let (mut cluster, snapshot, request) = slow(EngineKind::LoopFile).await;
    let delete = DeleteSnapshotRequest { snapshot_id: snapshot.clone(), ..DeleteSnapshotRequest::default() };
    let busy = cluster.controller().delete_snapshot(delete.clone()).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted, "it is being read: {busy}");
    cluster.nodes[SOURCE].kill();
    cluster.until_connected(1).await;
    cluster.boot(SOURCE);
    cluster.until_connected(2).await;
    // The connection may need a moment more.
    until("the snapshot is deleted", async || {
        cluster.controller().delete_snapshot(delete.clone()).await.is_ok()
    })
    .await;
    let gone = provision(&cluster, &request).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    assert!(gone.message().contains(&snapshot), "{gone}");
    nothing_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_room_refuses_before_anything_is_sent() {
    for engine in [EngineKind::LoopFile, EngineKind::Directory, EngineKind::Btrfs] {
        let cluster = cluster(engine, CopySettings::default()).await;
        let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
        let mut request = wanted(&cluster, "pvc-2", from_volume(&id), false);
        request.capacity_range = Some(CapacityRange { required_bytes: 600 << 20, limit_bytes: 0 });
        let full = provision(&cluster, &request).await.unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
        assert!(full.message().contains("not enough space"), "{full}");
        assert_eq!(copied(&cluster, TARGET, "in"), 0);
        nothing_left(&cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_is_kept_to() {
    let rate = 512 << 10;
    let start = Instant::now();
    let (cluster, ..) = slow(EngineKind::LoopFile).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let sent = copied(&cluster, SOURCE, "out");
        // The first piece goes at once, and a piece is one full of slices.
        let most = rate * (start.elapsed().as_secs() + 1) + MIB;
        assert!(sent <= most, "{sent} of {most}");
    }
    assert!(copied(&cluster, TARGET, "in") < 16 * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_nobody_wants_any_more_ends_and_leaves_nothing() {
    for way in ["deleted", "unwanted", "forgotten"] {
        let (mut cluster, _, request) = slow(EngineKind::LoopFile).await;
        assert_eq!(transit(&cluster, TARGET).len(), 1);
        match way {
            "deleted" => {
                let id = VolumeId::make(&cluster.nodes[TARGET].pool, "pvc-2").to_string();
                cluster.delete(&id).await.unwrap();
            }
            "unwanted" => {
                let mut last = Request::new(request.clone());
                last.metadata_mut().insert(UNWANTED, MetadataValue::from_static("true"));
                let given_up = cluster.controller().create_volume(last).await.unwrap_err();
                assert_eq!(given_up.code(), Code::FailedPrecondition, "{given_up}");
            }
            _ => {
                // It is found at a start, and nobody comes for it.
                cluster.nodes[TARGET].lab.config.copies.patience = Duration::from_millis(200);
                cluster.boot(TARGET);
                cluster.until_connected(2).await;
            }
        }
        nothing_left(&cluster).await;
    }
}

/// The claim goes to another node meanwhile: what was begun on the first goes before anything is made on the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_to_a_pool_that_is_no_longer_allowed_is_given_up_first() {
    let (cluster, _, mut request) = slow(EngineKind::LoopFile).await;
    until("the router knows of it", async || {
        let mut elsewhere = request.clone();
        elsewhere.accessibility_requirements =
            super::nodes::request("", &cluster.nodes[SOURCE].pool).accessibility_requirements;
        let made = cluster.controller().create_volume(elsewhere).await.unwrap().into_inner().volume.unwrap();
        assert!(made.volume_id.starts_with(A));
        transit(&cluster, TARGET).is_empty()
    })
    .await;
    nothing_left(&cluster).await;
    request.name = "pvc-3".to_owned();
    let running = cluster.controller().create_volume(request).await.unwrap_err();
    assert_eq!(running.code(), Code::Aborted, "another can begin: {running}");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_are_not_what_is_asked_for_are_refused_by_name() {
    let cluster = cluster(EngineKind::LoopFile, CopySettings::default()).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    let block = provision(&cluster, &wanted(&cluster, "pvc-2", from_volume(&id), true)).await.unwrap_err();
    assert_eq!(block.code(), Code::FailedPrecondition, "{block}");
    assert!(block.message().contains("ext4") && block.message().contains("block device"), "{block}");
    let mut xfs = wanted(&cluster, "pvc-3", from_volume(&id), false);
    xfs.volume_capabilities = vec![mount("xfs")];
    let xfs = provision(&cluster, &xfs).await.unwrap_err();
    assert_eq!(xfs.code(), Code::FailedPrecondition, "{xfs}");
    assert!(xfs.message().contains("ext4") && xfs.message().contains("xfs"), "{xfs}");
    nothing_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_copies_are_switched_off_the_scheduler_is_sent_to_the_data() {
    let refuse = |config: &mut dunnage_driver::router::Config| config.cross_pool = CrossPool::Refuse;
    let cluster = Cluster::with(EngineKind::Directory, &[A, B], refuse, |_| {}).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    let refused = provision(&cluster, &wanted(&cluster, "pvc-2", from_volume(&id), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains(A) && refused.message().contains("node-0"), "{refused}");
    nothing_left(&cluster).await;
}
