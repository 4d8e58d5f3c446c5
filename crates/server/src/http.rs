//! The endpoints beside gRPC and the console: metrics and health.

use crate::auth;
use crate::oidc::OidcProvider;
use crate::request_guard::{self, ListenerApi};
use crate::telemetry;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::Engine;
use engine::access::AccessControl;
use engine::audit::AuditLog;
use metrics_exporter_prometheus::PrometheusHandle;
use proto::calls::Calls;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tonic::service::Routes;

/// The calls of the services that are not in the API's own descriptors.
const OTHER_CALLS: [&str; 4] = [
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

#[derive(Clone)]
struct HttpState {
    engine: Engine,
    metrics: Option<PrometheusHandle>,
}

/// The console, and the access to it.
pub(crate) struct ConsolePages {
    pub console: Router,
    pub access: AccessControl,
    pub audit: AuditLog,
    pub oidc: Option<Arc<OidcProvider>>,
    /// True if the listener has TLS.
    pub secure: bool,
}

/// gRPC and HTTP on one router.
pub(crate) fn router(
    engine: Engine,
    grpc: Routes,
    metrics: Option<PrometheusHandle>,
    pages: ConsolePages,
    host_names: &[String],
) -> Router {
    let shared = HttpState { engine, metrics };
    let ConsolePages { console, access, audit, oidc, secure } = pages;
    let pages = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(show_health))
        .with_state(shared);
    let sign_in = auth::sign_in_router(access.clone(), secure, oidc.clone());
    let routes = grpc.into_axum_router().merge(pages).merge(sign_in).merge(console);
    let protected = auth::protected(routes, access, audit, oidc);
    let guarded = request_guard::guarded(protected, ListenerApi::Grpc, host_names);
    guarded.layer(middleware::from_fn_with_state(PathLabels::new(), count))
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

/// The label of a request in metrics. The set is closed: the calls of the API by their path, other
/// gRPC requests as `unknown`, everything else as `http`.
#[derive(Clone)]
struct PathLabels(Arc<BTreeSet<String>>);

impl PathLabels {
    fn new() -> Self {
        let own = Calls::own().all.into_iter();
        let others = OTHER_CALLS.map(String::from);
        Self(Arc::new(own.chain(others).map(|call| format!("/{call}")).collect()))
    }

    fn label(&self, request: &Request) -> String {
        let path = request.uri().path();
        match self.0.get(path) {
            Some(known) => known.clone(),
            None if path.starts_with("/farrier.") || path.starts_with("/grpc.") => "unknown".into(),
            None => "http".into(),
        }
    }
}

async fn count(State(labels): State<PathLabels>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = labels.label(&request);
    let response = next.run(request).await;
    // A failed unary call has its status in the headers; other calls have it in the trailers.
    let status = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
    let (path, status) = match status {
        Some(status) => (path, status.to_string()),
        None if response.status().is_success() => (path, "0".to_string()),
        // It was no call: it did not reach a service.
        None => ("http".to_string(), response.status().as_str().to_string()),
    };
    metrics::counter!("farrier_requests_total", "path" => path.clone(), "status" => status)
        .increment(1);
    metrics::histogram!("farrier_request_seconds", "path" => path)
        .record(started.elapsed().as_secs_f64());
    response
}
