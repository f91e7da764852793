//! How long calls take and how they end, measured around every service.

use std::task::{Context, Poll};
use std::time::Instant;

use dunnage_telemetry::metrics::{Metrics, code_name};
use futures::future::BoxFuture;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// Seconds, from a look at memory to the formatting of a large disk.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0, 300.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    method: String,
    grpc_status_code: &'static str,
}

/// The layer; clones share the histogram.
#[derive(Clone)]
pub(super) struct Calls(Family<Labels, Histogram>);

impl Calls {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        metrics.register(|registry| {
            registry.register(
                "dunnage_driver_call_seconds",
                "Duration of calls to the driver",
                seconds.clone(),
            );
        });
        Self(seconds)
    }
}

impl<S> Layer<S> for Calls {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured { inner, calls: self.clone() }
    }
}

/// A service that is measured.
#[derive(Clone)]
pub(super) struct Measured<S> {
    inner: S,
    calls: Calls,
}

impl<S, A, B> Service<Request<A>> for Measured<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let calls = self.calls.clone();
        let start = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let labels = Labels { method, grpc_status_code: code_name(code(&answer)) };
            calls.0.get_or_create(&labels).observe(start.elapsed().as_secs_f64());
            Ok(answer)
        })
    }
}

/// An error has its code in the headers; a success sends it after the body.
fn code<B>(answer: &Response<B>) -> i32 {
    answer
        .headers()
        .get("grpc-status")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}
