//! What a volume is worth to a program that reads and writes, beside the same file system without Dunnage.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::calls::capability;
use crate::node::Node;
use crate::pools::{Place, Pool};
use crate::tell;

/// Name of a workload, and what fio is told.
const WORKLOADS: [(&str, &[&str]); 4] = [
    ("sequential read", &["--rw=read", "--bs=1M", "--iodepth=8"]),
    ("sequential write", &["--rw=write", "--bs=1M", "--iodepth=8"]),
    ("random read", &["--rw=randread", "--bs=4k", "--iodepth=32"]),
    ("random write", &["--rw=randwrite", "--bs=4k", "--iodepth=32"]),
];

/// fio in a volume, and in a directory of the pool's file system.
pub(crate) async fn compare(node: &Node, pool: &Pool, place: &Place, seconds: u32) -> anyhow::Result<()> {
    let capability = capability(pool);
    let id = node.create("fio", 2 << 30, &capability, &[], None).await?;
    node.stage(&id, &capability).await?;
    let target = node.publish(&id, &capability).await?;
    for (name, options) in WORKLOADS {
        eprintln!("{}: fio, {name}", pool.name);
        let bare = run(&place.bare(), options, seconds)?;
        let volume = run(&target, options, seconds)?;
        tell(json!({ "of": "fio", "pool": pool.name, "workload": name, "bare": bare, "volume": volume }));
    }
    node.unpublish(&id).await?;
    node.unstage(&id).await?;
    node.delete(&id).await
}

/// MiB and operations a second.
#[expect(clippy::disallowed_methods, reason = "fio is what measures; the rule guards the product")]
fn run(folder: &Path, options: &[&str], seconds: u32) -> anyhow::Result<Value> {
    let output = Command::new("fio")
        .args(["--name=bench", "--size=1G", "--direct=1", "--ioengine=libaio", "--output-format=json"])
        .args(["--time_based", "--ramp_time=1", "--invalidate=1"])
        .arg(format!("--runtime={seconds}"))
        .arg(format!("--directory={}", folder.display()))
        .args(options)
        .output()
        .context("fio cannot be started: install Debian's package fio")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).context("fio's report")?;
    let job = &report["jobs"][0];
    let sum = |key: &str| ["read", "write"].iter().filter_map(|way| job[way][key].as_f64()).sum::<f64>();
    Ok(json!({ "mib_s": (sum("bw_bytes") / 1_048_576.0).round(), "iops": sum("iops").round() }))
}
