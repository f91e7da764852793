//! The command line: one subcommand a role, and some for people.

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use dunnage_operator::run::Args as OperatorArgs;
use dunnage_sidecars::flags::{Normalised, normalise};
use dunnage_sidecars::{
    attacher, discovery, health_monitor, livenessprobe, provisioner, registrar, resizer, snapshot_controller,
    snapshotter,
};
use dunnage_telemetry::logging::Format;

use crate::doctor::DoctorArgs;
use crate::driver::DriverArgs;
use crate::role::with_role;
use crate::uninstall::UninstallArgs;

/// Storage for Kubernetes: one operator, one custom resource, one program for every role.
#[derive(Parser, Debug)]
#[command(
    name = "dunnage",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Called under the name csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter, \
                  snapshot-controller, csi-node-driver-registrar, livenessprobe or \
                  csi-external-health-monitor-controller it takes that role, with upstream's flags."
)]
pub(crate) struct Cli {
    /// error, warn, info, debug or trace, or a list such as info,kube=debug
    #[arg(long, global = true, env = "DUNNAGE_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: String,
    /// text or json
    #[arg(long, global = true, env = "DUNNAGE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: Format,
    #[command(subcommand)]
    pub(crate) role: Role,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Role {
    /// Turn every StorageBackend into a working CSI driver
    Operator(OperatorArgs),
    /// Serve CSI, on a node or as the router to all nodes
    Driver(DriverArgs),
    /// Make and delete volumes for claims (csi-provisioner)
    Provisioner(provisioner::Args),
    /// Attach and detach volumes (csi-attacher)
    Attacher(attacher::Args),
    /// Grow volumes, and give them other classes (csi-resizer)
    Resizer(resizer::Args),
    /// Take and delete a driver's snapshots (csi-snapshotter)
    Snapshotter(snapshotter::Args),
    /// Bind the cluster's snapshots to what drivers have of them (snapshot-controller)
    SnapshotController(snapshot_controller::Args),
    /// Tell kubelet of the driver (csi-node-driver-registrar)
    Registrar(registrar::Args),
    /// Tell kubelet whether the driver of this pod answers (livenessprobe)
    Livenessprobe(livenessprobe::Args),
    /// Tell of abnormal volumes on their claims (csi-external-health-monitor-controller)
    HealthMonitor(health_monitor::Args),
    /// Tell the router where the nodes' drivers are
    AgentDiscovery(discovery::Args),
    /// Remove Dunnage from a cluster; refuses while volumes exist
    Uninstall(UninstallArgs),
    Doctor(DoctorArgs),
    /// Print the CustomResourceDefinition of StorageBackend, or those of Kubernetes' snapshots
    Crd {
        /// Which definitions
        #[arg(default_value = "backend")]
        kind: Definitions,
    },
    /// Print a shell's completion script
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What `dunnage crd` prints.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Definitions {
    /// StorageBackend
    Backend,
    /// VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass
    Snapshot,
}

/// The roles whose flags are written as upstream's: with one dash or two, and klog's among them.
const UPSTREAM_FLAGS: [&str; 9] = [
    "provisioner",
    "attacher",
    "resizer",
    "snapshotter",
    "snapshot-controller",
    "registrar",
    "livenessprobe",
    "health-monitor",
    "agent-discovery",
];

/// A parsed call, and what is to be said about flags that mean nothing here.
pub(crate) struct Call {
    pub(crate) cli: Cli,
    pub(crate) warnings: Vec<String>,
}

/// Parses the arguments of the process.
pub(crate) fn parse(arguments: Vec<String>) -> Result<Call, clap::Error> {
    let mut arguments = with_role(arguments);
    let mut command = Cli::command();
    let mut warnings = Vec::new();
    let mut verbosity = None;
    let role = arguments.get(1).filter(|role| UPSTREAM_FLAGS.contains(&role.as_str())).cloned();
    if let Some(role) = role {
        // Built, so that the role's command knows the global flags too.
        command.build();
        if let Some(of_role) = command.find_subcommand(&role) {
            let Normalised { args, warnings: said, verbosity: asked } =
                normalise(of_role, arguments.drain(2..));
            arguments.extend(args);
            (warnings, verbosity) = (said, asked);
        }
    }
    let mut matches = command.try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches_mut(&mut matches)?;
    if let Some(level) = verbosity.and_then(level_of) {
        level.clone_into(&mut cli.log_level);
    }
    Ok(Call { cli, warnings })
}

/// What upstream's `-v` shows in our levels; below 4 the level stays as it is.
fn level_of(verbosity: u8) -> Option<&'static str> {
    match verbosity {
        0..=3 => None,
        4 => Some("debug"),
        5.. => Some("debug,dunnage_sidecars=trace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Result<Call, clap::Error> {
        parse(arguments.iter().map(|argument| (*argument).to_owned()).collect())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_upstream_manifest_starts_under_the_upstream_name() {
        let call = call(&[
            "/csi-provisioner",
            "-v=5",
            "--csi-address=/csi/csi.sock",
            "--feature-gates=Topology=true",
            "--leader-election",
            "--connection-timeout=15s",
        ])
        .unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(call.cli.role, Role::Provisioner(_)), "{:?}", call.cli.role);
        assert!(call.cli.log_level.starts_with("debug"));
        assert_eq!(call.warnings.len(), 1, "the obsolete flag is named: {:?}", call.warnings);
    }

    /// The recorded plans of the operator are the one source of what containers are started with.
    #[test]
    fn what_the_operator_writes_is_understood() {
        let mut calls = 0;
        let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../operator/testdata/golden");
        for file in std::fs::read_dir(recorded).expect("recorded plans") {
            let text = std::fs::read_to_string(file.expect("file").path()).expect("text");
            for document in text.split("\n---\n") {
                let object: serde_json::Value = serde_saphyr::from_str(document).expect("YAML");
                let containers = object["spec"]["template"]["spec"]["containers"].as_array();
                for container in containers.into_iter().flatten() {
                    let arguments =
                        container["args"].as_array().into_iter().flatten().filter_map(|word| word.as_str());
                    let words: Vec<&str> = std::iter::once("dunnage").chain(arguments).collect();
                    call(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
                    calls += 1;
                }
            }
        }
        assert!(calls >= 10, "{calls} command lines were found");
        let operator =
            ["dunnage", "operator", "--namespace=ns", "--image=i:1", "--http-endpoint=0.0.0.0:9740"];
        call(&operator).unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn every_role_tells_the_version() {
        for arguments in [
            ["dunnage", "--version"],
            ["csi-provisioner", "--version"],
            ["csi-attacher", "-version"],
            ["csi-resizer", "-version"],
        ] {
            let told = call(&arguments).err().expect("clap stops here");
            assert_eq!(told.kind(), clap::error::ErrorKind::DisplayVersion, "{arguments:?}: {told}");
        }
    }

    #[test]
    fn snapshot_roles_start_by_upstreams_manifests() {
        let taken =
            ["/csi-snapshotter", "-v=5", "--csi-address=/csi/csi.sock", "--leader-election", "--timeout=3m"];
        let taken = call(&taken).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(taken.cli.role, Role::Snapshotter(_)), "{:?}", taken.cli.role);
        let bound = ["snapshot-controller", "--v=5", "--leader-election=true", "-worker-threads=3"];
        let bound = call(&bound).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(bound.cli.role, Role::SnapshotController(_)), "{:?}", bound.cli.role);
    }

    #[test]
    fn a_node_driver_without_its_pool_is_refused_by_the_flags_name() {
        let refused = call(&["dunnage", "driver", "--mode=node", "--driver-name=x", "--engine=Directory"])
            .err()
            .expect("refused");
        assert!(refused.to_string().contains("--pool-path"), "{refused}");
    }

    #[test]
    fn upstreams_resizer_starts_with_its_flags() {
        let call = call(&[
            "/csi-resizer",
            "-csi-address",
            "/csi/csi.sock",
            "--leader-election",
            "--handle-volume-inuse-error=false",
            "-extra-modify-metadata",
            "--feature-gates=RecoverVolumeExpansionFailure=true",
            "--workers=5",
        ])
        .unwrap_or_else(|error| panic!("{error}"));
        let Role::Resizer(args) = call.cli.role else { panic!("{:?}", call.cli.role) };
        assert!(!args.handle_volume_inuse_error && args.extra_modify_metadata && args.workers == 5);
    }

    #[test]
    fn an_unknown_flag_ends_with_2() {
        let refused = call(&["csi-attacher", "--no-such-flag"]).err().expect("refused");
        assert_eq!(refused.exit_code(), 2);
    }
}
