//! The web console: what an operator sees in a browser. It only reads.
//!
//! Every page is a whole document, rendered here from the engine's own answers, so it works without a
//! script, in any browser, and over a slow line in the night. One small script makes open pages live:
//! it listens to a stream of "something changed" and fetches the same page again, so there is one way
//! to draw anything. Scripts and styles are files of ours; the policy sent with each page allows no others.

mod assets;
mod badge;
mod clock;
mod device;
mod fault;
mod fleet;
mod frame;
mod history;
mod list;
mod log;
mod machine;
mod markdown;
mod node;
mod nodes;
mod operation;
mod operations;
mod rack;
mod racks;
mod read;
mod stream;
mod summary;
mod text;
mod why;
mod wrong;

use axum::Router;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::middleware::map_response;
use axum::response::{Redirect, Response};
use axum::routing::{any, get};
use engine::Engine;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What a page is asked for, beside its path.
type Asked = HashMap<String, String>;

/// How many pages may be live at once. Each holds a connection and a place in the events.
const MAX_STREAMS: usize = 1_024;

#[derive(Clone)]
struct Console {
    engine: Engine,
    summary: Arc<summary::Cache>,
    streams: Arc<Semaphore>,
}

pub(crate) fn router(engine: Engine) -> Router {
    let console =
        Console { engine, summary: Arc::default(), streams: Arc::new(Semaphore::new(MAX_STREAMS)) };
    Router::new()
        .route("/", get(fleet::show))
        .route("/machines", get(|| async { Redirect::temporary("/") }))
        .route("/machines/{id}", get(machine::show))
        .route("/racks", get(racks::show))
        .route("/racks/{id}", get(rack::show))
        .route("/nodes", get(nodes::show))
        .route("/nodes/{id}", get(node::show))
        .route("/switches/{id}", get(device::switch))
        .route("/power-shelves/{id}", get(device::power_shelf))
        .route("/operations", get(operations::show))
        .route("/operations/{id}", get(operation::show))
        .route("/operations/{id}/stream", get(stream::of_operation))
        .route("/stream", get(stream::of_changes))
        .route("/faults", get(fault::list))
        .route("/faults/{code}", get(fault::show))
        .route("/console.css", get(assets::css))
        .route("/console.js", get(assets::js))
        .route("/favicon.svg", get(assets::icon))
        .route("/{*path}", any(wrong::nowhere))
        .layer(map_response(with_headers))
        .with_state(console)
}

/// What a browser may do with our pages: load our own files, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

async fn with_headers(mut response: Response) -> Response {
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
