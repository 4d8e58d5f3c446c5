//! Authentication at a BMC.
//!
//! A session is one login for many requests: faster on many BMCs, and one line in their logs.
//! Basic authentication works everywhere. An expired session is renewed once and closed after use:
//! BMCs allow few sessions. A password is tried once, so that it cannot lock the account.

use super::client::RedfishClient;
use super::decode::{JsonNode, local_path};
use super::{Auth, Login, classification};
use crate::http_client::{HttpClient, HttpRequest, HttpResponse};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use secrecy::ExposeSecret;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
/// The time limit for closing a session in the background.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The method that this BMC accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthMethod {
    Basic,
    Session,
}

#[derive(Clone)]
pub(super) struct Session {
    token: HeaderValue,
    /// The path at which the session is deleted; some devices do not report it.
    path: Option<String>,
}

/// The authentication headers of one request.
#[derive(Clone)]
pub(super) struct AuthHeaders(pub Vec<(HeaderName, HeaderValue)>);

impl Session {
    pub fn auth_headers(&self) -> AuthHeaders {
        AuthHeaders(vec![(TOKEN, self.token.clone())])
    }

    /// Closes the session in the background, for a client that is being dropped.
    pub fn end_later(self, http: Arc<HttpClient>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(LOGOUT_TIMEOUT, self.end(&http)).await;
        });
    }

    /// Closes the session. A failure is ignored: the BMC expires the session itself.
    pub async fn end(self, http: &HttpClient) {
        let Some(path) = self.path.clone() else { return };
        let method = Method::DELETE;
        let request = HttpRequest { method, path, headers: self.auth_headers().0, body: None };
        if let Err(error) = http.send(&request).await {
            tracing::debug!(endpoint = %http.endpoint(), ?error, "Redfish session was not closed");
        }
    }
}

impl Login {
    pub(super) fn basic(&self) -> Result<AuthHeaders> {
        let pair = format!("{}:{}", self.user, self.password.expose_secret());
        let value = format!("Basic {}", STANDARD.encode(pair));
        let mut header = HeaderValue::from_str(&value).map_err(|_| self.unusable())?;
        header.set_sensitive(true);
        Ok(AuthHeaders(vec![(AUTHORIZATION, header)]))
    }

    fn unusable(&self) -> Fault {
        let message = format!("The login of {:?} cannot be sent in a header", self.user);
        Fault::new(FaultCode::CredentialMissing, message)
    }
}

pub(super) enum OpenedSession {
    Session(Session),
    /// The device has no session service; with the fault to return if a session is required.
    NotSupported(Fault),
}

impl RedfishClient {
    /// Logs in once, without a retry.
    pub(super) async fn open_session(&self, path: &str) -> Result<OpenedSession> {
        let login = self.login();
        let body =
            json!({"UserName": login.user, "Password": login.password.expose_secret()}).to_string();
        let request = HttpRequest {
            method: Method::POST,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Some(Bytes::from(body)),
        };
        let nobody = AuthHeaders(Vec::new());
        let response =
            self.send_following(request.clone(), &nobody).await.map_err(without_effect)?;
        let refused = self.refused(&response);
        match response.status {
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Ok(OpenedSession::NotSupported(refused)),
            StatusCode::BAD_REQUEST => Err(Fault { code: FaultCode::LoginRefused, ..refused }),
            status if status.is_success() => Ok(match session(&response) {
                Some(session) => OpenedSession::Session(session),
                None => OpenedSession::NotSupported(refused),
            }),
            _ => {
                let fault = without_effect(classification::classify_response(
                    self.endpoint(),
                    &request,
                    &response,
                ));
                // The device's own message is left out: some repeat the password that was sent.
                Err(Fault { message: refused.message, ..fault })
            }
        }
    }

    fn refused(&self, response: &HttpResponse) -> Fault {
        let message = format!(
            "{} answered {} to the login of {:?}",
            self.endpoint(),
            response.status,
            self.login().user
        );
        Fault::new(FaultCode::NotSupported, message)
    }
}

/// A login whose response was lost has changed nothing that matters.
fn without_effect(fault: Fault) -> Fault {
    match fault.code.effect_outcome() {
        EffectOutcome::Unknown => Fault { code: FaultCode::BmcUnreachable, ..fault },
        EffectOutcome::NotApplied => fault,
    }
}

fn session(response: &HttpResponse) -> Option<Session> {
    let mut token = response.headers.get(&TOKEN).cloned()?;
    token.set_sensitive(true);
    let header = response.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let body = response.body.as_deref().unwrap_or_default();
    let value = serde_json::from_slice(body).unwrap_or_default();
    let path = header.and_then(local_path).or_else(|| JsonNode(&value).as_link());
    Some(Session { token, path })
}

/// The authentication method to try first.
pub(super) const fn first_method(auth: Auth, offers_sessions: bool) -> AuthMethod {
    match auth {
        Auth::Basic => AuthMethod::Basic,
        Auth::Session => AuthMethod::Session,
        Auth::Auto if offers_sessions => AuthMethod::Session,
        Auth::Auto => AuthMethod::Basic,
    }
}
