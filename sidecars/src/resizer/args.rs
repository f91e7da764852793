//! The resizer's command line: upstream's flags.

use std::time::Duration;

use clap::ArgAction;

use crate::flags::{Conflict, Standard, duration};

/// The gate that leaves a note on volumes for the time until their file system is grown.
pub(super) const ANNOTATE: &str = "AnnotateFsResize";
/// The gate for `VolumeAttributesClasses`.
pub(super) const ATTRIBUTES: &str = "VolumeAttributesClass";
pub(super) const GATES: [&str; 4] =
    [ANNOTATE, ATTRIBUTES, "RecoverVolumeExpansionFailure", "ReleaseLeaderElectionOnExit"];

/// The flags of upstream's external-resizer.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What all sidecars have.
    #[command(flatten)]
    pub standard: Standard,
    /// How often everything is looked at again.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub resync_period: Duration,
    /// Claims grown at once, and as many modified.
    #[arg(long, default_value_t = 10)]
    pub workers: usize,
    /// Limit for each call to the driver.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// Wait after the first failure; it doubles with each further one.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub retry_interval_start: Duration,
    /// Longest wait after a failure, and the wait after a size or class that the driver calls impossible.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub retry_interval_max: Duration,
    /// After the driver has refused to grow a volume in use, waits until no pod uses it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub handle_volume_inuse_error: bool,
    /// Tells the driver the names of claim and volume when a volume is modified.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub extra_modify_metadata: bool,
}

impl Args {
    /// Checks what the parser cannot.
    pub(super) fn check(&self) -> Result<(), Conflict> {
        if self.workers == 0 { Err(Conflict::Zero("workers")) } else { Ok(()) }
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
        Role::try_parse_from(["resizer"].iter().chain(flags)).expect("flags").args
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let args = parse(&[]);
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!((args.resync_period, args.workers), (minutes(10), 10));
        assert_eq!(
            (args.timeout, args.retry_interval_start),
            (Duration::from_secs(10), Duration::from_secs(1))
        );
        assert_eq!(args.retry_interval_max, minutes(5));
        assert!(args.handle_volume_inuse_error && !args.extra_modify_metadata);
        assert_eq!(args.check(), Ok(()));
    }

    #[test]
    fn the_flags_of_deployed_manifests_are_taken() {
        let args = parse(&[
            "--csi-address=/csi/csi.sock",
            "--handle-volume-inuse-error=false",
            "--extra-modify-metadata",
            "--feature-gates=RecoverVolumeExpansionFailure=true,AnnotateFsResize=false",
            "--workers=3",
        ]);
        assert!(!args.handle_volume_inuse_error && args.extra_modify_metadata);
        assert!(!args.standard.feature_gates.enabled(ANNOTATE, true));
        assert!(args.standard.feature_gates.unknown(&GATES).is_empty());
        assert_eq!(parse(&["--workers=0"]).check(), Err(Conflict::Zero("workers")));
    }
}
