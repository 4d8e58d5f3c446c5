//! Executes the node's tasks one after another: take, store, execute, store the result, report,
//! forget.
//!
//! After a crash, Farrier returns a begun task to the agent, which starts it again from its
//! beginning. A task with a stored result is only reported again. A task that Farrier no longer
//! wants is forgotten. An agent whose lease was not renewed in time stops the task, because Farrier
//! may have given it up, and asks for it again once a controller answers.

use super::Life;
use super::controller::RequestError;
use super::deadline::{Lease, Patience};
use super::journal::{Ended, Held, Leaving};
use super::log::Log;
use super::task_execution::{Outcome, Work};
use super::task_kind::Kind;
use super::timing::scattered;
use super::wire::{Heard, Renew, Renewed, Report, Taken, Task, Then, Unknown};
use crate::console::print_line;
use crate::timing::Backoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a lease is renewed within its length.
const RENEWALS: u32 = 3;
const MAX_LEASE_SECONDS: u64 = 3_600;
/// As many parts as the beginning of a log can have, and one for a cut line.
const MAX_LAST_PARTS: usize = 4;

/// Why `run_tasks` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The brake is set.
    Stopped,
    /// Farrier has accepted the report of the uninstall.
    Leave,
    /// There is a new token to enroll with.
    Enroll,
}

/// What follows from the answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AfterReport {
    Forget,
    Leave,
    Again,
    /// The session is unknown, for this reason.
    Rest(String),
}

/// A report of the uninstall may have been accepted although its answer was lost: then the node has
/// been deleted since, or its session revoked.
fn after_report(kind: Option<Kind>, ok: bool, answer: &Result<Heard, RequestError>) -> AfterReport {
    let last_word = ok && kind == Some(Kind::Uninstall);
    match answer {
        Ok(Heard {}) | Err(RequestError::Unknown(Unknown::Deleted | Unknown::Session, _))
            if last_word =>
        {
            AfterReport::Leave
        }
        Ok(Heard {}) | Err(RequestError::Over) => AfterReport::Forget,
        Err(RequestError::Unknown(Unknown::Deleted | Unknown::Session | Unknown::Other, said)) => {
            AfterReport::Rest(said.clone())
        }
        Err(RequestError::Retryable(_) | RequestError::Refused(_)) => AfterReport::Again,
    }
}

/// What follows from the answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterRenewal {
    GoOn,
    /// There was no answer; the work continues while the lease lasts, because Farrier may still
    /// want it.
    RequestError,
    Stop,
    Forget,
}

fn after_renewal(answer: &Result<Renewed, RequestError>) -> AfterRenewal {
    match answer {
        Ok(Renewed { then: Then::GoOn }) => AfterRenewal::GoOn,
        Ok(Renewed { then: Then::Stop }) | Err(RequestError::Unknown(_, _)) => AfterRenewal::Stop,
        Err(RequestError::Over) => AfterRenewal::Forget,
        Err(RequestError::Retryable(_) | RequestError::Refused(_)) => AfterRenewal::RequestError,
    }
}

/// Whether Farrier still wants the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
    /// The lease was lost, so this is unknown.
    Unknown,
}

/// The result of a request for a task.
enum Asked {
    Answered(Option<Task>),
    RequestError,
    Unknown,
}

/// The task whose lease is renewed while it is executed.
struct Keeping<'a> {
    task: &'a Task,
    log: &'a Log,
    lease: &'a Lease,
    stop: &'a AtomicBool,
}

impl Life<'_> {
    /// Runs until the end. An error means that the state directory cannot be read.
    pub fn run_tasks(&self) -> Result<Served, String> {
        let mut backoff = self.service.pace.backoff();
        let mut held = self.service.journal.held()?;
        while !self.over() {
            // Heartbeats list the task until it has been reported, so that Farrier does not take it
            // for lost.
            self.board.hold(held.as_ref().map(|held| held.task.id.as_str()));
            held = match held {
                Some(Held { task, result: Some(ended) }) => {
                    match self.report(&task, &ended, &mut backoff)? {
                        AfterReport::Leave => return Ok(Served::Leave),
                        AfterReport::Forget => None,
                        AfterReport::Rest(_) if self.has_new_token() => return Ok(Served::Enroll),
                        AfterReport::Again | AfterReport::Rest(_) => {
                            Some(Held { task, result: Some(ended) })
                        }
                    }
                }
                begun => match self.take(&mut backoff) {
                    Asked::Answered(task) => self.go_on(begun, task)?,
                    Asked::RequestError => begun,
                    Asked::Unknown if self.has_new_token() => return Ok(Served::Enroll),
                    Asked::Unknown => begun,
                },
            };
        }
        Ok(Served::Stopped)
    }

    /// Asks for a task; pauses before the next request if necessary.
    fn take(&self, backoff: &mut Backoff) -> Asked {
        let since = Instant::now();
        match self.service.controller.take(&self.session) {
            Ok(Taken { task }) => {
                backoff.reset();
                if task.is_none() {
                    // A server that answers "none" at once is not asked again at once.
                    let early = self.service.pace.pause.saturating_sub(since.elapsed());
                    self.board.pause_for_ring(early);
                }
                Asked::Answered(task)
            }
            Err(RequestError::Unknown(_, said)) => {
                self.rest(&said);
                Asked::Unknown
            }
            Err(RequestError::Retryable(_) | RequestError::Over | RequestError::Refused(_)) => {
                self.board.pause_for_ring(scattered(backoff.next_delay()));
                Asked::RequestError
            }
        }
    }

    /// The session is unknown: retry rarely, until a heartbeat is answered.
    fn rest(&self, said: &str) {
        self.not_known(said);
        self.board.pause_for_ring(self.service.pace.rare);
    }

    fn has_new_token(&self) -> bool {
        let token = self.service.config.token.read().ok().flatten();
        token.is_some_and(|token| super::enroll::sum(&token) != self.node.token_sha256)
    }

    /// Continues with the task that Farrier returned; `begun` is the stored task.
    fn go_on(&self, begun: Option<Held>, task: Option<Task>) -> Result<Option<Held>, String> {
        let before = begun.map(|held| held.task.id);
        let Some(task) = task else {
            if let Some(id) = before {
                print_line(&format!("{id} had begun, and nobody wants it any more"));
                self.service.journal.forget_held()?;
            }
            return Ok(None);
        };
        match before {
            Some(id) if id == task.id => print_line(&format!("{id} had begun: once more")),
            Some(id) => {
                print_line(&format!("{id} had begun, and {} is wanted in its place", task.id))
            }
            None => {}
        }
        self.carry_out(task)
    }

    fn carry_out(&self, task: Task) -> Result<Option<Held>, String> {
        let held = Held { task, result: None };
        if !self.written(&held) {
            return Ok(Some(held));
        }
        let task = held.task;
        self.board.hold(Some(&task.id));
        print_line(&format!("{}: {}", task.id, task.kind));
        let log = Arc::new(Log::default());
        let (outcome, wanted) = self.work(&task, &log);
        if self.over() && !outcome.ok {
            // The agent itself was stopped; its next process starts the task again.
            return Ok(Some(Held { task, result: None }));
        }
        print_line(&format!(
            "{}: {}: {}",
            task.id,
            if outcome.ok { "done" } else { "failed" },
            outcome.said
        ));
        match wanted {
            Wanted::Yes => {}
            Wanted::No => {
                self.service.journal.forget_held()?;
                return Ok(None);
            }
            // Begun and without a result: the agent asks for it again.
            Wanted::Unknown => return Ok(Some(Held { task, result: None })),
        }
        self.send_last_parts(&task, &log);
        let ended = Ended { ok: outcome.ok, said: outcome.said, log: log.rest() };
        let held = Held { task, result: Some(ended) };
        self.write_for_certain(&held);
        Ok(Some(held))
    }

    /// Executes a task in a thread and renews its lease meanwhile.
    fn work(&self, task: &Task, log: &Arc<Log>) -> (Outcome, Wanted) {
        let stop = AtomicBool::new(false);
        let lease = Lease::new(lease_of(task));
        let mark = self.service.mark("task");
        let work = Work {
            config: self.service.config,
            task,
            mark: &mark,
            patience: Patience::new(Duration::from_secs(task.deadline_seconds), &stop)
                .under(&lease),
            log,
            look: self.service.pace.look,
        };
        thread::scope(|scope| {
            let (sender, done) = mpsc::channel::<()>();
            let worker = scope.spawn(move || {
                // Dropped at the end of the thread, even by a panic.
                let _sender = sender;
                work.carry_out()
            });
            let wanted = self.keep_lease(Keeping { task, log, lease: &lease, stop: &stop }, &done);
            let outcome = worker.join().unwrap_or_else(|_| broken());
            match wanted {
                // Work that succeeded in spite of it need not be repeated.
                Wanted::Yes if lease.was_lost() && !outcome.ok => (outcome, Wanted::Unknown),
                Wanted::Yes | Wanted::No | Wanted::Unknown => (outcome, wanted),
            }
        })
    }

    /// Renews the lease until the work is done or is no longer wanted.
    fn keep_lease(&self, keeping: Keeping<'_>, done: &Receiver<()>) -> Wanted {
        let Keeping { task, log, lease, stop } = keeping;
        let every = lease_of(task) / RENEWALS;
        let mut backoff = self.service.pace.backoff();
        let mut wait = every;
        // Bounded by the work, which has its own deadline.
        loop {
            match done.recv_timeout(wait) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Wanted::Yes,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let sent = Instant::now();
            wait = match self.renew(task, log) {
                AfterRenewal::GoOn => {
                    lease.renewed(sent);
                    backoff.reset();
                    // A long log is sent sooner, but with a pause: each renewal is a database write
                    // for Farrier.
                    if log.overflows() { self.service.pace.pause.min(every) } else { every }
                }
                AfterRenewal::RequestError => scattered(backoff.next_delay()).min(every),
                AfterRenewal::Stop => {
                    stop.store(true, Ordering::Relaxed);
                    return Wanted::Yes;
                }
                AfterRenewal::Forget => {
                    stop.store(true, Ordering::Relaxed);
                    return Wanted::No;
                }
            };
            if self.over() {
                stop.store(true, Ordering::Relaxed);
                return Wanted::Yes;
            }
        }
    }

    fn renew(&self, task: &Task, log: &Log) -> AfterRenewal {
        let part = log.part();
        let renew = Renew { id: &task.id, log: &part };
        let after = after_renewal(&self.service.controller.renew(&self.session, &renew));
        match after {
            AfterRenewal::GoOn | AfterRenewal::Stop => log.sent(&part),
            AfterRenewal::RequestError | AfterRenewal::Forget => {}
        }
        after
    }

    /// Sends the parts of the log that do not fit into the report, while Farrier answers.
    fn send_last_parts(&self, task: &Task, log: &Log) {
        for _ in 0..MAX_LAST_PARTS {
            if !log.spills() || self.renew(task, log) != AfterRenewal::GoOn {
                return;
            }
        }
    }

    fn report(
        &self,
        task: &Task,
        ended: &Ended,
        backoff: &mut Backoff,
    ) -> Result<AfterReport, String> {
        let report = Report { id: &task.id, ok: ended.ok, said: &ended.said, log: &ended.log };
        let answer = self.service.controller.report(&self.session, &report);
        let after = after_report(Kind::parse(&task.kind), ended.ok, &answer);
        match &after {
            AfterReport::Forget => {
                backoff.reset();
                self.service.journal.forget_held()?;
            }
            AfterReport::Leave => {
                self.service.journal.keep_leaving(&Leaving { task: task.id.clone() })?;
            }
            AfterReport::Again => self.board.pause_for_ring(scattered(backoff.next_delay())),
            AfterReport::Rest(said) => self.rest(said),
        }
        Ok(after)
    }

    /// Stores the task. The agent must not act on a task that it could not store.
    fn written(&self, held: &Held) -> bool {
        match self.service.journal.keep_held(held) {
            Ok(()) => {
                self.board.unwritten(None);
                true
            }
            Err(said) => {
                print_line(&said);
                self.board.unwritten(Some(said));
                self.board.pause(self.service.pace.longest_pause);
                false
            }
        }
    }

    /// The work is done and must not be repeated because of a full disk: retries for as long as the
    /// agent runs.
    fn write_for_certain(&self, held: &Held) {
        while !self.written(held) && !self.over() {}
    }
}

fn lease_of(task: &Task) -> Duration {
    Duration::from_secs(task.lease_seconds.clamp(1, MAX_LEASE_SECONDS))
}

fn broken() -> Outcome {
    Outcome { ok: false, said: "the agent broke while it carried this out; see its log".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Refusal;

    #[test]
    fn what_follows_a_report() {
        use AfterReport::*;
        let unknown = |why| Err(RequestError::Unknown(why, "why".into()));
        let rest = || Rest("why".into());
        let answers: [(Result<Heard, RequestError>, AfterReport, AfterReport); 7] = [
            (Ok(Heard {}), Forget, Leave),
            (Err(RequestError::Over), Forget, Forget),
            (unknown(Unknown::Deleted), rest(), Leave),
            (unknown(Unknown::Session), rest(), Leave),
            (unknown(Unknown::Other), rest(), rest()),
            (Err(RequestError::Retryable(String::new())), Again, Again),
            (Err(RequestError::Refused(Refusal::default())), Again, Again),
        ];
        for (answer, usual, last_word) in answers {
            for kind in Kind::ALL.into_iter().map(Some).chain([None]) {
                let leaves = kind == Some(Kind::Uninstall);
                let expected = if leaves { &last_word } else { &usual };
                assert_eq!(after_report(kind, true, &answer), *expected, "{kind:?} {answer:?}");
                assert_eq!(after_report(kind, false, &answer), usual, "{kind:?} {answer:?}");
            }
        }
    }

    #[test]
    fn what_follows_a_renewal() {
        for (answer, after) in [
            (Ok(Renewed { then: Then::GoOn }), AfterRenewal::GoOn),
            (Ok(Renewed { then: Then::Stop }), AfterRenewal::Stop),
            (Err(RequestError::Over), AfterRenewal::Forget),
            (Err(RequestError::Unknown(Unknown::Session, String::new())), AfterRenewal::Stop),
            (Err(RequestError::Retryable(String::new())), AfterRenewal::RequestError),
            (Err(RequestError::Refused(Refusal::default())), AfterRenewal::RequestError),
        ] {
            assert_eq!(after_renewal(&answer), after, "{answer:?}");
        }
    }
}
