//! The activity of a connection: its requests in progress, and the start of its wait for the peer.
//!
//! The stream and the bodies are wrapped, because the HTTP library has no limit for the bytes
//! before a request, for a kept connection without one, or for a peer that stops in the middle.

use super::EndReason;
use super::limits::ListenerLimits;
use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
struct ActivityState {
    in_flight: usize,
    /// Those of `in_flight` whose sender is known.
    of_known: usize,
    has_requested: bool,
    is_http2: bool,
    /// The time when the peer last became quiet: at the start, or at the end of its last request.
    quiet_since: Instant,
    /// The first byte since then.
    first_byte: Option<Instant>,
    /// The time since which the peer has read none of the bytes that wait for it.
    blocked_since: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Activity(Mutex<ActivityState>);

impl Activity {
    pub fn new() -> Self {
        Self(Mutex::new(ActivityState {
            in_flight: 0,
            of_known: 0,
            has_requested: false,
            is_http2: false,
            quiet_since: Instant::now(),
            first_byte: None,
            blocked_since: None,
        }))
    }

    /// The order in which connections are closed for others, or None for one with the request of a
    /// known sender. Any stranger can begin a request and never end it.
    pub fn quiet(&self) -> Option<(bool, Instant)> {
        let state = self.state();
        (state.of_known == 0).then_some((state.has_requested, state.quiet_since))
    }

    /// The limits for requests begin now: TLS is agreed on.
    pub fn ready(&self) {
        self.state().quiet_since = Instant::now();
    }

    pub fn begin_request(self: &Arc<Self>) -> RequestInFlight {
        let mut state = self.state();
        state.in_flight += 1;
        state.has_requested = true;
        let known = AtomicBool::new(false);
        RequestInFlight(Arc::new(InFlight { activity: Arc::clone(self), known }))
    }

    /// The limit that has passed, or when to look again.
    pub fn check(&self, limits: &ListenerLimits, now: Instant) -> Result<Instant, EndReason> {
        let state = self.state();
        let reached = |since: Instant, limit: Duration, reason: EndReason| match since + limit {
            end if end <= now => Err(reason),
            end => Ok(end),
        };
        if let Some(since) = state.blocked_since {
            return reached(since, limits.stall, EndReason::Stalled);
        }
        if state.in_flight > 0 {
            return Ok(now + limits.first_byte.min(limits.header));
        }
        match (state.is_http2, state.first_byte, state.has_requested) {
            (false, Some(first), _) => reached(first, limits.header, EndReason::SlowHeader),
            (false, None, false) => {
                reached(state.quiet_since, limits.first_byte, EndReason::Silent)
            }
            (true, _, _) | (false, None, true) => {
                reached(state.quiet_since, limits.idle, EndReason::Idle)
            }
        }
    }

    fn received(&self) {
        let mut state = self.state();
        if state.in_flight == 0 && state.first_byte.is_none() {
            state.first_byte = Some(Instant::now());
        }
    }

    fn wrote(&self, blocked: bool) {
        let mut state = self.state();
        state.blocked_since = match blocked {
            true => state.blocked_since.or_else(|| Some(Instant::now())),
            false => None,
        };
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct InFlight {
    activity: Arc<Activity>,
    known: AtomicBool,
}

/// A request, until the last byte of its answer has been handed over.
#[derive(Debug)]
pub(super) struct RequestInFlight(Arc<InFlight>);

impl RequestInFlight {
    pub fn sender(&self) -> RequestSender {
        RequestSender(Arc::downgrade(&self.0))
    }
}

/// The sender of a request, an extension of it.
#[derive(Debug, Clone)]
pub(crate) struct RequestSender(Weak<InFlight>);

impl RequestSender {
    /// The sender has proved who it is: its connection is kept until the request ends.
    pub fn is_known(&self) {
        let Some(request) = self.0.upgrade() else { return };
        let mut state = request.activity.state();
        if !request.known.swap(true, Ordering::Relaxed) {
            state.of_known += 1;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.in_flight -= 1;
        state.of_known -= usize::from(*self.known.get_mut());
        if state.in_flight == 0 {
            (state.quiet_since, state.first_byte) = (Instant::now(), None);
        }
    }
}

/// A stream that records what passes through it.
pub(super) struct ObservedStream<S> {
    stream: S,
    activity: Arc<Activity>,
    /// The number of bytes of the preface of HTTP/2 that have arrived; None: the protocol is
    /// another one.
    preface: Option<usize>,
}

impl<S> ObservedStream<S> {
    pub fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, preface: Some(0) }
    }

    fn record(&mut self, bytes: &[u8]) {
        self.activity.received();
        let Some(before) = self.preface else { return };
        let expected = &PREFACE[before..];
        let common = bytes.len().min(expected.len());
        self.preface = match bytes[..common] == expected[..common] {
            true if before + common == PREFACE.len() => {
                self.activity.state().is_http2 = true;
                None
            }
            true => Some(before + common),
            false => None,
        };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.record(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> ObservedStream<S> {
    fn observe<T>(self: Pin<&mut Self>, write: impl FnOnce(Pin<&mut S>) -> Poll<T>) -> Poll<T> {
        let this = self.get_mut();
        let polled = write(Pin::new(&mut this.stream));
        this.activity.wrote(polled.is_pending());
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.observe(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.observe(|stream| stream.poll_write_vectored(cx, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.observe(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.observe(|stream| stream.poll_shutdown(cx))
    }
}

/// The body of an answer, which keeps its request in flight.
pub(super) struct AnswerBody {
    body: Body,
    _request: RequestInFlight,
}

impl AnswerBody {
    pub fn new(body: Body, request: RequestInFlight) -> Self {
        Self { body, _request: request }
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an HTTP/1 request, which fails when its peer stops in the middle of it. On HTTP/2
/// pings find a dead peer, and a stream may pause.
pub(super) struct TimedBody<B> {
    body: B,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    waits: bool,
}

impl<B> TimedBody<B> {
    pub fn new(body: B, limit: Duration) -> Self {
        Self { body, limit, deadline: Box::pin(tokio::time::sleep(limit)), waits: false }
    }
}

impl<B> hyper::body::Body for TimedBody<B>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waits = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if !this.waits {
            this.waits = true;
            this.deadline.as_mut().reset(Instant::now() + this.limit);
        }
        match this.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let message = "the body of the request did not come to its end in time";
                Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, message).into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    const LIMITS: ListenerLimits = ListenerLimits {
        connections: 1,
        per_peer: 1,
        streams: 1,
        first_byte: Duration::from_secs(10),
        header: Duration::from_secs(20),
        stall: Duration::from_secs(60),
        idle: Duration::from_secs(300),
        handshake: Duration::from_secs(10),
    };

    async fn passed(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    async fn send(
        peer: &mut DuplexStream,
        stream: &mut ObservedStream<DuplexStream>,
        bytes: &[u8],
    ) {
        peer.write_all(bytes).await.unwrap();
        stream.read_exact(&mut vec![0; bytes.len()]).await.unwrap();
    }

    fn end(activity: &Activity) -> Option<EndReason> {
        activity.check(&LIMITS, Instant::now()).err()
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_of_a_connection_has_its_limit() {
        let activity = Arc::new(Activity::new());
        passed(9).await;
        assert_eq!(end(&activity), None);
        passed(1).await;
        assert_eq!(end(&activity), Some(EndReason::Silent));

        let activity = Arc::new(Activity::new());
        let (mut peer, stream) = tokio::io::duplex(1024);
        let mut stream = ObservedStream::new(stream, Arc::clone(&activity));
        send(&mut peer, &mut stream, b"GET / HTTP/1.1\r\nHo").await;
        passed(19).await;
        assert_eq!(end(&activity), None);
        // More bytes of the same head give no more time.
        send(&mut peer, &mut stream, b"st: a\r\n").await;
        passed(1).await;
        assert_eq!(end(&activity), Some(EndReason::SlowHeader));

        let request = activity.begin_request();
        passed(100_000).await;
        assert_eq!(end(&activity), None, "a watch may last");
        drop(request);
        passed(299).await;
        assert_eq!(end(&activity), None);
        passed(1).await;
        assert_eq!(end(&activity), Some(EndReason::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn the_preface_of_http2_is_not_a_slow_head() {
        for (pieces, http2) in [
            (vec![PREFACE], true),
            (vec![&PREFACE[..5], &PREFACE[5..]], true),
            (vec![&PREFACE[..23]], false),
            (vec![b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n".as_slice()], false),
        ] {
            let activity = Arc::new(Activity::new());
            let (mut peer, stream) = tokio::io::duplex(1024);
            let mut stream = ObservedStream::new(stream, Arc::clone(&activity));
            for piece in &pieces {
                send(&mut peer, &mut stream, piece).await;
            }
            passed(20).await;
            let expected = (!http2).then_some(EndReason::SlowHeader);
            assert_eq!(end(&activity), expected, "{pieces:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_stalled() {
        let activity = Arc::new(Activity::new());
        let (mut peer, stream) = tokio::io::duplex(4);
        let mut stream = ObservedStream::new(stream, Arc::clone(&activity));
        let _request = activity.begin_request();
        stream.write_all(b"1234").await.unwrap();
        let written = tokio::time::timeout(Duration::from_secs(59), stream.write_all(b"5678"));
        assert!(written.await.is_err());
        assert_eq!(end(&activity), None);
        passed(1).await;
        assert_eq!(end(&activity), Some(EndReason::Stalled));
        peer.read_exact(&mut [0; 4]).await.unwrap();
        stream.write_all(b"5678").await.unwrap();
        assert_eq!(end(&activity), None);
    }
}
