//! Limits the requests of machines and agents that prove nothing, and the sign-ins of browsers, so
//! that a peer in their network can neither keep the database busy nor fill the log.
//!
//! A request with a session that was accepted before counts against that session alone. Any other
//! request counts against the address it comes from, and is given back unless it is denied. So an
//! attacker does not lock out the enrolled agents behind the same address, and a fleet behind one
//! address is not limited as long as it proves who it is.

use crate::listener::{PeerAddress, RequestSender};
use crate::netboot::session;
use crate::summed_log::{DeniedRequest, SummedLog};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The most addresses, and the most sessions, that are remembered. Further ones share one bucket.
const MAX_KEYS: usize = 20_000;
/// The interval of the search for buckets that are full again.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A bucket counts thousandths of a request.
const REQUEST: u64 = 1_000;

/// The rate and the burst of requests that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    per_second: u64,
    burst: u64,
}

/// Requests that were denied, or that are not answered yet, of one address. The burst allows a
/// fleet behind one address to enroll at once.
const DENIED: Rate = Rate { per_second: 5, burst: 500 };
/// Requests that need no proof, such as boot scripts, of one address.
const ANONYMOUS: Rate = Rate { per_second: 50, burst: 1_000 };
/// Requests with one session. An agent sends a few per second while it executes a task.
const SESSION: Rate = Rate { per_second: 20, burst: 200 };

/// Sign-ins of browsers at one address, with those that succeed.
const SIGN_INS: Rate = Rate { per_second: 2, burst: 100 };

/// The address of the client of a request; None: the listener does not report it.
pub(crate) fn peer_address(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<PeerAddress>().map(|PeerAddress(address)| address.ip())
}

/// The limit of sign-ins.
#[derive(Clone)]
pub(crate) struct SignInLimit {
    attempts: Arc<Mutex<BucketTable<Option<IpAddr>>>>,
    log: SummedLog,
}

impl Default for SignInLimit {
    fn default() -> Self {
        let attempts = Arc::new(Mutex::new(BucketTable::new(SIGN_INS)));
        Self { attempts, log: SummedLog::new("sign-in") }
    }
}

impl SignInLimit {
    /// Counts an attempt, or returns how long its sender should wait.
    pub(crate) fn count(&self, peer: Option<IpAddr>) -> Result<(), Duration> {
        let taken = lock(&self.attempts).take(peer.map(network_of), Instant::now());
        taken.inspect_err(|_| self.log.count(DeniedRequest::TooMany))
    }
}

/// The limits of one listener.
#[derive(Clone)]
pub(crate) struct RequestLimits {
    denied: Arc<Mutex<BucketTable<Option<IpAddr>>>>,
    anonymous: Arc<Mutex<BucketTable<Option<IpAddr>>>>,
    /// Only sessions that were accepted are in it.
    sessions: Arc<Mutex<BucketTable<SessionKey>>>,
    log: SummedLog,
}

/// The SHA-256 of a session secret.
type SessionKey = [u8; 32];

fn session_key(session: &str) -> SessionKey {
    Sha256::digest(session.as_bytes()).into()
}

/// The bucket that a request was counted against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Peer,
    Session(SessionKey),
}

impl RequestLimits {
    pub(crate) fn new(log: SummedLog) -> Self {
        Self {
            denied: Arc::new(Mutex::new(BucketTable::new(DENIED))),
            anonymous: Arc::new(Mutex::new(BucketTable::new(ANONYMOUS))),
            sessions: Arc::new(Mutex::new(BucketTable::new(SESSION))),
            log,
        }
    }

    /// Counts a request, or returns how long its sender should wait.
    fn charge(
        &self,
        peer: Option<IpAddr>,
        session: Option<SessionKey>,
    ) -> Result<Charge, Duration> {
        let now = Instant::now();
        if let Some(session) = session {
            let mut sessions = lock(&self.sessions);
            if sessions.buckets.contains_key(&session) {
                sessions.take(session, now)?;
                return Ok(Charge::Session(session));
            }
        }
        lock(&self.denied).take(peer, now).map(|()| Charge::Peer)
    }

    /// Corrects the count when the request is answered.
    fn settle(
        &self,
        peer: Option<IpAddr>,
        session: Option<SessionKey>,
        charge: Charge,
        end: StatusCode,
    ) {
        let now = Instant::now();
        match (charge, is_denied(end)) {
            (Charge::Peer, true) => {}
            (Charge::Peer, false) => {
                lock(&self.denied).put_back(&peer, now);
                if let Some(session) = session.filter(|_| end.is_success()) {
                    lock(&self.sessions).bucket(session, now);
                }
            }
            // The session has ended: from now on it is like any other unknown one.
            (Charge::Session(session), true) => {
                lock(&self.sessions).buckets.remove(&session);
            }
            (Charge::Session(_), false) => {}
        }
    }
}

fn is_denied(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The middleware in front of the routes on which a client proves who it is.
pub(crate) async fn limit_logins(
    State(limits): State<RequestLimits>,
    request: Request,
    next: Next,
) -> Response {
    let peer = peer_address(&request).map(network_of);
    let session = Some(session(request.headers())).filter(|one| !one.is_empty()).map(session_key);
    match limits.charge(peer, session) {
        Ok(charge) => {
            let sender = request.extensions().get::<RequestSender>().cloned();
            let is_known =
                |known: bool| sender.iter().filter(|_| known).for_each(RequestSender::is_known);
            is_known(matches!(charge, Charge::Session(_)));
            let response = next.run(request).await;
            let status = response.status();
            // The answer may be a large file.
            is_known(status.is_success());
            limits.settle(peer, session, charge, status);
            if is_denied(status) {
                limits.log.count(DeniedRequest::Identity);
            }
            response
        }
        Err(wait) => too_many(&limits.log, wait),
    }
}

/// The middleware in front of the routes that need no proof of identity.
pub(crate) async fn limit_anonymous(
    State(limits): State<RequestLimits>,
    request: Request,
    next: Next,
) -> Response {
    let peer = peer_address(&request).map(network_of);
    let taken = lock(&limits.anonymous).take(peer, Instant::now());
    match taken {
        Ok(()) => next.run(request).await,
        Err(wait) => too_many(&limits.log, wait),
    }
}

fn too_many(log: &SummedLog, wait: Duration) -> Response {
    log.count(DeniedRequest::TooMany);
    let seconds = wait.as_secs() + 1;
    let message = format!("too many requests from this address; try again in {seconds} s");
    let refusal = wire::Refusal { code: "too-many-requests".into(), message };
    let retry = [(header::RETRY_AFTER, seconds.to_string())];
    (StatusCode::TOO_MANY_REQUESTS, retry, Json(refusal)).into_response()
}

/// A host has all addresses of an IPv6 network of 64 bits.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
    }
}

/// A token bucket: what is left of it, at a moment.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: u64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { left: rate.burst * REQUEST, at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        // A thousandth of a request per millisecond is one request per second.
        let more = passed.saturating_mul(rate.per_second);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(rate.burst * REQUEST);
            self.at = now;
        }
    }

    fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        self.refill(rate, now);
        match self.left.checked_sub(REQUEST) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Duration::from_millis((REQUEST - self.left).div_ceil(rate.per_second))),
        }
    }
}

/// A bucket for each key, up to [`MAX_KEYS`]. A bucket that is full again is like a missing one.
struct BucketTable<K> {
    rate: Rate,
    buckets: HashMap<K, Bucket>,
    /// For the keys that found no place.
    shared: Bucket,
    swept_at: Instant,
}

impl<K: Hash + Eq> BucketTable<K> {
    fn new(rate: Rate) -> Self {
        let now = Instant::now();
        Self { rate, buckets: HashMap::new(), shared: Bucket::full(rate, now), swept_at: now }
    }

    /// The bucket of a key; the shared one if there is no place for another.
    fn bucket(&mut self, key: K, now: Instant) -> &mut Bucket {
        if self.buckets.len() >= MAX_KEYS && !self.buckets.contains_key(&key) {
            self.sweep(now);
            if self.buckets.len() >= MAX_KEYS {
                return &mut self.shared;
            }
        }
        let full = Bucket::full(self.rate, now);
        self.buckets.entry(key).or_insert(full)
    }

    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        let rate = self.rate;
        self.buckets.retain(|_, bucket| {
            bucket.refill(rate, now);
            bucket.left < rate.burst * REQUEST
        });
    }

    fn take(&mut self, key: K, now: Instant) -> Result<(), Duration> {
        let rate = self.rate;
        self.bucket(key, now).take(rate, now)
    }

    fn put_back(&mut self, key: &K, now: Instant) {
        let rate = self.rate;
        let bucket = self.buckets.get_mut(key).unwrap_or(&mut self.shared);
        bucket.refill(rate, now);
        bucket.left = (bucket.left + REQUEST).min(rate.burst * REQUEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 2, burst: 3 };
    const GOOD: Option<SessionKey> = Some([1; 32]);
    const GUESS: Option<SessionKey> = Some([2; 32]);

    fn limits() -> RequestLimits {
        RequestLimits::new(SummedLog::new("test"))
    }

    fn peer(text: &str) -> Option<IpAddr> {
        Some(network_of(text.parse().unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_allows_a_burst_and_then_its_rate() {
        let mut table = BucketTable::new(RATE);
        let begin = Instant::now();
        for _ in 0..RATE.burst {
            table.take("a", begin).unwrap();
        }
        assert_eq!(table.take("a", begin), Err(Duration::from_millis(500)));
        table.take("b", begin).unwrap();
        let later = begin + Duration::from_millis(499);
        assert_eq!(table.take("a", later), Err(Duration::from_millis(1)));
        table.take("a", begin + Duration::from_millis(500)).unwrap();
        table.put_back(&"a", begin + Duration::from_millis(500));
        table.take("a", begin + Duration::from_millis(500)).unwrap();
        // It never holds more than the burst.
        let much_later = begin + Duration::from_secs(3_600);
        table.put_back(&"a", much_later);
        for _ in 0..RATE.burst {
            table.take("a", much_later).unwrap();
        }
        table.take("a", much_later).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_forgets_the_idle() {
        let mut table = BucketTable::new(RATE);
        let begin = Instant::now();
        for key in 0..MAX_KEYS + 10 {
            let _ = table.take(key, begin);
        }
        assert_eq!(table.buckets.len(), MAX_KEYS);
        // Those without a place share one bucket, which is empty by now.
        table.take(MAX_KEYS + 11, begin).unwrap_err();
        table.take(0, begin).unwrap();
        table.take(MAX_KEYS + 11, begin + Duration::from_secs(10)).unwrap();
        assert_eq!(table.buckets.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn denied_requests_count_against_the_address_and_others_do_not() {
        let limits = limits();
        let (attacker, other) = (peer("10.0.0.1"), peer("10.0.0.2"));
        for _ in 0..3 * DENIED.burst {
            let charge = limits.charge(attacker, GOOD).unwrap();
            limits.settle(attacker, GOOD, charge, StatusCode::OK);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // The rest of the address is used up by guesses.
        let guess = || {
            let charge = limits.charge(attacker, GUESS)?;
            limits.settle(attacker, GUESS, charge, StatusCode::UNAUTHORIZED);
            Ok::<_, Duration>(())
        };
        for _ in 0..DENIED.burst {
            guess().unwrap();
        }
        guess().unwrap_err();
        limits.charge(other, GUESS).unwrap();
        // The session that was accepted before goes on, until it is denied.
        let charge = limits.charge(attacker, GOOD).unwrap();
        assert_eq!(charge, Charge::Session(GOOD.unwrap()));
        limits.settle(attacker, GOOD, charge, StatusCode::UNAUTHORIZED);
        limits.charge(attacker, GOOD).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_not_answered_yet_count() {
        let limits = limits();
        for _ in 0..DENIED.burst {
            limits.charge(peer("10.0.0.1"), None).unwrap();
        }
        limits.charge(peer("10.0.0.1"), None).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn one_session_has_a_rate_of_its_own() {
        let limits = limits();
        let from = peer("10.0.0.1");
        let send = || {
            let charge = limits.charge(from, GOOD)?;
            limits.settle(from, GOOD, charge, StatusCode::OK);
            Ok::<_, Duration>(())
        };
        // The first one makes it known.
        for _ in 0..=SESSION.burst {
            send().unwrap();
        }
        send().unwrap_err();
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
    }
}
