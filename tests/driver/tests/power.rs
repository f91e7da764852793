//! Power cuts that really lose what was not synced: the pool's disk is copied as its device has it, and the node starts anew
//! on the copy.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::PathBuf;

use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Disk, Lab, from_snapshot, members, mount, pool_id};

const MIB: i64 = 1 << 20;

/// A node whose pool is a disk of its own.
fn node_on(disk: &mut Disk, engine: EngineKind) -> Lab {
    Lab::without_pool(engine, |config| {
        fs::create_dir_all(&config.pool_path).unwrap();
        disk.mount(&config.pool_path);
    })
}

/// The volume, published, and where.
async fn publish(lab: &Lab, id: &str, fs_type: &str) -> PathBuf {
    lab.to_pod(id, "pod", mount(fs_type)).await
}

async fn unpublish(lab: &Lab, id: &str) {
    lab.from_pod(id, "pod").await;
}

#[tokio::test]
async fn a_volume_that_was_acknowledged_and_data_that_were_unstaged_survive_it() {
    for (engine, fs_type, bytes) in [
        (EngineKind::Directory, "", 8 * MIB),
        (EngineKind::LoopFile, "ext4", 32 * MIB),
        (EngineKind::LoopFile, "xfs", 320 * MIB),
    ] {
        for pool_on in ["ext4", "xfs"] {
            survive(engine, fs_type, bytes, pool_on).await;
        }
    }
    survive(EngineKind::Btrfs, "", 16 * MIB, "btrfs").await;
}

async fn survive(engine: EngineKind, fs_type: &str, bytes: i64, pool_on: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let what = format!("{engine:?} {fs_type} on {pool_on}");
    let mut disk = Disk::of(scratch.path(), 1000, pool_on);
    let first = node_on(&mut disk, engine);
    first.driver().init_pool(&pool_id(), &first.config.backend_uid).unwrap();
    let id = first.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
    let mut made = disk.copy_without_what_is_unsynced(scratch.path(), "made");

    let at = publish(&first, &id, fs_type).await;
    fs::create_dir(at.join("folder")).unwrap();
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    fs::write(at.join("folder/file"), &data).unwrap();
    unpublish(&first, &id).await;
    let mut written = disk.copy_without_what_is_unsynced(scratch.path(), "written");
    let snapshot = first.snapshot("snap-1", &id).await.unwrap().snapshot_id;
    let mut taken = disk.copy_without_what_is_unsynced(scratch.path(), "taken");
    let group = members(&first.group("group-1", &[&id]).await.unwrap()).remove(0);
    let mut grouped = disk.copy_without_what_is_unsynced(scratch.path(), "grouped");
    // One after the other: not every kernel takes two btrfs of one id.
    disk.unmount_of(first);

    let after_create = node_on(&mut made, engine);
    let again = after_create.create("pvc-1", bytes, mount(fs_type)).await.unwrap();
    assert_eq!(again.volume_id, id, "{what}");
    publish(&after_create, &id, fs_type).await;
    unpublish(&after_create, &id).await;
    made.unmount_of(after_create);

    let after_unstage = node_on(&mut written, engine);
    let at = publish(&after_unstage, &id, fs_type).await;
    assert!(fs::read(at.join("folder/file")).unwrap() == data, "{what}: the data differ");
    unpublish(&after_unstage, &id).await;
    written.unmount_of(after_unstage);

    for (snapshot, disk) in [(snapshot, &mut taken), (group, &mut grouped)] {
        let after = node_on(disk, engine);
        let restored = after.create_from(from_snapshot(&snapshot), "pvc-2", bytes, mount(fs_type));
        let id = restored.await.unwrap().volume_id;
        let at = publish(&after, &id, fs_type).await;
        assert!(fs::read(at.join("folder/file")).unwrap() == data, "{what}: the data of {snapshot} differ");
        unpublish(&after, &id).await;
        disk.unmount_of(after);
    }
}
