//! The layer in front of every route: it authenticates the caller and denies by default.
//!
//! A request needs an API token, or the session cookie of a browser for pages. The layer puts the
//! [`Caller`] into the request; without one no handler gets at the engine. What a call needs is
//! the table in `calls`, which a test holds against the descriptors. Open are only the health
//! checks and the sign-in.

mod bootstrap;
mod calls;
mod revocable;
mod sign_in;

pub(crate) use bootstrap::{AdminToken, ensure_administrator};
pub(crate) use sign_in::{PATH as SIGN_IN, SIGN_OUT, router as sign_in_router, sign_in_path};

use crate::grpc::INITIATOR;
use crate::grpc::status::refusal_status;
use crate::rate_limit::peer_address;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use calls::{CallRule, CallRules, Needs};
use engine::access::{AccessControl, Caller};
use engine::audit::AuditLog;
use model::access::{Permission, TokenKind, unauthenticated};
use model::audit::AuditEntry;
use model::refusal::{Refusal, RefusalKind};
use model::text::MAX_SHORT;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use revocable::RevocableBody;
use std::sync::Arc;
use store::AuditDraft;

/// The cookie of a signed-in browser.
const SESSION_COOKIE: &str = "farrier_session";
/// Pages that need no caller: without them nobody could sign in.
const OPEN_PAGES: [&str; 4] = ["/healthz", sign_in::PATH, "/console.css", "/favicon.svg"];

#[derive(Clone)]
struct AuthLayer {
    access: AccessControl,
    audit: AuditLog,
    calls: Arc<CallRules>,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Open,
    Call(CallRule),
    Page,
}

impl Resource {
    const fn needs(self) -> Needs {
        match self {
            Self::Call(rule) => rule.needs,
            Self::Page | Self::Open => Needs::One(Permission::View),
        }
    }
}

/// Puts the layer in front of every route.
pub(crate) fn protected(routes: Router, access: AccessControl, audit: AuditLog) -> Router {
    let layer = AuthLayer { access, audit, calls: Arc::new(CallRules::new()) };
    routes.layer(middleware::from_fn_with_state(layer, authenticate))
}

async fn authenticate(
    State(layer): State<AuthLayer>,
    mut request: Request,
    next: Next,
) -> Response {
    // A client cannot name itself.
    let remark = request.headers_mut().remove(INITIATOR);
    let resource = layer.resource(request.uri().path());
    if resource == Resource::Open {
        return next.run(request).await;
    }
    let caller = layer.caller(resource, request.headers()).await;
    // A caller who may not do it is known all the same.
    let entry = layer.entry(resource, &request, caller.as_ref().ok(), remark);
    let caller = caller.and_then(|caller| resource.needs().check(&caller).map(|()| caller));
    let caller = match caller {
        Ok(caller) => caller,
        Err(refusal) => {
            if let Some(entry) = entry {
                layer.audit.count_refusal(entry, refusal.reason.as_str());
            }
            return refuse(&request, resource, refusal);
        }
    };
    if let Ok(name) = HeaderValue::from_str(&caller.principal().user) {
        request.headers_mut().insert(INITIATOR, name);
    }
    request.extensions_mut().insert(caller.clone());
    let draft = entry.map(|entry| layer.audit.draft(entry));
    if let Some(draft) = &draft {
        request.extensions_mut().insert(Arc::clone(draft));
    }
    let response = next.run(request).await;
    if let Some(draft) = draft {
        layer.settle(&draft, refusal_code(&response)).await;
    }
    match resource {
        // The streams of pages live as long as those of calls.
        Resource::Call(CallRule { streams: true, .. }) | Resource::Page => {
            let grpc = resource != Resource::Page;
            let revoked = layer.access.until_revoked(caller, Permission::View);
            response.map(|body| Body::new(RevocableBody::new(body, Box::pin(revoked), grpc)))
        }
        Resource::Call(_) | Resource::Open => response,
    }
}

impl AuthLayer {
    fn resource(&self, path: &str) -> Resource {
        match self.calls.get(path) {
            Some(rule) if rule.needs == Needs::Nothing => Resource::Open,
            Some(rule) => Resource::Call(rule),
            None if OPEN_PAGES.contains(&path) => Resource::Open,
            None if path.starts_with("/farrier.") || path.starts_with("/grpc.") => {
                Resource::Call(CallRule { needs: Needs::Caller, streams: false, acts: false })
            }
            None => Resource::Page,
        }
    }

    /// Who sends the request, whatever it needs.
    async fn caller(&self, resource: Resource, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let page = match resource {
            Resource::Call(_) => false,
            Resource::Page | Resource::Open => true,
        };
        match (bearer(headers), session(headers).filter(|_| page)) {
            (Some(token), _) => self.access.authenticate(token, TokenKind::Api).await,
            (None, Some(cookie)) => self.access.authenticate(cookie, TokenKind::Session).await,
            (None, None) => Err(unauthenticated("the request has no API token")),
        }
    }

    /// The entry of the audit log; none for a request that only reads.
    fn entry(
        &self,
        resource: Resource,
        request: &Request,
        caller: Option<&Caller>,
        remark: Option<HeaderValue>,
    ) -> Option<AuditEntry> {
        let Resource::Call(CallRule { acts: true, .. }) = resource else { return None };
        let call = request.uri().path().trim_start_matches('/');
        let entry = AuditEntry::of(caller.map(Caller::principal), call, self.access.now());
        let remark = remark.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        let remark = remark.chars().take(MAX_SHORT).collect();
        let peer = peer_address(request).map(|address| address.to_string()).unwrap_or_default();
        Some(AuditEntry { remark, peer, ..entry })
    }

    /// Counts the request as refused, or makes sure that its entry is written.
    async fn settle(&self, draft: &AuditDraft, refused: Option<tonic::Code>) {
        match refused {
            Some(code) => self.audit.count_refusal(draft.entry(), &format!("{code:?}")),
            None => self.audit.finish(draft).await,
        }
    }
}

/// The code of a refused call. A refused unary call has its status in the headers; a stream has
/// begun.
fn refusal_code(response: &Response) -> Option<tonic::Code> {
    let status = response.headers().get("grpc-status")?.to_str().ok()?.parse().ok()?;
    Some(tonic::Code::from_i32(status)).filter(|code| *code != tonic::Code::Ok)
}

/// The token of the header `authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The session of a browser.
fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|value| value.split(';')).filter_map(|one| one.split_once('='));
    pairs.find(|(name, _)| name.trim() == SESSION_COOKIE).map(|(_, value)| value.trim())
}

fn refuse(request: &Request, resource: Resource, refusal: Refusal) -> Response {
    if resource != Resource::Page {
        return refusal_status(refusal).into_http::<Body>();
    }
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let browser = accepts.is_some_and(|types| types.contains("text/html"));
    let unknown = refusal.kind() == RefusalKind::Unauthenticated;
    if unknown && browser && request.method() == Method::GET {
        let asked = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let next = utf8_percent_encode(asked, NON_ALPHANUMERIC);
        return Redirect::to(&format!("{}?next={next}", sign_in::PATH)).into_response();
    }
    let message = format!("{refusal}\n");
    match unknown {
        true => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, message).into_response()
        }
        false => (StatusCode::FORBIDDEN, message).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_token_is_read_from_the_authorization_header() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
        ] {
            assert_eq!(bearer(&headers(&[("authorization", value)])), token, "{value:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn a_session_is_one_cookie_among_others() {
        for (value, found) in [
            ("farrier_session=abc", Some("abc")),
            ("a=b; farrier_session=abc; c=d", Some("abc")),
            ("xfarrier_session=abc", None),
            ("farrier_session", None),
        ] {
            assert_eq!(session(&headers(&[("cookie", value)])), found, "{value:?}");
        }
        let two = headers(&[("cookie", "a=b"), ("cookie", "farrier_session=x")]);
        assert_eq!(session(&two), Some("x"));
    }
}
