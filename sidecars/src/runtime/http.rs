//! The HTTP server of a sidecar: checks that may ask the driver, and metrics.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
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

type Check = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Page> + Send>> + Send + Sync>;

/// What the server shows. Paths are compared as they are: one of them comes from the command line.
pub struct Pages {
    metrics: Metrics,
    metrics_path: String,
    checks: HashMap<&'static str, Check>,
}

impl Pages {
    /// Only the metrics, under `metrics_path`.
    pub fn new(metrics: Metrics, metrics_path: &str) -> Self {
        let path = metrics_path.trim_start_matches('/');
        Self { metrics, metrics_path: format!("/{path}"), checks: HashMap::new() }
    }

    /// Adds a check that is answered at once.
    pub fn check(&mut self, path: &'static str, check: impl Fn() -> Page + Send + Sync + 'static) {
        self.ask(path, move || std::future::ready(check()));
    }

    /// Adds a check that has to ask somebody.
    pub fn ask<F>(&mut self, path: &'static str, check: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Page> + Send + 'static,
    {
        self.checks.insert(path, Arc::new(move || Box::pin(check())));
    }

    async fn show(&self, path: &str) -> Response {
        if let Some(check) = self.checks.get(path) {
            let page = check().await;
            return (page.status, format!("{}\n", page.text)).into_response();
        }
        if path == self.metrics_path {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            return ([(header::CONTENT_TYPE, kind)], self.metrics.render()).into_response();
        }
        StatusCode::NOT_FOUND.into_response()
    }

    /// Serves in the background until `stop` is cancelled. An address that cannot be bound is an error at once.
    pub async fn start(self, address: SocketAddr, stop: &CancellationToken) -> Result<(), Error> {
        let listener = TcpListener::bind(address).await.map_err(|source| Error::Http { address, source })?;
        info!(%address, "serving health and metrics");
        let stop = stop.clone();
        tokio::spawn(async move {
            let pages = Arc::new(self);
            let answer = move |uri: Uri| {
                let pages = Arc::clone(&pages);
                async move { pages.show(uri.path()).await }
            };
            let router = Router::new().fallback(answer);
            let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
            if let Err(error) = served.await {
                warn!(%error, "the health and metrics server has ended");
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_path_answers_with_its_own_status() {
        let mut pages = Pages::new(Metrics::default(), "metrics/{all}");
        pages.check("/readyz", Page::ok);
        pages.ask("/healthz", async || Page::failed(StatusCode::NOT_FOUND, "no socket"));
        for (path, expected) in [
            ("/readyz", StatusCode::OK),
            ("/healthz", StatusCode::NOT_FOUND),
            ("/metrics/{all}", StatusCode::OK),
            ("/metrics", StatusCode::NOT_FOUND),
            ("/healthz/leader-election", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(pages.show(path).await.status(), expected, "{path}");
        }
    }

    #[test]
    fn a_failed_check_is_an_internal_error() {
        let page = Page::from(Err("wedged".to_owned()));
        assert_eq!(page, Page::failed(StatusCode::INTERNAL_SERVER_ERROR, "wedged"));
        assert_eq!(Page::from(Ok(())), Page::ok());
    }
}
