//! The metrics registry, and the histogram that every CSI sidecar has.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The metrics of a process. Clones share the registry.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let start = Gauge::<i64>::default();
        start.set(i64::try_from(now().as_secs()).unwrap_or(i64::MAX));
        registry.register("process_start_time_seconds", "Start of the process since the Unix epoch", start);
        Self(Arc::new(Mutex::new(registry)))
    }
}

#[allow(clippy::disallowed_methods, reason = "the start time of the process is read here, at the edge")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Metrics {
    /// Adds metrics to the registry.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics in the `OpenMetrics` text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            Ok(()) => text,
            // Writing into a String cannot fail; a metric's own encoder could.
            Err(error) => format!("# {error}\n"),
        }
    }
}

/// Seconds, as upstream's sidecars have them: dashboards depend on these bounds.
const OPERATION_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    driver_name: String,
    method_name: String,
    grpc_status_code: &'static str,
}

/// `csi_sidecar_operations_seconds`: every call to the driver, by method and gRPC code.
#[derive(Clone)]
pub struct CsiOperations {
    driver: Arc<Mutex<String>>,
    seconds: Family<OperationLabels, Histogram>,
}

impl CsiOperations {
    /// Registers the histogram. Until [`CsiOperations::set_driver`] its driver is `unknown-driver`.
    pub fn new(metrics: &Metrics) -> Self {
        let seconds =
            Family::new_with_constructor((|| Histogram::new(OPERATION_BUCKETS)) as fn() -> Histogram);
        metrics.register(|registry| {
            registry.register(
                "csi_sidecar_operations_seconds",
                "Duration of calls to the CSI driver and their gRPC status",
                seconds.clone(),
            );
        });
        Self { driver: Arc::new(Mutex::new("unknown-driver".to_owned())), seconds }
    }

    /// Names the driver, once `GetPluginInfo` has told it.
    pub fn set_driver(&self, name: &str) {
        name.clone_into(&mut self.driver.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes one call. `method` is the full gRPC method such as `/csi.v1.Controller/CreateVolume`, `code` the number
    /// of its gRPC status.
    pub fn observe(&self, method: &str, code: i32, took: Duration) {
        let labels = OperationLabels {
            driver_name: self.driver.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            method_name: method.to_owned(),
            grpc_status_code: code_name(code),
        };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// The spelling of gRPC codes that upstream's metrics use.
pub fn code_name(code: i32) -> &'static str {
    match code {
        0 => "OK",
        1 => "Canceled",
        2 => "Unknown",
        3 => "InvalidArgument",
        4 => "DeadlineExceeded",
        5 => "NotFound",
        6 => "AlreadyExists",
        7 => "PermissionDenied",
        8 => "ResourceExhausted",
        9 => "FailedPrecondition",
        10 => "Aborted",
        11 => "OutOfRange",
        12 => "Unimplemented",
        13 => "Internal",
        14 => "Unavailable",
        15 => "DataLoss",
        16 => "Unauthenticated",
        _ => "unknown-non-grpc",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_shows_with_upstreams_names_and_spelling() {
        let metrics = Metrics::default();
        let operations = CsiOperations::new(&metrics);
        operations.set_driver("local.csi.dunnage.dev");
        operations.observe("/csi.v1.Controller/CreateVolume", 8, Duration::from_millis(300));
        let text = metrics.render();
        let labels = "driver_name=\"local.csi.dunnage.dev\",method_name=\"/csi.v1.Controller/CreateVolume\",\
                      grpc_status_code=\"ResourceExhausted\"";
        assert!(text.contains(&format!("csi_sidecar_operations_seconds_count{{{labels}}} 1")), "{text}");
        assert!(
            text.contains(&format!("csi_sidecar_operations_seconds_bucket{{le=\"0.5\",{labels}}} 1")),
            "{text}"
        );
        assert!(text.contains("process_start_time_seconds "), "{text}");
    }
}
