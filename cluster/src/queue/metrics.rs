//! The queue's metrics under the names that dashboards for Kubernetes controllers know.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 10.0, 60.0, 300.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    name: &'static str,
}

/// The `workqueue_*` metrics of all queues of a process.
#[derive(Clone)]
pub struct Metrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    waited: Family<Labels, Histogram, fn() -> Histogram>,
    worked: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(histogram),
            worked: Family::new_with_constructor(histogram),
        }
    }
}

impl Metrics {
    /// Shows the metrics in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Keys that wait for a worker", self.depth.clone());
        registry.register("workqueue_adds", "Keys added", self.adds.clone());
        registry.register("workqueue_retries", "Keys added again after a failure", self.retries.clone());
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time a key waited for a worker",
            self.waited.clone(),
        );
        registry.register("workqueue_work_duration_seconds", "Time a key was worked", self.worked.clone());
    }

    pub(super) fn named(&self, name: &'static str) -> Named {
        let labels = Labels { name };
        Named {
            depth: self.depth.get_or_create(&labels).clone(),
            adds: self.adds.get_or_create(&labels).clone(),
            retries: self.retries.get_or_create(&labels).clone(),
            waited: self.waited.get_or_create(&labels).clone(),
            worked: self.worked.get_or_create(&labels).clone(),
        }
    }
}

/// The metrics of one queue.
pub(super) struct Named {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl Named {
    pub(super) fn added(&self, depth: usize) {
        self.promoted(1, depth);
    }

    pub(super) fn promoted(&self, keys: usize, depth: usize) {
        self.adds.inc_by(keys as u64);
        self.set_depth(depth);
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn taken(&self, waited: Duration, depth: usize) {
        self.waited.observe(waited.as_secs_f64());
        self.set_depth(depth);
    }

    pub(super) fn finished(&self, worked: Duration, depth: usize) {
        self.worked.observe(worked.as_secs_f64());
        self.set_depth(depth);
    }

    fn set_depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
}
