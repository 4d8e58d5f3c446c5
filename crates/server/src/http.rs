//! The endpoints beside gRPC and the console: metrics and health.

use crate::telemetry;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::Engine;
use metrics_exporter_prometheus::PrometheusHandle;
use std::time::Instant;
use tonic::service::Routes;

#[derive(Clone)]
struct HttpState {
    engine: Engine,
    metrics: Option<PrometheusHandle>,
}

/// gRPC and HTTP on one router.
pub(crate) fn router(
    engine: Engine,
    grpc: Routes,
    metrics: Option<PrometheusHandle>,
    console: Router,
) -> Router {
    let shared = HttpState { engine, metrics };
    let pages = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(show_health))
        .with_state(shared);
    grpc.into_axum_router().merge(pages).merge(console).layer(middleware::from_fn(count))
}

async fn show_metrics(State(shared): State<HttpState>) -> Response {
    let Some(metrics) = shared.metrics else {
        return StatusCode::NOT_FOUND.into_response();
    };
    telemetry::refresh(&shared.engine).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render()).into_response()
}

async fn show_health(State(shared): State<HttpState>) -> Response {
    match shared.engine.healthy().await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Counts requests. The number of paths is bounded: requests outside gRPC are counted as `http`,
/// unimplemented gRPC methods as `unknown`.
async fn count(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = request.uri().path();
    let known = path.starts_with("/farrier.v1.") || path.starts_with("/grpc.");
    let path = if known { path.to_string() } else { "http".to_string() };
    let response = next.run(request).await;
    // A failed unary call has its status in the headers; other calls have it in the trailers.
    let message = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
    let path = if message == Some("12") { "unknown".into() } else { path };
    let status = message.unwrap_or("0").to_string();
    metrics::counter!("farrier_requests_total", "path" => path.clone(), "status" => status)
        .increment(1);
    metrics::histogram!("farrier_request_seconds", "path" => path)
        .record(started.elapsed().as_secs_f64());
    response
}
