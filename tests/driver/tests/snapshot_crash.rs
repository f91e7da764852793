//! The driver is killed between any two steps of a snapshot's life and of the volumes made from it, and while a file
//! system is frozen.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use dunnage_driver::EngineKind;
use dunnage_driver::id::{SnapshotId, VolumeId};
use dunnage_driver::steps::Steps;
use dunnage_tests_driver::{
    BACKEND, Disk, Killer, Lab, from_snapshot, from_volume, fsfreeze, mount, pool_id,
};
use tonic::{Code, Status};

const MIB: i64 = 1 << 20;

/// What is done, to a volume that a pod uses all the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Snapshot,
    Restore,
    StageRestored,
    UnstageRestored,
    Clone,
    DeleteClone,
    DeleteSnapshot,
    DeleteRestored,
}

const LIFE: [Call; 8] = [
    Call::Snapshot,
    Call::Restore,
    Call::StageRestored,
    Call::UnstageRestored,
    Call::Clone,
    Call::DeleteClone,
    Call::DeleteSnapshot,
    Call::DeleteRestored,
];

struct Life {
    engine: EngineKind,
    bytes: i64,
    fs_type: &'static str,
    /// What the pool lies on: whether its files share blocks.
    disk: fn(&Path, u64) -> Disk,
}

fn volume(name: &str) -> String {
    VolumeId::make(&pool_id(), name).to_string()
}

impl Life {
    async fn make(&self, lab: &Lab, call: Call) -> Result<(), Status> {
        let capability = || mount(self.fs_type);
        let (source, restored, clone) = (volume("pvc-1"), volume("pvc-2"), volume("pvc-3"));
        let snapshot = SnapshotId::make(&pool_id(), "snap-1").to_string();
        match call {
            Call::Snapshot => {
                let made = lab.snapshot("snap-1", &source).await?;
                assert_eq!((made.snapshot_id, made.source_volume_id), (snapshot, source));
            }
            Call::Restore => {
                let made =
                    lab.create_from(from_snapshot(&snapshot), "pvc-2", 2 * self.bytes, capability()).await?;
                assert_eq!((made.volume_id, made.capacity_bytes), (restored, 2 * self.bytes));
            }
            Call::Clone => {
                let made = lab.create_from(from_volume(&source), "pvc-3", self.bytes, capability()).await?;
                assert_eq!(made.volume_id, clone);
            }
            Call::StageRestored => self.look(lab, &restored).await?,
            Call::UnstageRestored => lab.unstage(&restored).await?,
            Call::DeleteClone => lab.delete(&clone).await?,
            Call::DeleteSnapshot => lab.delete_snapshot(&snapshot).await?,
            Call::DeleteRestored => lab.delete(&restored).await?,
        }
        Ok(())
    }

    /// The source's data are in a copy of it.
    async fn look(&self, lab: &Lab, id: &str) -> Result<(), Status> {
        lab.stage(id, mount(self.fs_type)).await?;
        let at = lab.target("look");
        lab.publish(id, &at, mount(self.fs_type), false).await?;
        assert_eq!(std::fs::read(at.join("data")).unwrap(), b"kept");
        lab.unpublish(id, &at).await
    }

    /// The life with a kill at one step, or none; gives the steps that were reached.
    async fn live(&self, killer: Killer) -> Vec<&'static str> {
        // In memory, for it is lived some hundred times.
        let memory = tempfile::Builder::new().prefix("dunnage-driver-").tempdir_in("/dev/shm").unwrap();
        let mut lab = Lab::without_pool(self.engine, |_| {});
        let mut disk = (self.disk)(memory.path(), 2000);
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        let id = lab.create("pvc-1", self.bytes, mount(self.fs_type)).await.unwrap().volume_id;
        let target = lab.target("pod-1");
        lab.stage(&id, mount(self.fs_type)).await.unwrap();
        lab.publish(&id, &target, mount(self.fs_type), false).await.unwrap();
        std::fs::write(target.join("data"), "kept").unwrap();
        lab.config.steps = killer.steps();
        lab.restart();
        for call in LIFE {
            // Twice, for every call is idempotent.
            for _ in 0..2 {
                if let Err(status) = self.make(&lab, call).await {
                    let reached = killer.reached();
                    assert_eq!(status.code(), Code::Internal, "{call:?} after {reached:?}: {status}");
                    lab.restart();
                    assert!(!lab.volume_dir(&id).join("frozen").exists(), "{call:?} after {reached:?}");
                    let again = self.make(&lab, call).await;
                    assert!(again.is_ok(), "{call:?} again after {:?}: {again:?}", killer.reached());
                }
            }
            // The pod goes on.
            std::fs::write(target.join("more"), "x").unwrap();
        }
        lab.config.steps = Steps::default();
        lab.restart();
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
        lab.driver = None;
        disk.unmount();
        killer.reached()
    }

    async fn die_everywhere(&self, wanted: &[&str]) {
        let steps = self.live(Killer::default()).await;
        for step in wanted {
            assert!(steps.contains(step), "{step}: {steps:?}");
        }
        for step in 0..steps.len() {
            let killer = Killer::at(step);
            self.live(killer.clone()).await;
            assert!(killer.has_killed(), "{step} was not reached");
        }
    }
}

const SNAPSHOT: [&str; 5] = [
    "snapshot directory made",
    "snapshot data made",
    "snapshot record written",
    "snapshot renamed",
    "snapshot in the trash",
];
const IMAGE: [&str; 5] =
    ["freeze noted", "file system frozen", "file system thawed", "UUID renewed", "image mounted"];

#[tokio::test]
async fn a_snapshot_of_a_directory_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::Directory, bytes: 16 * MIB, fs_type: "", disk: Disk::make }
        .die_everywhere(&SNAPSHOT)
        .await;
}

#[tokio::test]
async fn a_snapshot_of_a_subvolume_survives_a_kill_at_any_step() {
    for disk in [Disk::btrfs, Disk::btrfs_with_simple_quotas] {
        Life { engine: EngineKind::Btrfs, bytes: 16 * MIB, fs_type: "", disk }
            .die_everywhere(&SNAPSHOT)
            .await;
    }
}

#[tokio::test]
async fn a_snapshot_of_an_ext4_image_survives_a_kill_at_any_step() {
    let wanted = [&SNAPSHOT[..], &IMAGE, &["file system grown"]].concat();
    Life { engine: EngineKind::LoopFile, bytes: 16 * MIB, fs_type: "ext4", disk: Disk::make }
        .die_everywhere(&wanted)
        .await;
}

#[tokio::test]
async fn a_snapshot_of_an_xfs_image_survives_a_kill_at_any_step() {
    let wanted = [&SNAPSHOT[..], &IMAGE].concat();
    Life { engine: EngineKind::LoopFile, bytes: 300 * MIB, fs_type: "xfs", disk: Disk::xfs }
        .die_everywhere(&wanted)
        .await;
}

/// A kill ends no freeze, so this one is made by hand where the killed driver would have left it.
#[tokio::test]
async fn what_a_killed_driver_left_frozen_is_thawed_at_the_next_start() {
    for fs_type in ["ext4", "xfs"] {
        let mut lab = Lab::new(EngineKind::LoopFile);
        let id = lab.create("pvc-1", 300 * MIB, mount(fs_type)).await.unwrap().volume_id;
        let target = lab.target("pod-1");
        lab.stage(&id, mount(fs_type)).await.unwrap();
        lab.publish(&id, &target, mount(fs_type), false).await.unwrap();
        let killer = Killer::default();
        lab.config.steps = killer.steps();
        lab.restart();
        lab.snapshot("first", &id).await.unwrap();
        let at = killer.reached().iter().position(|step| *step == "freeze noted").unwrap();
        lab.config.steps = Killer::at(at).steps();
        lab.restart();
        assert_eq!(lab.snapshot("second", &id).await.unwrap_err().code(), Code::Internal);
        assert!(lab.volume_dir(&id).join("frozen").exists(), "the mark of the freeze is gone");
        assert!(fsfreeze("-f", &lab.staging(&id)));
        lab.restart();
        assert!(!fsfreeze("-u", &lab.staging(&id)), "{fs_type} was frozen still");
        assert!(!lab.volume_dir(&id).join("frozen").exists());
        std::fs::write(target.join("data"), "goes on").unwrap();
        lab.snapshot("second", &id).await.unwrap();
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
        for name in ["first", "second"] {
            lab.delete_snapshot(SnapshotId::make(&pool_id(), name).as_str()).await.unwrap();
        }
        lab.assert_clean();
    }
}

/// Backup programs freeze by themselves, around the snapshot that they ask for.
#[tokio::test]
async fn what_others_froze_is_copied_and_stays_frozen() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
    lab.stage(&id, mount("")).await.unwrap();
    assert!(fsfreeze("-f", &lab.staging(&id)));
    let made = lab.snapshot("snap-1", &id).await;
    let still = fsfreeze("-u", &lab.staging(&id));
    assert!(still && made.is_ok(), "{still} {made:?}");
    lab.unstage(&id).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.delete_snapshot(&made.unwrap().snapshot_id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn half_a_snapshot_is_gone_after_a_start() {
    for (engine, step) in [(EngineKind::Directory, 1), (EngineKind::LoopFile, 1), (EngineKind::Btrfs, 1)] {
        let mut lab = Lab::new(engine);
        let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        lab.config.steps = Killer::at(step).steps();
        lab.restart();
        assert_eq!(lab.snapshot("snap-1", &id).await.unwrap_err().code(), Code::Internal);
        let left = |lab: &Lab| std::fs::read_dir(lab.config.pool_path.join("snapshots")).unwrap().count();
        assert_eq!(left(&lab), 1);
        lab.restart();
        assert_eq!(left(&lab), 0);
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}
