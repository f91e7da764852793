//! Measures the node's driver on this machine's disk: `tests/bench/run engines` starts it and makes a page of what it prints,
//! a JSON object a line. What it is doing is told on stderr.
#![expect(clippy::print_stdout, reason = "the results are its output")]

mod calls;
mod fio;
mod many;
mod node;
mod pools;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use serde_json::Value;

use pools::Pool;

#[derive(Parser)]
struct Args {
    /// The program to measure
    #[arg(long)]
    program: PathBuf,
    /// A folder on the disk to measure on; what is made there is removed again
    #[arg(long)]
    folder: PathBuf,
    /// Only pools whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
    /// Seconds of each run of fio
    #[arg(long, default_value_t = 10)]
    fio_seconds: u32,
}

/// Prints a result.
fn tell(result: Value) {
    println!("{result}");
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    for pool in Pool::all().iter().filter(|pool| pool.name.contains(&args.only)) {
        measure(&args, pool).await.with_context(|| pool.name)?;
    }
    Ok(())
}

/// Everything about one kind of pool, on a disk that is made for it.
async fn measure(args: &Args, pool: &Pool) -> anyhow::Result<()> {
    let place = pools::Place::make(&args.folder, pool)?;
    let node = node::Node::start(&args.program, pool, &place).await?;
    calls::one_by_one(&node, pool).await?;
    calls::at_once(&node, pool).await?;
    calls::snapshots(&node, pool).await?;
    calls::delete_many_files(&node, pool).await?;
    fio::compare(&node, pool, &place, args.fio_seconds).await?;
    node.stop().await?;
    many::volumes(&args.program, pool, &place).await
}
