//! Volumes that become larger: online, offline, cut short, and not at all.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Killer, Lab, grows_ext4_mounted, mount};
use tonic::Code;

const MIB: i64 = 1 << 20;

const ALL: [(EngineKind, &str, i64); 5] = [
    (EngineKind::Directory, "", 16 * MIB),
    (EngineKind::Btrfs, "", 16 * MIB),
    (EngineKind::LoopFile, "ext4", 64 * MIB),
    (EngineKind::LoopFile, "xfs", 300 * MIB),
    (EngineKind::LoopFile, "btrfs", 128 * MIB),
];

async fn stage(lab: &Lab, id: &str, fs_type: &str) -> PathBuf {
    lab.to_pod(id, "pod-1", mount(fs_type)).await
}

async fn unstage(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod-1").await;
}

async fn remove(lab: &Lab, id: &str) {
    unstage(lab, id).await;
    lab.delete(id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_volume_grows_under_its_pod() {
    for (engine, fs_type, bytes) in ALL {
        let lab = Lab::new(engine);
        let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
        let target = stage(&lab, &id, fs_type).await;
        std::fs::write(target.join("data"), "kept").unwrap();
        let before = lab.bytes(&id, &target).await.total;
        for _ in 0..2 {
            let answer = lab.expand(&id, 2 * bytes - 1000).await.unwrap();
            assert_eq!(answer.node_expansion_required, engine == EngineKind::LoopFile);
            let rounded = if engine == EngineKind::LoopFile { 2 * bytes } else { 2 * bytes - 1000 };
            assert_eq!(answer.capacity_bytes, rounded, "{fs_type}");
            assert_eq!(lab.listed_bytes(&id).await, rounded);
        }
        for _ in 0..2 {
            let grown = lab.expand_staged(&id, 2 * bytes - 1000).await;
            if fs_type == "ext4" && !grows_ext4_mounted() {
                let status = grown.unwrap_err();
                assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
                assert!(status.message().contains("when the volume is next staged"), "{status}");
            } else {
                assert_eq!(grown.unwrap(), lab.listed_bytes(&id).await);
                let after = lab.bytes(&id, &target).await.total;
                assert!(after > before + bytes / 2, "{fs_type}: {before} to {after}");
            }
        }
        unstage(&lab, &id).await;
        stage(&lab, &id, fs_type).await;
        let after = lab.bytes(&id, &target).await.total;
        assert!(after > before + bytes / 2, "{fs_type}: {before} to {after}");
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        assert_eq!(lab.expand_staged(&id, 0).await.unwrap(), lab.listed_bytes(&id).await, "{fs_type}");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn a_volume_that_nobody_uses_grows_when_it_is_staged() {
    for (engine, fs_type, bytes) in ALL {
        let mut lab = Lab::new(engine);
        let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
        let target = stage(&lab, &id, fs_type).await;
        std::fs::write(target.join("data"), "kept").unwrap();
        let before = lab.bytes(&id, &target).await.total;
        unstage(&lab, &id).await;
        lab.expand(&id, 2 * bytes).await.unwrap();
        if engine == EngineKind::LoopFile {
            let status = lab.expand_staged(&id, 2 * bytes).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition);
            assert!(status.message().contains("is not staged"), "{status}");
        }
        lab.restart();
        assert_eq!(lab.listed_bytes(&id).await, 2 * bytes);
        stage(&lab, &id, fs_type).await;
        let after = lab.bytes(&id, &target).await.total;
        assert!(after > before + bytes / 2, "{fs_type}: {before} to {after}");
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        remove(&lab, &id).await;
    }
}

#[tokio::test]
async fn a_growth_that_was_cut_short_is_finished_by_the_next_stage() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 64 * MIB, mount("")).await.unwrap().volume_id;
    // In the books, beyond the image, and then the image itself.
    lab.config.steps = Killer::at(2).steps();
    lab.restart();
    assert_eq!(lab.expand(&id, 128 * MIB).await.unwrap_err().code(), Code::Internal);
    lab.restart();
    assert_eq!(lab.listed_bytes(&id).await, 64 * MIB, "nobody was told of more");
    let target = stage(&lab, &id, "").await;
    assert_eq!(lab.listed_bytes(&id).await, 128 * MIB);
    assert!(lab.bytes(&id, &target).await.total > 100 * MIB);
    // The size that was asked for is too little now.
    let status = lab.expand_within(&id, 96 * MIB, 100 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    remove(&lab, &id).await;
}

#[tokio::test]
async fn space_that_was_taken_for_a_growth_cut_short_is_given_back() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 64 * MIB, mount("")).await.unwrap().volume_id;
    let image = lab.volume_dir(&id).join("image");
    let taken = || std::fs::metadata(&image).unwrap().blocks() * 512;
    // In the books, and then beyond the image.
    lab.config.steps = Killer::at(1).steps();
    lab.restart();
    assert_eq!(lab.expand(&id, 128 * MIB).await.unwrap_err().code(), Code::Internal);
    assert!(taken() >= 128 << 20);
    lab.restart();
    stage(&lab, &id, "").await;
    assert!((64 << 20..65 << 20).contains(&taken()), "{}", taken());
    assert_eq!(lab.listed_bytes(&id).await, 64 * MIB);
    remove(&lab, &id).await;
}

#[tokio::test]
async fn what_cannot_grow_stays_as_it_is() {
    for (engine, fs_type, bytes) in ALL {
        let lab = Lab::new(engine);
        let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
        for (required, limit, code) in [
            (bytes + 1, bytes - 1, Code::InvalidArgument),
            (0, bytes - 1, Code::OutOfRange),
            (-1, 0, Code::InvalidArgument),
            (
                i64::MAX,
                0,
                if engine == EngineKind::LoopFile { Code::OutOfRange } else { Code::ResourceExhausted },
            ),
            (1 << 60, 0, Code::ResourceExhausted),
        ] {
            let status = lab.expand_within(&id, required, limit).await.unwrap_err();
            assert_eq!(status.code(), code, "{required} {limit}: {status}");
        }
        assert_eq!(lab.expand(&id, bytes / 2).await.unwrap().capacity_bytes, bytes, "shrunk");
        assert_eq!(lab.listed_bytes(&id).await, bytes);
        let status = lab.expand_staged(&id, bytes + 1).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
        let nobodys = format!("{}-{}", &id[..16], "0".repeat(32));
        assert_eq!(lab.expand(&nobodys, bytes).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(lab.expand_staged(&nobodys, bytes).await.unwrap_err().code(), Code::NotFound);
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}
