//! The HTTP server of a sidecar: checks that may ask the driver, and metrics.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use dunnage_telemetry::metrics::Metrics;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Error;

/// The answer of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// 200 when all is well.
    pub status: StatusCode,
    /// For people.
    pub text: String,
}

impl Page {
    /// All is well.
    pub fn ok() -> Self {
        Self { status: StatusCode::OK, text: "ok".to_owned() }
    }

    /// All is not well.
    pub fn failed(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

impl From<Result<(), String>> for Page {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(|text| Self::failed(StatusCode::INTERNAL_SERVER_ERROR, text), |()| Self::ok())
    }
}

/// What the server shows.
pub struct Pages {
    router: Router,
}

impl Pages {
    /// Only the metrics, under `metrics_path`.
    pub fn new(metrics: Metrics, metrics_path: &str) -> Self {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let show = get(async move || ([(header::CONTENT_TYPE, kind)], metrics.render()));
        let path =
            if metrics_path.starts_with('/') { metrics_path.to_owned() } else { format!("/{metrics_path}") };
        Self { router: Router::new().route(&path, show) }
    }

    /// Adds a check that is answered at once.
    pub fn check(&mut self, path: &str, check: impl Fn() -> Page + Clone + Send + Sync + 'static) {
        self.ask(path, move || std::future::ready(check()));
    }

    /// Adds a check that has to ask somebody.
    pub fn ask<F>(&mut self, path: &str, check: impl Fn() -> F + Clone + Send + Sync + 'static)
    where
        F: Future<Output = Page> + Send + 'static,
    {
        let check: Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Page> + Send>> + Send + Sync> =
            Arc::new(move || Box::pin(check()));
        let answer = get(async move || {
            let page = check().await;
            (page.status, format!("{}\n", page.text))
        });
        self.router = std::mem::take(&mut self.router).route(path, answer);
    }

    /// Serves in the background until `stop` is cancelled. An address that cannot be bound is an error at once.
    pub async fn start(self, address: SocketAddr, stop: &CancellationToken) -> Result<(), Error> {
        let listener = TcpListener::bind(address).await.map_err(|source| Error::Http { address, source })?;
        info!(%address, "serving health and metrics");
        let stop = stop.clone();
        tokio::spawn(async move {
            let served = axum::serve(listener, self.router).with_graceful_shutdown(stop.cancelled_owned());
            if let Err(error) = served.await {
                warn!(%error, "the health and metrics server has ended");
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    async fn status(pages: &Pages, path: &str) -> StatusCode {
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).expect("request");
        pages.router.clone().oneshot(request).await.expect("infallible").status()
    }

    #[tokio::test]
    async fn each_check_answers_with_its_own_status() {
        let mut pages = Pages::new(Metrics::default(), "/metrics");
        pages.check("/readyz", Page::ok);
        pages.ask("/healthz", async || Page::failed(StatusCode::NOT_FOUND, "no socket"));
        for (path, expected) in [
            ("/readyz", StatusCode::OK),
            ("/healthz", StatusCode::NOT_FOUND),
            ("/metrics", StatusCode::OK),
            ("/healthz/leader-election", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(status(&pages, path).await, expected, "{path}");
        }
    }

    #[test]
    fn a_failed_check_is_an_internal_error() {
        let page = Page::from(Err("wedged".to_owned()));
        assert_eq!(page, Page::failed(StatusCode::INTERNAL_SERVER_ERROR, "wedged"));
        assert_eq!(Page::from(Ok(())), Page::ok());
    }
}
