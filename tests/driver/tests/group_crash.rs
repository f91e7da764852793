//! The driver is killed between any two steps of a group snapshot's life: there is all of it or nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use dunnage_csi::v1::ListSnapshotsRequest;
use dunnage_driver::EngineKind;
use dunnage_driver::id::{GroupId, SnapshotId, VolumeId};
use dunnage_driver::steps::Steps;
use dunnage_tests_driver::{BACKEND, Disk, Killer, Lab, from_snapshot, fsfreeze, members, mount, pool_id};
use tonic::{Code, Status};

const MIB: i64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Group,
    Restore,
    DeleteGroup,
    DeleteRestored,
}

const LIFE: [Call; 4] = [Call::Group, Call::Restore, Call::DeleteGroup, Call::DeleteRestored];

struct Life {
    engine: EngineKind,
    disk: fn(&Path, u64) -> Disk,
    /// How many of the volumes pods use all the while.
    used: usize,
}

const NAMES: [&str; 3] = ["pvc-1", "pvc-2", "pvc-3"];

fn volume(name: &str) -> VolumeId {
    VolumeId::make(&pool_id(), name)
}

fn group() -> GroupId {
    GroupId::make(&pool_id(), "group-1")
}

impl Life {
    async fn make(&self, lab: &Lab, call: Call) -> Result<(), Status> {
        let volumes = NAMES.map(volume);
        let mut snapshots = volumes.each_ref().map(|id| SnapshotId::in_group(&group(), id).to_string());
        match call {
            Call::Group => {
                let made = lab.group("group-1", &volumes.each_ref().map(VolumeId::as_str)).await?;
                let mut told = members(&made);
                told.sort();
                snapshots.sort();
                assert_eq!((made.group_snapshot_id, told), (group().to_string(), snapshots.to_vec()));
            }
            Call::Restore => {
                let made = lab.create_from(from_snapshot(&snapshots[0]), "pvc-9", 0, mount("")).await?;
                assert_eq!(made.volume_id, volume("pvc-9").as_str());
            }
            Call::DeleteGroup => lab.delete_group(group().as_str(), &snapshots).await?,
            Call::DeleteRestored => lab.delete(volume("pvc-9").as_str()).await?,
        }
        Ok(())
    }

    /// The life with a kill at one step, or none; gives the steps that were reached.
    async fn live(&self, killer: Killer) -> Vec<&'static str> {
        // In memory, for it is lived some dozen times.
        let memory = tempfile::Builder::new().prefix("dunnage-driver-").tempdir_in("/dev/shm").unwrap();
        let mut lab = Lab::without_pool(self.engine, |_| {});
        let mut disk = (self.disk)(memory.path(), 600);
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        for (number, name) in NAMES.into_iter().enumerate() {
            let id = lab.create(name, 16 * MIB, mount("")).await.unwrap().volume_id;
            let target = lab.to_pod(&id, name, mount("")).await;
            std::fs::write(target.join("data"), "kept").unwrap();
            if number >= self.used {
                lab.from_pod(&id, name).await;
            }
        }
        lab.config.steps = killer.steps();
        lab.restart();
        for call in LIFE {
            // Twice, for every call is idempotent.
            for _ in 0..2 {
                if let Err(status) = self.make(&lab, call).await {
                    let reached = killer.reached();
                    assert_eq!(status.code(), Code::Internal, "{call:?} after {reached:?}: {status}");
                    lab.restart();
                    let (there, _) = lab.snapshots(ListSnapshotsRequest::default()).await.unwrap();
                    assert!(matches!(there.len(), 0 | 3), "a part of a group after {reached:?}: {there:?}");
                    for name in NAMES {
                        let mark = lab.volume_dir(volume(name).as_str()).join("frozen");
                        assert!(!mark.exists(), "{call:?} after {reached:?}");
                    }
                    let again = self.make(&lab, call).await;
                    assert!(again.is_ok(), "{call:?} again after {:?}: {again:?}", killer.reached());
                }
            }
            // The pods go on.
            for name in &NAMES[..self.used] {
                std::fs::write(lab.target(name).join("more"), "x").unwrap();
            }
        }
        lab.config.steps = Steps::default();
        lab.restart();
        for (number, name) in NAMES.into_iter().enumerate() {
            let id = volume(name);
            if number < self.used {
                lab.from_pod(id.as_str(), name).await;
            }
            lab.delete(id.as_str()).await.unwrap();
        }
        lab.assert_clean();
        lab.driver = None;
        disk.unmount();
        killer.reached()
    }

    async fn die_everywhere(&self, wanted: &[(&str, usize)]) {
        let steps = self.live(Killer::default()).await;
        for (step, times) in wanted {
            let count = steps.iter().filter(|reached| *reached == step).count();
            assert_eq!(count, *times, "{step}: {steps:?}");
        }
        for step in 0..steps.len() {
            let killer = Killer::at(step);
            self.live(killer.clone()).await;
            assert!(killer.has_killed(), "{step} was not reached");
        }
    }
}

const GROUP: [(&str, usize); 6] = [
    ("group directory made", 1),
    ("group data made", 1),
    ("group's snapshot written", 3),
    ("group record written", 1),
    ("group renamed", 1),
    ("group in the trash", 1),
];

#[tokio::test]
async fn a_group_of_directories_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::Directory, disk: Disk::make, used: 0 }.die_everywhere(&GROUP).await;
}

#[tokio::test]
async fn a_group_of_subvolumes_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::Btrfs, disk: Disk::btrfs, used: 2 }.die_everywhere(&GROUP).await;
}

#[tokio::test]
async fn a_group_of_images_survives_a_kill_at_any_step() {
    let frozen = [("freeze noted", 2), ("file system frozen", 2), ("file system thawed", 2)];
    let wanted = [&GROUP[..], &frozen].concat();
    Life { engine: EngineKind::LoopFile, disk: Disk::xfs, used: 2 }.die_everywhere(&wanted).await;
}

/// A kill ends no freeze, so the freezes are made by hand where the killed driver would have left them.
#[tokio::test]
async fn what_a_killed_driver_left_frozen_of_a_group_is_thawed_at_the_next_start() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    let mut ids = Vec::new();
    for name in ["pvc-1", "pvc-2"] {
        let id = lab.create(name, 16 * MIB, mount("")).await.unwrap().volume_id;
        lab.to_pod(&id, name, mount("")).await;
        ids.push(id);
    }
    let volumes = [ids[0].as_str(), ids[1].as_str()];
    // The last step before the second of them is thawed.
    lab.config.steps = Killer::at(5).steps();
    lab.restart();
    assert_eq!(lab.group("group-1", &volumes).await.unwrap_err().code(), Code::Internal);
    for id in volumes {
        assert!(lab.volume_dir(id).join("frozen").exists(), "the mark of the freeze is gone");
        assert!(fsfreeze("-f", &lab.staging(id)));
    }
    lab.config.steps = Steps::default();
    lab.restart();
    for id in volumes {
        assert!(!fsfreeze("-u", &lab.staging(id)), "{id} was frozen still");
        assert!(!lab.volume_dir(id).join("frozen").exists());
    }
    let group = lab.group("group-1", &volumes).await.unwrap();
    lab.delete_group(&group.group_snapshot_id, &members(&group)).await.unwrap();
    for (id, name) in volumes.iter().zip(["pvc-1", "pvc-2"]) {
        lab.from_pod(id, name).await;
        lab.delete(id).await.unwrap();
    }
    lab.assert_clean();
}
