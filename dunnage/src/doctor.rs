//! `dunnage doctor`: what a node has for storage, printed.

use std::fmt::Write as _;
use std::path::PathBuf;

use dunnage_driver::doctor::{Line, PROGRAMS, Verdict, report};
use dunnage_host::facts;

use crate::{Failure, print};

/// Tell what this node's kernel, programs and file system have, and what each type of backend can do here
///
/// On a cluster: kubectl exec -n NAMESPACE NODE-POD -c driver -- dunnage doctor --path PATH. Changes nothing. Ends with 1
/// when no type works.
#[derive(clap::Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The directory that a pool is, or will be, in
    #[arg(long, default_value = "/var/lib/dunnage", value_name = "DIRECTORY")]
    path: PathBuf,
    /// How to print it
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Output {
    Table,
    Json,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let path = facts::path(&args.path).map_err(|error| dunnage_driver::chain(&error));
    let lines = report(&facts::node(&PROGRAMS), &path);
    match args.output {
        Output::Table => print(&table(&lines))?,
        Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?,
    }
    let works = |line: &Line| line.subject.starts_with("type ") && line.verdict != Verdict::Missing;
    if lines.iter().any(works) { Ok(()) } else { Err("no type of backend works here".into()) }
}

fn table(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in lines {
        let verdict = match line.verdict {
            Verdict::Works => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "MISSING",
        };
        let _ = writeln!(text, "{:width$}  {verdict:7}  {}", line.subject, line.text);
    }
    text
}
