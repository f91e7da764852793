//! `dunnage ROLE`: command line and wiring only.

mod cli;
mod doctor;
mod driver;
mod role;
mod uninstall;

use std::error::Error;
use std::process::ExitCode;

use clap::CommandFactory as _;
use dunnage_cluster::error::chain;
use dunnage_sidecars::{
    attacher, discovery, health_monitor, livenessprobe, provisioner, registrar, resizer, snapshot_controller,
    snapshotter,
};
use dunnage_telemetry::{logging, shutdown};
use tracing::{error, info, warn};

use cli::{Call, Cli, Definitions, Role};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let call = match cli::parse(std::env::args().collect()) {
        Ok(call) => call,
        // Help and version go to standard output and end with 0, mistakes to standard error with 2.
        Err(error) => error.exit(),
    };
    if let Err(error) = logging::init(&call.cli.log_level, call.cli.log_format) {
        eprintln!("dunnage: {error}");
        return ExitCode::from(2);
    }
    match start(call) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %chain(failure.as_ref()), "ended");
            ExitCode::FAILURE
        }
    }
}

fn start(Call { cli, warnings }: Call) -> Result<(), Failure> {
    for warning in warnings {
        warn!("{warning}");
    }
    match cli.role {
        Role::Crd { kind: Definitions::Backend } => print(&dunnage_crds::crd_yaml()?),
        Role::Crd { kind: Definitions::Snapshot } => print(&dunnage_crds::snapshot::snapshot_crds_yaml()?),
        Role::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "dunnage", &mut script);
            print(&String::from_utf8(script)?)
        }
        Role::Doctor(args) => doctor::run(&args),
        role => tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(role)),
    }
}

async fn serve(role: Role) -> Result<(), Failure> {
    let stop = shutdown::token();
    info!(version = env!("CARGO_PKG_VERSION"), "dunnage");
    match role {
        Role::Operator(args) => dunnage_operator::run::run(args, stop).await?,
        Role::Driver(args) => driver::run(args, stop).await?,
        Role::Provisioner(args) => provisioner::run(args, stop).await?,
        Role::Attacher(args) => attacher::run(args, stop).await?,
        Role::Resizer(args) => resizer::run(args, stop).await?,
        Role::Snapshotter(args) => snapshotter::run(args, stop).await?,
        Role::SnapshotController(args) => snapshot_controller::run(args, stop).await?,
        Role::Registrar(args) => registrar::run(args, stop).await?,
        Role::HealthMonitor(args) => health_monitor::run(args, stop).await?,
        Role::Livenessprobe(args) => livenessprobe::run(args, stop).await?,
        Role::AgentDiscovery(args) => discovery::run(args, stop).await?,
        Role::Uninstall(args) => uninstall::run(args).await?,
        Role::Crd { .. } | Role::Doctor(_) | Role::Completion { .. } => {}
    }
    Ok(())
}

/// Prints to standard output. A reader who has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
