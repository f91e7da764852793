//! Snapshots and clones on real file systems: what is in them, what they take, and what outlives what.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use dunnage_csi::v1::ListSnapshotsRequest;
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{BACKEND, Disk, Lab, from_snapshot, from_volume, mount, pool_id, shell};
use tonic::Code;

const MIB: i64 = 1 << 20;

/// A pool on a disk of its own.
struct Pool {
    lab: Lab,
    disk: Disk,
}

impl Pool {
    fn on(engine: EngineKind, disk: fn(&Path, u64) -> Disk, mebibytes: u64) -> Self {
        let lab = Lab::without_pool(engine, |_| {});
        let mut disk = disk(lab.root(), mebibytes);
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        Self { lab, disk }
    }

    fn used(&self) -> i64 {
        let path = &self.lab.config.pool_path;
        let dir = std::fs::File::open(path).unwrap();
        dunnage_host::space::of(dir, path).unwrap().used.try_into().unwrap()
    }

    fn finish(mut self) {
        self.lab.assert_clean();
        self.lab.driver = None;
        self.disk.unmount();
    }
}

/// Stages a volume and publishes it to a pod of its own name.
async fn publish(lab: &Lab, id: &str, fs_type: &str) -> PathBuf {
    lab.to_pod(id, &id[17..], mount(fs_type)).await
}

async fn remove(lab: &Lab, id: &str) {
    lab.from_pod(id, &id[17..]).await;
    lab.delete(id).await.unwrap();
}

fn record(lab: &Lab, id: &str) -> String {
    std::fs::read_to_string(lab.snapshot_dir(id).join("snapshot.json")).unwrap()
}

/// A pod that writes all the while, each record after the one before it is on the disk.
struct Writer {
    stop: std::sync::Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u32>,
}

impl Writer {
    fn start(path: PathBuf) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let told = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut file = std::fs::File::create(path).unwrap();
            let mut count = 0;
            while !told.load(Ordering::Relaxed) && count < 5000 {
                // In one write: a moment between two would be a moment too.
                file.write_all(format!("{count:08}\n").as_bytes()).unwrap();
                file.sync_data().unwrap();
                count += 1;
            }
            count
        });
        Self { stop, thread }
    }

    /// After everything is thawed.
    fn finish(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The records up to some moment, none missing.
fn assert_in_order(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{number:08}"), "{}", path.display());
    }
    lines.len()
}

async fn a_mounted_image_is_snapshotted(disk: fn(&Path, u64) -> Disk, made: &str) {
    for (fs_type, bytes) in [("ext4", 64 * MIB), ("xfs", 300 * MIB), ("btrfs", 300 * MIB)] {
        let pool = Pool::on(EngineKind::LoopFile, disk, 1700);
        let lab = &pool.lab;
        let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
        let target = publish(lab, &id, fs_type).await;
        std::fs::write(target.join("data"), vec![7; 20 << 20]).unwrap();
        let writer = Writer::start(target.join("log"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        let before = pool.used();
        let snapshot = lab.snapshot("snap-1", &id).await.unwrap();
        let taken = pool.used() - before;
        assert!(writer.finish() > 0, "it went on");
        assert_eq!((snapshot.size_bytes, snapshot.ready_to_use), (bytes, true));
        let written = record(lab, &snapshot.snapshot_id);
        assert!(written.contains(&format!(r#""made":"{made}","source":"frozen""#)), "{written}");
        match made {
            "reflink" => assert!(taken < 4 * MIB, "{taken} bytes for shared blocks"),
            _ => assert!(
                (20 * MIB..bytes.min(120 * MIB)).contains(&taken),
                "{taken} bytes for what is no hole"
            ),
        }
        assert_eq!(lab.snapshot("snap-1", &id).await.unwrap(), snapshot);
        std::fs::write(target.join("data"), "changed").unwrap();
        // Restored larger, and used beside its source at once; asked without a file system, it has the source's.
        let source = || from_snapshot(&snapshot.snapshot_id);
        let restored = lab.create_from(source(), "pvc-2", 2 * bytes, mount("")).await.unwrap();
        assert_eq!(restored.content_source, Some(source()));
        assert_eq!(restored.capacity_bytes, 2 * bytes);
        assert_eq!(lab.create_from(source(), "pvc-2", 2 * bytes, mount("")).await.unwrap(), restored);
        let copy = publish(lab, &restored.volume_id, fs_type).await;
        assert_eq!(std::fs::read(copy.join("data")).unwrap(), vec![7; 20 << 20], "{fs_type}");
        let logged = assert_in_order(&copy.join("log"));
        assert!(logged <= assert_in_order(&target.join("log")));
        let dir = std::fs::File::open(&copy).unwrap();
        let total = dunnage_host::space::of(dir, &copy).unwrap().total;
        assert!(total > (bytes + bytes / 2).unsigned_abs(), "{total}");
        assert_ne!(uuid(lab, &id, fs_type), uuid(lab, &restored.volume_id, fs_type));
        // The source, whose blocks may be shared now, is used again after a stop.
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        publish(lab, &id, fs_type).await;
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"changed");
        // Each outlives the other.
        remove(lab, &id).await;
        lab.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        std::fs::write(copy.join("more"), "x").unwrap();
        assert_eq!(std::fs::read(copy.join("data")).unwrap(), vec![7; 20 << 20]);
        remove(lab, &restored.volume_id).await;
        pool.finish();
    }
}

fn uuid(lab: &Lab, id: &str, fs_type: &str) -> Vec<u8> {
    let image = std::fs::File::open(lab.volume_dir(id).join("image")).unwrap();
    let mut uuid = vec![0; 16];
    let at = match fs_type {
        "xfs" => 32,
        "btrfs" => (64 << 10) + 0x20,
        _ => 1024 + 0x68,
    };
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut uuid, at).unwrap();
    uuid
}

#[tokio::test]
async fn an_image_in_use_is_copied_frozen_where_blocks_cannot_be_shared() {
    a_mounted_image_is_snapshotted(Disk::make, "copy").await;
}

#[tokio::test]
async fn an_image_in_use_is_shared_frozen_where_blocks_can_be() {
    a_mounted_image_is_snapshotted(Disk::xfs, "reflink").await;
}

#[tokio::test]
async fn a_clone_stands_beside_its_source_and_outlives_it() {
    for (engine, fs_type, bytes) in [
        (EngineKind::Directory, "", 16 * MIB),
        (EngineKind::Btrfs, "", 16 * MIB),
        (EngineKind::LoopFile, "ext4", 16 * MIB),
        (EngineKind::LoopFile, "xfs", 300 * MIB),
    ] {
        let lab = Lab::new(engine);
        let id = lab.create("pvc-1", bytes, mount(fs_type)).await.unwrap().volume_id;
        let target = publish(&lab, &id, fs_type).await;
        std::fs::write(target.join("data"), "kept").unwrap();
        let clone = lab.create_from(from_volume(&id), "pvc-2", bytes, mount(fs_type)).await.unwrap();
        assert_eq!(clone.content_source, Some(from_volume(&id)));
        // A clone of a clone that was never mounted.
        let second = lab
            .create_from(from_volume(&clone.volume_id), "pvc-3", bytes, mount(fs_type))
            .await
            .unwrap()
            .volume_id;
        std::fs::write(target.join("data"), "changed").unwrap();
        for copy in [&clone.volume_id, &second] {
            let target = publish(&lab, copy, fs_type).await;
            assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        }
        remove(&lab, &id).await;
        remove(&lab, &clone.volume_id).await;
        let left = lab.target(&second[17..]);
        assert_eq!(std::fs::read(left.join("data")).unwrap(), b"kept");
        remove(&lab, &second).await;
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_snapshot_of_an_image_at_rest_and_of_one_never_used() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
    let blank = lab.snapshot("blank", &id).await.unwrap().snapshot_id;
    let target = publish(&lab, &id, "").await;
    std::fs::write(target.join("data"), "kept").unwrap();
    lab.unpublish(&id, &target).await.unwrap();
    lab.unstage(&id).await.unwrap();
    let rested = lab.snapshot("rested", &id).await.unwrap().snapshot_id;
    assert!(record(&lab, &rested).contains(r#""source":"atRest""#), "{}", record(&lab, &rested));
    lab.delete(&id).await.unwrap();
    for (snapshot, name, holds) in [(&blank, "pvc-2", false), (&rested, "pvc-3", true)] {
        let made = lab.create_from(from_snapshot(snapshot), name, 16 * MIB, mount("")).await.unwrap();
        let target = publish(&lab, &made.volume_id, "").await;
        assert_eq!(target.join("data").exists(), holds, "{name}");
        remove(&lab, &made.volume_id).await;
        lab.delete_snapshot(snapshot).await.unwrap();
    }
    lab.assert_clean();
}

#[tokio::test]
async fn a_tree_with_every_kind_of_file_is_restored_as_it_was() {
    for (engine, source) in [(EngineKind::Directory, "inUse"), (EngineKind::Btrfs, "attached")] {
        a_tree_is_restored_as_it_was(engine, source).await;
    }
}

async fn a_tree_is_restored_as_it_was(engine: EngineKind, source: &str) {
    let lab = Lab::new(engine);
    let outside = lab.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "x").unwrap();
    let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
    let target = publish(&lab, &id, "").await;
    let script = r#"
        set -e
        printf a > plain; ln plain hard; mkdir -p d/e; ln plain d/e/hard2; mkfifo fifo; mknod null c 1 3
        printf b > "$(printf 'new\nline')"; printf c > "$(printf 'by\377te')"; printf d > ./-rf
        ln -s / root; ln -s ../../../.. d/up; ln -s "$1" out; ln -s ../snapshot.json record
        truncate -s 1G sparse; printf end >> sparse
        chown 1000:1001 plain d; chmod 4755 plain; chmod 1777 d; chown -h 7:8 out
        touch -h -d 2001-02-03 out plain d
    "#;
    shell(script, &target, &outside);
    let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
    let text = record(&lab, &snapshot);
    assert!(text.contains(&format!(r#""source":"{source}""#)), "{text}");
    let list = "find . -printf '%P|%y|%m|%U:%G|%s|%l|%n|%T@\n' | grep -v '^|' | sort; find . -type f -exec md5sum {} + | sort";
    let before = shell(list, &target, &outside);
    std::fs::write(target.join("plain"), "changed").unwrap();
    remove(&lab, &id).await;
    let made =
        lab.create_from(from_snapshot(&snapshot), "pvc-2", 16 * MIB, mount("")).await.unwrap().volume_id;
    let copy = publish(&lab, &made, "").await;
    assert_eq!(before, shell(list, &copy, &outside));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(copy.join("sparse")).unwrap());
    assert!(blocks < 1000, "{blocks}");
    remove(&lab, &made).await;
    lab.delete_snapshot(&snapshot).await.unwrap();
    lab.assert_clean();
    assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"x");
}

#[tokio::test]
async fn a_tree_shares_its_blocks_where_the_pool_can() {
    let pool = Pool::on(EngineKind::Directory, Disk::xfs, 512);
    let lab = &pool.lab;
    let id = lab.create("pvc-1", 64 * MIB, mount("")).await.unwrap().volume_id;
    std::fs::write(lab.volume_dir(&id).join("data/big"), vec![7; 48 << 20]).unwrap();
    std::fs::write(lab.volume_dir(&id).join("data/empty"), "").unwrap();
    let before = pool.used();
    let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
    let restored = lab.create_from(from_snapshot(&snapshot), "pvc-2", 64 * MIB, mount("")).await.unwrap();
    assert!(pool.used() - before < 4 * MIB, "{}", pool.used() - before);
    let text = record(lab, &snapshot);
    assert!(text.contains(r#""made":"reflink","source":"atRest""#), "{text}");
    let copy = lab.volume_dir(&restored.volume_id).join("data/big");
    assert_eq!(std::fs::read(copy).unwrap(), vec![7; 48 << 20]);
    for volume in [&id, &restored.volume_id] {
        lab.delete(volume).await.unwrap();
    }
    lab.delete_snapshot(&snapshot).await.unwrap();
    pool.finish();
}

#[tokio::test]
async fn a_full_pool_is_told_with_the_numbers_and_nothing_is_left() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile] {
        let pool = Pool::on(engine, Disk::make, 256);
        let lab = &pool.lab;
        let id = lab.create("pvc-1", 160 * MIB, mount("")).await.unwrap().volume_id;
        let target = publish(lab, &id, "").await;
        let mut file = std::fs::File::create(target.join("data")).unwrap();
        file.write_all(&vec![7; 120 << 20]).unwrap();
        file.sync_all().unwrap();
        let full = lab.snapshot("snap-1", &id).await.unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
        assert!(full.message().contains("bytes free"), "{full}");
        assert_eq!(std::fs::read_dir(lab.config.pool_path.join("snapshots")).unwrap().count(), 0);
        // A clone takes its whole size.
        let full = lab.create_from(from_volume(&id), "pvc-2", 160 * MIB, mount("")).await.unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
        assert_eq!(std::fs::read_dir(lab.config.pool_path.join("volumes")).unwrap().count(), 1);
        std::fs::write(target.join("goes on"), "x").unwrap();
        drop(file);
        remove(lab, &id).await;
        pool.finish();
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_by_name() {
    let lab = Lab::new(EngineKind::LoopFile);
    let id = lab.create("pvc-1", 32 * MIB, mount("ext4")).await.unwrap().volume_id;
    let other = lab.create("pvc-2", 32 * MIB, mount("ext4")).await.unwrap().volume_id;
    let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
    let conflict = lab.snapshot("snap-1", &other).await.unwrap_err();
    assert_eq!(conflict.code(), Code::AlreadyExists, "{conflict}");
    assert!(conflict.message().contains(&id), "{conflict}");
    let missing = id.replacen(&id[17..], "0123456789abcdef0123456789abcdef", 1);
    let nothing = format!("{}-snap-0123456789abcdef0123456789abcdef", &id[..16]);
    let elsewhere = snapshot.replacen(&snapshot[..16], "ffffffffffffffff", 1);
    assert_eq!(lab.snapshot("snap-2", &missing).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(lab.snapshot("", &id).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(lab.snapshot("snap-2", "").await.unwrap_err().code(), Code::InvalidArgument);
    for (source, bytes, fs_type, code, says) in [
        (from_snapshot(&nothing), 32 * MIB, "", Code::NotFound, nothing.as_str()),
        (from_volume(&missing), 32 * MIB, "", Code::NotFound, missing.as_str()),
        (from_snapshot(&elsewhere), 32 * MIB, "", Code::ResourceExhausted, "ffffffffffffffff"),
        (from_snapshot(&snapshot), 31 * MIB, "", Code::OutOfRange, "cannot be smaller"),
        (from_volume(&id), 31 * MIB, "", Code::OutOfRange, "cannot be smaller"),
        (from_snapshot(&snapshot), 300 * MIB, "xfs", Code::InvalidArgument, "it is ext4, asked is xfs"),
    ] {
        let refused = lab.create_from(source, "pvc-3", bytes, mount(fs_type)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    // The same name with another source, or with none.
    let made = lab.create_from(from_snapshot(&snapshot), "pvc-3", 0, mount("")).await.unwrap();
    assert_eq!(made.capacity_bytes, 32 * MIB);
    for again in [
        lab.create_from(from_volume(&id), "pvc-3", 0, mount("")).await,
        lab.create("pvc-3", 0, mount("")).await,
        lab.create_from(from_snapshot(&snapshot), "pvc-2", 0, mount("")).await,
    ] {
        assert_eq!(again.unwrap_err().code(), Code::AlreadyExists);
    }
    // A pool with snapshots is not given up.
    for volume in [&id, &other, &made.volume_id] {
        lab.delete(volume).await.unwrap();
    }
    let driver = lab.driver().clone();
    let kept = tokio::task::spawn_blocking(move || driver.remove_pool(&pool_id())).await.unwrap();
    assert!(kept.unwrap_err().to_string().contains("still has snapshots"));
    for id in [snapshot.as_str(), snapshot.as_str(), "somebody-elses", "../../etc"] {
        lab.delete_snapshot(id).await.unwrap();
    }
    assert_eq!(lab.delete_snapshot("").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(lab.delete_snapshot(&elsewhere).await.unwrap_err().code(), Code::Unavailable);
    lab.assert_clean();
}

#[tokio::test]
async fn snapshots_are_listed_after_a_restart_in_pages_and_by_what_they_are_of() {
    let mut lab = Lab::new(EngineKind::Directory);
    let mut ids = Vec::new();
    let mut volumes = Vec::new();
    for volume in ["pvc-1", "pvc-2"] {
        let id = lab.create(volume, MIB, mount("")).await.unwrap().volume_id;
        for number in 0..3 {
            ids.push(lab.snapshot(&format!("{volume}-{number}"), &id).await.unwrap());
        }
        volumes.push(id);
    }
    ids.sort_by(|a, b| a.snapshot_id.cmp(&b.snapshot_id));
    lab.restart();
    let ask = |snapshot: &str, volume: &str, max_entries, token: &str| ListSnapshotsRequest {
        max_entries,
        starting_token: token.into(),
        snapshot_id: snapshot.into(),
        source_volume_id: volume.into(),
        ..ListSnapshotsRequest::default()
    };
    assert_eq!(lab.snapshots(ask("", "", 0, "")).await.unwrap(), (ids.clone(), String::new()));
    let (first, token) = lab.snapshots(ask("", "", 4, "")).await.unwrap();
    lab.delete_snapshot(&first[0].snapshot_id).await.unwrap();
    let (rest, end) = lab.snapshots(ask("", "", 4, &token)).await.unwrap();
    assert_eq!((first, rest, end), (ids[..4].to_vec(), ids[4..].to_vec(), String::new()));
    let one = &ids[5];
    assert_eq!(lab.snapshots(ask(&one.snapshot_id, "", 0, "")).await.unwrap().0, std::slice::from_ref(one));
    let of = lab.snapshots(ask("", &one.source_volume_id, 0, "")).await.unwrap().0;
    assert!(of.len() >= 2 && of.iter().all(|it| it.source_volume_id == one.source_volume_id), "{of:?}");
    assert_eq!(lab.get_snapshot(&one.snapshot_id).await.unwrap(), *one);
    for (id, code) in [
        ("", Code::InvalidArgument),
        ("x", Code::NotFound),
        (&one.source_volume_id, Code::NotFound),
        (&ids[0].snapshot_id, Code::NotFound),
        ("cccccccccccccccc-snap-0123456789abcdef0123456789abcdef", Code::Unavailable),
    ] {
        assert_eq!(lab.get_snapshot(id).await.unwrap_err().code(), code, "{id}");
    }
    for nothing in [ask("x", "", 0, ""), ask("", "x", 0, ""), ask(&ids[0].snapshot_id, "", 0, "")] {
        assert_eq!(lab.snapshots(nothing).await.unwrap().0, []);
    }
    assert_eq!(lab.snapshots(ask("", "", 0, "x")).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(lab.snapshots(ask("", "", -1, "")).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_pool_of_an_earlier_version_gets_a_place_for_snapshots() {
    let mut lab = Lab::new(EngineKind::Directory);
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    lab.driver = None;
    std::fs::remove_dir(lab.config.pool_path.join("snapshots")).unwrap();
    lab.restart();
    let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
    lab.delete_snapshot(&snapshot).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}
