//! The governor: limits and orders the calls to BMCs.
//!
//! BMCs fail under concurrent calls, lock accounts, and hang for minutes. So each BMC gets one call
//! at a time; all share a concurrency limit that follows the failure rate of the fleet; a circuit
//! breaker stops probes of BMCs that do not answer; and waiting calls are admitted by priority:
//! safety, then operators, then polling. Every call has a deadline, which includes the wait.

mod breaker;
mod concurrency;
pub(crate) mod priority_semaphore;

use breaker::CircuitBreaker;
use concurrency::ConcurrencyLimit;
use model::fault::{Fault, FaultCode, Result};
use model::time::format_duration;
use priority_semaphore::{Permit, PrioritySemaphore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The purpose of a call. Waiting calls are admitted in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Stops or reverts an effect.
    Safety,
    /// Requested by an operator or by a run.
    Operator,
    /// A probe, which can be repeated later.
    Polling,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most concurrent calls that one BMC gets.
    pub per_bmc: usize,
    /// The upper limit of concurrent calls to all BMCs.
    pub max_calls: usize,
    /// The number of failures in a row that opens the circuit for polling.
    pub break_after: u32,
    /// The time that the circuit stays open at first; it doubles up to the maximum.
    pub open_period: Duration,
    pub max_open_period: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            per_bmc: 1,
            max_calls: 256,
            break_after: 3,
            open_period: Duration::from_secs(15),
            max_open_period: Duration::from_secs(300),
        }
    }
}

/// The deadlines of one call: to be admitted, and to be answered.
struct CallDeadlines {
    admit_by: Instant,
    answer_by: Instant,
}

/// Clones share their state.
#[derive(Clone)]
pub struct Governor {
    settings: Settings,
    all: PrioritySemaphore,
    limit: Arc<Mutex<ConcurrencyLimit>>,
    peers: Arc<Mutex<HashMap<String, Peer>>>,
}

#[derive(Clone)]
struct Peer {
    gate: PrioritySemaphore,
    breaker: CircuitBreaker,
}

/// The state of a BMC in the governor, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BmcStatus {
    pub waiting: usize,
    pub failures: u32,
    /// The time that the circuit stays open from now on.
    pub circuit_open_for: Option<Duration>,
    pub last_error: String,
}

impl Governor {
    pub fn new(settings: Settings) -> Self {
        let width = ConcurrencyLimit::new(settings.max_calls);
        let all = PrioritySemaphore::new(width.now());
        Self { settings, all, limit: Arc::new(Mutex::new(width)), peers: Arc::default() }
    }

    /// Makes a call when it is admitted. `limit` counts from now and includes the wait.
    pub async fn call<T>(
        &self,
        peer: &str,
        priority: Priority,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let until = Instant::now() + limit;
        let made = self.call_when_admitted(
            peer,
            priority,
            CallDeadlines { admit_by: until, answer_by: until },
            call,
        );
        made.await?.unwrap_or_else(|| Err(busy(peer, limit)))
    }

    /// Makes a call with the lowest priority. None: it was not admitted within half of `limit`.
    pub async fn poll<T>(
        &self,
        peer: &str,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let now = Instant::now();
        let timeout = CallDeadlines { admit_by: now + limit / 2, answer_by: now + limit };
        self.call_when_admitted(peer, Priority::Polling, timeout, call).await?.transpose()
    }

    /// None: the call was not admitted in time.
    async fn call_when_admitted<T>(
        &self,
        peer: &str,
        priority: Priority,
        timeout: CallDeadlines,
        call: impl Future<Output = Result<T>>,
    ) -> Result<Option<Result<T, Fault>>> {
        let gate = self.admit(peer, priority)?;
        let passes = timeout_at(timeout.admit_by, self.acquire_permits(&gate, priority)).await;
        let Ok(passes) = passes else { return Ok(None) };
        let begun = Instant::now();
        let answered = timeout_at(timeout.answer_by, call).await;
        let answered = answered.unwrap_or_else(|_| Err(no_answer(peer, begun.elapsed())));
        drop(passes);
        self.record_result(peer, answered.as_ref().err());
        Ok(Some(answered))
    }

    /// The BMC's own limit comes first, so that a call that waits for it holds no shared permit.
    async fn acquire_permits(
        &self,
        own: &PrioritySemaphore,
        priority: Priority,
    ) -> (Permit, Permit) {
        let own = own.acquire(priority).await;
        (own, self.all.acquire(priority).await)
    }

    fn admit(&self, peer: &str, priority: Priority) -> Result<PrioritySemaphore> {
        let mut peers = self.peers();
        let known = peers.entry(peer.to_string()).or_insert_with(|| Peer {
            gate: PrioritySemaphore::new(self.settings.per_bmc.max(1)),
            breaker: CircuitBreaker::default(),
        });
        match known.breaker.open_for(Instant::now()) {
            Some(left) if priority == Priority::Polling => Err(Fault::new(
                FaultCode::BmcUnreachable,
                format!(
                    "{peer} was not asked: it failed {} times in a row ({}); it is looked at again in {}",
                    known.breaker.failures(),
                    known.breaker.last_error(),
                    format_duration(left)
                ),
            )),
            Some(_) | None => Ok(known.gate.clone()),
        }
    }

    /// Records the result of a call in the circuit breaker and the concurrency limit.
    fn record_result(&self, peer: &str, fault: Option<&Fault>) {
        // Farrier could not make the call: the BMC has neither answered nor failed.
        if fault.is_some_and(|fault| fault.code.is_local()) {
            return;
        }
        let down = fault.filter(|fault| is_down(fault.code));
        let now = Instant::now();
        if let Some(known) = self.peers().get_mut(peer) {
            match down {
                None => known.breaker.succeed(),
                Some(fault) => known.breaker.fail(&fault.message, &self.settings, now),
            }
        }
        let mut width = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(new) = width.record(down.is_some(), self.all.waiting() > 0) {
            self.all.resize(new);
        }
    }

    /// The status of a BMC; None before its first call.
    pub fn status(&self, peer: &str) -> Option<BmcStatus> {
        let peers = self.peers();
        let known = peers.get(peer)?;
        Some(BmcStatus {
            waiting: known.gate.waiting(),
            failures: known.breaker.failures(),
            circuit_open_for: known.breaker.open_for(Instant::now()),
            last_error: known.breaker.last_error().to_string(),
        })
    }

    /// The number of BMCs with an open circuit, of calls in progress, and the limit of calls.
    pub fn totals(&self) -> (usize, usize, usize) {
        let now = Instant::now();
        let resting =
            self.peers().values().filter(|peer| peer.breaker.open_for(now).is_some()).count();
        let (open, width) = self.all.usage();
        (resting, open, width)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<String, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a fault means that the BMC does not work, rather than that the request was wrong.
fn is_down(code: FaultCode) -> bool {
    matches!(
        code,
        FaultCode::BmcUnreachable
            | FaultCode::BmcBusy
            | FaultCode::AnswerLost
            | FaultCode::AnswerGarbled
    )
}

fn busy(peer: &str, limit: Duration) -> Fault {
    let message = format!(
        "{peer} was busy with other calls for {}; it was not asked",
        format_duration(limit)
    );
    Fault::new(FaultCode::BmcBusy, message)
}

/// The call had been sent, so its effect may have happened.
fn no_answer(peer: &str, limit: Duration) -> Fault {
    Fault::new(
        FaultCode::AnswerLost,
        format!("{peer} did not answer within {}", format_duration(limit)),
    )
}
