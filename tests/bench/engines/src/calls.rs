//! How long calls take, one by one and many at once.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dunnage_csi::v1::VolumeCapability;
use dunnage_tests_driver::{from_snapshot, mount};
use futures::future::try_join_all;
use serde_json::json;

use crate::node::Node;
use crate::pools::Pool;
use crate::tell;

const GIB: i64 = 1 << 30;

/// Volumes that go through their life one after another.
const ROUNDS: usize = 30;

/// What each of them goes through.
const CALLS: [&str; 6] = [
    "CreateVolume",
    "NodeStageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
    "DeleteVolume",
];

/// How long callers go on at once, and how many there are.
const AT_ONCE: Duration = Duration::from_secs(8);
const CALLERS: usize = 32;

/// Files of the volume that is deleted.
const FILES: usize = 100_000;

pub(crate) fn capability(pool: &Pool) -> VolumeCapability {
    mount(pool.fs_type)
}

/// Milliseconds, to be read by people.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The value that a share of all are not above.
fn quantile(sorted: &[Duration], percent: usize) -> f64 {
    milliseconds(sorted[(sorted.len() - 1) * percent / 100])
}

async fn timed<T>(
    times: &mut Vec<Duration>,
    call: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    let answer = call.await?;
    times.push(began.elapsed());
    Ok(answer)
}

/// Each call of a volume's life, on an idle driver.
pub(crate) async fn one_by_one(node: &Node, pool: &Pool) -> anyhow::Result<()> {
    eprintln!("{}: {ROUNDS} volumes one by one", pool.name);
    let capability = capability(pool);
    let mut times: [Vec<Duration>; 6] = Default::default();
    for round in 0..ROUNDS {
        let [create, stage, publish, unpublish, unstage, delete] = &mut times;
        let id = timed(create, node.create(&format!("one-{round}"), GIB, &capability, &[], None)).await?;
        timed(stage, node.stage(&id, &capability)).await?;
        timed(publish, node.publish(&id, &capability)).await?;
        timed(unpublish, node.unpublish(&id)).await?;
        timed(unstage, node.unstage(&id)).await?;
        timed(delete, node.delete(&id)).await?;
    }
    for (call, mut times) in CALLS.into_iter().zip(times) {
        times.sort_unstable();
        tell(json!({
            "of": "call", "pool": pool.name, "call": call,
            "p50_ms": quantile(&times, 50), "p90_ms": quantile(&times, 90),
        }));
    }
    Ok(())
}

/// Callers that make and delete volumes as fast as they are answered.
pub(crate) async fn at_once(node: &Node, pool: &Pool) -> anyhow::Result<()> {
    eprintln!("{}: {CALLERS} callers at once", pool.name);
    let capability = capability(pool);
    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let capability = &capability;
        async move {
            let mut calls = 0_u32;
            for round in 0.. {
                if began.elapsed() > AT_ONCE {
                    break;
                }
                let name = format!("many-{caller}-{round}");
                let id = node.create(&name, 64 << 20, capability, &[], None).await?;
                node.delete(&id).await?;
                calls += 2;
            }
            anyhow::Ok(calls)
        }
    });
    let calls: u32 = try_join_all(callers).await?.into_iter().sum();
    let per_second = (f64::from(calls) / began.elapsed().as_secs_f64()).round();
    tell(json!({ "of": "at-once", "pool": pool.name, "callers": CALLERS, "calls_per_second": per_second }));
    Ok(())
}

/// Writes so many bytes of data that do not compress to nothing.
fn write(file: &Path, bytes: i64) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(file)?;
    let mut block = vec![0_u8; 1 << 20];
    for number in 0..bytes >> 20 {
        for (at, part) in block.chunks_exact_mut(8).enumerate() {
            let mixed = (number.cast_unsigned() ^ (at as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            part.copy_from_slice(&mixed.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// A snapshot of a mounted volume with data in it, and a volume made of that.
pub(crate) async fn snapshots(node: &Node, pool: &Pool) -> anyhow::Result<()> {
    let capability = capability(pool);
    let whole = i64::from(!pool.fs_type.is_empty()) * (GIB / 2);
    for gib in [1, 20] {
        let bytes = gib * GIB;
        let name = format!("data-{gib}");
        let target_free = free(&node.target(""))?;
        // The data, what copies them where blocks are not shared, and their restoration.
        if target_free < 4 * bytes {
            tell(json!({ "of": "snapshot", "pool": pool.name, "gib": gib }));
            continue;
        }
        eprintln!("{}: snapshot of {gib} GiB", pool.name);
        let id = node.create(&name, bytes + whole + GIB / 4, &capability, &[], None).await?;
        node.stage(&id, &capability).await?;
        let target = node.publish(&id, &capability).await?;
        write(&target.join("data"), bytes)?;
        let (mut took, mut restored) = (vec![], vec![]);
        let snapshot = timed(&mut took, node.snapshot(&name, &id)).await?;
        let source = Some(from_snapshot(&snapshot));
        let copy = timed(
            &mut restored,
            node.create(&format!("{name}-copy"), bytes + whole + GIB / 4, &capability, &[], source),
        )
        .await?;
        node.delete(&copy).await?;
        node.delete_snapshot(&snapshot).await?;
        node.unpublish(&id).await?;
        node.unstage(&id).await?;
        node.delete(&id).await?;
        tell(json!({
            "of": "snapshot", "pool": pool.name, "gib": gib,
            "snapshot_ms": quantile(&took, 50), "restore_ms": quantile(&restored, 50),
        }));
    }
    Ok(())
}

/// Bytes free on the disk of a path.
fn free(path: &Path) -> anyhow::Result<i64> {
    let parent = path.parent().context("a path without a parent")?;
    let space = rustix::fs::statvfs(parent)?;
    Ok((space.f_bavail * space.f_frsize).cast_signed())
}

/// The deletion of a volume with many files: until it is answered, and until the space is free again.
pub(crate) async fn delete_many_files(node: &Node, pool: &Pool) -> anyhow::Result<()> {
    eprintln!("{}: deletion of {FILES} files", pool.name);
    let capability = capability(pool);
    let id = node.create("files", 2 * GIB, &capability, &[], None).await?;
    node.stage(&id, &capability).await?;
    let target = node.publish(&id, &capability).await?;
    for folder in 0..FILES / 1000 {
        let folder = target.join(folder.to_string());
        std::fs::create_dir(&folder)?;
        for file in 0..1000 {
            std::fs::write(folder.join(file.to_string()), b"x")?;
        }
    }
    node.unpublish(&id).await?;
    node.unstage(&id).await?;
    let mut times = vec![];
    timed(&mut times, node.delete(&id)).await?;
    tell(json!({ "of": "delete", "pool": pool.name, "files": FILES, "answer_ms": quantile(&times, 50) }));
    Ok(())
}
