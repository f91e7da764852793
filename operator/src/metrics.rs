//! What the operator counts about its passes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    category: &'static str,
}

/// Durations and failures of passes. Clones share the counts.
#[derive(Clone)]
pub struct Passes {
    seconds: Histogram,
    errors: Family<ErrorLabels, Counter>,
}

impl Default for Passes {
    fn default() -> Self {
        Self { seconds: Histogram::new([0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0]), errors: Family::default() }
    }
}

impl Passes {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Duration of one pass over a backend";
        registry.register("dunnage_operator_reconcile_seconds", help, self.seconds.clone());
        let help = "Passes that failed, by what was in the way";
        registry.register("dunnage_operator_reconcile_errors", help, self.errors.clone());
    }

    pub(crate) fn start(&self) -> Timer<'_> {
        Timer { passes: self, since: Instant::now() }
    }
}

pub(crate) struct Timer<'a> {
    passes: &'a Passes,
    since: Instant,
}

impl Timer<'_> {
    pub(crate) fn stop(self, error: Option<&'static str>) {
        self.passes.seconds.observe(self.since.elapsed().as_secs_f64());
        if let Some(category) = error {
            self.passes.errors.get_or_create(&ErrorLabels { category }).inc();
        }
    }
}
