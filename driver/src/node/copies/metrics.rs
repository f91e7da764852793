//! What is counted of copies between pools.

use dunnage_telemetry::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    direction: &'static str,
}

/// Which way data go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    In,
    Out,
}

impl Direction {
    fn labels(self) -> Labels {
        Labels {
            direction: match self {
                Self::In => "in",
                Self::Out => "out",
            },
        }
    }
}

/// Clones share the values.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyMetrics {
    bytes: Family<Labels, Counter>,
    running: Family<Labels, Gauge>,
}

/// Counts one copy as running until it is dropped.
pub(super) struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl CopyMetrics {
    pub(super) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "dunnage_driver_copied_bytes",
                "Bytes of volumes' data copied from (in) and to (out) other nodes",
                self.bytes.clone(),
            );
            registry.register(
                "dunnage_driver_copies_running",
                "Copies from (in) and to (out) other nodes that are running",
                self.running.clone(),
            );
        });
    }

    pub(super) fn running(&self, direction: Direction) -> Running {
        let gauge = self.running.get_or_create(&direction.labels()).clone();
        gauge.inc();
        Running(gauge)
    }

    pub(super) fn copied(&self, direction: Direction, bytes: u64) {
        self.bytes.get_or_create(&direction.labels()).inc_by(bytes);
    }
}
