//! How long snapshots take, under upstream's names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_crds::snapshot::VolumeSnapshot;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// What is measured of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Create,
    CreateAndReady,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CreateSnapshot",
            Self::CreateAndReady => "CreateSnapshotAndReady",
            Self::Delete => "DeleteSnapshot",
        }
    }
}

/// Since when, and on which driver as far as it is known, by the snapshot's uid.
type Running = HashMap<(String, Operation), (Instant, String)>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    operation_name: &'static str,
    snapshot_type: &'static str,
    operation_status: &'static str,
}

/// The operations under way and those that have ended. Clones are the same.
#[derive(Clone)]
pub(super) struct Operations {
    seconds: Family<Labels, Histogram>,
    in_flight: Gauge,
    running: Arc<Mutex<Running>>,
}

impl Default for Operations {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram),
            in_flight: Gauge::default(),
            running: Arc::default(),
        }
    }
}

impl Operations {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "snapshot_controller_operation_total_seconds",
            "Time of whole operations on snapshots",
            self.seconds.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Operations on snapshots that are under way",
            self.in_flight.clone(),
        );
    }

    /// Begins an operation, unless it is under way.
    pub(super) fn begin(&self, snapshot: &VolumeSnapshot, operation: Operation, driver: &str) {
        let mut running = self.running();
        let begin = || (Instant::now(), driver.to_owned());
        running.entry((uid(snapshot), operation)).or_insert_with(begin);
        self.count(&running);
    }

    /// Ends an operation well; an empty driver is the one of its begin.
    pub(super) fn end(&self, snapshot: &VolumeSnapshot, operation: Operation, driver: &str) {
        self.finish(snapshot, operation, driver, "success");
    }

    /// The snapshot is deleted before it was ready.
    pub(super) fn cancel(&self, snapshot: &VolumeSnapshot, driver: &str) {
        for operation in [Operation::Create, Operation::CreateAndReady] {
            self.finish(snapshot, operation, driver, "cancel");
        }
    }

    fn finish(&self, snapshot: &VolumeSnapshot, operation: Operation, driver: &str, status: &'static str) {
        let mut running = self.running();
        let Some((since, known)) = running.remove(&(uid(snapshot), operation)) else { return };
        self.count(&running);
        let by_hand = snapshot.spec.source.volume_snapshot_content_name.is_some();
        let labels = Labels {
            driver_name: if driver.is_empty() { known } else { driver.to_owned() },
            operation_name: operation.as_str(),
            snapshot_type: if by_hand { "pre-provisioned" } else { "dynamic" },
            operation_status: status,
        };
        self.seconds.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
    }

    fn count(&self, running: &Running) {
        self.in_flight.set(i64::try_from(running.len()).unwrap_or(i64::MAX));
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid(snapshot: &VolumeSnapshot) -> String {
    snapshot.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use dunnage_telemetry::metrics::Metrics;

    use super::super::plan::tests::snapshot;
    use super::*;

    #[test]
    fn an_operation_is_counted_once_under_upstreams_names() {
        let (metrics, operations) = (Metrics::default(), Operations::default());
        metrics.register(|registry| operations.register(registry));
        let snapshot = snapshot(|_| ());
        operations.begin(&snapshot, Operation::Create, "d");
        operations.begin(&snapshot, Operation::CreateAndReady, "");
        for _ in 0..2 {
            operations.end(&snapshot, Operation::Create, "");
        }
        let text = metrics.render();
        let line = "snapshot_controller_operation_total_seconds_count{driver_name=\"d\",\
                    operation_name=\"CreateSnapshot\",snapshot_type=\"dynamic\",operation_status=\"success\"} 1";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(text.contains("snapshot_controller_operations_in_flight 1"), "{text}");
        operations.cancel(&snapshot, "d");
        assert!(metrics.render().contains("operation_status=\"cancel\""));
    }
}
