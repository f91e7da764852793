//! The driver is killed between any two steps of a volume's life; the calls that follow find their way.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use dunnage_csi::v1::VolumeCapability;
use dunnage_driver::EngineKind;
use dunnage_driver::id::VolumeId;
use dunnage_tests_driver::{Killer, Lab, block, compression, grows_ext4_mounted, mount, pool_id};
use tonic::{Code, Status};

const MIB: i64 = 1 << 20;

/// What a volume goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Create,
    Stage,
    Publish,
    Expand,
    ExpandStaged,
    /// What the engine can change, if anything.
    Modify,
    Unpublish,
    Unstage,
    /// By a second pod, which finds what the first one wrote.
    PublishAgain,
    Delete,
}

const LIFE: [Call; 13] = [
    Call::Create,
    Call::Stage,
    Call::Publish,
    Call::Expand,
    Call::ExpandStaged,
    Call::Modify,
    Call::Unpublish,
    Call::Unstage,
    Call::Stage,
    Call::PublishAgain,
    Call::Unpublish,
    Call::Unstage,
    Call::Delete,
];

struct Life {
    engine: EngineKind,
    bytes: i64,
    fs_type: &'static str,
    block: bool,
    parameters: &'static [(&'static str, &'static str)],
}

impl Life {
    fn capability(&self) -> VolumeCapability {
        if self.block { block() } else { mount(self.fs_type) }
    }

    async fn make(&self, lab: &Lab, call: Call, target: &Path) -> Result<(), Status> {
        let id = VolumeId::make(&pool_id(), "pvc-1");
        let id = id.as_str();
        match call {
            Call::Create => {
                let volume = lab.create_with("pvc-1", self.bytes, self.capability(), self.parameters).await?;
                assert_eq!(volume.volume_id, id);
            }
            Call::Stage => lab.stage(id, self.capability()).await?,
            Call::Publish => {
                lab.publish(id, target, self.capability(), false).await?;
                self.write(target);
            }
            Call::Expand => {
                let answer = lab.expand(id, 2 * self.bytes).await?;
                assert_eq!(answer.capacity_bytes, 2 * self.bytes);
                assert_eq!(lab.listed_bytes(id).await, 2 * self.bytes);
            }
            Call::ExpandStaged => match lab.expand_staged(id, 2 * self.bytes).await {
                Err(status) if status.code() == Code::FailedPrecondition && self.grows_at_stage() => {}
                answer => assert_eq!(answer?, 2 * self.bytes),
            },
            Call::Modify if self.engine == EngineKind::Btrfs => {
                lab.modify(id, &[("compression", "lzo")]).await?;
                let record = std::fs::read_to_string(lab.volume_dir(id).join("volume.json")).unwrap();
                assert!(record.contains(r#""compression":"lzo""#), "{record}");
                assert_eq!(compression(target).as_deref(), Some("lzo"));
            }
            Call::Modify => {}
            Call::PublishAgain => {
                lab.publish(id, target, self.capability(), false).await?;
                assert_eq!(self.read(target).unwrap(), b"kept");
                let total = lab.bytes(id, target).await.total;
                assert!(total > 3 * self.bytes / 2, "{total} after growth to {}", 2 * self.bytes);
            }
            Call::Unpublish => {
                // What was written is there up to the end, unless the target is gone already.
                if let Some(data) = self.read(target) {
                    assert_eq!(data, b"kept");
                }
                lab.unpublish(id, target).await?;
            }
            Call::Unstage => lab.unstage(id).await?,
            Call::Delete => lab.delete(id).await?,
        }
        Ok(())
    }

    fn write(&self, target: &Path) {
        let path = if self.block { target.to_owned() } else { target.join("data") };
        let file = OpenOptions::new().write(true).create(!self.block).truncate(false).open(path).unwrap();
        file.write_all_at(b"kept", 0).unwrap();
        file.sync_all().unwrap();
    }

    /// What is written there, if anything is published.
    fn read(&self, target: &Path) -> Option<Vec<u8>> {
        let path = if self.block { target.to_owned() } else { target.join("data") };
        let mut data = vec![0; 4];
        File::open(path).ok()?.read_exact_at(&mut data, 0).ok().map(|()| data)
    }

    /// Whether the kernel refuses to grow the mounted file system.
    fn grows_at_stage(&self) -> bool {
        let ext4 = self.engine == EngineKind::LoopFile && self.fs_type.is_empty() && !self.block;
        ext4 && !grows_ext4_mounted()
    }

    /// The life with a kill at one step, or none; gives the steps that were reached.
    async fn live(&self, killer: Killer) -> Vec<&'static str> {
        let mut lab = Lab::new(self.engine);
        lab.config.steps = killer.steps();
        lab.restart();
        let target = lab.target("pod-1");
        for call in LIFE {
            // Twice, for every call is idempotent.
            for _ in 0..2 {
                if let Err(status) = self.make(&lab, call, &target).await {
                    assert_eq!(
                        status.code(),
                        Code::Internal,
                        "{call:?} after {:?}: {status}",
                        killer.reached()
                    );
                    lab.restart();
                    let again = self.make(&lab, call, &target).await;
                    assert!(again.is_ok(), "{call:?} again after {:?}: {again:?}", killer.reached());
                }
            }
            let published =
                !matches!(call, Call::Create | Call::Stage | Call::Unpublish | Call::Unstage | Call::Delete);
            let staged = published || matches!(call, Call::Stage | Call::Unpublish);
            let mounts = usize::from(published)
                + usize::from(staged && self.engine == EngineKind::LoopFile && !self.block);
            assert_eq!(lab.mounts().len(), mounts, "{call:?} after {:?}", killer.reached());
        }
        lab.assert_clean();
        killer.reached()
    }

    async fn die_everywhere(&self, least: usize) {
        let steps = self.live(Killer::default()).await;
        assert!(steps.len() >= least, "{steps:?}");
        for step in 0..steps.len() {
            let killer = Killer::at(step);
            self.live(killer.clone()).await;
            assert!(killer.has_killed(), "{step} was not reached");
        }
    }
}

#[tokio::test]
async fn a_directory_volume_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::Directory, bytes: 16 * MIB, fs_type: "", block: false, parameters: &[] }
        .die_everywhere(18)
        .await;
}

#[tokio::test]
async fn a_subvolume_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::Btrfs, bytes: 16 * MIB, fs_type: "", block: false, parameters: &[] }
        .die_everywhere(20)
        .await;
}

#[tokio::test]
async fn an_ext4_image_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::LoopFile, bytes: 16 * MIB, fs_type: "", block: false, parameters: &[] }
        .die_everywhere(30)
        .await;
}

#[tokio::test]
async fn an_xfs_image_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::LoopFile, bytes: 300 * MIB, fs_type: "xfs", block: false, parameters: &[] }
        .die_everywhere(30)
        .await;
}

#[tokio::test]
async fn a_btrfs_image_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::LoopFile, bytes: 128 * MIB, fs_type: "btrfs", block: false, parameters: &[] }
        .die_everywhere(30)
        .await;
}

#[tokio::test]
async fn a_block_volume_survives_a_kill_at_any_step() {
    Life { engine: EngineKind::LoopFile, bytes: 16 * MIB, fs_type: "", block: true, parameters: &[] }
        .die_everywhere(25)
        .await;
}

#[tokio::test]
async fn a_sparse_image_survives_a_kill_at_any_step() {
    let parameters = &[("allocation", "sparse")];
    Life { engine: EngineKind::LoopFile, bytes: 16 * MIB, fs_type: "", block: false, parameters }
        .die_everywhere(30)
        .await;
}

#[tokio::test]
async fn what_was_half_made_is_gone_after_a_start() {
    let mut lab = Lab::new(EngineKind::LoopFile);
    // The second step: the directory is there, and the image in it.
    lab.config.steps = Killer::at(1).steps();
    lab.restart();
    assert_eq!(lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap_err().code(), Code::Internal);
    let left = |lab: &Lab| std::fs::read_dir(lab.config.pool_path.join("volumes")).unwrap().count();
    assert_eq!(left(&lab), 1);
    lab.restart();
    lab.assert_clean();
}

#[tokio::test]
async fn the_making_of_a_pool_can_be_cut_short() {
    let mut lab = Lab::without_pool(EngineKind::Directory, |_| {});
    lab.config.steps = Killer::at(0).steps();
    lab.restart();
    let driver = lab.driver().clone();
    let made = tokio::task::spawn_blocking(move || {
        driver.init_pool(&pool_id(), dunnage_tests_driver::BACKEND).map_err(|error| error.to_string())
    })
    .await;
    assert!(made.is_err());
    lab.restart();
    lab.driver().init_pool(&pool_id(), dunnage_tests_driver::BACKEND).unwrap();
    assert!(lab.create("pvc-1", MIB, mount("")).await.is_ok());
}
