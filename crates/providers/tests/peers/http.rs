//! A small HTTP server that follows a script: answers, broken answers, silence. It records every
//! request, so that a test can check what was sent, and how often.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A recorded request.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Call {
    pub fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path.trim_end_matches('/') == path.trim_end_matches('/')
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        self.headers.iter().find(named).map(|(_, value)| value.as_str())
    }
}

/// The server's reaction to a request.
#[derive(Debug, Clone)]
pub enum Response {
    Reply {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
    /// Announces the full length, sends half of the body and closes the connection.
    CutOff(String),
    /// Answers, and closes the connection without announcing it.
    ReplyThenClose(String),
    Hang,
    HangUp,
}

impl Response {
    pub fn json(body: impl ToString) -> Self {
        Self::status(200, body)
    }

    pub fn status(status: u16, body: impl ToString) -> Self {
        Self::Reply { status, headers: Vec::new(), body: body.to_string() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        if let Self::Reply { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_string()));
        }
        self
    }
}

pub type Script = Arc<dyn Fn(&Call) -> Response + Send + Sync>;

/// A server that runs as long as this value exists.
pub struct Peer {
    address: SocketAddr,
    tls: bool,
    calls: Arc<Mutex<Vec<Call>>>,
    task: JoinHandle<()>,
}

impl Peer {
    pub async fn start(script: impl Fn(&Call) -> Response + Send + Sync + 'static) -> Self {
        Self::serve(None, Arc::new(script)).await
    }

    pub async fn serve(tls: Option<TlsAcceptor>, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("its address");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let heartbeat = calls.clone();
        let is_tls = tls.is_some();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, heartbeat, tls) = (script.clone(), heartbeat.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => converse(stream, &script, &heartbeat).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                converse(stream, &script, &heartbeat).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, tls: is_tls, calls, task }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("the lock is not poisoned").clone()
    }

    pub fn count(&self, method: &str, path: &str) -> usize {
        self.calls().iter().filter(|call| call.is(method, path)).count()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse<T>(mut stream: T, script: &Script, heartbeat: &Mutex<Vec<Call>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(call) = read_call(&mut stream).await {
        heartbeat.lock().expect("the lock is not poisoned").push(call.clone());
        let (bytes, goes_on) = match script(&call) {
            Response::Reply { status, headers, body } => (reply(status, &headers, &body), true),
            Response::ReplyThenClose(body) => (reply(200, &[], &body), false),
            Response::CutOff(body) => {
                let complete = reply(200, &[], &body);
                (complete[..complete.len() - body.len() / 2].to_vec(), false)
            }
            Response::Hang => std::future::pending().await,
            Response::HangUp => (Vec::new(), false),
        };
        let written = stream.write_all(&bytes).await.and(stream.flush().await);
        if written.is_err() || !goes_on {
            let _ = stream.shutdown().await;
            return;
        }
    }
}

async fn read_call<T: AsyncRead + Unpin>(stream: &mut T) -> Option<Call> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD_BYTES {
            return None;
        }
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut call = Call { method, path, headers, body: String::new() };
    let length = call.header("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    call.body = String::from_utf8(body).ok()?;
    Some(call)
}

fn reply(status: u16, headers: &[(String, String)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} \r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}
