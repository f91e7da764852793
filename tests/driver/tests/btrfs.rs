//! What only btrfs has: quotas that are on or off and of two kinds, subvolumes that pods make in their volumes, and snapshots
//! that are of one moment.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dunnage_csi::agent::agent_server::Agent as _;
use dunnage_csi::agent::pool::State;
use dunnage_csi::agent::{DescribeRequest, DescribeResponse};
use dunnage_csi::v1::GetCapacityRequest;
use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_driver::EngineKind;
use dunnage_host::btrfs::quota;
use dunnage_host::btrfs::{self, exists, subvolume_at, within};
use dunnage_host::dir::{Dir, Mounts};
use dunnage_tests_driver::{
    BACKEND, Disk, Lab, Quotas, eventually, from_snapshot, from_volume, mount, pool_id, shell,
};
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;
const BOTH: [Quotas; 2] = [Quotas::Full, Quotas::Simple];

/// A pool on a disk of its own, which is not unmounted before the node is gone.
struct Pool {
    disk: Disk,
    lab: Lab,
}

impl Pool {
    /// A node whose path is an empty directory on this disk.
    fn empty_on(disk: fn(&Path, u64) -> Disk) -> Self {
        let mut mounted = None;
        let lab = Lab::without_pool(EngineKind::Btrfs, |config| {
            fs::create_dir_all(&config.pool_path).unwrap();
            let mut disk = disk(config.pool_path.parent().unwrap(), 1024);
            disk.mount(&config.pool_path);
            mounted = Some(disk);
        });
        Self { disk: mounted.unwrap(), lab }
    }

    fn with(quotas: Quotas) -> Self {
        let pool = Self::empty_on(match quotas {
            Quotas::Full => Disk::btrfs,
            Quotas::Simple => Disk::btrfs_with_simple_quotas,
        });
        pool.lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        pool
    }

    fn dir(&self) -> Dir {
        Dir::open(&self.lab.config.pool_path).unwrap()
    }

    /// All groups of subvolumes that were made in the file system.
    fn groups(&self) -> Vec<String> {
        let all = quota::usages(&self.dir()).unwrap().into_iter();
        let made = all.filter(|(group, _)| group.number() >= 256);
        made.map(|(group, usage)| format!("{group} has {usage:?}")).collect()
    }

    /// What the agent tells. Its stream ends in the background, so the test needs a thread for that.
    async fn described(&self) -> DescribeResponse {
        let agent = self.lab.driver().agent(CancellationToken::new());
        let mut stream = agent.describe(Request::new(DescribeRequest {})).await.unwrap().into_inner();
        stream.next().await.unwrap().unwrap()
    }

    async fn capacity(&self) -> i64 {
        let request = Request::new(GetCapacityRequest::default());
        self.lab.driver().controller().get_capacity(request).await.unwrap().into_inner().available_capacity
    }

    fn finish(mut self) {
        self.lab.assert_clean();
        // A start removes what nobody needs any more, as does a minute's wait. The kernel takes its time with a subvolume.
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            self.dir().sync_filesystem().unwrap();
            self.lab.restart();
            if self.groups().is_empty() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(self.groups(), Vec::<String>::new(), "quota groups are left");
        self.lab.driver = None;
        self.disk.unmount();
    }
}

async fn volume(lab: &Lab, name: &str, bytes: i64) -> (String, PathBuf) {
    let id = lab.create(name, bytes, mount("")).await.unwrap().volume_id;
    let target = lab.to_pod(&id, name, mount("")).await;
    (id, target)
}

async fn remove(lab: &Lab, name: &str, id: &str) {
    lab.from_pod(id, name).await;
    lab.delete(id).await.unwrap();
}

/// Writes until it is refused; gives what was written.
fn fill(path: &Path) -> i64 {
    let output = Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "conv=fsync"])
        .arg(format!("of={}", path.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "nothing has stopped it: {said}");
    assert!(said.contains("quota exceeded") || said.contains("No space left"), "{said}");
    let length = fs::metadata(path).unwrap().len();
    fs::File::open(path).unwrap().sync_all().unwrap();
    i64::try_from(length).unwrap()
}

#[test]
fn a_subvolume_goes_with_all_that_lie_within_and_a_snapshot_of_it_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let mut disk = Disk::btrfs(scratch.path(), 256);
    let at = scratch.path().join("mnt");
    fs::create_dir(&at).unwrap();
    disk.mount(&at);
    let root = Dir::open(&at).unwrap();
    assert!(
        btrfs::is_btrfs(&root).unwrap() && !btrfs::is_btrfs(&Dir::open(scratch.path()).unwrap()).unwrap()
    );
    btrfs::create(&root, "a").unwrap();
    let a = root.dir("a", Mounts::Refuse).unwrap();
    let id = subvolume_at(&a).unwrap().unwrap();
    fs::create_dir(at.join("a/plain")).unwrap();
    fs::write(at.join("a/plain/file"), "kept").unwrap();
    let plain = a.dir("plain", Mounts::Refuse).unwrap();
    assert_eq!(subvolume_at(&plain).unwrap(), None);
    btrfs::create(&plain, "b").unwrap();
    btrfs::create(&plain.dir("b", Mounts::Refuse).unwrap(), "c").unwrap();
    btrfs::snapshot(&a, &root, "s").unwrap();
    assert_eq!(within(&root, id).unwrap().len(), 1);
    let snapshot = root.dir("s", Mounts::Refuse).unwrap();
    let refused = fs::write(at.join("s/plain/file"), "changed").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    drop((a, plain));

    root.remove_tree("a").unwrap();
    assert!(!root.has("a").unwrap());
    eventually("the space of the first is given back", || {
        root.sync_filesystem().unwrap();
        !exists(&root, id).unwrap()
    });
    assert_eq!(fs::read(at.join("s/plain/file")).unwrap(), b"kept");
    // What lay within is an empty directory in the snapshot.
    assert_eq!(fs::read_dir(at.join("s/plain/b")).unwrap().count(), 0);
    for _ in 0..2 {
        btrfs::make_writable(&snapshot).unwrap();
    }
    fs::write(at.join("s/plain/file"), "changed").unwrap();
    btrfs::destroy(&root, id).unwrap();
    drop(snapshot);
    root.remove_tree("s").unwrap();
    drop(root);
    disk.unmount();
}

/// A tree that is no volume's goes too, though a read-only subvolume in it cannot be emptied.
#[tokio::test]
async fn a_directory_volume_with_a_read_only_subvolume_is_deleted() {
    let lab = Lab::without_pool(EngineKind::Directory, |_| {});
    let mut disk = Disk::btrfs_without_quotas(lab.root(), 256);
    disk.mount(&lab.config.pool_path);
    lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
    let (id, target) = volume(&lab, "pvc-1", 16 * MIB).await;
    shell(
        "set -e; btrfs subvolume create v; touch v/file; btrfs subvolume snapshot -r v s",
        &target,
        Path::new(""),
    );
    remove(&lab, "pvc-1", &id).await;
    lab.assert_clean();
    disk.unmount_of(lab);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_on_btrfs_or_has_no_quotas_is_refused_with_the_remedy() {
    for (disk, words) in [
        (Disk::make as fn(&Path, u64) -> Disk, "mount a btrfs file system there"),
        (Disk::btrfs_without_quotas, "btrfs quota enable"),
    ] {
        // The engine's tests have a btrfs below it.
        let mut lab = Lab::without_pool(EngineKind::Btrfs, |_| {});
        let mut disk = disk(lab.root(), 256);
        disk.mount(&lab.config.pool_path);
        lab.restart();
        let pool = Pool { disk, lab };
        let (state, message) = pool.lab.driver().pool_state();
        assert_eq!(state, State::Unavailable);
        let path = pool.lab.config.pool_path.display().to_string();
        assert!(message.contains(words) && message.contains(&path), "{message}");
        let told = pool.described().await.pool.unwrap();
        assert_eq!((told.state(), told.message), (State::Unavailable, message.clone()));
        let refused = pool.lab.driver().init_pool(&pool_id(), BACKEND).unwrap_err();
        assert_eq!(refused.to_string(), message);
        assert_eq!(
            pool.lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap_err().code(),
            Code::Unavailable
        );
        let made: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(made.iter().all(|name| name == "lost+found"), "{made:?}");
        if words.contains("quota") {
            pool.disk.switch_on(Quotas::Full);
            pool.lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
            pool.lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap();
        }
        let Pool { mut disk, lab } = pool;
        disk.unmount_of(lab);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_whose_quotas_were_switched_off_makes_no_volume_and_has_its_limits_again_later() {
    for quotas in BOTH {
        let mut pool = Pool::with(quotas);
        let (id, target) = volume(&pool.lab, "pvc-1", 16 * MIB).await;
        fs::write(target.join("data"), "kept").unwrap();
        assert!(pool.described().await.pool.unwrap().limits_enforced);
        assert!(pool.capacity().await > 500 * MIB);
        pool.disk.switch_off();
        for refused in [
            pool.lab.create("pvc-2", 16 * MIB, mount("")).await.map(drop),
            pool.lab.expand(&id, 32 * MIB).await.map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert!(refused.message().contains("run btrfs quota enable"), "{refused}");
        }
        assert_eq!(pool.capacity().await, 0);
        let told = pool.described().await.pool.unwrap();
        assert_eq!(told.state(), State::Ready);
        assert!(
            !told.limits_enforced && told.limits_message.contains("quotas off"),
            "{}",
            told.limits_message
        );
        // What is there can be used.
        pool.lab.from_pod(&id, "pvc-1").await;
        pool.lab.to_pod(&id, "pvc-1", mount("")).await;
        assert_eq!(fs::read(target.join("data")).unwrap(), b"kept");

        pool.disk.switch_on(quotas);
        pool.lab.restart();
        assert!(pool.described().await.pool.unwrap().limits_enforced);
        let written = fill(&target.join("big"));
        assert!((12 * MIB..=16 * MIB).contains(&written), "{quotas:?}: {written}");
        remove(&pool.lab, "pvc-1", &id).await;
        if quotas == Quotas::Full {
            pool.finish();
        } else {
            // Linux 6.18 goes on counting what is gone, once simple quotas were off in between, and keeps the group for it.
            pool.lab.assert_clean();
            pool.disk.unmount_of(pool.lab);
        }
    }
}

#[tokio::test]
async fn a_volume_holds_no_more_than_its_size_and_grows_at_once_and_its_neighbour_is_not_touched() {
    for quotas in BOTH {
        let pool = Pool::with(quotas);
        let lab = &pool.lab;
        let parameters = [("requireLimit", "true")];
        let required = lab.create_with("required", 16 * MIB, mount(""), &parameters).await.unwrap().volume_id;
        let (small, at) = volume(lab, "pvc-small", 16 * MIB).await;
        let (large, large_at) = volume(lab, "pvc-large", 64 * MIB).await;
        let written = fill(&at.join("big"));
        assert!((12 * MIB..=16 * MIB).contains(&written), "{quotas:?}: {written}");
        let bytes = lab.bytes(&small, &at).await;
        assert_eq!(bytes.total, 16 * MIB);
        assert!(bytes.used >= written && bytes.used <= 16 * MIB, "{quotas:?}: {bytes:?} for {written}");
        assert_eq!(bytes.available, bytes.total - bytes.used);
        let others = lab.stats(&small, &at).await.usage.len();
        assert_eq!(others, 1, "btrfs counts no inodes, and none are told");
        // The least volume is one that can be used.
        for number in 0..100 {
            let _ = fs::remove_file(at.join("big"));
            fs::write(at.join(format!("small-{number}")), "x").unwrap();
        }
        let written = fill(&large_at.join("big"));
        assert!((58 * MIB..=64 * MIB).contains(&written), "{quotas:?}: {written}");
        assert_eq!(lab.expand(&large, 96 * MIB).await.unwrap().capacity_bytes, 96 * MIB);
        let written = fill(&large_at.join("bigger"));
        assert!((26 * MIB..=34 * MIB).contains(&written), "{quotas:?}: {written}");
        remove(lab, "pvc-small", &small).await;
        remove(lab, "pvc-large", &large).await;
        lab.delete(&required).await.unwrap();
        pool.finish();
    }
}

#[tokio::test]
async fn capacity_counts_what_is_promised_and_not_what_is_used_twice() {
    for quotas in BOTH {
        let pool = Pool::with(quotas);
        let lab = &pool.lab;
        let empty = pool.capacity().await;
        let (id, target) = volume(lab, "pvc-1", 128 * MIB).await;
        let near = |bytes: i64, expected: i64| {
            assert!((bytes - expected).abs() < 24 * MIB, "{quotas:?}: {bytes}, expected {expected}");
        };
        near(pool.capacity().await, empty - 128 * MIB);
        fs::write(target.join("data"), vec![1; 96 << 20]).unwrap();
        pool.dir().sync_filesystem().unwrap();
        near(pool.capacity().await, empty - 128 * MIB);
        // With a snapshot, all of it may have to be written anew: full quotas let the volume do that.
        let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
        let promised_anew = if quotas == Quotas::Full { 96 * MIB } else { 0 };
        near(pool.capacity().await, empty - 128 * MIB - promised_anew);
        lab.delete_snapshot(&snapshot).await.unwrap();
        remove(lab, "pvc-1", &id).await;
        lab.assert_clean();
        eventually("the space is back", || {
            let dir = pool.dir();
            dir.sync_filesystem().unwrap();
            quota::usages(&dir).unwrap().iter().all(|(_, usage)| usage.referenced < 1 << 20)
        });
        near(pool.capacity().await, empty);
        pool.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_makes_of_subvolumes_is_limited_or_told_and_goes_with_the_volume() {
    for quotas in BOTH {
        let mut pool = Pool::with(quotas);
        let (id, target) = volume(&pool.lab, "pvc-1", 32 * MIB).await;
        let make = "set -e
            btrfs subvolume create v; echo x > v/file; btrfs subvolume create v/w; mkdir v/w/d
            btrfs subvolume snapshot -r v v/w/d/s";
        shell(make, &target, Path::new(""));
        pool.dir().sync_filesystem().unwrap();
        pool.lab.restart();
        let told = pool.described().await.pool.unwrap();
        if quotas == Quotas::Full {
            assert!(!told.limits_enforced, "{}", told.limits_message);
            assert!(
                told.limits_message.contains("1 volumes have subvolumes of their own"),
                "{}",
                told.limits_message
            );
        } else {
            assert!(told.limits_enforced, "{}", told.limits_message);
            let written = fill(&target.join("v/w/big"));
            assert!(written <= 32 * MIB, "{written}");
            assert!(
                fs::write(target.join("more"), vec![1; 8 << 20]).is_err(),
                "the volume has more than its size"
            );
        }
        // A snapshot has empty directories in their places.
        let snapshot = pool.lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
        assert_eq!(fs::read_dir(pool.lab.snapshot_dir(&snapshot).join("data/v")).unwrap().count(), 0);
        let copy =
            pool.lab.create_from(from_snapshot(&snapshot), "pvc-2", 32 * MIB, mount("")).await.unwrap();
        remove(&pool.lab, "pvc-1", &id).await;
        pool.lab.delete(&copy.volume_id).await.unwrap();
        pool.lab.delete_snapshot(&snapshot).await.unwrap();
        pool.finish();
    }
}

#[tokio::test]
async fn a_snapshot_of_a_volume_in_use_takes_a_moment_and_no_space_and_is_restored_with_a_limit_of_its_own() {
    for quotas in BOTH {
        let pool = Pool::with(quotas);
        let lab = &pool.lab;
        let (id, target) = volume(lab, "pvc-1", 64 * MIB).await;
        fs::write(target.join("data"), vec![7; 30 << 20]).unwrap();
        let snapshot = lab.snapshot("snap-1", &id).await.unwrap();
        assert_eq!((snapshot.size_bytes, snapshot.ready_to_use), (64 * MIB, true));
        let directory = lab.snapshot_dir(&snapshot.snapshot_id);
        let record = fs::read_to_string(directory.join("snapshot.json")).unwrap();
        assert!(record.contains(r#""made":"reflink","source":"attached""#), "{record}");
        // What was written before is in it, though nobody has synced; and it stays as it is.
        assert_eq!(fs::read(directory.join("data/data")).unwrap(), vec![7; 30 << 20]);
        assert!(fs::write(directory.join("data/data"), "x").is_err());
        fs::write(target.join("data"), "changed").unwrap();
        let restored = lab
            .create_from(from_snapshot(&snapshot.snapshot_id), "pvc-2", 80 * MIB, mount(""))
            .await
            .unwrap();
        assert_eq!(restored.capacity_bytes, 80 * MIB);
        let copy = lab.to_pod(&restored.volume_id, "pvc-2", mount("")).await;
        assert_eq!(fs::read(copy.join("data")).unwrap(), vec![7; 30 << 20]);
        // Simple quotas count what is new in it.
        let room = if quotas == Quotas::Full { 50 * MIB } else { 80 * MIB };
        let written = fill(&copy.join("big"));
        assert!((room - 8 * MIB..=room).contains(&written), "{quotas:?}: {written}");
        let clone = lab.create_from(from_volume(&id), "pvc-3", 64 * MIB, mount("")).await.unwrap().volume_id;
        remove(lab, "pvc-1", &id).await;
        let at = lab.to_pod(&clone, "pvc-3", mount("")).await;
        assert_eq!(fs::read(at.join("data")).unwrap(), b"changed");
        remove(lab, "pvc-3", &clone).await;
        lab.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        assert_eq!(fs::read(copy.join("data")).unwrap(), vec![7; 30 << 20]);
        remove(lab, "pvc-2", &restored.volume_id).await;
        pool.finish();
    }
}

#[tokio::test]
async fn a_pod_of_any_user_has_its_volume_and_nothing_of_the_pool() {
    let lab = Lab::new(EngineKind::Btrfs);
    let (id, target) = volume(&lab, "pvc-1", 16 * MIB).await;
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    let run = |script: &str, at: &Path| {
        Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script])
            .current_dir(at)
            .output()
            .unwrap()
    };
    let output = run("echo kept > file && cat file", &target);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kept\n", "{output:?}");
    // The pod's own folder is above it, and from the pool itself nobody else gets there.
    assert!(!target.join("../volume.json").exists());
    fs::set_permissions(lab.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = lab.volume_dir(&id).join("data");
    assert!(data.join("file").exists());
    let output = run(&format!("ls {}", data.display()), Path::new("/"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"), "{output:?}");
    for closed in ["volumes", "snapshots", "trash", ".dunnage"] {
        let mode = fs::metadata(lab.config.pool_path.join(closed)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{closed}");
    }
    remove(&lab, "pvc-1", &id).await;
    lab.assert_clean();
}
