//! The sign-in of browsers: with a link that works once, with an API token, or with the identity
//! provider.

use super::{SESSION_COOKIE, oidc_sign_in};
use crate::console::{ProviderLink, sign_in_page, with_headers};
use crate::oidc::OidcProvider;
use axum::Form;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use engine::access::{AccessControl, Caller, NewToken};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::sync::Arc;
use store::{Result, StoreError};
use tokio::sync::Semaphore;

pub(crate) const PATH: &str = "/sign-in";
pub(crate) const SIGN_OUT: &str = "/sign-out";

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

#[derive(Clone)]
pub(super) struct SignInState {
    pub access: AccessControl,
    /// Browsers send the cookies only over TLS.
    secure: bool,
    oidc: Option<Arc<OidcProvider>>,
    /// The sign-ins that wait for the provider.
    pub exchanges: Arc<Semaphore>,
}

pub(crate) fn router(
    access: AccessControl,
    secure: bool,
    oidc: Option<Arc<OidcProvider>>,
) -> Router {
    let exchanges = Arc::new(Semaphore::new(oidc_sign_in::MAX_EXCHANGES));
    Router::new()
        .route(PATH, get(show).post(sign_in))
        .route(SIGN_OUT, post(sign_out))
        .merge(oidc_sign_in::routes())
        .layer(map_response(with_headers))
        .with_state(SignInState { access, secure, oidc, exchanges })
}

async fn show(State(state): State<SignInState>, Query(query): Query<SignInQuery>) -> Response {
    if query.code.is_empty() {
        return state.problem(StatusCode::OK, &query.next, "");
    }
    state.answer(state.access.sign_in(&query.code).await, &query.next)
}

async fn sign_in(State(state): State<SignInState>, Form(form): Form<SignInForm>) -> Response {
    state.answer(state.access.sign_in_with_token(form.token.trim()).await, &form.next)
}

async fn sign_out(State(state): State<SignInState>, caller: axum::Extension<Caller>) -> Response {
    match state.access.sign_out(&caller).await {
        Ok(()) => ([(header::SET_COOKIE, state.cookie("", 0))], Redirect::to(PATH)).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

impl SignInState {
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
        let life = session.token.expires_at.map(|end| end.since(session.token.created_at));
        let cookie =
            self.cookie(session.secret.expose_secret(), life.unwrap_or_default().as_secs());
        ([(header::SET_COOKIE, cookie)], Redirect::to(own_path(next))).into_response()
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
        self.oidc.clone().filter(|provider| provider.signs_browsers_in())
    }

    /// The cookie of a sign-in with the identity provider. The prefix tells browsers that no other
    /// host may set it.
    pub fn flow_cookie_name(&self) -> &'static str {
        if self.secure { "__Host-farrier_sign_in" } else { "farrier_sign_in" }
    }

    /// Other than the session it comes back with the browser from the provider's site.
    pub fn flow_cookie(&self, value: &str, seconds: u64) -> String {
        let (name, secure) = (self.flow_cookie_name(), if self.secure { "; Secure" } else { "" });
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}")
    }

    /// A page of another site cannot make a browser send it, and no script can read it.
    pub fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!(
            "{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
        )
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
