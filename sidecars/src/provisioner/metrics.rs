//! The provisioner's own metrics, under the names that dashboards know.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Provision {
    class: String,
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Delete {
    class: String,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    Done,
    Failed,
}

/// All of them. Clones are the same metrics.
#[derive(Clone)]
pub struct Metrics {
    provisioned: Family<Provision, Counter>,
    provision_failed: Family<Provision, Counter>,
    provision_seconds: Family<Provision, Histogram, fn() -> Histogram>,
    deleted: Family<Delete, Counter>,
    delete_failed: Family<Delete, Counter>,
    delete_seconds: Family<Delete, Histogram, fn() -> Histogram>,
    pub capacity_wanted: Gauge,
    pub capacity_current: Gauge,
    pub capacity_obsolete: Gauge,
    pub journal_entries: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_seconds: Family::new_with_constructor(histogram),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_seconds: Family::new_with_constructor(histogram),
            capacity_wanted: Gauge::default(),
            capacity_current: Gauge::default(),
            capacity_obsolete: Gauge::default(),
            journal_entries: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Shows them in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let claim = registry.sub_registry_with_prefix("controller_persistentvolumeclaim");
        claim.register("provision", "Volumes made", self.provisioned.clone());
        claim.register(
            "provision_failed",
            "Attempts to make a volume that failed",
            self.provision_failed.clone(),
        );
        claim.register("provision_duration_seconds", "Time to make a volume", self.provision_seconds.clone());
        let volume = registry.sub_registry_with_prefix("controller_persistentvolume");
        volume.register("delete", "Volumes deleted", self.deleted.clone());
        volume.register(
            "delete_failed",
            "Attempts to delete a volume that failed",
            self.delete_failed.clone(),
        );
        volume.register("delete_duration_seconds", "Time to delete a volume", self.delete_seconds.clone());
        let capacity = registry.sub_registry_with_prefix("csistoragecapacities");
        capacity.register("desired_goal", "Objects that there should be", self.capacity_wanted.clone());
        capacity.register(
            "desired_current",
            "Objects that are as they should be",
            self.capacity_current.clone(),
        );
        capacity.register("obsolete", "Objects that are to be deleted", self.capacity_obsolete.clone());
        registry.register(
            "dunnage_provisioner_journal_entries",
            "Volumes that may exist without a PersistentVolume",
            self.journal_entries.clone(),
        );
    }

    pub fn provision(&self, class: &str, source: &'static str, took: Duration, result: Result) {
        let labels = Provision { class: class.to_owned(), source };
        match result {
            Result::Done => {
                self.provisioned.get_or_create(&labels).inc();
                self.provision_seconds.get_or_create(&labels).observe(took.as_secs_f64());
            }
            Result::Failed => drop(self.provision_failed.get_or_create(&labels).inc()),
        }
    }

    pub fn delete(&self, class: &str, took: Duration, result: Result) {
        let labels = Delete { class: class.to_owned() };
        match result {
            Result::Done => {
                self.deleted.get_or_create(&labels).inc();
                self.delete_seconds.get_or_create(&labels).observe(took.as_secs_f64());
            }
            Result::Failed => drop(self.delete_failed.get_or_create(&labels).inc()),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn the_names_are_those_that_dashboards_know() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        metrics.provision("fast", "", Duration::from_millis(20), Result::Done);
        metrics.provision("fast", "VolumeSnapshot", Duration::ZERO, Result::Failed);
        metrics.delete("fast", Duration::ZERO, Result::Done);
        metrics.delete("fast", Duration::ZERO, Result::Failed);
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        for line in [
            "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"\"} 1",
            "controller_persistentvolumeclaim_provision_failed_total{class=\"fast\",source=\"VolumeSnapshot\"} 1",
            "controller_persistentvolumeclaim_provision_duration_seconds_count{class=\"fast\",source=\"\"} 1",
            "controller_persistentvolume_delete_total{class=\"fast\"} 1",
            "controller_persistentvolume_delete_failed_total{class=\"fast\"} 1",
            "controller_persistentvolume_delete_duration_seconds_count{class=\"fast\"} 1",
            "csistoragecapacities_desired_goal 0",
            "csistoragecapacities_desired_current 0",
            "csistoragecapacities_obsolete 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
