//! A tree with very many entries: its deletion keeps nobody waiting, and takes no more memory than that of a small one.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use dunnage_driver::EngineKind;
use dunnage_host::dir::{Dir, Mounts};
use dunnage_tests_driver::{BACKEND, Disk, Lab, mount, pool_id};

const MIB: i64 = 1 << 20;

/// In one directory, with names of a usual length.
const WIDE: usize = 960_000;
/// How many of them are files of their own; the others are further names, which are made and removed faster.
const FILES: usize = 100_000;
/// One in the other, each with a file beside the next.
const DEEP: usize = 20_000;

/// Between the calls of others.
const PAUSE: Duration = Duration::from_millis(100);

/// What the deletion may add to the process at its most; to list the wide directory alone takes more.
const MOST_KIB: u64 = 6 << 10;

/// Fills a volume.
fn fill(data: &Path) {
    let wide = data.join("wide");
    std::fs::create_dir(&wide).unwrap();
    let name = |number: usize| wide.join(format!("{number:06}-{}", "name".repeat(12)));
    for number in 0..FILES {
        File::create(name(number)).unwrap();
    }
    for number in FILES..WIDE {
        std::fs::hard_link(name(number % FILES), name(number)).unwrap();
    }
    let mut deep = Dir::open(data).unwrap();
    for _ in 0..DEEP {
        deep.create("f").unwrap();
        deep = deep.make_dir("d", 0o700).unwrap();
        // By a short path, which otherwise grows to hundreds of kilobytes.
        deep = Dir::open(Path::new("/proc/self/fd").join(fd(&deep)).as_path()).unwrap();
    }
}

fn fd(dir: &Dir) -> String {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    dir.as_fd().as_raw_fd().to_string()
}

/// The most memory that this process has had since it was last forgotten.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_very_many_entries_goes_without_keeping_anybody_waiting() {
    // On a real file system, but in memory: a disk of this machine would be all that is measured.
    let memory = tempfile::Builder::new().prefix("dunnage-driver-").tempdir_in("/dev/shm").unwrap();
    let mut lab = Lab::without_pool(EngineKind::Directory, |_| {});
    let mut disk = Disk::xfs(memory.path(), 2000);
    disk.mount(&lab.config.pool_path);
    lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
    let id = lab.create("large", MIB, mount("")).await.unwrap().volume_id;
    fill(&lab.volume_dir(&id).join("data"));
    // A first turn of every call, so that what they take once is not counted.
    turn(&lab).await;

    forget_peak();
    let before = peak_kib();
    lab.delete(&id).await.unwrap();
    let trash = Dir::open(&lab.config.pool_path).unwrap().dir("trash", Mounts::Refuse).unwrap();
    let is_there =
        || trash.entries().unwrap().iter().any(|entry| entry.name.to_string_lossy().starts_with(&id));
    assert!(is_there(), "it went too fast to tell anything");
    let (mut meanwhile, start) = (0, Instant::now());
    while is_there() {
        assert!(start.elapsed() < Duration::from_secs(400), "it is still there");
        turn(&lab).await;
        meanwhile += usize::from(is_there());
        // Callers are not as eager as this, and each of their calls has the disk write what was removed so far.
        tokio::time::sleep(PAUSE).await;
    }
    let took = start.elapsed();
    assert!(meanwhile > 0, "every call waited for the deletion");
    let grown = peak_kib() - before;
    assert!(grown < MOST_KIB, "{grown} KiB more");
    eprintln!("{} entries went in {took:?}, {meanwhile} turns meanwhile, {grown} KiB", WIDE + 2 * DEEP);
    drop(trash);
    lab.assert_clean();
    lab.driver = None;
    disk.unmount();
}

/// A volume's way to a pod and back, on the same pool.
async fn turn(lab: &Lab) {
    let id = lab.create("small", MIB, mount("")).await.unwrap().volume_id;
    let target = lab.to_pod(&id, "pod-1", mount("")).await;
    assert!(lab.bytes(&id, &target).await.total > 0);
    lab.from_pod(&id, "pod-1").await;
    lab.delete(&id).await.unwrap();
}
