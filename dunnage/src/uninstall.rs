//! `dunnage uninstall`: what it asks and what it prints.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use dunnage_cluster::client;
use dunnage_operator::uninstall::{Mode, uninstall};

use crate::{Failure, print};

/// Remove Dunnage from a cluster. Refuses while volumes exist, and loses nothing.
///
/// Works with the operator running or already gone, and can be called again after a failure.
#[derive(clap::Args, Debug)]
pub(crate) struct UninstallArgs {
    /// Only tell whether storage backends exist: ends with 1 if so, and changes nothing
    #[arg(long, conflicts_with_all = ["dry_run", "yes"])]
    pub(crate) check: bool,
    /// Say what would be removed and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Namespace that the chart is installed in
    #[arg(long, short, env = "NAMESPACE", default_value = "dunnage-system")]
    pub(crate) namespace: String,
    /// Kubeconfig; without it the one of kubectl, or in a pod the cluster's own
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

pub(crate) async fn run(args: UninstallArgs) -> Result<(), Failure> {
    let mode = match (args.check, args.dry_run) {
        (true, _) => Mode::Check,
        (_, true) => Mode::DryRun,
        _ => Mode::Run,
    };
    if mode == Mode::Run && !args.yes && !confirmed(&args.namespace)? {
        return Err("nothing was removed: confirm with yes, or give --yes".into());
    }
    let client = client::connect(args.kubeconfig.as_deref(), None).await?;
    let mut unwritten = Ok(());
    uninstall(&client, &args.namespace, mode, |line| {
        if unwritten.is_ok() {
            unwritten = print(&format!("{line}\n"));
        }
    })
    .await?;
    unwritten
}

/// Asks a person; where nobody can answer, the answer is no.
fn confirmed(namespace: &str) -> Result<bool, Failure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Ok(false);
    }
    let mut terminal = std::io::stderr();
    write!(
        terminal,
        "This removes every StorageBackend, the operator in {namespace} and the CRD. Type yes to go on: "
    )?;
    terminal.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
