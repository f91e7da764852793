//! The provisioner's command line: upstream's flags.

use std::time::Duration;

use clap::ArgAction;

use crate::flags::{Conflict, Standard, duration};

/// Flags of the provisioner.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub struct Args {
    #[command(flatten)]
    pub standard: Standard,
    /// First part of the names of volumes.
    #[arg(long, default_value = "pvc")]
    pub volume_name_prefix: String,
    /// How much of the claim's UID is in the names of volumes; -1 is all of it, with dashes.
    #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
    pub volume_name_uuid_length: i32,
    /// Longest time for one call to the driver.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// First pause after a failure; it doubles with each further one.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub retry_interval_start: Duration,
    /// Longest pause after a failure.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub retry_interval_max: Duration,
    /// Claims, and as many volumes to be deleted, that are worked at once.
    #[arg(long, default_value_t = 100)]
    pub worker_threads: usize,
    /// Cloned claims whose finalizer is taken off at once.
    #[arg(long, default_value_t = 1)]
    pub cloning_protection_threads: usize,
    /// Time between two looks for snapshots whose finalizer was left behind; 0 is never.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub snapshot_orphan_sweep_interval: Duration,
    /// Capacities that are asked for at once.
    #[arg(long, default_value_t = 1)]
    pub capacity_threads: usize,
    /// With delayed binding, asks for the chosen node's place alone.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub strict_topology: bool,
    /// With immediate binding, asks for all places of the cluster.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub immediate_topology: bool,
    /// Tells the driver the names of claim and volume.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub extra_create_metadata: bool,
    /// File system of volumes whose StorageClass names none.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub default_fstype: String,
    /// Publishes CSIStorageCapacity objects.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_capacity: bool,
    /// Publishes them for classes with immediate binding too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub capacity_for_immediate_binding: bool,
    /// Time between two looks at every capacity.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub capacity_poll_interval: Duration,
    /// Who owns the capacity objects: -1 nobody, 0 this pod, 1 its controller, 2 that one's.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub capacity_ownerref_level: i32,
    /// Requests a second to the Kubernetes API for capacities; without it the server decides.
    #[arg(long)]
    pub kube_api_capacity_qps: Option<f32>,
    /// Requests at once to the Kubernetes API for capacities; without it the server decides.
    #[arg(long)]
    pub kube_api_capacity_burst: Option<u32>,
    /// One provisioner on every node: not supported, the driver routes to its nodes instead.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, hide = true)]
    pub node_deployment: bool,
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set, hide = true)]
    pub node_deployment_immediate_binding: bool,
    #[arg(long, default_value = "20s", value_parser = duration, hide = true)]
    pub node_deployment_base_delay: Duration,
    #[arg(long, default_value = "60s", value_parser = duration, hide = true)]
    pub node_deployment_max_delay: Duration,
    /// Marks volumes read-only whose only access mode is `ReadOnlyMany`.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub controller_publish_readonly: bool,
    /// Refuses a restore into another volumeMode than the snapshot's, unless its content allows it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub prevent_volume_mode_conversion: bool,
}

/// The feature gates that mean something here.
pub const GATES: [&str; 4] =
    ["Topology", "VolumeAttributesClass", "CrossNamespaceVolumeDataSource", "ReleaseLeaderElectionOnExit"];

/// Flags that this provisioner cannot honour.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error("--volume-name-prefix must not be empty: every volume's name begins with it")]
    NoPrefix,
    #[error("--node-deployment is not supported: run the provisioner once for the cluster")]
    NodeDeployment,
}

impl Args {
    /// Checks what the parser cannot.
    pub fn check(&self) -> Result<(), Invalid> {
        for (flag, workers) in
            [("worker-threads", self.worker_threads), ("capacity-threads", self.capacity_threads)]
        {
            if workers == 0 {
                return Err(Conflict::Zero(flag).into());
            }
        }
        if self.volume_name_prefix.is_empty() {
            return Err(Invalid::NoPrefix);
        }
        if self.node_deployment {
            return Err(Invalid::NodeDeployment);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Role {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Args {
        Role::try_parse_from(["provisioner"].iter().chain(flags)).expect("flags").args
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let args = parse(&[]);
        assert_eq!((args.volume_name_prefix.as_str(), args.volume_name_uuid_length), ("pvc", -1));
        assert_eq!(
            (args.timeout, args.retry_interval_start),
            (Duration::from_secs(10), Duration::from_secs(1))
        );
        assert_eq!((args.worker_threads, args.capacity_ownerref_level), (100, 1));
        assert!(!args.strict_topology && args.immediate_topology && args.prevent_volume_mode_conversion);
        assert_eq!(args.check(), Ok(()));
    }

    #[test]
    fn the_flags_of_deployed_manifests_are_taken() {
        let args = parse(&[
            "--csi-address=/csi/csi.sock",
            "--feature-gates=Topology=true",
            "--strict-topology",
            "--immediate-topology=false",
            "--extra-create-metadata=true",
            "--enable-capacity",
            "--capacity-ownerref-level=-1",
            "--volume-name-uuid-length=8",
            "--retry-interval-max=30s",
            "--default-fstype=ext4",
        ]);
        assert!(args.strict_topology && !args.immediate_topology && args.extra_create_metadata);
        assert_eq!((args.capacity_ownerref_level, args.volume_name_uuid_length), (-1, 8));
    }

    #[test]
    fn flags_that_cannot_be_honoured_are_refused() {
        for (flag, expected) in [
            ("--worker-threads=0", Invalid::Conflict(Conflict::Zero("worker-threads"))),
            ("--volume-name-prefix=", Invalid::NoPrefix),
            ("--node-deployment", Invalid::NodeDeployment),
        ] {
            assert_eq!(parse(&[flag]).check(), Err(expected));
        }
    }
}
