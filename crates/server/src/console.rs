//! The web console: a read-only view for operators.
//!
//! Every page is a complete HTML document that the server renders, so it works without a script and
//! in any browser. One small script keeps open pages current: it listens to a stream of change
//! events and fetches the same page again, so each page is rendered in one place only. Scripts and
//! styles are served by Farrier; the Content-Security-Policy of every page allows no others.

mod assets;
mod badge;
mod clock;
mod device;
mod error_page;
mod fault;
mod fleet;
mod frame;
mod history;
mod list;
mod log;
mod machine;
mod markdown;
mod node;
mod queries;
mod rack;
mod run;
mod sign_in;
mod stream;
mod summary;
mod text;
mod why;

pub(crate) use sign_in::{ProviderLink, sign_in_page, signed_in_page};

use crate::audit_end::RecordedEnd;
use axum::Router;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::middleware::map_response;
use axum::response::{Redirect, Response};
use axum::routing::{any, get};
use engine::Engine;
use engine::secret::SecretStore;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The query parameters of a page.
type QueryParams = HashMap<String, String>;

/// The maximum number of pages with an open stream. Each holds a connection and a watch.
const MAX_STREAMS: usize = 1_024;

#[derive(Clone)]
struct Console {
    engine: Engine,
    secrets: Option<SecretStore>,
    audit_end: Option<RecordedEnd>,
    summary: Arc<summary::SummaryCache>,
    streams: Arc<Semaphore>,
}

pub(crate) fn router(
    engine: Engine,
    secrets: Option<SecretStore>,
    audit_end: Option<RecordedEnd>,
) -> Router {
    let (summary, streams) = (Arc::default(), Arc::new(Semaphore::new(MAX_STREAMS)));
    let console = Console { engine, secrets, audit_end, summary, streams };
    Router::new()
        .route("/", get(fleet::show))
        .route("/machines", get(|| async { Redirect::temporary("/") }))
        .route("/machines/{id}", get(machine::show))
        .route("/racks", get(rack::list::show))
        .route("/racks/{id}", get(rack::show))
        .route("/nodes", get(node::list::show))
        .route("/nodes/{id}", get(node::show))
        .route("/switches/{id}", get(device::switch))
        .route("/power-shelves/{id}", get(device::power_shelf))
        .route("/operations", get(run::list::show))
        .route("/operations/{id}", get(run::show))
        .route("/operations/{id}/stream", get(stream::stream_run))
        .route("/stream", get(stream::stream_changes))
        .route("/faults", get(fault::list))
        .route("/faults/{code}", get(fault::show))
        .route("/console.css", get(assets::css))
        .route("/console.js", get(assets::js))
        .route("/favicon.svg", get(assets::icon))
        .route("/{*path}", any(error_page::no_route))
        .layer(map_response(with_headers))
        .with_state(console)
}

/// The Content-Security-Policy: a page may load our own files and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

pub(crate) async fn with_headers(mut response: Response) -> Response {
    let rules: [(HeaderName, &'static str); 4] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, rule) in rules {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(rule));
    }
    response
}

#[cfg(test)]
mod tests;
