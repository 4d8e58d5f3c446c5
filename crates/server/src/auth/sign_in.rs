//! The sign-in of browsers: with a link that works once, with an API token, or with the identity
//! provider.

use super::{Cookies, oidc_sign_in};
use crate::console::{ProviderLink, sign_in_page, with_headers};
use crate::listener::PeerAddress;
use crate::oidc::OidcProvider;
use crate::rate_limit::SignInLimit;
use axum::Form;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use engine::access::{AccessControl, Caller, NewToken, SignInMethod, SignInProof};
use engine::audit::AuditLog;
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;
use store::{Result, StoreError};
use tokio::sync::Semaphore;

pub(crate) const PATH: &str = "/sign-in";
pub(crate) const SIGN_OUT: &str = "/sign-out";
/// The longest form. Anyone can send one, and it is kept in memory until its end.
const MAX_FORM: usize = 16 * 1024;
/// The reason of attempts that were too many, in the audit log.
const TOO_MANY: &str = "TOO_MANY_SIGN_INS";

/// The path and query of a sign-in link.
pub(crate) fn sign_in_path(code: &NewToken) -> String {
    format!("{PATH}?code={}", code.secret.expose_secret())
}

#[derive(Deserialize)]
struct SignInQuery {
    #[serde(default)]
    code: String,
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct SignInForm {
    token: String,
    #[serde(default)]
    next: String,
}

/// How browsers sign in, and what their sessions are worth.
#[derive(Clone)]
pub(crate) struct SignIn {
    pub access: AccessControl,
    pub audit: AuditLog,
    pub oidc: Option<Arc<OidcProvider>>,
    pub cookies: Cookies,
}

#[derive(Clone)]
pub(super) struct SignInState {
    pub sign_in: SignIn,
    limit: SignInLimit,
    /// The sign-ins that wait for the provider.
    pub exchanges: Arc<Semaphore>,
}

pub(crate) fn router(sign_in: SignIn) -> Router {
    let exchanges = Arc::new(Semaphore::new(oidc_sign_in::MAX_EXCHANGES));
    Router::new()
        .route(PATH, get(show).post(submit))
        .route(SIGN_OUT, post(sign_out))
        .merge(oidc_sign_in::routes())
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(map_response(with_headers))
        .with_state(SignInState { sign_in, limit: SignInLimit::default(), exchanges })
}

/// The address of the browser, if the listener reports it.
pub(super) type Peer = Option<Extension<PeerAddress>>;

async fn show(
    State(state): State<SignInState>,
    peer: Peer,
    Query(query): Query<SignInQuery>,
) -> Response {
    if query.code.is_empty() {
        return state.problem(StatusCode::OK, &query.next, "");
    }
    state.open(SignInProof::Link(&query.code), peer, &query.next).await
}

async fn submit(
    State(state): State<SignInState>,
    peer: Peer,
    Form(form): Form<SignInForm>,
) -> Response {
    state.open(SignInProof::Token(form.token.trim()), peer, &form.next).await
}

async fn sign_out(
    State(state): State<SignInState>,
    peer: Peer,
    caller: Extension<Caller>,
) -> Response {
    let SignIn { access, cookies, audit, .. } = &state.sign_in;
    match access.sign_out(&caller, &peer_text(peer_ip(peer)), audit).await {
        Ok(()) => {
            ([(header::SET_COOKIE, cookies.set_session("", 0))], Redirect::to(PATH)).into_response()
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

fn peer_ip(peer: Peer) -> Option<IpAddr> {
    peer.map(|Extension(PeerAddress(address))| address.ip())
}

/// The address as the audit log has it.
fn peer_text(peer: Option<IpAddr>) -> String {
    peer.map(|address| address.to_string()).unwrap_or_default()
}

/// A try to sign in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    method: SignInMethod,
    peer: Option<IpAddr>,
}

impl Attempt {
    pub fn new(method: SignInMethod, peer: Peer) -> Self {
        Self { method, peer: peer_ip(peer) }
    }

    pub fn peer(&self) -> String {
        peer_text(self.peer)
    }
}

impl SignInState {
    /// The answer to an attempt that is one too many. Attempts that would succeed count too: each
    /// writes a session.
    pub fn too_many(&self, attempt: Attempt, next: &str) -> Option<Response> {
        let wait = self.limit.count(attempt.peer).err()?;
        self.count_refused(attempt, TOO_MANY);
        let seconds = wait.as_secs() + 1;
        let problem = format!("Too many sign-ins from this address. Try again in {seconds} s.");
        let mut response = self.problem(StatusCode::TOO_MANY_REQUESTS, next, &problem);
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        Some(response)
    }

    /// Counts a refused attempt in the audit log.
    pub fn count_refused(&self, attempt: Attempt, reason: &str) {
        let SignIn { access, audit, .. } = &self.sign_in;
        access.count_refused_sign_in(attempt.method, &attempt.peer(), reason, audit);
    }

    async fn open(&self, proof: SignInProof<'_>, peer: Peer, next: &str) -> Response {
        let attempt = Attempt::new(proof.method(), peer);
        if let Some(refused) = self.too_many(attempt, next) {
            return refused;
        }
        let SignIn { access, audit, .. } = &self.sign_in;
        self.answer(access.sign_in(proof, &attempt.peer(), audit).await, next)
    }

    fn answer(&self, session: Result<NewToken>, next: &str) -> Response {
        let session = match session {
            Ok(session) => session,
            Err(StoreError::Refused(refusal)) => {
                return self.problem(StatusCode::UNAUTHORIZED, next, &refusal.message);
            }
            Err(error) => {
                return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response();
            }
        };
        let cookie = self.session_cookie(&session);
        ([(header::SET_COOKIE, cookie)], Redirect::to(own_path(next))).into_response()
    }

    pub fn session_cookie(&self, session: &NewToken) -> String {
        let life = session.token.expires_at.map(|end| end.since(session.token.created_at));
        let seconds = life.unwrap_or_default().as_secs();
        self.sign_in.cookies.set_session(session.secret.expose_secret(), seconds)
    }

    /// The sign-in page, which says why the last try failed.
    pub fn problem(&self, status: StatusCode, next: &str, problem: &str) -> Response {
        let provider = self.browser_provider();
        let link = provider.as_ref().map(|provider| ProviderLink {
            path: oidc_sign_in::PATH,
            name: &provider.display_name,
        });
        (status, sign_in_page(next, problem, link)).into_response()
    }

    /// The identity provider that signs browsers in.
    pub fn browser_provider(&self) -> Option<Arc<OidcProvider>> {
        self.sign_in.oidc.clone().filter(|provider| provider.signs_browsers_in())
    }
}

/// A path of this server, never another site.
pub(super) fn own_path(next: &str) -> &str {
    let local = next.starts_with('/') && !next.starts_with("//") && !next.contains('\\');
    if local && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::own_path;

    #[test]
    fn a_sign_in_leads_to_a_page_of_this_server() {
        for (next, path) in [
            ("/machines/m-1?x=1", "/machines/m-1?x=1"),
            ("", "/"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/a\r\nset-cookie: x", "/"),
        ] {
            assert_eq!(own_path(next), path, "{next:?}");
        }
    }
}
