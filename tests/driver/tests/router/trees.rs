//! Volumes that are trees, copied to another pool: everything that a tree can have, and subvolumes with their limits.

use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};

use dunnage_csi::v1::{
    ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteSnapshotRequest, VolumeContentSource,
};
use dunnage_driver::{CopySettings, EngineKind};
use dunnage_host::btrfs::{quota, subvolume_at};
use dunnage_host::dir::Dir;
use dunnage_tests_driver::{from_snapshot, from_volume, shell};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use tonic::Code;

use super::copies::{
    SOURCE, TARGET, cluster, copied, copies, noise, nothing_left, provision, rate, snapshot, transit, wanted,
};
use super::nodes::{Cluster, until};
use super::{B, MIB};

/// The engines whose volumes are trees.
pub(super) const TREES: [EngineKind; 2] = [EngineKind::Directory, EngineKind::Btrfs];

pub(super) fn data(cluster: &Cluster, node: usize, id: &str) -> PathBuf {
    cluster.nodes[node].lab.volume_dir(id).join("data")
}

fn run(at: &Path, script: &str) -> String {
    shell(script, at, Path::new(""))
}

/// A checksum over everything that tar knows of: names, contents, owners, modes, times, links and attributes.
fn sum(at: &Path) -> String {
    let all = "tar --format=posix --pax-option='exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime' --xattrs \
               --xattrs-include='*' --acls --sort=name -cf - . | sha256sum";
    run(at, all)
}

/// The copy is what its source is, and beside it lies nothing but its record.
pub(super) fn same(cluster: &Cluster, of: &str, copy: &str) {
    assert_eq!(sum(&data(cluster, SOURCE, of)), sum(&data(cluster, TARGET, copy)));
    let entries = std::fs::read_dir(cluster.nodes[TARGET].lab.volume_dir(copy)).unwrap();
    let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["data", "volume.json"]);
}

/// A tree of 40 MiB, more than comes before a checkpoint, in which names of one file are everywhere.
pub(super) fn plant(at: &Path) {
    std::fs::write(at.join("first"), "one file").unwrap();
    setxattr(at.join("first"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    for number in 0..20 {
        std::fs::write(at.join(format!("data-{number}")), noise(2)).unwrap();
        let sub = at.join(format!("sub-{number}"));
        std::fs::create_dir(&sub).unwrap();
        std::fs::hard_link(at.join("first"), sub.join("again")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_comes_to_another_pool_with_everything_it_has() {
    for engine in TREES {
        let cluster = cluster(engine, CopySettings::default()).await;
        let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
        let from = data(&cluster, SOURCE, &id);
        std::fs::create_dir_all(from.join("sub/deep")).unwrap();
        std::fs::write(from.join("plain"), noise(3)).unwrap();
        std::fs::write(from.join("sub/no\nline"), "x").unwrap();
        std::fs::hard_link(from.join("plain"), from.join("sub/again")).unwrap();
        symlink("/etc/passwd", from.join("sub/out")).unwrap();
        let sparse = std::fs::File::create(from.join("sub/deep/sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(b"in the middle", 32 << 20).unwrap();
        for number in 0..2000 {
            std::fs::write(from.join(format!("sub/deep/{number}")), number.to_string()).unwrap();
        }
        run(
            &from,
            "chown 12:34 plain sub; chmod 4751 plain; touch -d @1000000.5 plain sub/out sub/deep .; mkfifo pipe; \
             touch -d @1000000.5 .",
        );
        for (path, name) in [("plain", "user.note"), ("sub", "user.dir"), ("", "user.top")] {
            setxattr(from.join(path), name, b"kept", XattrFlags::empty()).unwrap();
        }
        let snapshot = snapshot(&cluster, "s1", &id).await;
        for (name, source) in [("pvc-2", from_snapshot(&snapshot)), ("pvc-3", from_volume(&id))] {
            let made = provision(&cluster, &wanted(&cluster, name, source, false)).await.unwrap();
            same(&cluster, &id, &made.volume_id);
            let to = data(&cluster, TARGET, &made.volume_id);
            let mut value = [0; 8];
            let size = getxattr(to.join("sub/again"), "user.note", &mut value).unwrap();
            assert_eq!(&value[..size], b"kept");
            let blocks: u64 = run(&to, "stat -c %b sub/deep/sparse").trim().parse().unwrap();
            assert!(blocks < 1000, "{blocks}");
        }
    }
}

/// A cluster in which the copy of a planted tree has begun, and is far from its end.
async fn slow(engine: EngineKind) -> (Cluster, String, CreateVolumeRequest) {
    let cluster = cluster(engine, copies("2Mi")).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    plant(&data(&cluster, SOURCE, &id));
    let snapshot = snapshot(&cluster, "s1", &id).await;
    let request = wanted(&cluster, "pvc-2", from_snapshot(&snapshot), false);
    let running = cluster.controller().create_volume(request.clone()).await.unwrap_err();
    assert_eq!(running.code(), Code::Aborted, "{running}");
    until("something has come", async || copied(&cluster, TARGET, "in") > 3 * MIB).await;
    (cluster, id, request)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_whose_connection_is_cut_goes_on_where_it_was() {
    for engine in TREES {
        let (mut cluster, id, request) = slow(engine).await;
        cluster.nodes[SOURCE].kill();
        cluster.until_connected(1).await;
        rate(&mut cluster, SOURCE, "1Gi");
        cluster.boot(SOURCE);
        cluster.until_connected(2).await;
        let made = provision(&cluster, &request).await.unwrap();
        same(&cluster, &id, &made.volume_id);
        let sent = copied(&cluster, SOURCE, "out");
        assert!(sent < 39 * MIB, "{engine:?}: all was sent again: {sent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_nobody_wants_any_more_leaves_nothing() {
    for engine in TREES {
        let (cluster, ..) = slow(engine).await;
        assert_eq!(transit(&cluster, TARGET).len(), 1);
        let id = dunnage_driver::id::VolumeId::make(&cluster.nodes[TARGET].pool, "pvc-2").to_string();
        cluster.delete(&id).await.unwrap();
        nothing_left(&cluster).await;
    }
}

/// What the file system of a node keeps a volume to.
fn limit(cluster: &Cluster, node: usize, id: &str) -> Option<u64> {
    let dir = Dir::open(&data(cluster, node, id)).unwrap();
    let subvolume = subvolume_at(&dir).unwrap().expect("a subvolume");
    quota::limit_of(&dir, quota::Group::of(subvolume)).unwrap()
}

async fn copy(cluster: &Cluster, name: &str, source: VolumeContentSource) -> String {
    provision(cluster, &wanted(cluster, name, source, false)).await.unwrap().volume_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subvolume_that_came_has_its_limit_and_empty_directories_for_those_within() {
    let cluster = cluster(EngineKind::Btrfs, CopySettings::default()).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    let from = data(&cluster, SOURCE, &id);
    run(
        &from,
        "set -e; btrfs subvolume create sub; mkdir plain; btrfs subvolume create plain/within; echo x >sub/file",
    );
    let snapshot = snapshot(&cluster, "s1", &id).await;
    let kept = cluster.nodes[SOURCE].lab.snapshot_dir(&snapshot).join("data");
    for (name, source) in [("pvc-2", from_snapshot(&snapshot)), ("pvc-3", from_volume(&id))] {
        let made = copy(&cluster, name, source).await;
        assert!(made.starts_with(B), "{made}");
        assert_eq!(limit(&cluster, TARGET, &made), Some(64 * MIB));
        let to = data(&cluster, TARGET, &made);
        for path in ["sub", "plain/within"] {
            let empty = to.join(path);
            assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "{path}");
            assert_eq!(subvolume_at(&Dir::open(&empty).unwrap()).unwrap(), None, "{path}");
            assert!(std::fs::read_dir(kept.join(path)).unwrap().count() == 0);
        }
        assert!(std::fs::write(to.join("big"), vec![1; 80 << 20]).is_err(), "it has no limit");
        cluster.delete(&made).await.unwrap();
    }
    assert!(std::fs::write(kept.join("file"), "x").is_err(), "the snapshot can be written to");
    let delete = DeleteSnapshotRequest { snapshot_id: snapshot, ..DeleteSnapshotRequest::default() };
    cluster.controller().delete_snapshot(delete).await.unwrap();
    nothing_left(&cluster).await;
}

/// Files that share blocks are whole files there: the volume is then over its size, and can be read, emptied and grown.
#[tokio::test(flavor = "multi_thread")]
async fn data_that_take_up_more_there_come_whole() {
    let cluster = cluster(EngineKind::Btrfs, CopySettings::default()).await;
    let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
    let from = data(&cluster, SOURCE, &id);
    std::fs::write(from.join("one"), noise(40)).unwrap();
    run(&from, "set -e; for name in two three; do cp --reflink=always one $name; done; sync -f .");
    let made = copy(&cluster, "pvc-2", from_volume(&id)).await;
    same(&cluster, &id, &made);
    assert_eq!(limit(&cluster, TARGET, &made), Some(64 * MIB));
    let to = data(&cluster, TARGET, &made);
    assert!(std::fs::write(to.join("more"), noise(1)).is_err(), "it is full");
    let grow = ControllerExpandVolumeRequest {
        volume_id: made.clone(),
        capacity_range: Some(dunnage_csi::v1::CapacityRange { required_bytes: 160 << 20, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    };
    cluster.controller().controller_expand_volume(grow).await.unwrap();
    std::fs::write(to.join("more"), noise(1)).unwrap();
    cluster.delete(&made).await.unwrap();
    nothing_left(&cluster).await;
}
