//! Sparse images: they take space as they are written to, give it back, and promise no more than they may.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "tests start programs; the rule guards the product")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::{GetCapacityRequest, VolumeCapability, controller_server::Controller as _};
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{BACKEND, Disk, Lab, block, eventually, mount, mount_as, pool_id};
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;
const SPARSE: &[(&str, &str)] = &[("allocation", "sparse")];

/// A pool on a disk of 256 MiB.
struct Small {
    lab: Lab,
    disk: Disk,
}

impl Small {
    fn new(engine: EngineKind, ratio: &str) -> Self {
        let lab = Lab::without_pool(engine, |config| config.overcommit = ratio.parse().unwrap());
        let mut disk = Disk::make(lab.root(), 256);
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        Self { lab, disk }
    }

    async fn capacity(&self, parameters: &[(&str, &str)]) -> i64 {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request =
            GetCapacityRequest { parameters: parameters.collect(), ..GetCapacityRequest::default() };
        let answer = self.lab.driver().controller().get_capacity(Request::new(request)).await.unwrap();
        answer.into_inner().available_capacity
    }

    fn finish(mut self) {
        self.lab.assert_clean();
        self.lab.driver = None;
        self.disk.unmount();
    }
}

async fn publish(lab: &Lab, id: &str, capability: &VolumeCapability) -> PathBuf {
    lab.to_pod(id, "pod-1", capability.clone()).await
}

async fn remove(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod-1").await;
    lab.delete(id).await.unwrap();
}

/// What the image takes of the disk.
fn taken(lab: &Lab, id: &str) -> u64 {
    std::fs::metadata(lab.volume_dir(id).join("image")).unwrap().blocks() * 512
}

fn write_and_sync(path: &Path, mebibytes: usize) {
    std::fs::write(path, vec![7; mebibytes << 20]).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

#[tokio::test]
async fn a_sparse_volume_takes_space_as_it_is_written_and_gives_it_back() {
    let discards = |fs_type| mount_as(fs_type, &["discard"], Mode::SingleNodeWriter);
    for (capability, bytes) in
        [(discards("ext4"), 400 * MIB), (discards("xfs"), 400 * MIB), (mount("btrfs"), 400 * MIB)]
    {
        let lab = Lab::new(EngineKind::LoopFile);
        let volume = lab.create_with("pvc-1", bytes, capability.clone(), SPARSE).await.unwrap();
        let id = volume.volume_id;
        assert_eq!((volume.capacity_bytes, taken(&lab, &id)), (bytes, 0));
        let target = publish(&lab, &id, &capability).await;
        let empty = taken(&lab, &id);
        assert!(empty < 100 << 20, "{empty} bytes for an empty file system");
        write_and_sync(&target.join("data"), 64);
        let full = taken(&lab, &id);
        assert!(full >= empty + (60 << 20), "{empty} to {full}");
        std::fs::remove_file(target.join("data")).unwrap();
        eventually("the space is given back", || {
            assert!(Command::new("sync").arg("-f").arg(&target).status().unwrap().success());
            taken(&lab, &id) < full - (50 << 20)
        });
        lab.expand(&id, 2 * bytes).await.unwrap();
        assert!(taken(&lab, &id) < full, "growth took space");
        assert_eq!(std::fs::metadata(lab.volume_dir(&id).join("image")).unwrap().len(), 800 << 20);
        // Nor does a stage fill it.
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        publish(&lab, &id, &capability).await;
        assert!(taken(&lab, &id) < full);
        assert!(lab.bytes(&id, &target).await.total > 600 * MIB);
        remove(&lab, &id).await;
        lab.assert_clean();
    }
}

/// Btrfs discards by itself.
#[tokio::test]
async fn a_thick_btrfs_volume_keeps_what_it_was_promised() {
    for (parameters, discards) in [(&[][..], false), (SPARSE, true)] {
        let lab = Lab::new(EngineKind::LoopFile);
        let volume = lab.create_with("pvc-1", 128 * MIB, mount("btrfs"), parameters).await.unwrap();
        let id = volume.volume_id;
        publish(&lab, &id, &mount("btrfs")).await;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(lab.staging(&id).to_str().unwrap())).unwrap();
        assert_eq!(line.contains("discard=async"), discards, "{line}");
        remove(&lab, &id).await;
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_sparse_device_gives_back_what_its_pod_discards() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create_with("pvc-1", 64 * MIB, block(), SPARSE).await.unwrap().volume_id;
    let target = publish(&lab, &id, &block()).await;
    let file = std::fs::OpenOptions::new().write(true).open(&target).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; 32 << 20], 0).unwrap();
    file.sync_all().unwrap();
    assert!(taken(&lab, &id) >= 32 << 20);
    assert!(Command::new("blkdiscard").arg("-f").arg(&target).status().unwrap().success());
    assert_eq!(taken(&lab, &id), 0);
    drop(file);
    remove(&lab, &id).await;
    lab.assert_clean();
}

#[tokio::test]
async fn sparse_volumes_promise_no_more_than_they_may() {
    for (ratio, sixths) in [("1", 10), ("2", 20)] {
        let small = Small::new(EngineKind::LoopFile, ratio);
        let lab = &small.lab;
        let free = small.capacity(&[]).await;
        assert_eq!(small.capacity(SPARSE).await, free * sixths / 10);
        assert_eq!(small.capacity(&[("allocation", "thick")]).await, free);
        let size = free * sixths / 10 * 6 / 10 / 4096 * 4096;
        let first = lab.create_with("pvc-1", size, mount(""), SPARSE).await.unwrap().volume_id;
        let status = lab.create_with("pvc-2", size, mount(""), SPARSE).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        // What is promised to one is not there for a thick one, nor for growth.
        let status = lab.create("pvc-3", free * 5 / 10 / 4096 * 4096, mount("")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(lab.expand(&first, 2 * size).await.unwrap_err().code(), Code::ResourceExhausted);
        let third = lab.create_with("pvc-3", size / 2, mount(""), SPARSE).await.unwrap().volume_id;
        // What is written counts once.
        let before = small.capacity(&[]).await;
        let target = publish(lab, &first, &mount("")).await;
        write_and_sync(&target.join("data"), 40);
        let after = small.capacity(&[]).await;
        assert!((before - after).abs() < 4 * MIB, "{before} {after}");
        remove(lab, &first).await;
        lab.delete(&third).await.unwrap();
        small.finish();
    }
}

#[tokio::test]
async fn a_pool_that_is_nearly_full_shows_in_the_condition_of_those_who_share_it() {
    for (engine, parameters, shares) in [
        (EngineKind::Directory, &[][..], true),
        (EngineKind::LoopFile, SPARSE, true),
        (EngineKind::LoopFile, &[("allocation", "thick")], false),
    ] {
        let small = Small::new(engine, "1");
        let lab = &small.lab;
        let id = lab.create_with("pvc-1", 64 * MIB, mount(""), parameters).await.unwrap().volume_id;
        let target = publish(lab, &id, &mount("")).await;
        let condition = lab.stats(&id, &target).await.volume_condition.unwrap();
        assert!(!condition.abnormal, "{condition:?}");
        // Somebody else's file.
        let filler = lab.config.pool_path.join("filler");
        let left = 1 << 20;
        let free =
            dunnage_host::space::of(std::fs::File::open(&lab.config.pool_path).unwrap(), &filler).unwrap();
        let bytes = (free.available - left).to_string();
        assert!(Command::new("fallocate").args(["-l", &bytes]).arg(&filler).status().unwrap().success());
        let condition = lab.stats(&id, &target).await.volume_condition.unwrap();
        assert_eq!(condition.abnormal, shares, "{condition:?}");
        assert!(!shares || condition.message.contains("the pool is nearly full"), "{condition:?}");
        std::fs::remove_file(&filler).unwrap();
        let condition = lab.stats(&id, &target).await.volume_condition.unwrap();
        assert!(!condition.abnormal, "{condition:?}");
        remove(lab, &id).await;
        small.finish();
    }
}

#[tokio::test]
async fn what_a_class_asks_wrongly_is_refused_with_what_is_allowed() {
    let lab = Lab::new(EngineKind::LoopFile);
    let discards = || mount_as("", &["discard"], Mode::SingleNodeWriter);
    for (capability, parameters, says) in [
        (mount(""), &[("allocation", "thin")][..], "thick or sparse"),
        (mount(""), &[("Allocation", "sparse")], "allowed are allocation, requireLimit and those"),
        (discards(), &[], "allocation: sparse"),
        (discards(), &[("allocation", "thick")], "allocation: sparse"),
    ] {
        let status = lab.create_with("pvc-1", 64 * MIB, capability, parameters).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(says), "{status}");
    }
    // A thick volume is not discarded from by a later change of the class.
    let id = lab.create("pvc-1", 64 * MIB, mount("")).await.unwrap().volume_id;
    assert_eq!(lab.stage(&id, discards()).await.unwrap_err().code(), Code::InvalidArgument);
    let status = lab.create_with("pvc-1", 64 * MIB, mount(""), SPARSE).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(status.message().contains("it is thick, asked is sparse"), "{status}");
    lab.delete(&id).await.unwrap();
    let lab = Lab::new(EngineKind::Directory);
    let status = lab.create_with("pvc-1", MIB, mount(""), SPARSE).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
