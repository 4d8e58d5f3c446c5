//! Webhooks: sends a notice to a receiver, with a secret that is bound to it.
//!
//! A request is sent once: the engine repeats it. Redirects are not followed, and an answer is read
//! up to a limit. A receiver is verified with its pinned identity or, if none is pinned, with the
//! authorities of the host.

mod format;

use crate::http_client::{
    Endpoint, HttpClient, HttpClientSettings, HttpRequest, HttpResponse, SendError, Timeouts,
    Trust, system_authorities,
};
use crate::peer_login::{fingerprint, wrong_kind};
use crate::state_store::{ProviderStateStore, Secret};
use async_trait::async_trait;
pub use format::Rendered;
use format::render;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use model::fault::{Fault, FaultCode, Incident, Result};
use model::notify::{Notice, NotifierSpec, SendFailure, URL_SECRET};
use model::refusal::Refusal;
use model::time::Timestamp;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The most of an answer that is read. Only its status counts; its beginning is shown.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The part of the answer of a receiver that is shown.
const SHOWN: usize = 120;
const SETTINGS: HttpClientSettings = HttpClientSettings {
    timeouts: Timeouts { connect: Duration::from_secs(5), answer: Duration::from_secs(10) },
    headers: &[("User-Agent", "farrier")],
    max_answer_bytes: MAX_ANSWER_BYTES,
    keeps_connection: false,
};

/// Sends notices to receivers.
#[async_trait]
pub trait WebhookSender: Send + Sync {
    /// Sends a notice once. `now` is the time of the signature.
    async fn send(
        &self,
        spec: &NotifierSpec,
        notice: &Notice,
        now: Timestamp,
    ) -> Result<(), SendFailure>;
}

/// Sends notices over HTTPS, or over HTTP if the credential allows that.
pub struct HttpWebhooks {
    state: Arc<dyn ProviderStateStore>,
    authorities: OnceLock<Vec<CertificateDer<'static>>>,
}

/// Checks the host of a URL; its path may have the place of a secret.
pub fn check_url(url: &str) -> Result<(), Refusal> {
    let instead = "write https://HOST/PATH, without a user";
    let wrong = |_| Refusal::invalid("notifier.url", format!("{url:?} is no URL"), instead);
    let (endpoint, _) = Endpoint::parse(url).map_err(wrong)?;
    match endpoint.host().contains(URL_SECRET) {
        true => Err(Refusal::invalid("notifier.url", "has the secret in its host", instead)),
        false => Ok(()),
    }
}

impl HttpWebhooks {
    pub fn new(state: Arc<dyn ProviderStateStore>) -> Self {
        Self { state, authorities: OnceLock::new() }
    }

    async fn deliver(
        &self,
        spec: &NotifierSpec,
        notice: &Notice,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        let (endpoint, path) = Endpoint::parse(&spec.url).map_err(|_| {
            Fault::new(FaultCode::ProtocolBroken, "the URL of the notifier cannot be read")
        })?;
        let credential = self.state.credential(&spec.credential, &endpoint.peer()).await?;
        let secret = secret_of(&credential.name, &credential.secret)?;
        let body = render(spec, notice, &secret, now).map_err(|why| {
            let message = format!("the credential {:?} cannot be used: {why}", spec.credential);
            let fault = Fault::new(FaultCode::CredentialMissing, message);
            fault.with(|facts| facts.credential = Some(spec.credential.clone()))
        })?;
        let peer = endpoint.to_string();
        let trust = self.trust(&peer).await?;
        let client = HttpClient::new(endpoint, credential.allowed, trust, SETTINGS)?;
        let path = format!("/{}", path.replace(URL_SECRET, secret.expose_secret()));
        let request = body.request(path)?;
        match client.send(&request).await {
            Ok(answer) => judge(&peer, &answer),
            // The secret is no part of these: they name the host, not the path.
            Err(SendError::Unsent(fault)) => Err(fault.at_peer(&peer, None).into()),
            Err(SendError::Lost(why)) => {
                Err(Rejection::Answer(format!("{peer} did not answer: {why}"), None))
            }
        }
    }

    /// The proof of identity that a receiver must give.
    async fn trust(&self, peer: &str) -> Result<Trust> {
        let known = self.state.identity(peer).await?;
        Ok(match fingerprint(peer, known.as_deref())? {
            Some(pinned) => Trust::Pinned(pinned),
            None => Trust::Ca(self.authorities.get_or_init(system_authorities).clone()),
        })
    }
}

/// The reason why a notice was not accepted.
enum Rejection {
    Fault(Box<Fault>),
    /// The receiver answered, or lost the request, and may ask for a wait.
    Answer(String, Option<Duration>),
}

impl From<Fault> for Rejection {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

#[async_trait]
impl WebhookSender for HttpWebhooks {
    async fn send(
        &self,
        spec: &NotifierSpec,
        notice: &Notice,
        now: Timestamp,
    ) -> Result<(), SendFailure> {
        self.deliver(spec, notice, now).await.map_err(|rejection| match rejection {
            Rejection::Fault(fault) => failure_of(&fault),
            Rejection::Answer(message, retry_after) => {
                SendFailure { message, repair: None, retry_after }
            }
        })
    }
}

/// The failure with the first command that removes the cause of the fault.
fn failure_of(fault: &Fault) -> SendFailure {
    let known = matches!(
        fault.code,
        FaultCode::CredentialMissing
            | FaultCode::CredentialNotAllowed
            | FaultCode::IdentityChanged
            | FaultCode::IdentityUntrusted
    );
    let incident = Incident { fault, run: None, machine: None, node: None };
    let first = fault.code.repairs().first().filter(|_| known);
    let repair = first.and_then(|first| first.command(&incident));
    SendFailure { message: fault.message.clone(), repair, retry_after: None }
}

/// A receiver has accepted a notice if it answers with a status of success.
fn judge(peer: &str, answer: &HttpResponse) -> Result<(), Rejection> {
    let status = answer.status;
    if status.is_success() {
        return Ok(());
    }
    let waits = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds = seconds.and_then(|text| text.parse().ok()).filter(|_| waits);
    let why = match &answer.body {
        _ if status.is_redirection() => ", and redirects are not followed".to_string(),
        Ok(body) => shown(body),
        Err(_) => String::new(),
    };
    Err(Rejection::Answer(
        format!("{peer} answered {status}{why}"),
        seconds.map(Duration::from_secs),
    ))
}

/// The beginning of an answer, on one line.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * SHOWN)]);
    let plain = text.chars().map(|one| if one.is_control() { ' ' } else { one });
    let text: String = plain.take(SHOWN).collect();
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

fn secret_of(name: &str, secret: &Secret) -> Result<SecretString> {
    match secret {
        Secret::Password { password, .. } => Ok(password.clone()),
        Secret::Key { .. } | Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
            Err(wrong_kind(name, "a password, which a notifier wants"))
        }
    }
}

impl Rendered {
    fn request(self, path: String) -> Result<HttpRequest> {
        let unfit = |_| Fault::new(FaultCode::ProtocolBroken, "a header cannot be sent");
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let value = HeaderValue::from_str(&value).map_err(unfit)?;
            headers.push((HeaderName::from_static(name), value));
        }
        Ok(HttpRequest { method: Method::POST, path, headers, body: Some(self.body.into()) })
    }
}
