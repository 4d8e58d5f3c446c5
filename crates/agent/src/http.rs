//! The part of HTTP/1.1 that the agent needs: one request per connection, to an IP address, with
//! TLS if the URL says so.
//!
//! It is built on the standard library's sockets and `httparse` because of its timeouts: a download
//! may take an hour, and yet a silent connection or a stop must be noticed within seconds. Clients
//! with one timeout for the whole response cannot do that. There are no redirects, no cookies and
//! no name resolution, which a static binary could not do anyway.

mod tls;
mod url;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use secrecy::{ExposeSecret, SecretString};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
pub use tls::TlsFiles;
pub use url::Url;

const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// The limit of the line before a chunk: its length, and extensions that are never used.
const MAX_CHUNK_LINE_BYTES: usize = 256;
const READ_BYTES: usize = 16 * 1024;
/// The interval of checks for a stop while nothing arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    pub connect: Duration,
    /// The limit for a read or a write without progress.
    pub idle: Duration,
}

pub struct Client {
    timeouts: Timeouts,
    /// The TLS settings for URLs with `https://`.
    tls: Option<Arc<ClientConfig>>,
    /// Once it is set, blocked reads end.
    stop_flag: Arc<AtomicBool>,
}

pub struct Request<'a> {
    pub method: &'static str,
    pub url: &'a Url,
    pub bearer: Option<&'a SecretString>,
    /// The first byte of a range request.
    pub from: Option<u64>,
    pub json: Option<&'a [u8]>,
}

pub struct Response {
    pub status: u16,
    /// The first byte of the body, and the size of the whole resource if the server gives it.
    pub range: Option<(u64, Option<u64>)>,
    pub body: Body,
}

impl Client {
    pub fn new(timeouts: Timeouts, stop_flag: Arc<AtomicBool>) -> Self {
        Self { timeouts, tls: None, stop_flag }
    }

    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<ClientConfig>>) -> Self {
        Self { tls, ..self }
    }

    pub fn send(&self, request: &Request) -> io::Result<Response> {
        let stream = TcpStream::connect_timeout(&request.url.address(), self.timeouts.connect)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        stream.set_write_timeout(Some(self.timeouts.idle))?;
        let stream = match (request.url.is_tls(), &self.tls) {
            (false, _) => Stream::Plain(stream),
            (true, Some(tls)) => {
                Stream::Tls(Box::new(self.agree_on_tls(request.url, tls, stream)?))
            }
            (true, None) => {
                let message = "an https:// address needs a ca_file";
                return Err(io::Error::new(ErrorKind::InvalidInput, message));
            }
        };
        let idle = self.timeouts.idle;
        let mut connection =
            Connection { stream, buffer: Vec::new(), idle, stop_flag: self.stop_flag.clone() };
        connection.stream.write_all(format_head(request).as_bytes())?;
        connection.stream.write_all(request.json.unwrap_or_default())?;
        connection.stream.flush()?;
        let head = connection.read_head()?;
        Ok(Response {
            status: head.status,
            range: head.range,
            body: Body { connection, framing: head.framing },
        })
    }
}

impl Client {
    /// Verifies the server's identity before anything is sent.
    fn agree_on_tls(
        &self,
        url: &Url,
        tls: &Arc<ClientConfig>,
        mut stream: TcpStream,
    ) -> io::Result<TlsStream> {
        let name = ServerName::IpAddress(url.address().ip().into());
        let mut session = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        let since = Instant::now();
        while session.is_handshaking() {
            if self.stop_flag.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            match session.complete_io(&mut stream) {
                Ok(_) => {}
                Err(error) if is_poll_timeout(&error) && since.elapsed() < self.timeouts.idle => {}
                Err(error) => return Err(error),
            }
        }
        Ok(StreamOwned::new(session, stream))
    }
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

fn format_head(request: &Request) -> String {
    let Request { method, url, bearer, from, json } = request;
    let mut text = format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", url.path(), url.address());
    text += "User-Agent: farrier-agent\r\nConnection: close\r\nAccept-Encoding: identity\r\n";
    if let Some(bearer) = bearer {
        text += &format!("Authorization: Bearer {}\r\n", bearer.expose_secret());
    }
    if let Some(from) = from {
        text += &format!("Range: bytes={from}-\r\n");
    }
    if let Some(json) = json {
        text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", json.len());
    }
    text + "\r\n"
}

/// Detects the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Bytes that are still to come.
    Length(u64),
    /// Bytes that are still to come of this chunk; its size line has been read.
    Chunk(u64),
    /// Between two chunks. Before the first there is no line end.
    Between {
        first: bool,
    },
    UntilClosed,
    Ended,
}

struct Head {
    status: u16,
    range: Option<(u64, Option<u64>)>,
    framing: Framing,
}

struct Connection {
    stream: Stream,
    /// Bytes that arrived with the head or with a chunk's size line and have not been returned yet.
    buffer: Vec<u8>,
    idle: Duration,
    stop_flag: Arc<AtomicBool>,
}

impl Connection {
    /// Reads available bytes; fails after `idle` without any.
    fn read_socket(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            if self.stop_flag.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            match self.stream.read(into) {
                Err(error) if is_poll_timeout(&error) && since.elapsed() < self.idle => {}
                Err(error) if is_poll_timeout(&error) => {
                    return Err(io::Error::new(ErrorKind::TimedOut, "nothing arrives any more"));
                }
                done => return done,
            }
        }
    }

    /// Returns buffered bytes first.
    fn read_buffered(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return self.read_socket(into);
        }
        let count = self.buffer.len().min(into.len());
        into[..count].copy_from_slice(&self.buffer[..count]);
        self.buffer.drain(..count);
        Ok(count)
    }

    fn fill_buffer(&mut self, limit: usize) -> io::Result<()> {
        if self.buffer.len() >= limit {
            return Err(invalid_data("the answer's head is too long"));
        }
        let mut piece = [0; READ_BYTES];
        match self.read_socket(&mut piece)? {
            0 => Err(cut_error()),
            count => {
                self.buffer.extend_from_slice(&piece[..count]);
                Ok(())
            }
        }
    }

    fn read_head(&mut self) -> io::Result<Head> {
        loop {
            if let Some((head, length)) = parse_head(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(head);
            }
            self.fill_buffer(MAX_HEAD_BYTES)?;
        }
    }

    /// Reads the size line of a chunk, with the line end of the previous chunk.
    fn read_chunk_line(&mut self, first: bool) -> io::Result<u64> {
        let skip = if first { 0 } else { 2 };
        loop {
            let line = self.buffer.get(skip..).unwrap_or_default();
            match httparse::parse_chunk_size(line) {
                Ok(httparse::Status::Complete((length, size))) => {
                    self.buffer.drain(..skip + length);
                    return Ok(size);
                }
                Ok(httparse::Status::Partial) => self.fill_buffer(MAX_CHUNK_LINE_BYTES)?,
                Err(_) => return Err(invalid_data("the length of a chunk is no number")),
            }
        }
    }
}

/// Parses a complete head and its length in bytes. None: more bytes are needed.
fn parse_head(text: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(text).map_err(|error| invalid_data(&error.to_string()))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let status = response.code.unwrap_or_default();
    let value = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
    };
    let chunked = value("transfer-encoding")
        .is_some_and(|text| text.to_ascii_lowercase().contains("chunked"));
    let framing = match (status, chunked, value("content-length")) {
        (204 | 304, _, _) => Framing::Ended,
        (_, true, _) => Framing::Between { first: true },
        (_, false, Some(text)) => {
            let length = text.parse().map_err(|_| invalid_data("Content-Length is no number"))?;
            Framing::Length(length)
        }
        (_, false, None) => Framing::UntilClosed,
    };
    let range = value("content-range").and_then(parse_range);
    Ok(Some((Head { status, range, framing }, length)))
}

/// `bytes 5-9/10`, or with `*` for an unknown size.
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
}

/// The body as a stream. A broken connection is an error, never an early end.
pub struct Body {
    connection: Connection,
    framing: Framing,
}

impl Body {
    /// Reads a whole small body, within a limit of bytes and of time.
    pub fn read_all(mut self, limit: usize, time: Duration) -> io::Result<Vec<u8>> {
        let since = Instant::now();
        let mut complete = Vec::new();
        let mut piece = [0; READ_BYTES];
        loop {
            match self.read(&mut piece)? {
                0 => return Ok(complete),
                count => complete.extend_from_slice(&piece[..count]),
            }
            if complete.len() > limit {
                return Err(invalid_data("the answer is too long"));
            }
            if since.elapsed() > time {
                return Err(io::Error::new(ErrorKind::TimedOut, "the answer takes too long"));
            }
        }
    }

    fn read_counted(&mut self, left: u64, into: &mut [u8]) -> io::Result<(usize, u64)> {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        match self.connection.read_buffered(&mut into[..most])? {
            0 => Err(cut_error()),
            count => Ok((count, left - count as u64)),
        }
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match self.framing {
                Framing::Ended | Framing::Length(0) => return Ok(0),
                Framing::UntilClosed => return self.connection.read_buffered(into),
                Framing::Length(left) => {
                    let (count, left) = self.read_counted(left, into)?;
                    self.framing = Framing::Length(left);
                    return Ok(count);
                }
                Framing::Chunk(0) => self.framing = Framing::Between { first: false },
                Framing::Chunk(left) => {
                    let (count, left) = self.read_counted(left, into)?;
                    self.framing = Framing::Chunk(left);
                    return Ok(count);
                }
                Framing::Between { first } => {
                    self.framing = match self.connection.read_chunk_line(first)? {
                        0 => Framing::Ended,
                        size => Framing::Chunk(size),
                    };
                }
            }
        }
    }
}

fn is_poll_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn stopped() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "told to stop")
}

fn cut_error() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the connection was cut")
}

fn invalid_data(message: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(parse_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(parse_range("bytes */10"), None);
        assert_eq!(parse_range("lines 1-2/3"), None);
    }

    #[test]
    fn requests_have_the_required_headers() {
        let url = Url::parse("http://10.0.0.1:80/a").unwrap();
        let bearer = SecretString::from("s3cret");
        let request = Request {
            method: "POST",
            url: &url,
            bearer: Some(&bearer),
            from: Some(7),
            json: Some(b"{}"),
        };
        let text = format_head(&request);
        for line in [
            "POST /a HTTP/1.1\r\n",
            "Host: 10.0.0.1:80\r\n",
            "Authorization: Bearer s3cret\r\n",
            "Range: bytes=7-\r\n",
            "Content-Length: 2\r\n\r\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text:?}");
        }
    }
}
