//! The governor: limits and orders the calls to BMCs.
//!
//! BMCs fail under concurrent calls, lock accounts, and hang for minutes. So each BMC gets one call
//! at a time; all share a concurrency limit that follows the failure rate of the fleet; a circuit
//! breaker stops probes of BMCs that do not answer; and waiting calls are admitted by priority:
//! safety, then operators, then polling. Every call has a deadline, which includes the wait.

mod adapt;
mod breaker;
pub(crate) mod gate;

use adapt::Width;
use breaker::Breaker;
use gate::{Gate, Pass};
use model::fault::{Code, Fault};
use model::time::spoken;
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
    /// How many concurrent calls one BMC gets.
    pub per_bmc: usize,
    /// The upper limit of concurrent calls to all BMCs.
    pub at_once: usize,
    /// The number of failures in a row that opens the circuit for polling.
    pub break_after: u32,
    /// How long the circuit stays open the first time; it doubles up to the maximum.
    pub rest: Duration,
    pub longest_rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            per_bmc: 1,
            at_once: 256,
            break_after: 3,
            rest: Duration::from_secs(15),
            longest_rest: Duration::from_secs(300),
        }
    }
}

/// The deadlines of one call: to be admitted, and to be answered.
struct Patience {
    turn: Instant,
    answer: Instant,
}

/// Clones share their state.
#[derive(Clone)]
pub struct Governor {
    settings: Settings,
    all: Gate,
    width: Arc<Mutex<Width>>,
    peers: Arc<Mutex<HashMap<String, Peer>>>,
}

#[derive(Clone)]
struct Peer {
    gate: Gate,
    breaker: Breaker,
}

/// What the governor knows about a BMC, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    pub waiting: usize,
    pub failures: u32,
    /// How long the circuit stays open from now on.
    pub rests: Option<Duration>,
    pub said: String,
}

impl Governor {
    pub fn new(settings: Settings) -> Self {
        let width = Width::new(settings.at_once);
        let all = Gate::new(width.now());
        Self { settings, all, width: Arc::new(Mutex::new(width)), peers: Arc::default() }
    }

    /// Makes a call when it is admitted. `limit` counts from now and includes the wait.
    pub async fn call<T>(
        &self,
        peer: &str,
        priority: Priority,
        limit: Duration,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let until = Instant::now() + limit;
        let made = self.take_turn(peer, priority, Patience { turn: until, answer: until }, call);
        made.await?.unwrap_or_else(|| Err(busy(peer, limit)))
    }

    /// Makes a call with the lowest priority. None: it was not admitted within half of `limit`.
    pub async fn poll<T>(
        &self,
        peer: &str,
        limit: Duration,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<Option<T>, Fault> {
        let now = Instant::now();
        let patience = Patience { turn: now + limit / 2, answer: now + limit };
        self.take_turn(peer, Priority::Polling, patience, call).await?.transpose()
    }

    /// None: the call was not admitted in time.
    async fn take_turn<T>(
        &self,
        peer: &str,
        priority: Priority,
        patience: Patience,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<Option<Result<T, Fault>>, Fault> {
        let gate = self.admit(peer, priority)?;
        let passes = timeout_at(patience.turn, self.pass(&gate, priority)).await;
        let Ok(passes) = passes else { return Ok(None) };
        let begun = Instant::now();
        let answered = timeout_at(patience.answer, call).await;
        let answered = answered.unwrap_or_else(|_| Err(silent(peer, begun.elapsed())));
        drop(passes);
        self.learn(peer, answered.as_ref().err());
        Ok(Some(answered))
    }

    /// The BMC's own limit comes first, so that a call that waits for it holds no shared permit.
    async fn pass(&self, own: &Gate, priority: Priority) -> (Pass, Pass) {
        let own = own.pass(priority).await;
        (own, self.all.pass(priority).await)
    }

    fn admit(&self, peer: &str, priority: Priority) -> Result<Gate, Fault> {
        let mut peers = self.peers();
        let known = peers.entry(peer.to_string()).or_insert_with(|| Peer {
            gate: Gate::new(self.settings.per_bmc.max(1)),
            breaker: Breaker::default(),
        });
        match known.breaker.rests(Instant::now()) {
            Some(left) if priority == Priority::Polling => Err(Fault::new(
                Code::BmcUnreachable,
                format!(
                    "{peer} was not asked: it failed {} times in a row ({}); it is looked at again in {}",
                    known.breaker.failures(),
                    known.breaker.said(),
                    spoken(left)
                ),
            )),
            Some(_) | None => Ok(known.gate.clone()),
        }
    }

    /// Records the result of a call in the circuit breaker and the concurrency limit.
    fn learn(&self, peer: &str, fault: Option<&Fault>) {
        let down = fault.filter(|fault| is_down(fault.code));
        let now = Instant::now();
        if let Some(known) = self.peers().get_mut(peer) {
            match down {
                None => known.breaker.succeed(),
                Some(fault) => known.breaker.fail(&fault.said, &self.settings, now),
            }
        }
        let mut width = self.width.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(new) = width.learn(down.is_some(), self.all.waiting() > 0) {
            self.all.resize(new);
        }
    }

    /// The status of a BMC; None before its first call.
    pub fn standing(&self, peer: &str) -> Option<Standing> {
        let peers = self.peers();
        let known = peers.get(peer)?;
        Some(Standing {
            waiting: known.gate.waiting(),
            failures: known.breaker.failures(),
            rests: known.breaker.rests(Instant::now()),
            said: known.breaker.said().to_string(),
        })
    }

    /// The number of BMCs with an open circuit, of calls in progress, and the limit of calls.
    pub fn totals(&self) -> (usize, usize, usize) {
        let now = Instant::now();
        let resting =
            self.peers().values().filter(|peer| peer.breaker.rests(now).is_some()).count();
        let (open, width) = self.all.use_now();
        (resting, open, width)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<String, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a fault means that the BMC does not work, rather than that the request was wrong.
fn is_down(code: Code) -> bool {
    matches!(code, Code::BmcUnreachable | Code::BmcBusy | Code::AnswerLost | Code::AnswerGarbled)
}

fn busy(peer: &str, limit: Duration) -> Fault {
    let said = format!("{peer} was busy with other calls for {}; it was not asked", spoken(limit));
    Fault::new(Code::BmcBusy, said)
}

/// The call had been sent, so its effect may have happened.
fn silent(peer: &str, limit: Duration) -> Fault {
    Fault::new(Code::AnswerLost, format!("{peer} did not answer within {}", spoken(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LIMIT: Duration = Duration::from_secs(5);

    fn down() -> Result<(), Fault> {
        Err(Fault::new(Code::BmcUnreachable, "no route"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_bmc_is_called_once_at_a_time_and_others_meanwhile() {
        let governor = Governor::new(Settings::default());
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut calls = Vec::new();
        for n in 0..40 {
            let (governor, now, most) = (governor.clone(), Arc::clone(&now), Arc::clone(&most));
            calls.push(tokio::spawn(async move {
                let call = async {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                governor.call(&format!("bmc-{}", n % 4), Priority::Operator, LIMIT, call).await
            }));
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn polling_leaves_a_dead_bmc_alone_and_operators_do_not() {
        let governor = Governor::new(Settings::default());
        let call = async |priority| governor.call("b", priority, LIMIT, async { down() }).await;
        for _ in 0..3 {
            call(Priority::Polling).await.unwrap_err();
        }
        let fault = call(Priority::Polling).await.unwrap_err();
        assert!(fault.said.contains("was not asked") && fault.said.contains("no route"), "{fault}");
        let standing = governor.standing("b").unwrap();
        assert_eq!((standing.failures, standing.rests), (3, Some(Duration::from_secs(15))));
        assert_eq!(governor.totals().0, 1);
        let fault = call(Priority::Operator).await.unwrap_err();
        assert_eq!(fault.said, "no route");
        // The circuit closes after its open period, and one good answer resets it.
        tokio::time::advance(Duration::from_secs(31)).await;
        governor.call("b", Priority::Polling, LIMIT, async { Ok(()) }).await.unwrap();
        assert_eq!(governor.standing("b").unwrap().rests, None);
        assert_eq!(governor.standing("c"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_counts_against_the_deadline_and_silence_may_have_acted() {
        let governor = Governor::new(Settings::default());
        let first = governor.clone();
        let stuck = tokio::spawn(async move {
            first
                .call("b", Priority::Operator, LIMIT * 2, std::future::pending::<Result<(), _>>())
                .await
        });
        tokio::task::yield_now().await;
        let waited = governor.call("b", Priority::Operator, LIMIT, async { Ok(()) }).await;
        assert_eq!(waited.unwrap_err().code, Code::BmcBusy);
        // A poll that is not admitted gives up after half of its time and records no failure.
        let begun = Instant::now();
        let polled = governor.poll("b", LIMIT, async { Ok(()) }).await;
        assert_eq!((polled, begun.elapsed()), (Ok(None), LIMIT / 2));
        assert_eq!(governor.standing("b").unwrap().failures, 0);
        assert_eq!(stuck.await.unwrap().unwrap_err().code, Code::AnswerLost);
        assert_eq!(governor.poll("b", LIMIT, async { Ok(7) }).await, Ok(Some(7)));
        governor.call("b", Priority::Operator, LIMIT, async { Ok(()) }).await.unwrap();
    }
}
