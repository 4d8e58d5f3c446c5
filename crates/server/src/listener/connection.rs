//! One connection: TLS, HTTP/1 or HTTP/2, and its end when a limit passes.

use super::activity::{Activity, AnswerBody, ObservedStream, TimedBody};
use super::limits::ListenerLimits;
use super::peer::{PeerAddress, PeerCertificates};
use super::tls::{ServerTls, TlsUpdates};
use super::{EndReason, ListenerName, StopWatcher, count_end};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;

/// A peer of an HTTP/2 connection is dead when it leaves a ping unanswered for `PING_TIMEOUT`.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that an idle connection has to close after it was asked to.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of every TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
const SPEAKS_TLS: &str = "this port speaks TLS; write https:// in place of http://\n";
/// The longest head of an HTTP/1 request. Anyone can send one; that of HTTP/2 is shorter.
const MAX_HEAD: usize = 64 * 1024;
/// The most bytes that are read from a refused peer before its connection is closed: a connection
/// with unread bytes is reset, and the peer would not see why it was refused.
const MAX_UNREAD_BYTES: u64 = 64 * 1024;

/// The constants of a listener's connections.
pub(super) struct ConnectionContext {
    pub name: ListenerName,
    pub limits: ListenerLimits,
    pub router: Router,
    pub tls: Option<ServerTls>,
}

/// A connection that is ready for requests.
struct OpenConnection<S> {
    stream: S,
    peer: PeerAddress,
    certificates: Option<PeerCertificates>,
    /// The changes of the certificates since before the handshake.
    updates: Option<TlsUpdates>,
    activity: Arc<Activity>,
}

/// Serves a connection until it ends or a limit passes.
pub(super) async fn serve(
    context: &ConnectionContext,
    stream: TcpStream,
    peer: SocketAddr,
    activity: Arc<Activity>,
    stopped: StopWatcher,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY on a connection");
    }
    let mut first = [0];
    let ended = match timeout(context.limits.first_byte, stream.peek(&mut first)).await {
        Err(_) => Err(EndReason::Silent),
        Ok(Err(_) | Ok(0)) => return,
        Ok(Ok(_)) => {
            let peer = PeerAddress(peer);
            match &context.tls {
                None => {
                    let (certificates, updates) = (None, None);
                    let open = OpenConnection { stream, peer, certificates, updates, activity };
                    context.run(open, stopped).await
                }
                Some(tls) if first[0] == TLS_HANDSHAKE => {
                    let updates = Some(tls.updates());
                    let accepted = context.agree_on_tls(tls, stream).await;
                    match accepted {
                        Err(reason) => Err(reason),
                        Ok((stream, certificates)) => {
                            let open =
                                OpenConnection { stream, peer, certificates, updates, activity };
                            context.run(open, stopped).await
                        }
                    }
                }
                Some(_) => Err(refuse_plain(stream).await),
            }
        }
    };
    if let Err(reason) = ended {
        tracing::debug!(listener = context.name.as_str(), %peer, ?reason, "connection ended");
        count_end(context.name, reason);
    }
}

/// Tells a client without TLS which scheme to use.
async fn refuse_plain(mut stream: TcpStream) -> EndReason {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n\r\n{SPEAKS_TLS}",
        SPEAKS_TLS.len()
    );
    if timeout(CLOSE_TIMEOUT, stream.write_all(answer.as_bytes())).await.is_ok() {
        close_refused(stream).await;
    }
    EndReason::NotTls
}

/// Closes a connection so that the peer sees what was sent last.
async fn close_refused(mut stream: TcpStream) {
    let closed = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(MAX_UNREAD_BYTES), &mut tokio::io::sink()).await
    };
    // The peer may be gone already, and nothing depends on it.
    let _ = timeout(CLOSE_TIMEOUT, closed).await;
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

impl ConnectionContext {
    async fn agree_on_tls(
        &self,
        tls: &ServerTls,
        stream: TcpStream,
    ) -> Result<(TlsStream, Option<PeerCertificates>), EndReason> {
        let accepted = tls.acceptor().accept(stream).into_fallible();
        let stream = match timeout(self.limits.handshake, accepted).await {
            Err(_) => return Err(EndReason::TlsTimeout),
            Ok(Err((error, stream))) => {
                tracing::debug!(listener = self.name.as_str(), %error, "TLS handshake failed");
                close_refused(stream).await;
                return Err(EndReason::TlsFailed);
            }
            Ok(Ok(stream)) => stream,
        };
        let shown = stream.get_ref().1.peer_certificates();
        let shown = shown.map(|shown| shown.iter().map(|one| one.clone().into_owned()).collect());
        Ok((stream, shown.map(PeerCertificates::new)))
    }

    /// Serves requests. The error is the limit that has ended the connection.
    async fn run<S>(
        &self,
        open: OpenConnection<S>,
        mut stopped: StopWatcher,
    ) -> Result<(), EndReason>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let OpenConnection { stream, peer, certificates, mut updates, activity } = open;
        activity.ready();
        let (limits, router) = (&self.limits, &self.router);
        let service = service_fn(|request: Request<Incoming>| {
            let router = router.clone();
            let request = prepare(request, peer, certificates.clone(), limits.stall);
            answer(router, request, Arc::clone(&activity))
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().max_buf_size(MAX_HEAD);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(limits.streams);
        let io = TokioIo::new(ObservedStream::new(stream, Arc::clone(&activity)));
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut closing: Option<EndReason> = None;
        let mut stopping = false;
        let mut look_at = Instant::now();
        loop {
            tokio::select! {
                // A certificate that was withdrawn meanwhile makes no request.
                biased;
                () = changed(updates.as_mut()) => {
                    if let (Some(tls), Some(shown)) = (&self.tls, &certificates)
                        && !tls.accepts(shown.chain())
                    {
                        return Err(EndReason::CertificateWithdrawn);
                    }
                }
                () = sleep_until(look_at) => match (activity.check(limits, Instant::now()), closing) {
                    (Ok(next), _) => look_at = next,
                    (Err(EndReason::Idle), None) if !stopping => {
                        // A request that is on its way is still answered.
                        closing = Some(EndReason::Idle);
                        look_at = Instant::now() + CLOSE_TIMEOUT;
                        connection.as_mut().graceful_shutdown();
                    }
                    (Err(reason), _) => return Err(reason),
                },
                () = stopped.wait(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::trace!(listener = self.name.as_str(), %error, "connection broke");
                    }
                    return closing.map_or(Ok(()), Err);
                }
            }
        }
    }
}

/// Waits for a change of the certificates; for ever without TLS.
async fn changed(updates: Option<&mut TlsUpdates>) {
    if let Some(updates) = updates
        && updates.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Adds what the listener knows about the sender, and a limit for a body that stops.
fn prepare(
    request: Request<Incoming>,
    peer: PeerAddress,
    certificates: Option<PeerCertificates>,
    stall: Duration,
) -> Request<Body> {
    let http1 = request.version() < Version::HTTP_2;
    let mut request = request.map(|body| match http1 {
        true => Body::new(TimedBody::new(body, stall)),
        false => Body::new(body),
    });
    request.extensions_mut().insert(peer);
    if let Some(certificates) = certificates {
        request.extensions_mut().insert(certificates);
    }
    request
}

async fn answer(
    router: Router,
    mut request: Request<Body>,
    activity: Arc<Activity>,
) -> Result<Response<AnswerBody>, Infallible> {
    let in_flight = activity.begin_request();
    request.extensions_mut().insert(in_flight.sender());
    let response = router.oneshot(request).await?;
    Ok(response.map(|body| AnswerBody::new(body, in_flight)))
}
