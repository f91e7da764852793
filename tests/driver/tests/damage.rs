//! Images after an unclean stop, and damaged ones: repaired where that is safe, and never formatted again.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Lab, mount};
use tonic::Code;

const MIB: i64 = 1 << 20;
const MARK: &[u8] = b"what the pod wrote and nobody may lose";

const ALL: [(&str, i64); 3] = [("ext4", 32 * MIB), ("xfs", 300 * MIB), ("btrfs", 128 * MIB)];

/// A new volume, published, with something in it.
async fn volume(lab: &Lab, fs_type: &str, bytes: i64) -> String {
    let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
    let target = publish(lab, &id, fs_type).await;
    // Too much to be kept among the metadata.
    let file = File::create(target.join("data")).unwrap();
    file.write_all_at(&MARK.repeat(1000), 0).unwrap();
    file.sync_all().unwrap();
    id
}

async fn publish(lab: &Lab, id: &str, fs_type: &str) -> PathBuf {
    lab.to_pod(id, "pod-1", mount(fs_type)).await
}

async fn unstage(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod-1").await;
}

/// Gives the image this content, without making it another file.
fn overwrite(image: &Path, content: &[u8]) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.sync_all().unwrap();
}

fn is_kept(target: &Path) -> bool {
    std::fs::read(target.join("data")).unwrap() == MARK.repeat(1000)
}

#[tokio::test]
async fn what_an_unclean_stop_left_is_repaired_before_the_mount() {
    for (fs_type, bytes) in ALL {
        let lab = Lab::new(EngineKind::LoopFile);
        let id = volume(&lab, fs_type, bytes).await;
        let image = lab.volume_dir(&id).join("image");
        // What is on the disk while the volume is in use is what a power cut would leave.
        let torn = std::fs::read(&image).unwrap();
        if fs_type == "ext4" {
            const NEEDS_RECOVERY: u8 = 4;
            assert_ne!(torn[1024 + 0x60] & NEEDS_RECOVERY, 0, "it would be no test");
        }
        unstage(&lab, &id).await;
        overwrite(&image, &torn);
        let target = publish(&lab, &id, fs_type).await;
        assert!(is_kept(&target), "{fs_type}");
        unstage(&lab, &id).await;
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_damaged_superblock_is_told_with_what_to_do_and_never_formatted_over() {
    /// More than any of the superblocks at the start.
    const HEAD: usize = 128 << 10;
    for (fs_type, bytes) in ALL {
        let lab = Lab::new(EngineKind::LoopFile);
        let id = volume(&lab, fs_type, bytes).await;
        unstage(&lab, &id).await;
        let image = lab.volume_dir(&id).join("image");
        let whole = std::fs::read(&image).unwrap();
        let (zeros, ones) = (vec![0; HEAD], vec![0xff; HEAD]);
        // Still told by its magic number, but no more than that.
        let mut garbled = whole[..HEAD].to_vec();
        let superblock = match fs_type {
            "ext4" => 1024 + 0x10,
            "xfs" => 84,
            _ => (64 << 10) + 0x50,
        };
        garbled[superblock..superblock + 32].fill(0x5a);
        for (what, head) in [("zeros", &zeros), ("ones", &ones), ("garbled", &garbled)] {
            overwrite(&image, head);
            for _ in 0..2 {
                let status = lab.stage(&id, mount(fs_type)).await.unwrap_err();
                assert_eq!(status.code(), Code::FailedPrecondition, "{fs_type} {what}: {status}");
                for says in [fs_type, "backup", "never formatted again"] {
                    assert!(status.message().contains(says), "{fs_type} {what}: {status}");
                }
            }
            let after = std::fs::read(&image).unwrap();
            assert!(
                after[..HEAD] == head[..] && after[HEAD..] == whole[HEAD..],
                "{fs_type} {what}: written to"
            );
            assert!(lab.mounts().is_empty() && lab.loops().is_empty(), "{fs_type} {what}");
        }
        // Restored, as from a backup.
        overwrite(&image, &whole);
        assert!(is_kept(&publish(&lab, &id, fs_type).await), "{fs_type}");
        unstage(&lab, &id).await;
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}
