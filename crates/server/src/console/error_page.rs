//! Error pages: what happened, and what to do now. The only place where an error becomes an HTTP
//! status.

use super::frame::{Frame, Section, command};
use super::text::clean_text;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use model::refusal::{Refusal, RefusalKind};
use store::StoreError;
use tonic::Status;

/// The result of a page's handler.
pub(super) type PageResult = Result<Response, ErrorPage>;

/// An error page.
#[derive(Debug)]
pub(super) struct ErrorPage {
    pub status: StatusCode,
    title: &'static str,
    message: String,
    /// The command to type next.
    next: Option<String>,
}

impl ErrorPage {
    /// The URL names an object that cannot exist.
    pub fn not_found(refusal: Refusal) -> Self {
        Self { status: StatusCode::NOT_FOUND, title: "Not found", ..Self::from(refusal) }
    }

    pub fn too_many_streams() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            title: "Too many live pages",
            message: "too many pages are live on this server; close some, or reload by hand".into(),
            next: None,
        }
    }

    fn advice(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "Check the spelling, or begin with the fleet:",
            StatusCode::SERVICE_UNAVAILABLE => {
                "Nothing was lost: operations are kept in the database and go on when it answers. \
                 Reload this page in a moment. If it stays so, look at the server's log and ask:"
            }
            StatusCode::INTERNAL_SERVER_ERROR => {
                "Other objects are not affected. The server's log names the record."
            }
            _ => "Correct it and try again.",
        }
    }

    fn body(&self) -> Markup {
        html! {
            h1 { (self.status.as_u16()) " – " (self.title) }
            section.why.red aria-label="What happened" {
                (draw_message(&self.message))
                p { (self.advice()) }
                @if let Some(next) = &self.next {
                    p { (command(next)) }
                }
            }
            p { a href="/" { "Fleet" } " · " a href="/operations" { "Operations" } " · "
                a href="/faults" { "Fault pages" } }
        }
    }
}

/// The text in one paragraph; where a caret points at a character, the lines below it unchanged.
pub(super) fn draw_message(words: &str) -> Markup {
    html! {
        @match words.split_once('\n') {
            Some((first, rest)) => {
                p.headline { (clean_text(first)) }
                pre.caret { (rest.lines().map(clean_text).collect::<Vec<_>>().join("\n")) }
            }
            None => p.headline { (clean_text(words)) }
        }
    }
}

impl From<Refusal> for ErrorPage {
    fn from(refusal: Refusal) -> Self {
        let (status, title) = match refusal.kind() {
            RefusalKind::Invalid => (StatusCode::BAD_REQUEST, "Not understood"),
            RefusalKind::NotFound => (StatusCode::NOT_FOUND, "Not found"),
            RefusalKind::Precondition => (StatusCode::CONFLICT, "Not now"),
            RefusalKind::Exists => (StatusCode::CONFLICT, "Already there"),
            RefusalKind::Gone => (StatusCode::GONE, "Cleared away"),
            RefusalKind::Unauthenticated => (StatusCode::UNAUTHORIZED, "Not signed in"),
            RefusalKind::Denied => (StatusCode::FORBIDDEN, "Not allowed"),
            RefusalKind::Exhausted => (StatusCode::INSUFFICIENT_STORAGE, "No room"),
        };
        Self { status, title, message: refusal.message, next: refusal.next_command }
    }
}

impl From<StoreError> for ErrorPage {
    fn from(error: StoreError) -> Self {
        let (status, title) = match error {
            StoreError::Refused(refusal) => return Self::from(refusal),
            StoreError::Unavailable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "The database does not answer")
            }
            StoreError::Conflict => {
                (StatusCode::SERVICE_UNAVAILABLE, "It was changed at the same moment")
            }
            StoreError::Corrupt(_) => {
                tracing::error!(%error, "a stored record cannot be read");
                (StatusCode::INTERNAL_SERVER_ERROR, "A record cannot be read")
            }
        };
        let next = match status {
            StatusCode::SERVICE_UNAVAILABLE => "farrier list",
            _ => "farrier db check",
        };
        let next = Some(next.to_string());
        Self { status, title, message: error.to_string(), next }
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let (status, title) = (self.status, self.title);
        Frame { title, section: Section::Nowhere, live: None, body: self.body() }.answer(status)
    }
}

/// The answer to a request that no route matches. A gRPC client gets a gRPC status.
pub(super) async fn no_route(uri: Uri, headers: HeaderMap) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return Status::unimplemented("").into_http();
    }
    let path: String = uri.path().chars().take(128).collect();
    ErrorPage::not_found(Refusal::not_found("page", path, "farrier list")).into_response()
}
