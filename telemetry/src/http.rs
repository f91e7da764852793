//! The HTTP server of a role: `/healthz`, `/readyz` and `/metrics`.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::health::{Checks, Report};
use crate::metrics::Metrics;

/// Serves until `stop` is cancelled. An address that cannot be bound is an error at once.
pub async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    checks: Checks,
    stop: CancellationToken,
) -> io::Result<()> {
    serve_at(address, "/metrics", metrics, checks, stop).await
}

/// As [`serve`], with the metrics under another path.
pub async fn serve_at(
    address: SocketAddr,
    metrics_path: &str,
    metrics: Metrics,
    checks: Checks,
    stop: CancellationToken,
) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    info!(address = %listener.local_addr()?, "serving health and metrics");
    axum::serve(listener, routes(metrics_path, metrics, checks))
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

fn routes(metrics_path: &str, metrics: Metrics, checks: Checks) -> Router {
    let ready = checks.clone();
    Router::new()
        .route("/healthz", get(async move || answer(checks.report_live())))
        .route("/readyz", get(async move || answer(ready.report_ready())))
        .route(
            metrics_path,
            get(async move || {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([(header::CONTENT_TYPE, kind)], metrics.render())
            }),
        )
}

fn answer(report: Report) -> impl IntoResponse {
    let status = if report.passed { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let text = if report.text.is_empty() { "ok\n".to_owned() } else { report.text };
    (status, text)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("read");
        text
    }

    #[tokio::test]
    async fn a_role_tells_health_readiness_and_metrics() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = free.local_addr().expect("address");
        drop(free);
        let checks = Checks::default();
        checks.ready("pool", || Err("missing".to_owned()));
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(address, Metrics::default(), checks, stop.clone()));
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 500") && ready.contains("pool: missing"), "{ready}");
        assert!(get(address, "/metrics").await.contains("# EOF"));
        stop.cancel();
        server.await.expect("task").expect("clean stop");
    }
}
