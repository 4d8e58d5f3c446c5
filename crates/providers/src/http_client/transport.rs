//! One HTTP request and its response.
//!
//! The caller must know how far a request got. One that was not sent can be repeated; one that was
//! sent without a response may have changed something ([`SendError`]). So connections are made here
//! and not by a pool. At most one idle connection is kept, for reads: BMCs close idle connections
//! without notice, and a change on a closed one would have an unknown result for no reason.

use super::Timeouts;
use super::certificate::Certificate;
use super::endpoint::Endpoint;
use super::trust::{CertificateVerifier, Fingerprint, Trust};
use super::upload::{FileUpload, UploadEnd};
use crate::connect::{ConnectError, connect};
use crate::fault::LocalShortage;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Builder;
use hyper::rt::{Read, Write};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use model::credential::AllowedAddresses;
use model::fault::{Fault, FaultCode, Result};
use rustls::pki_types::ServerName;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;

/// The oldest idle connection that is used for a read.
const MAX_IDLE: Duration = Duration::from_secs(20);

/// A body: bytes, or a file that is read while it is sent.
type Content = Either<Full<Bytes>, Channel<Bytes>>;
type Outgoing = Request<Content>;
type Sender = SendRequest<Content>;

/// A request. Has no `Debug`: a login has the password in its body.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Option<Bytes>,
}

impl HttpRequest {
    /// True if the request changes nothing.
    pub fn only_reads(&self) -> bool {
        self.method == Method::GET
    }
}

/// A response. The body is the reason as an error if it was truncated or too long.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Result<Bytes, String>,
}

/// The reason why there is no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The request was not sent.
    Unsent(Fault),
    /// The request was sent, at least in part; with the error that came before the response.
    Lost(String),
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// The settings of requests to one kind of server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpClientSettings {
    pub timeouts: Timeouts,
    /// The headers of every request.
    pub headers: &'static [(&'static str, &'static str)],
    /// The largest response that is read.
    pub max_answer_bytes: usize,
    /// True if a connection is kept for the next read. A read on a closed connection is sent again,
    /// so this must be false where a request must not be sent twice.
    pub keeps_connection: bool,
}

/// The client of one server.
pub(crate) struct HttpClient {
    endpoint: Endpoint,
    settings: HttpClientSettings,
    /// The addresses that may be connected to.
    allowed: AllowedAddresses,
    tls: Option<(Arc<CertificateVerifier>, TlsConnector)>,
    idle: Mutex<Option<Idle>>,
}

impl HttpClient {
    pub fn new(
        endpoint: Endpoint,
        allowed: AllowedAddresses,
        trust: Trust,
        settings: HttpClientSettings,
    ) -> Result<Self> {
        let tls = if endpoint.tls() {
            let (verifier, config) = CertificateVerifier::new(trust)?;
            Some((verifier, TlsConnector::from(Arc::new(config))))
        } else {
            None
        };
        Ok(Self { endpoint, settings, allowed, tls, idle: Mutex::new(None) })
    }

    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.tls.as_ref().and_then(|(verifier, _)| verifier.shown())
    }

    /// The last certificate of the server, trusted or not.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls.as_ref().and_then(|(verifier, _)| verifier.certificate())
    }

    /// Connects without sending a request.
    pub async fn open_connection(&self) -> Result<()> {
        self.connect().await.map(drop)
    }

    /// Sends once. A read on a closed idle connection is sent again on a new one.
    pub async fn send(&self, request: &HttpRequest) -> Result<HttpResponse, SendError> {
        let outgoing = || self.outgoing(request).map_err(SendError::Unsent);
        let limit = self.settings.timeouts.answer;
        if let Some(sender) = self.take_idle(request) {
            let begun = Instant::now();
            match self.exchange(sender, outgoing()?, limit).await {
                Ok(response) => return Ok(response),
                Err(why) if begun.elapsed() >= limit => {
                    return Err(SendError::Lost(why));
                }
                Err(_dead) => {}
            }
        }
        let outgoing = outgoing()?;
        let sender = self.connect().await.map_err(SendError::Unsent)?;
        self.exchange(sender, outgoing, limit).await.map_err(SendError::Lost)
    }

    /// Sends once, with a file. `last` is awaited before the last chunk: without that chunk the
    /// request is incomplete, and the server does not act on it.
    pub async fn upload(
        &self,
        request: &HttpRequest,
        mut upload: FileUpload,
        last: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<HttpResponse, SendError> {
        let limit = self.settings.timeouts.answer + upload.time();
        let (mut sending, body) = Channel::new(1);
        let head = self.head(request).header(CONTENT_LENGTH, upload.length());
        let outgoing =
            self.sealed(request, head, Either::Right(body)).map_err(SendError::Unsent)?;
        let sender = self.connect().await.map_err(SendError::Unsent)?;
        let answering = self.exchange(sender, outgoing, limit);
        let feeding = upload.send(&mut sending, last);
        tokio::pin!(answering, feeding);
        let mut complete = false;
        let answered = tokio::select! {
            answered = &mut answering => answered,
            fed = &mut feeding => match fed {
                Err(fault) => return Err(SendError::Unsent(fault)),
                Ok(UploadEnd::Interrupted) => answering.await,
                Ok(UploadEnd::Complete) => {
                    complete = true;
                    answering.await
                }
            },
        };
        answered.map_err(|why| match complete {
            true => SendError::Lost(why),
            false => {
                let message = format!("{} did not take the whole file: {why}", self.endpoint);
                SendError::Unsent(Fault::new(FaultCode::BmcUnreachable, message))
            }
        })
    }

    fn take_idle(&self, request: &HttpRequest) -> Option<Sender> {
        if !request.only_reads() {
            return None;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let usable = idle.since.elapsed() < MAX_IDLE && !idle.sender.is_closed();
        usable.then_some(idle.sender)
    }

    /// Closes the idle connection, so that thousands of them do not stay open until the next poll.
    pub fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn keep(&self, sender: Sender, response: &HttpResponse) {
        if self.settings.keeps_connection && response.body.is_ok() && !sender.is_closed() {
            let idle = Idle { sender, since: Instant::now() };
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
        }
    }

    /// Sends on this connection and keeps it after a success.
    async fn exchange(
        &self,
        mut sender: Sender,
        request: Outgoing,
        limit: Duration,
    ) -> Result<HttpResponse, String> {
        let deadline = tokio::time::Instant::now() + limit;
        let late = || format!("no answer came within {} s", limit.as_secs_f32());
        timeout_at(deadline, sender.ready())
            .await
            .map_err(|_| late())?
            .map_err(|error| with_cause(&error))?;
        let response = timeout_at(deadline, sender.send_request(request))
            .await
            .map_err(|_| late())?
            .map_err(|error| with_cause(&error))?;
        let (parts, body) = response.into_parts();
        let body = timeout_at(deadline, read(body, self.settings.max_answer_bytes))
            .await
            .unwrap_or_else(|_| Err(late()));
        let response = HttpResponse { status: parts.status, headers: parts.headers, body };
        self.keep(sender, &response);
        Ok(response)
    }

    fn outgoing(&self, request: &HttpRequest) -> Result<Outgoing> {
        let mut head = self.head(request);
        let named = request.headers.iter().any(|(name, _)| *name == CONTENT_TYPE);
        if request.body.is_some() && !named {
            head = head.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(request.body.clone().unwrap_or_default());
        self.sealed(request, head, Either::Left(body))
    }

    fn head(&self, request: &HttpRequest) -> Builder {
        let head = Request::builder()
            .method(&request.method)
            .uri(&request.path)
            .header(HOST, self.endpoint.authority())
            .header("Accept", "application/json");
        let usual = self.settings.headers.iter();
        let head = usual.fold(head, |head, (name, value)| head.header(*name, *value));
        request.headers.iter().fold(head, |head, (name, value)| head.header(name, value))
    }

    fn sealed(&self, request: &HttpRequest, head: Builder, content: Content) -> Result<Outgoing> {
        head.body(content).map_err(|error| {
            let message =
                format!("{} cannot be asked for {}: {error}", self.endpoint, request.path);
            Fault::new(FaultCode::NotSupported, message)
        })
    }

    /// Opens a connection and verifies the server's identity if TLS is used.
    async fn connect(&self) -> Result<Sender> {
        let limit = self.settings.timeouts.connect;
        timeout(limit, self.connected()).await.unwrap_or_else(|_| {
            let message = format!(
                "{} could not be connected to within {} s",
                self.endpoint,
                limit.as_secs_f32()
            );
            Err(Fault::new(FaultCode::BmcUnreachable, message))
        })
    }

    async fn connected(&self) -> Result<Sender> {
        let unreachable = |error: &dyn std::fmt::Display| {
            let message = format!("{} could not be connected to: {error}", self.endpoint);
            Fault::new(FaultCode::BmcUnreachable, message)
        };
        let stream = connect(&self.endpoint.peer(), &self.allowed).await;
        let stream = stream.map_err(|error| match error {
            ConnectError::Io(error) => LocalShortage::of(&error)
                .map_or_else(|| unreachable(&error), |found| found.fault(&self.endpoint)),
            ConnectError::NotAllowed(fault) => fault,
        })?;
        // Requests are small and each waits for its response, so Nagle's algorithm gains nothing.
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        let Some((verifier, connector)) = &self.tls else {
            return start_http(TokioIo::new(stream)).await.map_err(|error| unreachable(&error));
        };
        let name = ServerName::try_from(self.endpoint.host().to_owned())
            .map_err(|error| unreachable(&error))?;
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| verifier.explain(&self.endpoint, &error))?;
        verifier.pin_first_use();
        start_http(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))
    }
}

/// Starts HTTP on a connection. The task that drives it ends with the sender.
async fn start_http<T>(stream: T) -> Result<Sender, hyper::Error>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(async move {
        // A broken connection is reported to the caller that waits for a response on it.
        let _ended = connection.await;
    });
    Ok(sender)
}

async fn read(body: Incoming, most: usize) -> Result<Bytes, String> {
    let complete = Limited::new(body, most).collect().await;
    complete.map(|collected| collected.to_bytes()).map_err(|error| {
        let cut_off = error.downcast_ref::<hyper::Error>().map(with_cause);
        cut_off.unwrap_or_else(|| format!("the answer is longer than {most} bytes"))
    })
}

/// An error with its cause, which often is the only informative part.
fn with_cause(error: &hyper::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_get_only_reads() {
        for (method, reads) in [
            (Method::GET, true),
            (Method::POST, false),
            (Method::PATCH, false),
            (Method::DELETE, false),
        ] {
            let request = HttpRequest { method, path: "/".into(), headers: Vec::new(), body: None };
            assert_eq!(request.only_reads(), reads);
        }
    }
}
