//! Bad input, and pods that plant links: nothing outside of the pool and of kubelet's directory is touched.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::os::unix::fs::symlink;
use std::path::Path;

use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::{VolumeCapability, node_server::Node as _};
use dunnage_driver::EngineKind;
use dunnage_driver::id::VolumeId;
use dunnage_tests_driver::{Lab, block, eventually, mount, mount_as, pool_id};
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;

#[tokio::test]
async fn ids_that_are_paths_name_no_volume() {
    let lab = Lab::new(EngineKind::Directory);
    let target = lab.target("pod-1");
    for id in ["..", "/etc", "../../etc", "a\0b", "0123456789abcdef-../../../../../../../../../etc/x"] {
        assert!(lab.delete(id).await.is_ok(), "{id:?}");
        assert_eq!(lab.unpublish(id, &target).await.unwrap_err().code(), Code::NotFound, "{id:?}");
        let request = stats(id, &target);
        let status = lab.driver().node().node_get_volume_stats(Request::new(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{id:?}");
        // Their staging path is made of the id, so some are refused for that already.
        let status = lab.publish(id, &target, mount(""), false).await.unwrap_err();
        assert!(
            matches!(status.code(), Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition),
            "{status}"
        );
    }
    assert!(!target.exists());
}

#[tokio::test]
async fn a_pods_links_never_lead_out() {
    for engine in [EngineKind::Directory, EngineKind::Btrfs] {
        a_pods_links_never_lead_out_of(engine).await;
    }
}

async fn a_pods_links_never_lead_out_of(engine: EngineKind) {
    let lab = Lab::new(engine);
    let outside = tempfile_outside(&lab);
    let volume = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap();
    let id = &volume.volume_id;
    let target = lab.to_pod(id, "pod-1", mount("")).await;
    // What a pod can do in its volume.
    symlink("/", target.join("root")).unwrap();
    symlink(&outside, target.join("outside")).unwrap();
    symlink("../volume.json", target.join("record")).unwrap();
    std::fs::create_dir(target.join("deep")).unwrap();
    symlink("../../../../..", target.join("deep/up")).unwrap();
    lab.driver().node().node_get_volume_stats(Request::new(stats(id, &target))).await.unwrap();
    lab.unpublish(id, &target).await.unwrap();
    lab.unstage(id).await.unwrap();
    lab.delete(id).await.unwrap();
    lab.assert_clean();
    assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"x");
}

#[tokio::test]
async fn a_volume_whose_parts_were_replaced_by_links_is_not_followed() {
    for (engine, part) in
        [(EngineKind::Directory, "data"), (EngineKind::LoopFile, "image"), (EngineKind::Btrfs, "data")]
    {
        let lab = Lab::new(engine);
        let outside = tempfile_outside(&lab);
        let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        let path = lab.volume_dir(&id).join(part);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        symlink(if part == "data" { outside.clone() } else { outside.join("precious") }, &path).unwrap();
        assert!(lab.stage(&id, mount("")).await.is_err());
        assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
        assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"x");
    }
}

#[tokio::test]
async fn a_planted_volume_directory_is_not_used() {
    let mut lab = Lab::new(EngineKind::Directory);
    let outside = tempfile_outside(&lab);
    let id = VolumeId::make(&pool_id(), "pvc-1");
    symlink(&outside, lab.volume_dir(id.as_str())).unwrap();
    symlink(&outside, lab.config.pool_path.join("volumes/.new-x")).unwrap();
    lab.restart();
    assert!(lab.create("pvc-1", MIB, mount("")).await.is_err());
    assert!(lab.delete(id.as_str()).await.is_ok());
    assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"x");
}

#[tokio::test]
async fn targets_lie_below_kubelets_directory_and_behind_no_link() {
    let lab = Lab::new(EngineKind::Directory);
    let outside = tempfile_outside(&lab);
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    lab.stage(&id, mount("")).await.unwrap();
    symlink(&outside, lab.target("link")).unwrap();
    let kubelet = lab.config.kubelet_dir.clone();
    for (target, code) in [
        (outside.join("t"), Code::InvalidArgument),
        (kubelet.join("../outside/t"), Code::InvalidArgument),
        (kubelet.join("pods/../../outside/t"), Code::InvalidArgument),
        (kubelet.clone(), Code::InvalidArgument),
        (Path::new("pods/t").to_owned(), Code::InvalidArgument),
        (lab.target("link/t"), Code::Internal),
        (lab.target("link"), Code::Internal),
    ] {
        let status = lab.publish(&id, &target, mount(""), false).await.unwrap_err();
        assert_eq!(status.code(), code, "{} {status}", target.display());
        let status = lab.unpublish(&id, &target).await;
        assert!(status.is_err(), "{}", target.display());
    }
    assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert!(lab.target("link").is_symlink());
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_by_name() {
    let cases: [(EngineKind, VolumeCapability, i64, Code, &str); 12] = [
        (EngineKind::Directory, mount("ext4"), MIB, Code::InvalidArgument, "LoopFile"),
        (EngineKind::LoopFile, mount("zfs"), 16 * MIB, Code::InvalidArgument, "ext4 or xfs or btrfs"),
        (EngineKind::LoopFile, mount("xfs"), 100 * MIB, Code::OutOfRange, "300 MiB"),
        (EngineKind::LoopFile, mount(""), MIB, Code::OutOfRange, "16 MiB"),
        (EngineKind::Directory, block(), 16 * MIB, Code::InvalidArgument, "volumeMode Filesystem"),
        (EngineKind::Btrfs, block(), 16 * MIB, Code::InvalidArgument, "volumeMode Filesystem"),
        (EngineKind::Btrfs, mount("btrfs"), 16 * MIB, Code::InvalidArgument, "LoopFile"),
        (EngineKind::Btrfs, mount(""), MIB, Code::OutOfRange, "16 MiB"),
        (
            EngineKind::Directory,
            mount_as("", &[], Mode::MultiNodeMultiWriter),
            MIB,
            Code::InvalidArgument,
            "ReadWriteOnce",
        ),
        (
            EngineKind::Directory,
            mount_as("", &["usrquota"], Mode::SingleNodeWriter),
            MIB,
            Code::InvalidArgument,
            "usrquota",
        ),
        (
            EngineKind::LoopFile,
            mount_as("ext4", &["noatime,dev"], Mode::SingleNodeWriter),
            16 * MIB,
            Code::InvalidArgument,
            "mount option \"dev\" is not possible with ext4",
        ),
        (
            EngineKind::LoopFile,
            mount_as("xfs", &["data=journal"], Mode::SingleNodeWriter),
            300 * MIB,
            Code::InvalidArgument,
            "allocsize=SIZE",
        ),
    ];
    for (engine, capability, bytes, code, says) in cases {
        let lab = Lab::new(engine);
        let status = lab.create("pvc-1", bytes, capability).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(says), "{status}");
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_deep_tree_of_a_pod_is_deleted() {
    for engine in [EngineKind::Directory, EngineKind::Btrfs] {
        a_deep_tree_in(engine).await;
    }
}

async fn a_deep_tree_in(engine: EngineKind) {
    let lab = Lab::new(engine);
    let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
    let mut path = lab.volume_dir(&id).join("data");
    for _ in 0..30 {
        path.push("x".repeat(100));
    }
    std::fs::create_dir_all(&path).unwrap();
    lab.delete(&id).await.unwrap();
    eventually("the tree is gone", || !lab.volume_dir(&id).exists());
    lab.assert_clean();
}

fn tempfile_outside(lab: &Lab) -> std::path::PathBuf {
    let outside = lab.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "x").unwrap();
    outside
}

fn stats(id: &str, path: &Path) -> dunnage_csi::v1::NodeGetVolumeStatsRequest {
    dunnage_csi::v1::NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: path.to_str().unwrap().into(),
        ..Default::default()
    }
}
