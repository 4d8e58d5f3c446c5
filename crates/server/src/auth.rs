//! The layer in front of every route: it authenticates the caller and denies by default.
//!
//! A request needs an API token, the session cookie of a browser for pages, or a connection with a
//! client certificate; the first of them that is there decides. The layer puts the [`Caller`] into
//! the request; without one no handler gets at the engine. What a call needs is
//! the table in `calls`, which a test holds against the descriptors. Open are only the health
//! checks and the sign-in.

mod bootstrap;
mod calls;
mod certificate;
mod cookies;
mod oidc_sign_in;
mod reach;
mod revocable;
mod sign_in;

pub(crate) use bootstrap::{AdminToken, ensure_administrator};
pub(crate) use certificate::read_identity;
pub(crate) use cookies::Cookies;
pub(crate) use reach::{ObjectRule, Reach};
pub(crate) use sign_in::{
    PATH as SIGN_IN, SIGN_OUT, SignIn, router as sign_in_router, sign_in_path,
};

use crate::config::CALLBACK;
use crate::grpc::INITIATOR;
use crate::grpc::status::refusal_status;
use crate::listener::{PeerCertificates, RequestSender};
use crate::oidc::OidcProvider;
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
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Pages that need no caller: without them nobody could sign in.
const OPEN_PAGES: [&str; 6] =
    ["/healthz", sign_in::PATH, oidc_sign_in::PATH, CALLBACK, "/console.css", "/favicon.svg"];

#[derive(Clone)]
struct AuthLayer {
    access: AccessControl,
    audit: AuditLog,
    calls: Arc<CallRules>,
    oidc: Option<Arc<OidcProvider>>,
    cookies: Cookies,
}

/// The resource that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Open,
    Call(CallRule),
    Page,
}

impl Resource {
    /// Refuses a caller that may not use it. Pages and metrics show the whole fleet.
    fn check(self, caller: &Caller) -> Result<(), Refusal> {
        match self {
            Self::Open => Ok(()),
            Self::Call(rule) => rule.needs.check(caller, rule.reach),
            Self::Page => Needs::One(Permission::View).check(caller, Reach::Fleet),
        }
    }
}

/// Puts the layer in front of every route.
pub(crate) fn protected(routes: Router, sign_in: SignIn) -> Router {
    let SignIn { access, audit, oidc, cookies } = sign_in;
    let layer = AuthLayer { access, audit, calls: Arc::new(CallRules::new()), oidc, cookies };
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
    let shown = request.extensions().get::<PeerCertificates>();
    let caller = layer.caller(resource, request.headers(), shown).await;
    let entry = layer.entry(resource, &request, caller.as_ref().ok(), remark);
    let allowed = caller.and_then(|caller| resource.check(&caller).map(|()| caller));
    let caller = match allowed {
        Ok(caller) => caller,
        Err(refusal) => {
            if let Some(entry) = entry {
                layer.audit.count_refusal(entry, refusal.reason.as_str());
            }
            return refuse(&request, resource, refusal);
        }
    };
    if let Some(sender) = request.extensions().get::<RequestSender>() {
        sender.is_known();
    }
    // A name from a certificate or an identity provider may have other characters than ASCII.
    if let Ok(name) = HeaderValue::from_bytes(caller.principal().user.as_bytes()) {
        request.headers_mut().insert(INITIATOR, name);
    }
    request.extensions_mut().insert(caller.clone());
    if let Resource::Call(CallRule { needs, reach, .. }) = resource {
        request.extensions_mut().insert(ObjectRule { needs, reach });
    }
    let draft = entry.map(|entry| layer.audit.draft(entry));
    if let Some(draft) = &draft {
        request.extensions_mut().insert(Arc::clone(draft));
    }
    let response = match draft {
        None => next.run(request).await,
        Some(draft) => layer.clone().run_to_end(draft, request, next).await,
    };
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
                let (needs, reach) = (Needs::Caller, Reach::Fleet);
                Resource::Call(CallRule { needs, streams: false, acts: false, reach })
            }
            None => Resource::Page,
        }
    }

    /// The authenticated caller. Whether it may do what it asks for is decided afterwards, so that
    /// a refusal has its name in the audit log. `shown` is the client certificate of the
    /// connection.
    async fn caller(
        &self,
        resource: Resource,
        headers: &HeaderMap,
        shown: Option<&PeerCertificates>,
    ) -> Result<Caller, Refusal> {
        let page = resource == Resource::Page;
        // What a client sends on purpose goes before the certificate of its connection, also when
        // it is refused: a wrong token never turns into another user.
        match (bearer(headers)?, self.cookies.session(headers).filter(|_| page), shown) {
            (Some(token), _, _) => self.bearer_caller(token).await,
            (None, Some(cookie), _) => self.access.authenticate(cookie, TokenKind::Session).await,
            (None, None, Some(shown)) => self.certificate_caller(shown),
            (None, None, None) => {
                Err(unauthenticated("the request has no API token and no certificate"))
            }
        }
    }

    /// The caller with this API token, or with this token of the identity provider.
    async fn bearer_caller(&self, token: &str) -> Result<Caller, Refusal> {
        match &self.oidc {
            Some(provider) if is_web_token(token) => {
                let identity = provider.authenticate(token, self.access.now()).await?;
                self.access.accept(&identity)
            }
            Some(_) | None => self.access.authenticate(token, TokenKind::Api).await,
        }
    }

    fn certificate_caller(&self, shown: &PeerCertificates) -> Result<Caller, Refusal> {
        let identity = shown
            .identity()
            .map_err(|problem| unauthenticated(&format!("the client certificate {problem}")))?;
        self.access.accept(identity)
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

    /// Answers a request that acts, in a task of its own: a client that hangs up neither stops it
    /// in the middle nor keeps it out of the audit log.
    async fn run_to_end(self, draft: Arc<AuditDraft>, request: Request, next: Next) -> Response {
        let task = tokio::spawn(async move {
            let response = next.run(request).await;
            self.settle(&draft, refusal_reason(&response)).await;
            response
        });
        task.await.unwrap_or_else(|_| {
            Status::internal("the request ended in a bug; the server's log has it").into_http()
        })
    }

    /// Counts the request as refused, or makes sure that its entry is written.
    async fn settle(&self, draft: &AuditDraft, refused: Option<String>) {
        match refused {
            // A dry run, or a request whose entry is in the log.
            Some(_) if draft.is_written() => {}
            Some(reason) => self.audit.count_refusal(draft.entry(), &reason),
            None => self.audit.finish(draft).await,
        }
    }
}

/// The reason of a refused call, as its client gets it. A refused unary call has its status in the
/// headers; a stream has begun.
fn refusal_reason(response: &Response) -> Option<String> {
    let status = Status::from_header_map(response.headers())?;
    if status.code() == Code::Ok {
        return None;
    }
    let info = status.get_details_error_info();
    Some(info.map_or_else(|| format!("{:?}", status.code()), |info| info.reason))
}

/// The token of the header `authorization`; None: there is no such header.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let token = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().and_then(|value| value.split_once(' ')),
        (Some(_), Some(_)) => None,
    };
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| token.trim()) {
        Some(token) => Ok(Some(token)),
        None => Err(unauthenticated("the header authorization is not `Bearer TOKEN`")),
    }
}

/// True if a token has the form of a signed JSON Web Token: its header begins with `{"`.
fn is_web_token(token: &str) -> bool {
    token.starts_with("eyJ") && token.contains('.')
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
            ("", None),
        ] {
            let read = headers(&[("authorization", value)]);
            assert_eq!(bearer(&read).ok().flatten(), token, "{value:?}");
            // A header that is no token is refused, not ignored.
            assert_eq!(bearer(&read).is_err(), token.is_none(), "{value:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), Ok(None));
        let two = headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]);
        assert!(bearer(&two).is_err());
    }
}
