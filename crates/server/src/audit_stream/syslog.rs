//! The syslog receiver: RFC 5424 messages as datagrams, or over TCP with octet counting (RFC 6587).
//!
//! Syslog has no acknowledgements. A message over UDP may be lost on the way; over TCP the messages
//! that may have been on the way when a connection ended are sent again over the next one.

use super::{Line, Resend, SinkError};
use crate::config::host_name;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram};
use tokio::time::timeout;

/// The facility `log audit`.
const FACILITY: u8 = 13;
const NOTICE: u8 = 5;
const INFORMATIONAL: u8 = 6;
/// The time limit of a connection, and of a message in it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyslogTarget {
    Udp(String),
    Tcp(String),
    Unix(PathBuf),
}

impl SyslogTarget {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let address = || {
            let (host, port) = rest.rsplit_once(':')?;
            let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
            (is_port && !host.is_empty() && !rest.contains(['/', ' '])).then(|| rest.to_string())
        };
        let target = match scheme {
            "udp" => address().map(Self::Udp),
            "tcp" => address().map(Self::Tcp),
            "unix" => Some(PathBuf::from(rest)).filter(|path| path.is_absolute()).map(Self::Unix),
            _ => None,
        };
        target.ok_or_else(|| {
            format!(
                "audit.syslog is {text:?}; write \"udp://host:514\", \"tcp://host:514\" or \
                 \"unix:///dev/log\""
            )
        })
    }

    async fn connect(&self) -> io::Result<Connection> {
        match self {
            Self::Udp(address) => {
                let peers: Vec<_> = tokio::net::lookup_host(address).await?.collect();
                let peer = peers.first().ok_or_else(|| io::Error::other("it has no address"))?;
                let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).await?;
                socket.connect(peer).await?;
                Ok(Connection::Udp(socket))
            }
            Self::Tcp(address) => Ok(Connection::Tcp(TcpStream::connect(address).await?)),
            Self::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                Ok(Connection::Unix(socket))
            }
        }
    }
}

enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Unix(UnixDatagram),
}

impl Connection {
    /// Fails when the receiver has closed the connection: a message written then is lost.
    fn check(&self) -> Result<(), SinkError> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        match stream.try_read(&mut [0; 64]) {
            Ok(0) => {
                let said = "the receiver has closed the connection".to_string();
                Err(SinkError { said, resend: Resend::Unconfirmed })
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(broken(&error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn send(&mut self, message: &str) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(message.as_bytes()).await.map(drop),
            Self::Unix(socket) => socket.send(message.as_bytes()).await.map(drop),
            Self::Tcp(stream) => {
                let framed = format!("{} {message}", message.len());
                stream.write_all(framed.as_bytes()).await
            }
        }
    }
}

pub(super) struct SyslogSink {
    target: SyslogTarget,
    host: String,
    connection: Option<Connection>,
}

impl SyslogSink {
    pub fn new(target: SyslogTarget) -> Self {
        let host = host_name().unwrap_or_default();
        Self { target, host: printable(&host), connection: None }
    }

    pub async fn send(&mut self, lines: &[Line]) -> Result<(), SinkError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connected = in_time(self.target.connect()).await;
                connected.map_err(|error| SinkError {
                    said: error.to_string(),
                    resend: Resend::Nothing,
                })?
            }
        };
        for line in lines {
            connection.check()?;
            let sent = in_time(connection.send(&message(&self.host, line))).await;
            sent.map_err(|error| broken(&error))?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Checks that the receiver still reads. A connection that has ended is closed.
    pub fn check(&mut self) -> Result<(), SinkError> {
        let Some(connection) = &self.connection else { return Ok(()) };
        connection.check().inspect_err(|_| self.connection = None)
    }
}

fn broken(error: &io::Error) -> SinkError {
    SinkError { said: error.to_string(), resend: Resend::Recent }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the receiver does not answer");
    timeout(TIMEOUT, work).await.unwrap_or_else(|_| Err(late()))
}

/// A host name as RFC 5424 allows it.
fn printable(host: &str) -> String {
    let host: String = host.chars().filter(char::is_ascii_graphic).take(255).collect();
    if host.is_empty() { "-".into() } else { host }
}

fn message(host: &str, line: &Line) -> String {
    let severity = if line.accepted { INFORMATIONAL } else { NOTICE };
    let priority = FACILITY * 8 + severity;
    let Line { at, json, .. } = line;
    format!("<{priority}>1 {at} {host} farrier {} audit - {json}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(accepted: bool) -> Line {
        let at = "2026-01-31T12:00:00.000001Z".into();
        Line { at, accepted, json: "{\"sequence\":\"7\"}".into() }
    }

    #[test]
    fn a_message_is_as_rfc_5424_has_it() {
        let id = std::process::id();
        assert_eq!(
            message("host-1", &line(true)),
            format!(
                "<110>1 2026-01-31T12:00:00.000001Z host-1 farrier {id} audit - {{\"sequence\":\"7\"}}"
            )
        );
        assert!(message("host-1", &line(false)).starts_with("<109>1 "));
        assert_eq!(printable("a b\n"), "ab");
        assert_eq!(printable(""), "-");
    }

    #[tokio::test]
    async fn a_closed_connection_is_noticed_before_anything_is_lost() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut sink = SyslogSink::new(SyslogTarget::Tcp(address));
        let (sent, accepted) = tokio::join!(sink.send(&[]), listener.accept());
        assert!(sent.is_ok());
        drop(accepted.unwrap());
        let lines = [line(true)];
        let Some(Connection::Tcp(stream)) = &sink.connection else { panic!("not connected") };
        stream.readable().await.unwrap();
        let error = sink.check().err().unwrap();
        assert_eq!(error.resend, Resend::Unconfirmed, "{}", error.said);
        // The next one goes over a connection of its own.
        let (sent, accepted) = tokio::join!(sink.send(&lines), listener.accept());
        assert!(sent.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn a_receiver_that_is_away_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = SyslogSink::new(SyslogTarget::Unix(dir.path().join("log")));
        assert!(sink.send(&[line(true)]).await.is_err());
    }
}
