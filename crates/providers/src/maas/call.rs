//! Sends one request to a region: waits for the rate limit, signs, sends, and retries.

use super::classify::{ApiAnswer, CallTarget, Idempotency, RequestContext};
use super::{Inner, Maas};
use crate::clock;
use crate::governor::Priority;
use crate::http_client::form::Form;
use crate::http_client::{HttpRequest, HttpResponse, SendError};
use crate::secret_mask::SecretMask;
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const NONCE_BYTES: usize = 16;

/// One API request. Reads are idempotent; a change only when it is declared so.
pub(super) struct Call {
    method: Method,
    /// Below the path of the API: `machines/abc123/`.
    path: String,
    query: Form,
    form: Form,
    target: CallTarget,
    idempotency: Idempotency,
    powers: bool,
    unauthenticated: bool,
    priority: Priority,
}

impl Call {
    fn new(method: Method, path: impl Into<String>, idempotency: Idempotency) -> Self {
        let (query, form) = (Form::default(), Form::default());
        Self {
            method,
            path: path.into(),
            query,
            form,
            target: CallTarget::Region,
            idempotency,
            powers: false,
            unauthenticated: false,
            priority: Priority::Operator,
        }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, Idempotency::Idempotent)
    }

    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path, Idempotency::NotIdempotent)
    }

    /// A PUT sets values, so it is idempotent.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::PUT, path, Idempotency::Idempotent)
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path, Idempotency::NotIdempotent)
    }

    #[must_use]
    pub fn op(self, name: &str) -> Self {
        let query = self.query.with("op", name);
        Self { query, ..self }
    }

    #[must_use]
    pub fn query(self, name: &str, value: impl ToString) -> Self {
        let query = self.query.with(name, value);
        Self { query, ..self }
    }

    #[must_use]
    pub fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    #[must_use]
    pub fn about(self, about: CallTarget) -> Self {
        Self { target: about, ..self }
    }

    /// Declares a change idempotent.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { idempotency: Idempotency::Idempotent, ..self }
    }

    /// MAAS switches the machine's power after it has committed the change, so the change may have
    /// been made although the answer is a 500.
    #[must_use]
    pub fn powers(self) -> Self {
        Self { powers: true, ..self }
    }

    /// Sends no credentials: MAAS answers this request to every client.
    #[must_use]
    pub fn open(self) -> Self {
        Self { unauthenticated: true, ..self }
    }

    /// A background read: it yields to requests of running operations.
    #[must_use]
    pub fn polling(self) -> Self {
        Self { priority: Priority::Polling, ..self }
    }

    fn path(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query.encoded()),
        }
    }
}

impl Maas {
    /// Sends a request and decodes the answer.
    pub(super) async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let path = call.path();
        let requested = self.inner.request_context(&call, &path);
        let body = self.send_with_retries(&call, &requested).await?;
        let mask = SecretMask::of(self.inner.key.secrets());
        serde_json::from_slice(&mask.bytes(&body))
            .map_err(|error| requested.garbled(&error.to_string()))
    }

    /// Sends a request whose answer has no content.
    pub(super) async fn send(&self, call: Call) -> Result<()> {
        let path = call.path();
        self.send_with_retries(&call, &self.inner.request_context(&call, &path)).await.map(drop)
    }

    /// Sends a request, and repeats it while MAAS is busy and a repeat is safe.
    async fn send_with_retries(
        &self,
        call: &Call,
        requested: &RequestContext<'_>,
    ) -> Result<Bytes> {
        let mut failures = 0;
        loop {
            let nonce = nonce()?;
            let response = self.inner.send_once(call, requested, &nonce).await?;
            let status = response.status;
            if status.is_success() {
                return response.body.map_err(|why| requested.lost(&why));
            }
            let retry_after =
                response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let body = response.body.as_deref().unwrap_or_default();
            let answer = ApiAnswer { status, retry_after, body };
            failures += 1;
            let again = failures <= self.inner.retries && requested.may_repeat(answer);
            let backoff = self.inner.backoff;
            let pause = again.then(|| answer.retry_delay(backoff, failures, &nonce)).flatten();
            let Some(pause) = pause else {
                // The key, or the password of a BMC.
                let mask = SecretMask::of(self.inner.key.secrets().chain(call.form.secrets()));
                return Err(requested.refused(answer, &mask.with(&self.mask)));
            };
            tracing::debug!(address = %self.inner.address, %status, ?pause, "MAAS request retried");
            sleep(pause).await;
        }
    }
}

impl Inner {
    fn request_context<'a>(&'a self, call: &'a Call, path: &'a str) -> RequestContext<'a> {
        let Call { method, target, idempotency, powers, .. } = call;
        let (target, idempotency, powers) = (*target, *idempotency, *powers);
        RequestContext { address: &self.address, method, path, target, idempotency, powers }
    }

    /// One request and its answer. The rate limit slot is released before the delay of a retry.
    async fn send_once(
        &self,
        call: &Call,
        requested: &RequestContext<'_>,
        nonce: &str,
    ) -> Result<HttpResponse> {
        let _turn = self.rate_limiter.acquire(call.priority).await;
        // Signed only now: the timestamp is valid for minutes, and the wait may be long.
        let request = self.request(call, requested, nonce)?;
        self.http.send(&request).await.map_err(|error| match error {
            SendError::Unsent(fault) if fault.code == FaultCode::BmcUnreachable => {
                Fault { code: FaultCode::MaasUnreachable, ..fault }
            }
            SendError::Unsent(fault) => fault,
            SendError::Lost(why) => requested.lost(&why),
        })
    }

    fn request(
        &self,
        call: &Call,
        requested: &RequestContext<'_>,
        nonce: &str,
    ) -> Result<HttpRequest> {
        let mut headers = Vec::new();
        if !call.unauthenticated {
            let now_s = clock::now().since(Timestamp::default()).as_secs();
            let header = self.key.header(nonce, now_s);
            let unusable = || {
                let message = format!("The API key of {} cannot be sent in a header", self.address);
                Fault::new(FaultCode::CredentialMissing, message)
            };
            headers.push((AUTHORIZATION, header.ok_or_else(unusable)?));
        }
        let body = (!call.form.is_empty()).then(|| Bytes::from(call.form.encoded()));
        if body.is_some() {
            headers.push((CONTENT_TYPE, FORM));
        }
        let path = self.address.path(requested.path);
        Ok(HttpRequest { method: call.method.clone(), path, headers, body })
    }
}

fn nonce() -> Result<String> {
    let mut bytes = [0; NONCE_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        let message = "This computer has no random numbers to make a request to MAAS with";
        Fault::new(FaultCode::MaasUnreachable, message)
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
