//! Volumes in block mode: the device is the pod's, and nobody else looks at what is on it.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "tests start programs; the rule guards the product")]

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::{ValidateVolumeCapabilitiesRequest, VolumeCapability};
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Lab, block, block_as, mount};
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;

/// A new volume, staged and published.
async fn volume(lab: &Lab, bytes: i64) -> (String, PathBuf) {
    let id = lab.create("pvc-1", bytes, block()).await.unwrap().volume_id;
    let target = publish(lab, &id).await;
    (id, target)
}

async fn publish(lab: &Lab, id: &str) -> PathBuf {
    lab.to_pod(id, "pod-1", block()).await
}

async fn unstage(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod-1").await;
}

async fn remove(lab: &Lab, id: &str) {
    unstage(lab, id).await;
    lab.delete(id).await.unwrap();
    lab.assert_clean();
}

fn write(device: &Path, data: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(device)?;
    file.write_all_at(data, 4096)?;
    file.sync_all()
}

fn read(device: &Path) -> Vec<u8> {
    let mut data = vec![0; 4];
    File::open(device).unwrap().read_exact_at(&mut data, 4096).unwrap();
    data
}

fn size(device: &Path) -> u64 {
    File::open(device).unwrap().seek(SeekFrom::End(0)).unwrap()
}

#[tokio::test]
async fn a_pods_data_survive_a_restart_and_a_power_cut() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB).await;
    assert!(std::fs::metadata(&target).unwrap().file_type().is_block_device());
    assert_eq!(size(&target), 16 << 20);
    write(&target, b"kept").unwrap();
    let usage = lab.bytes(&id, &target).await;
    assert_eq!((usage.total, usage.used), (16 * MIB, 0));
    let mounts = lab.mounts();
    lab.restart();
    publish(&lab, &id).await;
    assert_eq!((lab.mounts(), lab.loops().len()), (mounts, 1), "published or attached twice");
    unstage(&lab, &id).await;
    assert!(!target.exists());
    assert!(lab.loops().is_empty());
    publish(&lab, &id).await;
    assert_eq!(read(&target), b"kept");
    lab.reboot();
    assert!(lab.loops().is_empty());
    publish(&lab, &id).await;
    assert_eq!(read(&target), b"kept");
    remove(&lab, &id).await;
}

#[tokio::test]
async fn what_looks_like_a_file_system_is_left_alone() {
    for mkfs in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"], &["mkfs.btrfs", "-q", "-f"]] {
        let lab = Lab::new(EngineKind::LoopFile);
        let (id, target) = volume(&lab, 300 * MIB).await;
        assert!(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&target).status().unwrap().success());
        // As after an unclean stop: a check would write.
        write(&target, b"torn").unwrap();
        unstage(&lab, &id).await;
        let image = lab.volume_dir(&id).join("image");
        let before = std::fs::read(&image).unwrap();
        lab.expand(&id, 320 * MIB).await.unwrap();
        publish(&lab, &id).await;
        lab.expand_staged(&id, 320 * MIB).await.unwrap();
        unstage(&lab, &id).await;
        let after = std::fs::read(&image).unwrap();
        assert!(after[..before.len()] == before[..], "{mkfs:?}");
        assert!(after[before.len()..].iter().all(|byte| *byte == 0));
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_pod_sees_its_device_grow() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB).await;
    let pods = File::open(&target).unwrap();
    for _ in 0..2 {
        let answer = lab.expand(&id, 32 * MIB).await.unwrap();
        assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (32 * MIB, true));
        assert_eq!(lab.expand_staged(&id, 32 * MIB).await.unwrap(), 32 * MIB);
        assert_eq!((&pods).seek(SeekFrom::End(0)).unwrap(), 32 << 20, "through what the pod has open");
        assert_eq!(lab.bytes(&id, &target).await.total, 32 * MIB);
    }
    drop(pods);
    unstage(&lab, &id).await;
    lab.expand(&id, 48 * MIB).await.unwrap();
    publish(&lab, &id).await;
    assert_eq!(size(&target), 48 << 20);
    remove(&lab, &id).await;
}

#[tokio::test]
async fn a_read_only_device_takes_no_writes_and_is_so_for_all_pods() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB).await;
    let other = lab.target("pod-2");
    lab.publish(&id, &other, block(), false).await.unwrap();
    write(&other, b"kept").unwrap();
    assert_eq!(read(&target), b"kept");
    lab.unpublish(&id, &other).await.unwrap();
    let status = lab.publish(&id, &other, block(), true).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("published writable at") && status.message().contains("pod-1"),
        "{status}"
    );
    lab.unpublish(&id, &target).await.unwrap();
    for _ in 0..2 {
        lab.publish(&id, &other, block(), true).await.unwrap();
        lab.publish(&id, &target, block_as(Mode::SingleNodeReaderOnly), false).await.unwrap();
    }
    for device in [&target, &other] {
        assert_eq!(write(device, b"lost").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        assert_eq!(read(device), b"kept");
    }
    lab.unpublish(&id, &target).await.unwrap();
    let status = lab.publish(&id, &target, block(), false).await.unwrap_err();
    assert!(status.message().contains("published read-only at"), "{status}");
    lab.unpublish(&id, &other).await.unwrap();
    lab.publish(&id, &target, block(), false).await.unwrap();
    write(&target, b"more").unwrap();
    remove(&lab, &id).await;
}

/// The number of a loop device outlives what was behind it.
#[tokio::test]
async fn a_device_that_was_read_only_is_not_so_for_the_next_volume() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 16 * MIB, block()).await.unwrap().volume_id;
    lab.stage(&id, block()).await.unwrap();
    lab.publish(&id, &lab.target("pod-1"), block(), true).await.unwrap();
    let device = lab.loops();
    remove(&lab, &id).await;
    let read_only = Command::new("blockdev").arg("--getro").arg(&device[0]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read_only.stdout).trim(), "0");
}

#[tokio::test]
async fn a_device_for_one_pod_has_one_pod() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    let single = || block_as(Mode::SingleNodeSingleWriter);
    let id = lab.create("pvc-1", 16 * MIB, single()).await.unwrap().volume_id;
    let target = lab.to_pod(&id, "pod-1", single()).await;
    // Kubelet's own mount of the device for the same pod.
    let global = lab.config.kubelet_dir.join("plugins/dev");
    std::fs::create_dir_all(&global).unwrap();
    File::create(global.join("pod-1")).unwrap();
    assert!(
        Command::new("mount")
            .arg("--bind")
            .arg(&target)
            .arg(global.join("pod-1"))
            .status()
            .unwrap()
            .success()
    );
    lab.restart();
    lab.publish(&id, &target, single(), false).await.unwrap();
    let status = lab.publish(&id, &lab.target("pod-2"), single(), false).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("for one pod alone"), "{status}");
    assert!(!lab.target("pod-2").exists());
    lab.unpublish(&id, &target).await.unwrap();
    assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition);
    lab.unbind(&global.join("pod-1"));
    lab.unstage(&id).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_device_in_use_stays_attached() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB).await;
    let status = lab.delete(&id).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("still mounted at"), "{status}");
    // Against the rules of CSI, but a pod must not lose its device by it.
    lab.unstage(&id).await.unwrap();
    write(&target, b"kept").unwrap();
    remove(&lab, &id).await;
}

#[tokio::test]
async fn a_publish_needs_a_stage() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 16 * MIB, block()).await.unwrap().volume_id;
    let status = lab.publish(&id, &lab.target("pod-1"), block(), false).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("not staged"), "{status}");
    assert_eq!(lab.expand_staged(&id, 0).await.unwrap_err().code(), Code::FailedPrecondition);
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_file_that_somebody_put_at_the_target_is_not_removed() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB).await;
    unstage(&lab, &id).await;
    std::fs::write(&target, "precious").unwrap();
    let status = lab.unpublish(&id, &target).await.unwrap_err();
    assert!(status.message().contains("left alone"), "{status}");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    lab.delete(&id).await.unwrap();
}

async fn is_confirmed(lab: &Lab, id: &str, capabilities: &[VolumeCapability]) -> bool {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: id.into(),
        volume_capabilities: capabilities.to_vec(),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = lab.driver().controller().validate_volume_capabilities(Request::new(request)).await.unwrap();
    answer.into_inner().confirmed.is_some()
}

#[tokio::test]
async fn a_volume_is_used_as_what_it_was_made() {
    let lab = Lab::new(EngineKind::LoopFile);
    for (name, made, other) in [("pvc-1", block(), mount("")), ("pvc-2", mount("ext4"), block())] {
        let id = lab.create(name, 16 * MIB, made.clone()).await.unwrap().volume_id;
        assert!(is_confirmed(&lab, &id, std::slice::from_ref(&made)).await);
        assert!(!is_confirmed(&lab, &id, std::slice::from_ref(&other)).await);
        assert!(!is_confirmed(&lab, &id, &[made.clone(), other.clone()]).await);
        let status = lab.create(name, 16 * MIB, other.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
        let status = lab.stage(&id, other.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("block device"), "{status}");
        lab.stage(&id, made).await.unwrap();
        let status = lab.publish(&id, &lab.target("pod-1"), other, false).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
    }
    lab.assert_clean();
    let lab = Lab::new(EngineKind::Directory);
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    assert!(is_confirmed(&lab, &id, &[mount("")]).await);
    assert!(!is_confirmed(&lab, &id, &[block()]).await);
    let status = lab.stage(&id, block()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("volumeMode Filesystem"), "{status}");
}
