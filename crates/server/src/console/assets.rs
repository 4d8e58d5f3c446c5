//! The style sheet, the script and the icon, compiled into the binary. Their URLs contain a hash of
//! their contents, so browsers may cache them and never mix two versions.

use super::QueryParams;
use axum::extract::Query;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use model::retry::fnv1a;

const CSS: &str = include_str!("console.css");
const JS: &str = include_str!("console.js");
const ICON: &str = include_str!("favicon.svg");

const KEEP: &str = "public, max-age=31536000, immutable";
/// For a URL with the hash of another version: a replica with an older or newer binary made it.
const ASK_AGAIN: &str = "no-cache";

pub(super) fn css_address() -> String {
    format!("/console.css?v={}", content_hash(CSS))
}

pub(super) fn js_address() -> String {
    format!("/console.js?v={}", content_hash(JS))
}

pub(super) async fn css(Query(requested): Query<QueryParams>) -> Response {
    serve("text/css; charset=utf-8", CSS, &requested)
}

pub(super) async fn js(Query(requested): Query<QueryParams>) -> Response {
    serve("text/javascript; charset=utf-8", JS, &requested)
}

pub(super) async fn icon(Query(requested): Query<QueryParams>) -> Response {
    serve("image/svg+xml", ICON, &requested)
}

fn content_hash(contents: &str) -> String {
    format!("{:016x}", fnv1a(contents, 0))
}

fn serve(kind: &'static str, contents: &'static str, requested: &QueryParams) -> Response {
    let same = requested.get("v").is_some_and(|v| *v == content_hash(contents));
    let keep = if same { KEEP } else { ASK_AGAIN };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], contents).into_response()
}
