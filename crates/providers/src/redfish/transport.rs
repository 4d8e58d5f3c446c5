//! One question and one answer over HTTP.
//!
//! What matters here is to know how far a question got. Nothing sent, and it can be asked again; sent
//! without an answer, and a change may have been made ([`Broken`]). That is why connections are made
//! here and not in a pool of somebody else. At most one idle connection is kept, for reads: controllers
//! close them without a word, and a change that runs into that would be in doubt for nothing.

use super::Timeouts;
use super::certificate::Certificate;
use super::endpoint::Endpoint;
use super::parcel::{Fed, Parcel};
use super::trust::{Fingerprint, Judge, Trust};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request;
use hyper::rt::{Read, Write};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use model::fault::{Code, Fault};
use rustls::pki_types::ServerName;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;

/// How old an idle connection may be when something is read over it.
const MAX_IDLE: Duration = Duration::from_secs(20);

/// What is sent: a few bytes, or something too large to hold, as it is read.
type Content = Either<Full<Bytes>, Channel<Bytes>>;
type Asked = Request<Content>;
type Sender = SendRequest<Content>;

/// What is asked. It is not to be shown as a whole: a login has the password in its body.
#[derive(Clone)]
pub(crate) struct Question {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Option<Bytes>,
}

impl Question {
    /// True when the peer does not do anything about it but answer.
    pub fn only_reads(&self) -> bool {
        self.method == Method::GET
    }
}

/// What was answered. The body is missing when it was cut off or too long, with the reason.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Result<Bytes, String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The question was not asked.
    Unsent(Fault),
    /// The question was asked, or part of it, and then this happened.
    Lost(String),
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// How a kind of peer is spoken to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    pub timeouts: Timeouts,
    /// What every question carries.
    pub headers: &'static [(&'static str, &'static str)],
    /// The largest answer that is read.
    pub max_answer_bytes: usize,
    /// Whether a connection is kept for the next read. Not where a question may not be sent twice as it is: a read over a
    /// connection that turns out to be dead is.
    pub keeps_connection: bool,
}

/// The way to one peer: a BMC, or whoever else answers questions.
pub(crate) struct Wire {
    endpoint: Endpoint,
    habits: Habits,
    tls: Option<(Arc<Judge>, TlsConnector)>,
    idle: Mutex<Option<Idle>>,
}

impl Wire {
    pub fn new(endpoint: Endpoint, trust: Trust, habits: Habits) -> Result<Self, Fault> {
        let tls = if endpoint.tls() {
            let (judge, config) = Judge::new(trust)?;
            Some((judge, TlsConnector::from(Arc::new(config))))
        } else {
            None
        };
        Ok(Self { endpoint, habits, tls, idle: Mutex::new(None) })
    }

    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.tls.as_ref().and_then(|(judge, _)| judge.shown())
    }

    /// The certificate that was shown last, whether it was believed or not.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls.as_ref().and_then(|(judge, _)| judge.certificate())
    }

    /// Connects, and says nothing.
    pub async fn knock(&self) -> Result<(), Fault> {
        self.connect().await.map(drop)
    }

    /// Asks once. A read over a connection that turns out to be dead is asked again over a new one.
    pub async fn ask(&self, question: &Question) -> Result<Reply, Broken> {
        let request = || self.request(question).map_err(Broken::Unsent);
        let limit = self.habits.timeouts.answer;
        if let Some(sender) = self.take_idle(question) {
            let begun = Instant::now();
            match self.exchange(sender, request()?, limit).await {
                Ok(reply) => return Ok(reply),
                Err(why) if begun.elapsed() >= limit => {
                    return Err(Broken::Lost(why));
                }
                Err(_dead) => {}
            }
        }
        let request = request()?;
        let sender = self.connect().await.map_err(Broken::Unsent)?;
        self.exchange(sender, request, limit).await.map_err(Broken::Lost)
    }

    /// Asks once, with a parcel. Before its last piece leaves us, `last` is waited for: without that piece the device has half a
    /// request, and does nothing about it.
    pub(super) async fn deliver(
        &self,
        question: &Question,
        mut parcel: Parcel,
        last: impl AsyncFnOnce() -> Result<(), Fault>,
    ) -> Result<Reply, Broken> {
        let limit = self.habits.timeouts.answer + parcel.time();
        let (sending, body) = Channel::new(1);
        let head = self.head(question).header(CONTENT_LENGTH, parcel.length());
        let request = self.sealed(question, head, Either::Right(body)).map_err(Broken::Unsent)?;
        let sender = self.connect().await.map_err(Broken::Unsent)?;
        let answering = self.exchange(sender, request, limit);
        let feeding = parcel.feed(sending, last);
        tokio::pin!(answering, feeding);
        let mut whole = false;
        let answered = tokio::select! {
            answered = &mut answering => answered,
            fed = &mut feeding => match fed {
                Err(fault) => return Err(Broken::Unsent(fault)),
                Ok(Fed::Cut) => answering.await,
                Ok(Fed::Whole) => {
                    whole = true;
                    answering.await
                }
            },
        };
        answered.map_err(|why| match whole {
            true => Broken::Lost(why),
            false => {
                let said = format!("{} did not take the whole file: {why}", self.endpoint);
                Broken::Unsent(Fault::new(Code::BmcUnreachable, said))
            }
        })
    }

    fn take_idle(&self, question: &Question) -> Option<Sender> {
        if !question.only_reads() {
            return None;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let usable = idle.since.elapsed() < MAX_IDLE && !idle.sender.is_closed();
        usable.then_some(idle.sender)
    }

    /// Closes the idle connection. Nobody holds thousands of them open until the next poll.
    pub fn hang_up(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn keep(&self, sender: Sender, reply: &Reply) {
        if self.habits.keeps_connection && reply.body.is_ok() && !sender.is_closed() {
            let idle = Idle { sender, since: Instant::now() };
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
        }
    }

    /// Asks over this connection, and keeps it where that went well.
    async fn exchange(
        &self,
        mut sender: Sender,
        request: Asked,
        limit: Duration,
    ) -> Result<Reply, String> {
        let deadline = tokio::time::Instant::now() + limit;
        let late = || format!("no answer came within {} s", limit.as_secs_f32());
        timeout_at(deadline, sender.ready())
            .await
            .map_err(|_| late())?
            .map_err(|error| told(&error))?;
        let response = timeout_at(deadline, sender.send_request(request))
            .await
            .map_err(|_| late())?
            .map_err(|error| told(&error))?;
        let (parts, body) = response.into_parts();
        let body = timeout_at(deadline, read(body, self.habits.max_answer_bytes))
            .await
            .unwrap_or_else(|_| Err(late()));
        let reply = Reply { status: parts.status, headers: parts.headers, body };
        self.keep(sender, &reply);
        Ok(reply)
    }

    fn request(&self, question: &Question) -> Result<Asked, Fault> {
        let mut head = self.head(question);
        let named = question.headers.iter().any(|(name, _)| *name == CONTENT_TYPE);
        if question.body.is_some() && !named {
            head = head.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(question.body.clone().unwrap_or_default());
        self.sealed(question, head, Either::Left(body))
    }

    fn head(&self, question: &Question) -> request::Builder {
        let head = Request::builder()
            .method(&question.method)
            .uri(&question.path)
            .header(HOST, self.endpoint.authority())
            .header("Accept", "application/json");
        let usual = self.habits.headers.iter();
        let head = usual.fold(head, |head, (name, value)| head.header(*name, *value));
        question.headers.iter().fold(head, |head, (name, value)| head.header(name, value))
    }

    fn sealed(
        &self,
        question: &Question,
        head: request::Builder,
        content: Content,
    ) -> Result<Asked, Fault> {
        head.body(content).map_err(|error| {
            let said = format!("{} cannot be asked for {}: {error}", self.endpoint, question.path);
            Fault::new(Code::NotSupported, said)
        })
    }

    /// A new connection, with the proof of who is at its other end where TLS is spoken.
    async fn connect(&self) -> Result<Sender, Fault> {
        let limit = self.habits.timeouts.connect;
        timeout(limit, self.connected()).await.unwrap_or_else(|_| {
            let said = format!(
                "{} could not be connected to within {} s",
                self.endpoint,
                limit.as_secs_f32()
            );
            Err(Fault::new(Code::BmcUnreachable, said))
        })
    }

    async fn connected(&self) -> Result<Sender, Fault> {
        let unreachable = |error: &dyn std::fmt::Display| {
            let said = format!("{} could not be connected to: {error}", self.endpoint);
            Fault::new(Code::BmcUnreachable, said)
        };
        let address = (self.endpoint.host(), self.endpoint.port());
        let stream = TcpStream::connect(address).await.map_err(|error| unreachable(&error))?;
        // Questions are small and each waits for its answer, so nothing is gained by collecting them.
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        let Some((judge, connector)) = &self.tls else {
            return speak(TokioIo::new(stream)).await.map_err(|error| unreachable(&error));
        };
        let name = ServerName::try_from(self.endpoint.host().to_owned())
            .map_err(|error| unreachable(&error))?;
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| judge.explain(&self.endpoint, &error))?;
        judge.settle();
        speak(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))
    }
}

/// Begins HTTP on a connection. What drives it ends with the sender.
async fn speak<T>(stream: T) -> Result<Sender, hyper::Error>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(async move {
        // A connection that breaks is noticed by whoever waits for an answer on it.
        let _ended = connection.await;
    });
    Ok(sender)
}

async fn read(body: Incoming, most: usize) -> Result<Bytes, String> {
    let whole = Limited::new(body, most).collect().await;
    whole.map(|collected| collected.to_bytes()).map_err(|error| {
        let cut_off = error.downcast_ref::<hyper::Error>().map(told);
        cut_off.unwrap_or_else(|| format!("the answer is longer than {most} bytes"))
    })
}

/// An error with its cause, which often is the only part that says something.
fn told(error: &hyper::Error) -> String {
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
            let question = Question { method, path: "/".into(), headers: Vec::new(), body: None };
            assert_eq!(question.only_reads(), reads);
        }
    }
}
