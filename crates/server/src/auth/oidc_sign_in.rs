//! The sign-in of browsers with the identity provider: authorization code with PKCE.
//!
//! One random secret per sign-in is in a cookie of the browser. State, nonce and the verifier of
//! PKCE are derived from it, so nothing is stored here and every replica can end a sign-in. An
//! answer without the cookie of the browser that began the sign-in is refused.

use super::sign_in::{Attempt, Peer, SignIn, SignInState, own_path};
use crate::config::CALLBACK;
use crate::console::signed_in_page;
use crate::oidc::{AuthorizationRequest, OidcProvider};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::access::{ForeignIdentity, SignInMethod, SignInProof, new_secret};
use model::access::TokenKind;
use model::refusal::Reason;
use model::time::Timestamp;
use ring::hmac;
use secrecy::ExposeSecret;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;

pub(super) const PATH: &str = "/sign-in/oidc";
/// The time that a person has to sign in at the provider.
const FLOW_LIFE: Duration = Duration::from_secs(10 * 60);
/// The hexadecimal digits of the secret.
const SECRET_DIGITS: usize = 64;
/// The longest path to open after the sign-in. A longer one leads to the first page.
const MAX_NEXT: usize = 1_024;
/// The longest code of a provider.
const MAX_CODE: usize = 4_096;
/// Sign-ins that may wait for the provider at the same time.
pub(super) const MAX_EXCHANGES: usize = 16;

pub(super) fn routes() -> Router<SignInState> {
    Router::new().route(PATH, get(begin)).route(CALLBACK, get(finish))
}

#[derive(Deserialize)]
struct BeginQuery {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct CallbackQuery {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    error: String,
    iss: Option<String>,
}

/// One sign-in, as the cookie of the browser has it.
struct SignInFlow {
    key: hmac::Key,
    secret: String,
    /// Seconds since 1970.
    ends_at: i64,
    next: String,
}

impl SignInFlow {
    fn new(now: Timestamp, next: &str) -> Self {
        let secret = new_secret(TokenKind::Session);
        let ends_at = (now + FLOW_LIFE).as_millis() / 1_000;
        let next = own_path(next);
        let next = if next.len() > MAX_NEXT { "/" } else { next };
        Self::of(secret.expose_secret(), ends_at, next.to_string())
    }

    fn of(secret: &str, ends_at: i64, next: String) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Self { key, secret: secret.to_string(), ends_at, next }
    }

    /// The value of the cookie.
    fn cookie(&self) -> String {
        format!("{}.{}.{}", self.secret, self.ends_at, URL_SAFE_NO_PAD.encode(&self.next))
    }

    fn from_cookie(value: &str) -> Option<Self> {
        let mut parts = value.split('.');
        let (secret, ends_at, next) = (parts.next()?, parts.next()?, parts.next()?);
        let random = secret.len() == SECRET_DIGITS && secret.bytes().all(|c| c.is_ascii_hexdigit());
        let next = String::from_utf8(URL_SAFE_NO_PAD.decode(next).ok()?).ok()?;
        let ends_at = ends_at.parse().ok()?;
        (random && parts.next().is_none()).then(|| Self::of(secret, ends_at, next))
    }

    /// The parts of the flow that a change of the cookie would change.
    fn label(&self, name: &str) -> String {
        format!("{name}\0{}\0{}", self.ends_at, self.next)
    }

    fn derive(&self, name: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, self.label(name).as_bytes()))
    }

    /// Compares in constant time.
    fn is_state(&self, state: &str) -> bool {
        let Ok(state) = URL_SAFE_NO_PAD.decode(state) else { return false };
        hmac::verify(&self.key, self.label("state").as_bytes(), &state).is_ok()
    }

    fn has_ended(&self, now: Timestamp) -> bool {
        now.as_millis() / 1_000 >= self.ends_at
    }
}

async fn begin(State(state): State<SignInState>, Query(query): Query<BeginQuery>) -> Response {
    let Some(provider) = state.browser_provider() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let flow = SignInFlow::new(state.sign_in.access.now(), &query.next);
    let verifier = flow.derive("verifier");
    let request = AuthorizationRequest {
        state: &flow.derive("state"),
        nonce: &flow.derive("nonce"),
        challenge: &URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())),
    };
    match provider.authorization_url(&request).await {
        Some(url) => {
            let cookie = state.sign_in.cookies.set_flow(&flow.cookie(), FLOW_LIFE.as_secs());
            ([(header::SET_COOKIE, cookie)], Redirect::to(&url)).into_response()
        }
        None => {
            let problem = "The identity provider does not answer. Try again, or use a token.";
            state.problem(StatusCode::SERVICE_UNAVAILABLE, &query.next, problem)
        }
    }
}

/// The end of a sign-in that did not succeed: the words for the person, and those for the log.
struct Failed {
    status: StatusCode,
    message: &'static str,
    log: String,
}

impl Failed {
    fn new(message: &'static str, log: impl Into<String>) -> Self {
        Self { status: StatusCode::UNAUTHORIZED, message, log: log.into() }
    }
}

async fn finish(
    State(state): State<SignInState>,
    peer: Peer,
    Query(query): Query<CallbackQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(provider) = state.browser_provider() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let cookies = &state.sign_in.cookies;
    let flow = cookies.flow(&headers).and_then(SignInFlow::from_cookie);
    let next = flow.as_ref().map_or("/", |flow| own_path(&flow.next));
    let attempt = Attempt::new(SignInMethod::Provider, peer);
    if let Some(refused) = state.too_many(attempt, next) {
        return refused;
    }
    let identified = identify(&state, &provider, flow.as_ref(), &query).await;
    let ended = match identified {
        Ok(identity) => open_session(&state, &provider, &identity, attempt).await,
        Err(failed) => {
            state.count_refused(attempt, Reason::Unauthenticated.as_str());
            Err(failed)
        }
    };
    let mut response = match ended {
        // A redirect from another site would not carry the session, which is for this site only;
        // the page leads on from here.
        Ok(session) => ([(header::SET_COOKIE, session)], signed_in_page(next)).into_response(),
        Err(Failed { status, message, log }) => {
            tracing::warn!(why = log, "a sign-in with the identity provider was refused");
            state.problem(status, next, message)
        }
    };
    // It works once.
    if let Ok(cleared) = HeaderValue::from_str(&cookies.set_flow("", 0)) {
        response.headers_mut().append(header::SET_COOKIE, cleared);
    }
    response
}

const REFUSED: &str = "The identity provider did not sign you in.";

/// The user whom the provider has signed in.
async fn identify(
    state: &SignInState,
    provider: &Arc<OidcProvider>,
    flow: Option<&SignInFlow>,
    query: &CallbackQuery,
) -> Result<ForeignIdentity, Failed> {
    const AGAIN: &str = "The sign-in does not belong to this browser, or took too long. Try again.";
    let now = state.sign_in.access.now();
    let flow = flow.ok_or_else(|| Failed::new(AGAIN, "the browser has no cookie of a sign-in"))?;
    if flow.has_ended(now) {
        return Err(Failed::new(AGAIN, "it took too long"));
    }
    if !flow.is_state(&query.state) {
        return Err(Failed::new(AGAIN, "its state is that of another sign-in"));
    }
    if query.iss.as_ref().is_some_and(|issuer| !provider.is_issuer(issuer)) {
        return Err(Failed::new(REFUSED, "another issuer has answered"));
    }
    if !query.error.is_empty() {
        let word: String = query.error.chars().filter(char::is_ascii_graphic).take(64).collect();
        return Err(Failed::new(REFUSED, format!("the provider answered {word}")));
    }
    if query.code.is_empty() || query.code.len() > MAX_CODE {
        return Err(Failed::new(REFUSED, "the provider sent no code"));
    }
    let Ok(_turn) = state.exchanges.try_acquire() else {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let message = "Too many people sign in at this moment. Try again.";
        return Err(Failed { status, ..Failed::new(message, "too many at the same time") });
    };
    let (verifier, nonce) = (flow.derive("verifier"), flow.derive("nonce"));
    let identity = provider.exchange(&query.code, &verifier, &nonce, now).await;
    identity.map_err(|error| Failed::new(REFUSED, error))
}

/// Returns the cookie of the new session.
async fn open_session(
    state: &SignInState,
    provider: &OidcProvider,
    identity: &ForeignIdentity,
    attempt: Attempt,
) -> Result<String, Failed> {
    let SignIn { access, audit, .. } = &state.sign_in;
    let proof = SignInProof::Provider(identity, provider.session_life);
    match access.sign_in(proof, &attempt.peer(), audit).await {
        Ok(session) => Ok(state.session_cookie(&session)),
        Err(StoreError::Refused(refusal)) => Err(Failed::new(REFUSED, refusal.message)),
        Err(error) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let message = "The database does not answer. Try again.";
            Err(Failed { status, ..Failed::new(message, error.to_string()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    #[test]
    fn a_sign_in_is_bound_to_its_cookie() {
        let flow = SignInFlow::new(NOW, "/racks?x=1");
        let again = SignInFlow::from_cookie(&flow.cookie()).unwrap();
        assert_eq!(again.next, "/racks?x=1");
        let state = flow.derive("state");
        assert!(again.is_state(&state));
        for name in ["verifier", "nonce"] {
            assert_eq!(again.derive(name), flow.derive(name));
            // None of them can be computed from another.
            assert!(!again.is_state(&flow.derive(name)));
        }
        // A verifier of PKCE has 43 to 128 unreserved characters.
        assert_eq!(flow.derive("verifier").len(), 43);
        for wrong in ["", "x", &state[1..], &format!("{state}=")] {
            assert!(!again.is_state(wrong), "{wrong}");
        }
        assert!(!SignInFlow::new(NOW, "/racks?x=1").is_state(&state), "of another browser");
        let longer = flow.cookie().replace(&flow.ends_at.to_string(), "9999999999");
        assert!(!SignInFlow::from_cookie(&longer).unwrap().is_state(&state), "a changed end");
        assert!(!flow.has_ended(NOW) && flow.has_ended(NOW + FLOW_LIFE));
    }

    #[test]
    fn a_damaged_cookie_is_no_sign_in() {
        let cookie = SignInFlow::new(NOW, "/").cookie();
        let (secret, rest) = cookie.split_once('.').unwrap();
        let short = &secret[1..];
        for value in [
            String::new(),
            secret.to_string(),
            format!("{short}.{rest}"),
            format!("{cookie}.more"),
            format!("{secret}.soon.Lw"),
            format!("{secret}.1.!"),
        ] {
            assert!(SignInFlow::from_cookie(&value).is_none(), "{value}");
        }
        let foreign = SignInFlow::new(NOW, "https://evil.example");
        assert_eq!(foreign.next, "/");
        assert_eq!(SignInFlow::new(NOW, &format!("/{}", "a".repeat(2_000))).next, "/");
    }
}
