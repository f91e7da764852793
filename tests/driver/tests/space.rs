//! Full pools: said with the numbers, never shared by two volumes, and usable again as soon as there is room.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use dunnage_csi::v1::GetCapacityRequest;
use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_driver::{EngineKind, Reserve};
use dunnage_tests_driver::{BACKEND, Disk, Lab, eventually, mount, pool_id};
use futures::future::join_all;
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;

struct Small {
    lab: Lab,
    disk: Disk,
}

impl Small {
    /// A pool on a small disk.
    fn new(engine: EngineKind) -> Self {
        Self::with(engine, Reserve::default())
    }

    fn with(engine: EngineKind, reserve: Reserve) -> Self {
        let lab = Lab::without_pool(engine, |config| config.reserve = reserve);
        let mut disk = match engine {
            EngineKind::Btrfs => Disk::btrfs(lab.root(), 512),
            _ => Disk::make(lab.root(), 256),
        };
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        Self { lab, disk }
    }

    async fn capacity(&self) -> i64 {
        let request = Request::new(GetCapacityRequest::default());
        self.lab.driver().controller().get_capacity(request).await.unwrap().into_inner().available_capacity
    }

    fn finish(mut self) {
        self.lab.assert_clean();
        self.lab.driver = None;
        self.disk.unmount();
    }
}

#[tokio::test]
async fn two_claims_of_more_than_half_do_not_both_pass() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let small = Small::new(engine);
        let size = small.capacity().await * 6 / 10 / 4096 * 4096;
        let first = small.lab.create("pvc-1", size, mount("")).await.unwrap().volume_id;
        let status = small.lab.create("pvc-2", size, mount("")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let free = small.capacity().await;
        let words = status.message();
        assert!(
            words.contains(&size.to_string()) && words.contains(&format!("{free} bytes free")),
            "{words} {free}"
        );
        assert!(free < size);
        // What was refused left nothing behind.
        let volumes = std::fs::read_dir(small.lab.config.pool_path.join("volumes")).unwrap().count();
        assert_eq!(volumes, 1);
        small.lab.delete(&first).await.unwrap();
        small.lab.assert_clean();
        let second = small.lab.create("pvc-2", size, mount("")).await.unwrap().volume_id;
        small.lab.delete(&second).await.unwrap();
        small.finish();
    }
}

#[tokio::test]
async fn volumes_leave_free_what_the_backend_keeps_back() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let small = Small::with(engine, "50%".parse().unwrap());
        let free = small.capacity().await;
        // btrfs has the larger disk, and keeps a part of it for its own trees.
        let expected = if engine == EngineKind::Btrfs { 128 * MIB..256 * MIB } else { 96 * MIB..128 * MIB };
        assert!(expected.contains(&free), "{free}");
        let status = small.lab.create("pvc-1", free + MIB, mount("")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let half = free / 2 / 4096 * 4096;
        let id = small.lab.create("pvc-1", half, mount("")).await.unwrap().volume_id;
        let left = small.capacity().await / 4096 * 4096;
        let status = small.lab.expand(&id, half + left + MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        small.lab.expand(&id, half + left).await.unwrap();
        assert!(small.capacity().await < MIB);
        small.lab.delete(&id).await.unwrap();
        small.finish();

        let small = Small::with(engine, "0".parse().unwrap());
        assert!(small.capacity().await > free + 100 * MIB);
        small.finish();
    }
}

#[tokio::test]
async fn a_volume_grows_into_what_nobody_was_promised_and_no_further() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let small = Small::new(engine);
        let lab = &small.lab;
        let first = lab.create("pvc-1", 64 * MIB, mount("")).await.unwrap().volume_id;
        let second = lab.create("pvc-2", 64 * MIB, mount("")).await.unwrap().volume_id;
        let free = small.capacity().await;
        let status = lab.expand(&first, 64 * MIB + free + MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let words = status.message();
        let more = (free + MIB + 4095) / 4096 * 4096;
        assert!(words.contains(&format!("{free} bytes free")), "{words}");
        assert!(engine != EngineKind::LoopFile || words.contains(&format!("{more} bytes wanted")), "{words}");
        assert_eq!(lab.listed_bytes(&first).await, 64 * MIB);
        assert_eq!(small.capacity().await, free, "what was refused is in the books");
        lab.expand(&first, 64 * MIB + free / 2).await.unwrap();
        assert!((small.capacity().await - free / 2).abs() < 2 * MIB);
        assert_eq!(lab.expand(&second, 64 * MIB + free).await.unwrap_err().code(), Code::ResourceExhausted);
        lab.delete(&first).await.unwrap();
        eventually("the first is gone", || !lab.volume_dir(&first).exists());
        lab.delete(&second).await.unwrap();
        small.finish();
    }
}

#[tokio::test]
async fn claims_made_at_once_share_no_byte() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let small = Small::new(engine);
        let size = small.capacity().await / 4 / 4096 * 4096;
        let names: Vec<String> = (0..8).map(|number| format!("pvc-{number}")).collect();
        let lab = &small.lab;
        let calls = names.iter().map(|name| lab.create(name, size, mount("")));
        let made: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        assert!((1..=4).contains(&made.len()), "{}", made.len());
        for volume in made {
            lab.delete(&volume.volume_id).await.unwrap();
        }
        small.finish();
    }
}

#[tokio::test]
async fn capacity_counts_what_is_promised_and_not_what_is_used_twice() {
    let small = Small::new(EngineKind::Directory);
    let empty = small.capacity().await;
    let id = small.lab.create("pvc-1", 100 * MIB, mount("")).await.unwrap().volume_id;
    assert!((small.capacity().await - (empty - 100 * MIB)).abs() < MIB);
    let data = small.lab.volume_dir(&id).join("data/file");
    std::fs::write(&data, vec![1; 50 << 20]).unwrap();
    std::fs::File::open(&data).unwrap().sync_all().unwrap();
    // Counting is what stats do, too.
    let target = small.lab.target("pod-1");
    small.lab.stage(&id, mount("")).await.unwrap();
    small.lab.publish(&id, &target, mount(""), false).await.unwrap();
    let request = dunnage_csi::v1::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: target.to_str().unwrap().into(),
        ..Default::default()
    };
    dunnage_csi::v1::node_server::Node::node_get_volume_stats(
        &small.lab.driver().node(),
        Request::new(request),
    )
    .await
    .unwrap();
    let used = small.capacity().await;
    assert!((used - (empty - 100 * MIB)).abs() < 2 * MIB, "{empty} {used}");
    small.lab.unpublish(&id, &target).await.unwrap();
    small.lab.unstage(&id).await.unwrap();
    small.lab.delete(&id).await.unwrap();
    small.lab.assert_clean();
    eventually("the space is back", || {
        let space = dunnage_host::space::of(
            std::fs::File::open(&small.lab.config.pool_path).unwrap(),
            &small.lab.config.pool_path,
        );
        space.unwrap().available > 200 << 20
    });
    small.finish();
}
