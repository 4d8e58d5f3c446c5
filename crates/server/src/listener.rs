//! The accept loop of every TCP listener.
//!
//! A peer can hold a connection only as long as it makes use of it. `limits` derives how many
//! connections a listener keeps from the descriptors that this process may open, `table` counts
//! them by peer and closes the quietest for a new one, `activity` measures what a connection does,
//! `connection` serves one and ends it when a limit passes, `tls` holds the certificates.

mod activity;
mod connection;
pub(crate) mod limits;
mod peer;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

pub(crate) use activity::RequestSender;
pub use peer::{PeerAddress, PeerCertificates};
pub(crate) use tls::read_certificate;

use crate::listener::limits::ListenerLimits;
use activity::Activity;
use axum::Router;
use connection::ConnectionContext;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use table::ConnectionTable;
use tls::ServerTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The waits after an accept that failed for lack of resources.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Quiet connections that are closed when no descriptor is left for a new one.
const CLOSED_PER_SHORTAGE: usize = 8;
/// Refusals and failures of one listener are logged once in this time, with their number.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A listener in logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerName {
    Api,
    Agents,
    Netboot,
}

impl ListenerName {
    pub const ALL: [Self; 3] = [Self::Api, Self::Agents, Self::Netboot];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Agents => "agents",
            Self::Netboot => "netboot",
        }
    }
}

/// The reason why a connection was refused, or ended before its peer closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The listener has as many connections as it may, and known senders use all of them.
    ListenerFull,
    /// The same for the connections of one peer.
    PeerFull,
    /// It was quiet, and another peer needed its place.
    Evicted,
    /// No byte came.
    Silent,
    /// The head of a request did not come to its end.
    SlowHeader,
    /// No request came after the last one.
    Idle,
    /// The peer does not read its answer.
    Stalled,
    TlsTimeout,
    TlsFailed,
    /// The first byte on a listener with TLS was not TLS.
    NotTls,
    /// Its client certificate is no longer accepted.
    CertificateWithdrawn,
    /// The operating system did not hand over a connection.
    AcceptFailed,
}

impl EndReason {
    pub const ALL: [Self; 12] = [
        Self::ListenerFull,
        Self::PeerFull,
        Self::Evicted,
        Self::Silent,
        Self::SlowHeader,
        Self::Idle,
        Self::Stalled,
        Self::TlsTimeout,
        Self::TlsFailed,
        Self::NotTls,
        Self::CertificateWithdrawn,
        Self::AcceptFailed,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ListenerFull => "listener-full",
            Self::PeerFull => "peer-full",
            Self::Evicted => "evicted",
            Self::Silent => "silent",
            Self::SlowHeader => "slow-header",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
            Self::TlsTimeout => "tls-timeout",
            Self::TlsFailed => "tls-failed",
            Self::NotTls => "not-tls",
            Self::CertificateWithdrawn => "certificate-withdrawn",
            Self::AcceptFailed => "accept-failed",
        }
    }
}

pub(crate) fn count_end(listener: ListenerName, reason: EndReason) {
    let (listener, reason) = (listener.as_str(), reason.as_str());
    metrics::counter!(
        "farrier_connections_refused_total", "listener" => listener, "reason" => reason
    )
    .increment(1);
}

/// Tells every connection and accept loop to end.
#[derive(Debug, Clone)]
pub(crate) struct StopSignal(watch::Sender<bool>);

impl StopSignal {
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    fn subscribe(&self) -> StopWatcher {
        StopWatcher(self.0.subscribe())
    }
}

/// Waits for the stop signal.
struct StopWatcher(watch::Receiver<bool>);

impl StopWatcher {
    async fn wait(&mut self) {
        // An error means that the sender was dropped: no task waits for the end of the listener.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// A bound socket with its limits, not yet serving.
pub(crate) struct Listener {
    name: ListenerName,
    socket: TcpListener,
    limits: ListenerLimits,
    tls: Option<ServerTls>,
}

impl Listener {
    pub async fn bind(
        name: ListenerName,
        address: SocketAddr,
        limits: ListenerLimits,
        tls: Option<ServerTls>,
    ) -> io::Result<Self> {
        Ok(Self { name, socket: TcpListener::bind(address).await?, limits, tls })
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until the stop signal; then waits until every connection has ended. Dropping the
    /// future ends them at once.
    pub async fn serve(self, router: Router, stop: &StopSignal) {
        let Self { name, socket, limits, tls } = self;
        let context = Arc::new(ConnectionContext { name, limits, router, tls });
        let table = Arc::new(ConnectionTable::new(name, &limits));
        let mut accepting = AcceptLoop { name, table, failures: Failures::new(name) };
        let (mut stopped, mut tasks) = (stop.subscribe(), JoinSet::new());
        loop {
            tokio::select! {
                () = stopped.wait() => break,
                Some(_) = tasks.join_next() => {}
                accepted = socket.accept() => match accepted {
                    Ok((stream, peer)) => {
                        accepting.failures.succeeded();
                        accepting.admit(&mut tasks, &context, stream, peer, stop);
                        tokio::select! {
                            () = stopped.wait() => break,
                            () = accepting.table.wait_for_descriptors() => {}
                        }
                    }
                    Err(error) => {
                        let pause = accepting.recover(&error);
                        tokio::select! {
                            () = stopped.wait() => break,
                            () = sleep(pause) => {}
                        }
                    }
                },
            }
        }
        drop(socket);
        while tasks.join_next().await.is_some() {}
    }
}

struct AcceptLoop {
    name: ListenerName,
    table: Arc<ConnectionTable>,
    failures: Failures,
}

impl AcceptLoop {
    fn admit(
        &mut self,
        tasks: &mut JoinSet<()>,
        context: &Arc<ConnectionContext>,
        stream: TcpStream,
        peer: SocketAddr,
        stop: &StopSignal,
    ) {
        let activity = Arc::new(Activity::new());
        match self.table.admit(peer.ip(), Arc::clone(&activity)) {
            Ok(slot) => {
                let (context, stopped) = (Arc::clone(context), stop.subscribe());
                let id = slot.id();
                let task = tasks.spawn(async move {
                    let _slot = slot;
                    connection::serve(&context, stream, peer, activity, stopped).await;
                });
                self.table.attach(id, task);
            }
            Err(reason) => {
                count_end(self.name, reason);
                self.failures.report(&format!("{}: {peer}", reason.as_str()));
            }
        }
    }

    /// Makes room after a failed accept; returns how long to wait before the next one.
    fn recover(&mut self, error: &io::Error) -> Duration {
        // The peer has closed the connection before it was accepted.
        if matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted
        ) {
            return Duration::ZERO;
        }
        count_end(self.name, EndReason::AcceptFailed);
        self.table.evict_quiet(CLOSED_PER_SHORTAGE);
        self.failures.failed(error)
    }
}

/// The failures of a listener: the pause after each, and the log lines, which are limited.
struct Failures {
    name: ListenerName,
    backoff: Duration,
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Failures {
    fn new(name: ListenerName) -> Self {
        Self { name, backoff: FIRST_BACKOFF, logged_at: None, unlogged: 0 }
    }

    fn succeeded(&mut self) {
        self.backoff = FIRST_BACKOFF;
    }

    fn failed(&mut self, error: &io::Error) -> Duration {
        self.report(&error.to_string());
        let pause = self.backoff;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        pause
    }

    fn report(&mut self, why: &str) {
        if self.logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        let (listener, others) = (self.name.as_str(), self.unlogged);
        tracing::warn!(listener, why, others, "connections were not accepted");
        (self.logged_at, self.unlogged) = (Some(Instant::now()), 0);
    }
}
