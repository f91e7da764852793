//! Volumes in use: data that outlive everything, growth at stage, options, and one pod at a time.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_usage::Unit;
use dunnage_csi::v1::{NodeGetVolumeStatsRequest, VolumeUsage, node_server::Node as _};
use dunnage_driver::EngineKind;
use dunnage_host::mountinfo;
use dunnage_tests_driver::{Lab, mount, mount_as};
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;

async fn usage(lab: &Lab, id: &str, path: &Path, unit: Unit) -> VolumeUsage {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: path.to_str().unwrap().into(),
        ..NodeGetVolumeStatsRequest::default()
    };
    let answer = lab.driver().node().node_get_volume_stats(Request::new(request)).await.unwrap();
    answer.into_inner().usage.into_iter().find(|usage| usage.unit == i32::from(unit)).unwrap()
}

/// A new volume, staged and published.
async fn volume(lab: &Lab, bytes: i64, fs_type: &str) -> (String, std::path::PathBuf) {
    let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
    let target = lab.to_pod(&id, "pod-1", mount(fs_type)).await;
    (id, target)
}

async fn remove(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod-1").await;
    lab.delete(id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn data_survive_a_restart_and_a_power_cut() {
    for (engine, fs_type, bytes) in [
        (EngineKind::Directory, "", 16 * MIB),
        (EngineKind::Btrfs, "", 16 * MIB),
        (EngineKind::LoopFile, "ext4", 16 * MIB),
        (EngineKind::LoopFile, "xfs", 300 * MIB),
        (EngineKind::LoopFile, "btrfs", 128 * MIB),
    ] {
        let mut lab = Lab::new(engine);
        let (id, target) = volume(&lab, bytes, fs_type).await;
        std::fs::write(target.join("data"), "kept").unwrap();
        let mounts = lab.mounts();
        lab.restart();
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        lab.stage(&id, mount(fs_type)).await.unwrap();
        lab.publish(&id, &target, mount(fs_type), false).await.unwrap();
        assert_eq!(lab.mounts(), mounts, "mounted twice");
        lab.reboot();
        assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
        lab.stage(&id, mount(fs_type)).await.unwrap();
        lab.publish(&id, &target, mount(fs_type), false).await.unwrap();
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn a_file_system_smaller_than_its_image_grows_at_stage() {
    for (fs_type, bytes) in [("ext4", 64 * MIB), ("xfs", 300 * MIB), ("btrfs", 128 * MIB)] {
        let lab = Lab::new(EngineKind::LoopFile);
        let (id, target) = volume(&lab, bytes, fs_type).await;
        std::fs::write(target.join("data"), "kept").unwrap();
        let before = usage(&lab, &id, &target, Unit::Bytes).await.total;
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        lab.enlarge_image(&id, 2 * bytes.unsigned_abs());
        lab.stage(&id, mount(fs_type)).await.unwrap();
        lab.publish(&id, &target, mount(fs_type), false).await.unwrap();
        let after = usage(&lab, &id, &target, Unit::Bytes).await.total;
        assert!(after > before + bytes / 2, "{fs_type}: {before} to {after}");
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn an_image_that_held_data_is_never_formatted_again() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB, "").await;
    lab.unpublish(&id, &target).await.unwrap();
    lab.unstage(&id).await.unwrap();
    let image = lab.volume_dir(&id).join("image");
    std::fs::write(&image, vec![0; 16 << 20]).unwrap();
    let status = lab.stage(&id, mount("")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("never formatted again"), "{status}");
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_loop_file_volume_holds_no_more_than_its_size() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB, "").await;
    let error = std::fs::write(target.join("big"), vec![1; 17 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(is_thick(&lab, &id));
    remove(&lab, &id).await;
}

fn is_thick(lab: &Lab, id: &str) -> bool {
    let path = lab.volume_dir(id).join("image");
    !dunnage_host::space::has_holes(&std::fs::File::open(&path).unwrap(), &path).unwrap()
}

/// A file system that asks for zeros makes the kernel punch holes.
#[tokio::test]
async fn space_that_an_image_has_lost_is_taken_back() {
    let lab = Lab::new(EngineKind::LoopFile);
    let (id, target) = volume(&lab, 16 * MIB, "").await;
    std::fs::write(target.join("data"), "kept").unwrap();
    lab.unpublish(&id, &target).await.unwrap();
    lab.unstage(&id).await.unwrap();
    lab.dig_holes(&id);
    assert!(!is_thick(&lab, &id));
    lab.stage(&id, mount("")).await.unwrap();
    assert!(is_thick(&lab, &id));
    lab.publish(&id, &target, mount(""), false).await.unwrap();
    assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
    remove(&lab, &id).await;
}

#[tokio::test]
async fn a_directory_volumes_stats_are_its_own() {
    let lab = Lab::new(EngineKind::Directory);
    let (id, target) = volume(&lab, 16 * MIB, "").await;
    std::fs::write(target.join("data"), vec![1; 4 << 20]).unwrap();
    let bytes = usage(&lab, &id, &target, Unit::Bytes).await;
    assert_eq!(bytes.total, 16 * MIB);
    assert!((4 * MIB..5 * MIB).contains(&bytes.used), "{bytes:?}");
    assert_eq!(bytes.available, bytes.total - bytes.used);
    assert!(usage(&lab, &id, &target, Unit::Inodes).await.total > 0);
    remove(&lab, &id).await;
}

#[tokio::test]
async fn a_read_only_publish_is_read_only_and_the_others_are_not() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let (id, target) = volume(&lab, 16 * MIB, "").await;
        let other = lab.target("pod-2");
        lab.publish(&id, &other, mount_as("", &["noexec"], Mode::SingleNodeMultiWriter), true).await.unwrap();
        std::fs::write(target.join("data"), "x").unwrap();
        assert_eq!(std::fs::read(other.join("data")).unwrap(), b"x");
        let refused = std::fs::write(other.join("data"), "y").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let of = |path: &Path| {
            mountinfo::read().unwrap().into_iter().find(|mount| mount.mount_point == path).unwrap().read_only
        };
        assert!(of(&other) && !of(&target));
        lab.unpublish(&id, &other).await.unwrap();
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn a_volume_for_one_pod_has_one_pod() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let single = || mount_as("", &[], Mode::SingleNodeSingleWriter);
        let id = lab.create("pvc-1", 16 * MIB, single()).await.unwrap().volume_id;
        lab.stage(&id, single()).await.unwrap();
        let target = lab.target("pod-1");
        lab.publish(&id, &target, single(), false).await.unwrap();
        lab.publish(&id, &target, single(), false).await.unwrap();
        let status = lab.publish(&id, &lab.target("pod-2"), single(), false).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("pod-1"), "{status}");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn several_pods_share_a_volume_and_its_last_use_is_the_last() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let (id, target) = volume(&lab, 16 * MIB, "").await;
        let others = [lab.target("pod-2"), lab.target("pod-3")];
        for other in &others {
            lab.publish(&id, other, mount(""), false).await.unwrap();
        }
        std::fs::write(target.join("data"), "x").unwrap();
        lab.unpublish(&id, &others[0]).await.unwrap();
        assert!(!others[0].exists());
        assert_eq!(std::fs::read(others[1].join("data")).unwrap(), b"x");
        assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition);
        lab.unpublish(&id, &others[1]).await.unwrap();
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"x");
        remove(&lab, &id).await;
    }
}

/// A copied pool has the same ids; what is done with the copy is not this pool's business.
#[tokio::test]
async fn a_mount_of_a_copy_of_the_volume_does_not_count() {
    let lab = Lab::new(EngineKind::Directory);
    let single = || mount_as("", &[], Mode::SingleNodeSingleWriter);
    let id = lab.create("pvc-1", 16 * MIB, single()).await.unwrap().volume_id;
    let copy = lab.root().join("copy/volumes").join(&id).join("data");
    std::fs::create_dir_all(&copy).unwrap();
    let elsewhere = lab.target("copys-pod");
    lab.bind(&copy, &elsewhere);
    let target = lab.to_pod(&id, "pod-1", single()).await;
    lab.unpublish(&id, &target).await.unwrap();
    lab.unstage(&id).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.unbind(&elsewhere);
    lab.assert_clean();
}

/// Kubelet binds parts of a volume for `subPath`, and publishes again after its own restart.
#[tokio::test]
async fn a_sub_path_is_no_second_pod_but_keeps_the_volume() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let single = || mount_as("", &[], Mode::SingleNodeSingleWriter);
        let id = lab.create("pvc-1", 16 * MIB, single()).await.unwrap().volume_id;
        lab.stage(&id, single()).await.unwrap();
        let target = lab.target("pod-1");
        lab.publish(&id, &target, single(), false).await.unwrap();
        std::fs::create_dir(target.join("part")).unwrap();
        lab.bind(&target.join("part"), &lab.target("pod-1-subpath"));
        lab.publish(&id, &target, single(), false).await.unwrap();
        lab.unpublish(&id, &target).await.unwrap();
        assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition);
        lab.unbind(&lab.target("pod-1-subpath"));
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_volume_in_use_is_not_deleted() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let (id, _) = volume(&lab, 16 * MIB, "").await;
        let status = lab.delete(&id).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("still mounted at"), "{status}");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn a_volume_of_another_pool_is_not_said_to_be_gone() {
    let lab = Lab::new(EngineKind::Directory);
    let (id, _) = volume(&lab, 1 << 20, "").await;
    let elsewhere = id.replacen(&id[..16], "ffffffffffffffff", 1);
    assert_eq!(lab.delete(&elsewhere).await.unwrap_err().code(), Code::Unavailable);
    remove(&lab, &id).await;
    lab.delete(&id).await.unwrap();
}

#[tokio::test]
async fn a_publish_needs_a_stage() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
    let status = lab.publish(&id, &lab.target("pod-1"), mount(""), false).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("not staged"), "{status}");
}

#[tokio::test]
async fn an_attached_volume_belongs_to_one_node() {
    let mut lab = Lab::with(EngineKind::Directory, |config| config.attach = true);
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    assert_eq!(lab.stage(&id, mount("")).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(lab.attach(&id, "node-2").await.unwrap_err().code(), Code::NotFound);
    lab.attach(&id, "node-1").await.unwrap();
    // The disk moves to another machine while the volume is still attached to the first.
    lab.config.node_id = "node-2".into();
    lab.restart();
    let status = lab.attach(&id, "node-2").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("node-1"), "{status}");
    lab.detach(&id, "node-3").await.unwrap();
    assert!(lab.attach(&id, "node-2").await.is_err());
    lab.detach(&id, "node-1").await.unwrap();
    lab.attach(&id, "node-2").await.unwrap();
    lab.stage(&id, mount("")).await.unwrap();
    let status = lab.delete(&id).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("still attached to node node-2"), "{status}");
    lab.detach(&id, "").await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn mount_options_of_the_class_reach_the_file_system() {
    let lab = Lab::new(EngineKind::LoopFile);
    let with = |option| mount_as("ext4", &[option], Mode::SingleNodeWriter);
    let id = lab.create("pvc-1", 16 * MIB, with("noatime")).await.unwrap().volume_id;
    let status = lab.stage(&id, with("nosuchoption")).await.unwrap_err();
    assert!(status.message().contains("nosuchoption"), "{status}");
    assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
    lab.stage(&id, mount_as("ext4", &["noatime", "data=journal"], Mode::SingleNodeWriter)).await.unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(lab.staging(&id).to_str().unwrap())).unwrap();
    assert!(line.contains("noatime") && line.contains("data=journal"), "{line}");
    lab.unstage(&id).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

/// The driver mounts in its container, and kubelet sees what propagates from there.
#[tokio::test]
async fn mount_options_hold_wherever_a_mount_propagates_to() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let lab = Lab::new(engine);
        let (inside, outside) = (&lab.config.kubelet_dir, lab.root().join("outside"));
        lab.share(&outside);
        let options = || mount_as("", &["noatime", "nosuid"], Mode::SingleNodeWriter);
        let id = lab.create("pvc-1", 16 * MIB, options()).await.unwrap().volume_id;
        lab.stage(&id, options()).await.unwrap();
        for read_only in [false, true, false] {
            lab.publish(&id, &lab.target("pod-1"), options(), read_only).await.unwrap();
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let seen: Vec<_> = [inside, &outside]
                .map(|kubelet| kubelet.join("pods/pod-1"))
                .iter()
                .map(|at| table.lines().find(|line| line.contains(&format!(" {} ", at.display()))).unwrap())
                .map(|line| line.split(' ').nth(5).unwrap())
                .collect();
            let mode = if read_only { "ro" } else { "rw" };
            assert!(
                seen.iter().all(|flags| *flags == format!("{mode},nosuid,noatime")),
                "{engine:?}: {seen:?}"
            );
        }
        lab.unpublish(&id, &lab.target("pod-1")).await.unwrap();
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
        lab.unbind(&outside);
        lab.unbind(inside);
        lab.assert_clean();
    }
}
