//! Group snapshots on real file systems: of one moment or refused, made and deleted as a whole.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use dunnage_csi::v1::ListSnapshotsRequest;
use dunnage_driver::EngineKind;
use dunnage_driver::id::GroupId;
use dunnage_tests_driver::{BACKEND, Disk, Lab, block, from_snapshot, members, mount, pool_id};
use tonic::Code;

const MIB: i64 = 1 << 20;

/// A node whose pool lies on a disk of its own.
fn lab_on(engine: EngineKind, disk: fn(&Path, u64) -> Disk, mebibytes: u64) -> (Lab, Disk) {
    let lab = Lab::without_pool(engine, |_| {});
    let mut disk = disk(lab.root(), mebibytes);
    disk.mount(&lab.config.pool_path);
    lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
    (lab, disk)
}

fn in_snapshots(lab: &Lab) -> usize {
    std::fs::read_dir(lab.config.pool_path.join("snapshots")).unwrap().count()
}

/// What the records of a group's snapshots say of their volumes.
fn sources(lab: &Lab, group: &str, snapshots: &[String]) -> Vec<String> {
    let dir = lab.snapshot_dir(group);
    let said = |id: &String| {
        let record = std::fs::read_to_string(dir.join(id).join("snapshot.json")).unwrap();
        let (_, rest) = record.split_once(r#""source":""#).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    snapshots.iter().map(said).collect()
}

/// A program with a file on each of several volumes. It writes a record to one after the other, each when the one before it
/// is on the disk: on the first there is always as much as on the others, or one record more.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Writer {
    fn start(paths: Vec<PathBuf>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut files: Vec<_> = paths.iter().map(|path| std::fs::File::create(path).unwrap()).collect();
            let mut count = 0;
            while !told.load(Ordering::Relaxed) && count < 20_000 {
                for file in &mut files {
                    file.write_all(format!("{count:08}\n").as_bytes()).unwrap();
                    file.sync_data().unwrap();
                }
                count += 1;
            }
            count
        });
        Self { stop, thread: Some(thread) }
    }

    /// After everything is thawed: how many records it has written.
    fn finish(&mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(0, |thread| thread.join().unwrap_or(0))
    }
}

/// A test that has failed must not leave its volumes in use.
impl Drop for Writer {
    fn drop(&mut self) {
        self.finish();
    }
}

fn records(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count()
}

/// Makes groups of volumes while a program writes to all of them, and looks at what is in each.
async fn of_one_moment(mut lab: Lab, volumes: &[(&str, &str, i64)], source: &str) -> Lab {
    let mut made = Vec::new();
    for (name, fs_type, bytes) in volumes {
        let id = lab.create(name, *bytes, mount(fs_type)).await.unwrap().volume_id;
        let target = lab.to_pod(&id, name, mount(fs_type)).await;
        made.push((id, name, target));
    }
    let ids: Vec<_> = made.iter().map(|(id, ..)| id.as_str()).collect();
    let mut writer = Writer::start(made.iter().map(|(.., target)| target.join("log")).collect());
    for round in 0..3 {
        // Somewhere in the middle of the writing.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let group = lab.group(&format!("group-{round}"), &ids).await.unwrap();
        let snapshots = members(&group);
        assert!(sources(&lab, &group.group_snapshot_id, &snapshots).iter().all(|said| said == source));
        let mut counts = Vec::new();
        for (id, ..) in &made {
            let member = group.snapshots.iter().find(|snapshot| snapshot.source_volume_id == *id).unwrap();
            let from = from_snapshot(&member.snapshot_id);
            let copy = lab.create_from(from, &format!("copy-{round}"), 0, mount("")).await.unwrap();
            let target = lab.to_pod(&copy.volume_id, "look", mount("")).await;
            counts.push(records(&target.join("log")));
            lab.from_pod(&copy.volume_id, "look").await;
            lab.delete(&copy.volume_id).await.unwrap();
        }
        let (first, last) = (counts[0], counts[counts.len() - 1]);
        assert!(counts.is_sorted_by(|before, after| before >= after) && first <= last + 1, "{counts:?}");
        lab.delete_group(&group.group_snapshot_id, &snapshots).await.unwrap();
    }
    assert!(writer.finish() > 3, "it went on");
    for (id, name, _) in &made {
        assert!(!lab.volume_dir(id).join("frozen").exists());
        lab.from_pod(id, name).await;
        lab.delete(id).await.unwrap();
    }
    lab.assert_clean();
    lab.driver = None;
    lab
}

async fn images_in_use_are_of_one_moment(disk: fn(&Path, u64) -> Disk) {
    let (lab, mut disk) = lab_on(EngineKind::LoopFile, disk, 1700);
    let volumes = [("pvc-1", "ext4", 32 * MIB), ("pvc-2", "xfs", 300 * MIB), ("pvc-3", "ext4", 32 * MIB)];
    let _lab = of_one_moment(lab, &volumes, "frozen").await;
    disk.unmount();
}

#[tokio::test]
async fn images_in_use_are_copied_as_they_are_at_one_moment() {
    images_in_use_are_of_one_moment(Disk::make).await;
}

#[tokio::test]
async fn images_in_use_are_shared_as_they_are_at_one_moment() {
    images_in_use_are_of_one_moment(Disk::xfs).await;
}

#[tokio::test]
async fn subvolumes_in_use_are_as_they_are_at_one_moment() {
    let volumes = ["pvc-1", "pvc-2", "pvc-3", "pvc-4"].map(|name| (name, "", 64 * MIB));
    for disk in [Disk::btrfs, Disk::btrfs_with_simple_quotas] {
        let (lab, mut disk) = lab_on(EngineKind::Btrfs, disk, 1024);
        let _lab = of_one_moment(lab, &volumes, "attached").await;
        disk.unmount();
    }
}

#[tokio::test]
async fn a_group_comes_and_goes_as_a_whole_and_each_of_it_is_restored() {
    for engine in [EngineKind::Directory, EngineKind::Btrfs, EngineKind::LoopFile] {
        let mut lab = Lab::new(engine);
        let mut volumes = Vec::new();
        for name in ["pvc-1", "pvc-2"] {
            let id = lab.create(name, 16 * MIB, mount("")).await.unwrap().volume_id;
            let target = lab.to_pod(&id, name, mount("")).await;
            std::fs::write(target.join("data"), name).unwrap();
            lab.from_pod(&id, name).await;
            volumes.push(id);
        }
        let (one, two) = (volumes[0].as_str(), volumes[1].as_str());
        let group = lab.group("group-1", &[one, two]).await.unwrap();
        let (id, snapshots) = (group.group_snapshot_id.clone(), members(&group));
        assert_eq!(sources(&lab, &id, &snapshots), ["atRest"; 2]);
        assert!(group.ready_to_use && snapshots.len() == 2);
        for member in &group.snapshots {
            assert_eq!((&member.group_snapshot_id, member.creation_time), (&id, group.creation_time));
            assert_eq!((member.size_bytes, member.ready_to_use), (16 * MIB, true));
        }
        lab.restart();
        assert_eq!(lab.group("group-1", &[two, one]).await.unwrap(), group, "made once");
        assert_eq!(lab.get_group(&id, &snapshots).await.unwrap(), group);
        let (listed, _) = lab.snapshots(ListSnapshotsRequest::default()).await.unwrap();
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|snapshot| group.snapshots.contains(snapshot)), "{listed:?}");
        assert_eq!(lab.get_snapshot(&snapshots[0]).await.unwrap(), group.snapshots[0]);
        let alone = lab.delete_snapshot(&snapshots[0]).await.unwrap_err();
        assert_eq!(alone.code(), Code::InvalidArgument, "{alone}");
        assert!(alone.message().contains(&id), "{alone}");
        for wrong in [&snapshots[..1], &[]] {
            assert_eq!(lab.delete_group(&id, wrong).await.unwrap_err().code(), Code::InvalidArgument);
            assert_eq!(lab.get_group(&id, wrong).await.unwrap_err().code(), Code::InvalidArgument);
        }
        for volume in [one, two] {
            lab.delete(volume).await.unwrap();
        }
        let mut restored = Vec::new();
        for member in &group.snapshots {
            let was = if member.source_volume_id == one { "pvc-1" } else { "pvc-2" };
            let source = from_snapshot(&member.snapshot_id);
            let made =
                lab.create_from(source, &format!("{was}-again"), 0, mount("")).await.unwrap().volume_id;
            let target = lab.to_pod(&made, was, mount("")).await;
            assert_eq!(std::fs::read_to_string(target.join("data")).unwrap(), was);
            restored.push((made, was));
        }
        // Asked again, it is still gone.
        for _ in 0..2 {
            lab.delete_group(&id, &snapshots).await.unwrap();
            assert_eq!(lab.get_group(&id, &snapshots).await.unwrap_err().code(), Code::NotFound);
            assert_eq!(lab.snapshots(ListSnapshotsRequest::default()).await.unwrap().0, []);
            lab.restart();
        }
        for (volume, pod) in &restored {
            std::fs::write(lab.target(pod).join("more"), "x").unwrap();
            lab.from_pod(volume, pod).await;
            lab.delete(volume).await.unwrap();
        }
        lab.assert_clean();
    }
}

#[tokio::test]
async fn directories_in_use_are_refused_by_name_and_nothing_is_left() {
    let lab = Lab::new(EngineKind::Directory);
    let used = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    let rests = lab.create("pvc-2", MIB, mount("")).await.unwrap().volume_id;
    let pod = lab.to_pod(&used, "pod-1", mount("")).await;
    let refused = lab.group("group-1", &[&used, &rests]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&used) && !refused.message().contains(&rests), "{refused}");
    assert!(refused.message().contains("stop the pods that use them"), "{refused}");
    assert_eq!(in_snapshots(&lab), 0);
    std::fs::write(pod.join("goes on"), "x").unwrap();
    lab.from_pod(&used, "pod-1").await;
    let group = lab.group("group-1", &[&used, &rests]).await.unwrap();
    lab.delete_group(&group.group_snapshot_id, &members(&group)).await.unwrap();
    for volume in [&used, &rests] {
        lab.delete(volume).await.unwrap();
    }
    lab.assert_clean();
}

#[tokio::test]
async fn one_device_that_cannot_be_frozen_decides_the_moment_and_two_are_refused() {
    let (mut lab, mut disk) = lab_on(EngineKind::LoopFile, Disk::xfs, 512);
    let mounted = lab.create("pvc-1", 32 * MIB, mount("ext4")).await.unwrap().volume_id;
    let first = lab.create("pvc-2", 16 * MIB, block()).await.unwrap().volume_id;
    let second = lab.create("pvc-3", 16 * MIB, block()).await.unwrap().volume_id;
    lab.to_pod(&mounted, "pod-1", mount("ext4")).await;
    let device = lab.to_pod(&first, "pod-2", block()).await;
    std::fs::OpenOptions::new().write(true).open(&device).unwrap().write_all(b"kept").unwrap();
    let all = [mounted.as_str(), &first, &second];
    let group = lab.group("group-1", &all).await.unwrap();
    let mut sources = sources(&lab, &group.group_snapshot_id, &members(&group));
    sources.sort();
    assert_eq!(sources, ["atRest", "attached", "frozen"]);
    // What was written to the device without a word about the disk is in it, too.
    let member = group.snapshots.iter().find(|snapshot| snapshot.source_volume_id == first).unwrap();
    let dir = lab.snapshot_dir(&group.group_snapshot_id).join(&member.snapshot_id);
    assert!(std::fs::read(dir.join("image")).unwrap().starts_with(b"kept"));
    lab.to_pod(&second, "pod-3", block()).await;
    let refused = lab.group("group-2", &all).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let text = refused.message();
    assert!(text.contains(&first) && text.contains(&second) && !text.contains(&mounted), "{text}");
    assert_eq!(in_snapshots(&lab), 1);
    lab.delete_group(&group.group_snapshot_id, &members(&group)).await.unwrap();
    for (id, pod) in [(&mounted, "pod-1"), (&first, "pod-2"), (&second, "pod-3")] {
        lab.from_pod(id, pod).await;
        lab.delete(id).await.unwrap();
    }
    lab.assert_clean();
    lab.driver = None;
    disk.unmount();
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_by_name() {
    let lab = Lab::new(EngineKind::Directory);
    let one = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    let two = lab.create("pvc-2", MIB, mount("")).await.unwrap().volume_id;
    let group = lab.group("group-1", &[&one]).await.unwrap();
    let missing = one.replacen(&one[17..], "0123456789abcdef0123456789abcdef", 1);
    let elsewhere = one.replacen(&one[..16], "ffffffffffffffff", 1);
    for (name, volumes, code, says) in [
        ("", vec![one.as_str()], Code::InvalidArgument, "name is missing"),
        ("group-2", vec![], Code::InvalidArgument, "source_volume_ids is missing"),
        ("group-2", vec![&one, &one], Code::InvalidArgument, "twice"),
        ("group-2", vec![&one, &missing], Code::NotFound, &missing),
        ("group-2", vec!["somebody-elses"], Code::NotFound, "somebody-elses"),
        ("group-2", vec![&elsewhere], Code::Unavailable, "ffffffffffffffff"),
        ("group-2", vec![&one, &elsewhere], Code::FailedPrecondition, "1 on pool ffffffffffffffff"),
        ("group-1", vec![&one, &two], Code::AlreadyExists, &one),
        ("group-1", vec![&two], Code::AlreadyExists, &one),
    ] {
        let refused = lab.group(name, &volumes).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    assert_eq!(in_snapshots(&lab), 1);
    let id = group.group_snapshot_id.as_str();
    let there = id.replacen(&id[..16], "ffffffffffffffff", 1);
    let nothing = GroupId::make(&pool_id(), "none").to_string();
    for (id, got, deleted) in [
        ("", Code::InvalidArgument, Code::InvalidArgument),
        ("../../etc", Code::NotFound, Code::Ok),
        (&one, Code::NotFound, Code::Ok),
        (&nothing, Code::NotFound, Code::Ok),
        (&there, Code::Unavailable, Code::Unavailable),
    ] {
        let snapshots = members(&group);
        assert_eq!(lab.get_group(id, &snapshots).await.unwrap_err().code(), got, "{id}");
        let answer = lab.delete_group(id, &snapshots).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |()| Code::Ok), deleted, "{id}");
    }
    // A pool with a group is not given up.
    for volume in [&one, &two] {
        lab.delete(volume).await.unwrap();
    }
    let driver = lab.driver().clone();
    let kept = tokio::task::spawn_blocking(move || driver.remove_pool(&pool_id())).await.unwrap();
    assert!(kept.unwrap_err().to_string().contains("still has snapshots"));
    lab.delete_group(id, &members(&group)).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_group_without_room_is_told_with_the_numbers_and_nothing_is_left() {
    let (mut lab, mut disk) = lab_on(EngineKind::LoopFile, Disk::make, 256);
    let mut volumes = Vec::new();
    for name in ["pvc-1", "pvc-2"] {
        let id = lab.create(name, 80 * MIB, mount("")).await.unwrap().volume_id;
        let target = lab.to_pod(&id, name, mount("")).await;
        let mut file = std::fs::File::create(target.join("data")).unwrap();
        file.write_all(&vec![7; 50 << 20]).unwrap();
        file.sync_all().unwrap();
        volumes.push((id, name));
    }
    let full = lab.group("group-1", &[&volumes[0].0, &volumes[1].0]).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
    assert!(full.message().contains("bytes free"), "{full}");
    assert_eq!(in_snapshots(&lab), 0);
    for (id, name) in &volumes {
        std::fs::write(lab.target(name).join("goes on"), "x").unwrap();
        lab.from_pod(id, name).await;
        lab.delete(id).await.unwrap();
    }
    lab.assert_clean();
    lab.driver = None;
    disk.unmount();
}
