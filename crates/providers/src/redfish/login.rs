//! Authentication at a BMC.
//!
//! A session is one login for many requests: faster on many BMCs, and one line in their logs.
//! Basic authentication works everywhere. An expired session is renewed once and closed after use:
//! BMCs allow few sessions. A password is tried once, so that it cannot lock the account.

use super::client::Link;
use super::decode::{Part, local_path};
use super::{Auth, Login, verdict};
use crate::http_client::{HttpClient, HttpRequest, HttpResponse};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use model::fault::{Code, Fault, Happened};
use secrecy::ExposeSecret;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
/// The time limit for closing a session in the background.
const GOODBYE: Duration = Duration::from_secs(5);

/// The method that this BMC accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthMethod {
    Basic,
    Session,
}

#[derive(Clone)]
pub(super) struct Session {
    token: HeaderValue,
    /// Where the session is deleted; some devices do not tell.
    path: Option<String>,
}

/// The authentication headers of one request.
#[derive(Clone)]
pub(super) struct Pass(pub Vec<(HeaderName, HeaderValue)>);

impl Session {
    pub fn pass(&self) -> Pass {
        Pass(vec![(TOKEN, self.token.clone())])
    }

    /// Closes the session in the background, for a client that is being dropped.
    pub fn end_later(self, http: Arc<HttpClient>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(GOODBYE, self.end(&http)).await;
        });
    }

    /// Closes the session. A failure is ignored: the BMC expires the session itself.
    pub async fn end(self, http: &HttpClient) {
        let Some(path) = self.path.clone() else { return };
        let method = Method::DELETE;
        let request = HttpRequest { method, path, headers: self.pass().0, body: None };
        if let Err(error) = http.send(&request).await {
            tracing::debug!(endpoint = %http.endpoint(), ?error, "Redfish session was not closed");
        }
    }
}

impl Login {
    pub(super) fn basic(&self) -> Result<Pass, Fault> {
        let pair = format!("{}:{}", self.user, self.password.expose_secret());
        let value = format!("Basic {}", STANDARD.encode(pair));
        let mut header = HeaderValue::from_str(&value).map_err(|_| self.unusable())?;
        header.set_sensitive(true);
        Ok(Pass(vec![(AUTHORIZATION, header)]))
    }

    fn unusable(&self) -> Fault {
        let said = format!("The login of {:?} cannot be sent in a header", self.user);
        Fault::new(Code::CredentialMissing, said)
    }
}

pub(super) enum Opened {
    Session(Session),
    /// The device has no session service; with the fault to return if a session is required.
    NoSuchThing(Fault),
}

impl Link {
    /// Logs in once, without a retry.
    pub(super) async fn open_session(&self, path: &str) -> Result<Opened, Fault> {
        let login = self.login();
        let body =
            json!({"UserName": login.user, "Password": login.password.expose_secret()}).to_string();
        let request = HttpRequest {
            method: Method::POST,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Some(Bytes::from(body)),
        };
        let nobody = Pass(Vec::new());
        let response = self.send_following(request.clone(), &nobody).await.map_err(nothing_done)?;
        let refused = self.refused(&response);
        match response.status {
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Ok(Opened::NoSuchThing(refused)),
            StatusCode::BAD_REQUEST => Err(Fault { code: Code::LoginRefused, ..refused }),
            status if status.is_success() => Ok(match session(&response) {
                Some(session) => Opened::Session(session),
                None => Opened::NoSuchThing(refused),
            }),
            _ => {
                let fault = nothing_done(verdict::fault(self.endpoint(), &request, &response));
                // The device's own message is left out: some repeat the password that was sent.
                Err(Fault { said: refused.said, ..fault })
            }
        }
    }

    fn refused(&self, response: &HttpResponse) -> Fault {
        let said = format!(
            "{} answered {} to the login of {:?}",
            self.endpoint(),
            response.status,
            self.login().user
        );
        Fault::new(Code::NotSupported, said)
    }
}

/// A login whose response was lost has changed nothing that matters.
fn nothing_done(fault: Fault) -> Fault {
    match fault.code.happened() {
        Happened::Maybe => Fault { code: Code::BmcUnreachable, ..fault },
        Happened::No => fault,
    }
}

fn session(response: &HttpResponse) -> Option<Session> {
    let mut token = response.headers.get(&TOKEN).cloned()?;
    token.set_sensitive(true);
    let header = response.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let body = response.body.as_deref().unwrap_or_default();
    let value = serde_json::from_slice(body).unwrap_or_default();
    let path = header.and_then(local_path).or_else(|| Part(&value).as_link());
    Some(Session { token, path })
}

/// Which authentication method to try first.
pub(super) const fn first_method(auth: Auth, offers_sessions: bool) -> AuthMethod {
    match auth {
        Auth::Basic => AuthMethod::Basic,
        Auth::Session => AuthMethod::Session,
        Auth::Auto if offers_sessions => AuthMethod::Session,
        Auth::Auto => AuthMethod::Basic,
    }
}
