//! The tasks of a node, one after another: taken, written down, carried out, written down again, reported, forgotten.
//!
//! What had begun when the agent died is given again by whoever leases it, and is then begun again. What had ended is
//! only reported again. What nobody wants any more is forgotten. An agent whose lease was not renewed in time stops: the task may have been
//! given up meanwhile. It asks for it again once somebody answers.

use super::Life;
use super::controller::{Missed, Unknown};
use super::journal::{Ended, Held, Leaving};
use super::log::Log;
use super::pace::scattered;
use super::patience::{Lease, Patience};
use super::work::{Outcome, Work};
use crate::console::say;
use crate::pace::Pauses;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use wire::node::{
    RenewReply, RenewRequest, ReportReply, ReportRequest, TakeReply, Task, TaskKind, Then,
};

/// A lease is renewed so many times before it would end.
const RENEWALS: u32 = 3;
const MAX_LEASE_SECONDS: u64 = 3_600;
/// As many parts as the beginning of a log can have, and one for a line that is cut.
const MAX_LAST_PARTS: usize = 4;

/// Why the tasks end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The brake is set.
    Stopped,
    /// This node's last word has been heard.
    Leave,
    /// There may be a new token.
    Enroll,
}

/// What follows from the answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AfterReport {
    Forget,
    Leave,
    Again,
    /// Nobody knows this node, for this reason.
    Rest(String),
}

/// The last word may have been heard though its answer was lost: then the node has been deleted since, or its session revoked.
fn after_report(
    kind: Option<TaskKind>,
    ok: bool,
    answer: &Result<ReportReply, Missed>,
) -> AfterReport {
    let last_word = ok && kind == Some(TaskKind::Uninstall);
    match answer {
        Ok(ReportReply {}) | Err(Missed::Unknown(Unknown::Deleted | Unknown::Session, _))
            if last_word =>
        {
            AfterReport::Leave
        }
        Ok(ReportReply {}) | Err(Missed::Over) => AfterReport::Forget,
        Err(Missed::Unknown(Unknown::Deleted | Unknown::Session | Unknown::Other, said)) => {
            AfterReport::Rest(said.clone())
        }
        Err(Missed::Again(_) | Missed::Refused(_)) => AfterReport::Again,
    }
}

/// What follows from the answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterRenewal {
    GoOn,
    /// The answer did not come; the work goes on while the lease lasts, because whoever did not answer may want it.
    Missed,
    Stop,
    Forget,
}

fn after_renewal(answer: &Result<RenewReply, Missed>) -> AfterRenewal {
    match answer {
        Ok(RenewReply { then: Then::GoOn }) => AfterRenewal::GoOn,
        Ok(RenewReply { then: Then::Stop }) | Err(Missed::Unknown(_, _)) => AfterRenewal::Stop,
        Err(Missed::Over) => AfterRenewal::Forget,
        Err(Missed::Again(_) | Missed::Refused(_)) => AfterRenewal::Missed,
    }
}

/// Whether anybody still wants what has been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
    /// Its lease was lost, so nobody knows.
    Unknown,
}

/// What came of asking for a task.
enum Asked {
    Answered(Option<Task>),
    Missed,
    Unknown,
}

/// What is renewed while it goes on.
struct Keeping<'a> {
    task: &'a Task,
    log: &'a Log,
    lease: &'a Lease,
    stop: &'a AtomicBool,
}

impl Life<'_> {
    /// Until it is over. An error means that the state folder cannot be read.
    pub fn run_tasks(&self) -> Result<Served, String> {
        let mut pauses = self.service.pace.pauses();
        let mut held = self.service.journal.held()?;
        while !self.over() {
            // Until it has been reported: whoever leases it out must not take it for lost.
            self.board.hold(held.as_ref().map(|held| held.task.id.as_str()));
            held = match held {
                Some(Held { task, result: Some(ended) }) => {
                    match self.report(&task, &ended, &mut pauses)? {
                        AfterReport::Leave => return Ok(Served::Leave),
                        AfterReport::Forget => None,
                        AfterReport::Rest(_) if self.has_new_token() => return Ok(Served::Enroll),
                        AfterReport::Again | AfterReport::Rest(_) => {
                            Some(Held { task, result: Some(ended) })
                        }
                    }
                }
                begun => match self.take(&mut pauses) {
                    Asked::Answered(task) => self.go_on(begun, task)?,
                    Asked::Missed => begun,
                    Asked::Unknown if self.has_new_token() => return Ok(Served::Enroll),
                    Asked::Unknown => begun,
                },
            };
        }
        Ok(Served::Stopped)
    }

    /// Asks for a task, and waits before the next time where that is called for.
    fn take(&self, pauses: &mut Pauses) -> Asked {
        let since = Instant::now();
        match self.service.controller.take(&self.session) {
            Ok(TakeReply { task }) => {
                pauses.worked();
                if task.is_none() {
                    // Whoever says at once that there is nothing is not asked again at once.
                    let early = self.service.pace.pause.saturating_sub(since.elapsed());
                    self.board.pause_for_ring(early);
                }
                Asked::Answered(task)
            }
            Err(Missed::Unknown(_, said)) => {
                self.rest(&said);
                Asked::Unknown
            }
            Err(Missed::Again(_) | Missed::Over | Missed::Refused(_)) => {
                self.board.pause_for_ring(scattered(pauses.step()));
                Asked::Missed
            }
        }
    }

    /// Nobody knows this node: it asks rarely, unless a heartbeat is answered.
    fn rest(&self, said: &str) {
        self.not_known(said);
        self.board.pause_for_ring(self.service.pace.rare);
    }

    fn has_new_token(&self) -> bool {
        let token = self.service.config.token.read().ok().flatten();
        token.is_some_and(|token| super::enroll::sum(&token) != self.node.token_sha256)
    }

    /// Takes up what was handed out, with regard to what had begun before.
    fn go_on(&self, begun: Option<Held>, task: Option<Task>) -> Result<Option<Held>, String> {
        let before = begun.map(|held| held.task.id);
        let Some(task) = task else {
            if let Some(id) = before {
                say(&format!("{id} had begun, and nobody wants it any more"));
                self.service.journal.forget_held()?;
            }
            return Ok(None);
        };
        match before {
            Some(id) if id == task.id => say(&format!("{id} had begun: once more")),
            Some(id) => say(&format!("{id} had begun, and {} is wanted in its place", task.id)),
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
        say(&format!("{}: {}", task.id, task.kind));
        let log = Arc::new(Log::default());
        let (outcome, wanted) = self.work(&task, &log);
        if self.over() && !outcome.ok {
            // The agent itself was stopped; the task is begun again with the next.
            return Ok(Some(Held { task, result: None }));
        }
        say(&format!(
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
            // It has begun and has no result: it is asked for again.
            Wanted::Unknown => return Ok(Some(Held { task, result: None })),
        }
        self.send_last_parts(&task, &log);
        let ended = Ended { ok: outcome.ok, said: outcome.said, log: log.rest() };
        let held = Held { task, result: Some(ended) };
        self.write_for_certain(&held);
        Ok(Some(held))
    }

    /// Carries out a task in a thread, and keeps its lease meanwhile.
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
                // Dropped at the end, however that comes about.
                let _sender = sender;
                work.carry_out()
            });
            let wanted = self.keep_lease(Keeping { task, log, lease: &lease, stop: &stop }, &done);
            let outcome = worker.join().unwrap_or_else(|_| broken());
            match wanted {
                // What came to a good end in spite of it need not be done again.
                Wanted::Yes if lease.was_lost() && !outcome.ok => (outcome, Wanted::Unknown),
                Wanted::Yes | Wanted::No | Wanted::Unknown => (outcome, wanted),
            }
        })
    }

    /// Renews until the work is done, or need not be.
    fn keep_lease(&self, keeping: Keeping<'_>, done: &Receiver<()>) -> Wanted {
        let Keeping { task, log, lease, stop } = keeping;
        let every = lease_of(task) / RENEWALS;
        let mut pauses = self.service.pace.pauses();
        let mut wait = every;
        // As long as the work; it has a deadline of its own.
        loop {
            match done.recv_timeout(wait) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Wanted::Yes,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let sent = Instant::now();
            wait = match self.renew(task, log) {
                AfterRenewal::GoOn => {
                    lease.renewed(sent);
                    pauses.worked();
                    // A hook that says a lot is heard sooner, and not without a pause: each renewal is a write for Farrier.
                    if log.overflows() { self.service.pace.pause.min(every) } else { every }
                }
                AfterRenewal::Missed => scattered(pauses.step()).min(every),
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
        let renew = RenewRequest { id: task.id.clone(), log: part.clone() };
        let after = after_renewal(&self.service.controller.renew(&self.session, &renew));
        match after {
            AfterRenewal::GoOn | AfterRenewal::Stop => log.sent(&part),
            AfterRenewal::Missed | AfterRenewal::Forget => {}
        }
        after
    }

    /// Sends what does not fit into the report, as long as somebody listens.
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
        pauses: &mut Pauses,
    ) -> Result<AfterReport, String> {
        let report = ReportRequest {
            id: task.id.clone(),
            ok: Some(ended.ok),
            said: ended.said.clone(),
            log: ended.log.clone(),
        };
        let answer = self.service.controller.report(&self.session, &report);
        let after = after_report(TaskKind::parse(&task.kind), ended.ok, &answer);
        match &after {
            AfterReport::Forget => {
                pauses.worked();
                self.service.journal.forget_held()?;
            }
            AfterReport::Leave => {
                self.service.journal.keep_leaving(&Leaving { task: task.id.clone() })?;
            }
            AfterReport::Again => self.board.pause_for_ring(scattered(pauses.step())),
            AfterReport::Rest(said) => self.rest(said),
        }
        Ok(after)
    }

    /// Writes down what is held. Where that cannot be done, nothing may be done.
    fn written(&self, held: &Held) -> bool {
        match self.service.journal.keep_held(held) {
            Ok(()) => {
                self.board.unwritten(None);
                true
            }
            Err(said) => {
                say(&said);
                self.board.unwritten(Some(said));
                self.board.pause(self.service.pace.longest_pause);
                false
            }
        }
    }

    /// The work is done, and must not be done again because a disk is full: it is tried for as long as the agent lives.
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
    use wire::Refusal;

    #[test]
    fn what_follows_a_report() {
        use AfterReport::*;
        let unknown = |why| Err(Missed::Unknown(why, "why".into()));
        let rest = || Rest("why".into());
        let answers: [(Result<ReportReply, Missed>, AfterReport, AfterReport); 7] = [
            (Ok(ReportReply {}), Forget, Leave),
            (Err(Missed::Over), Forget, Forget),
            (unknown(Unknown::Deleted), rest(), Leave),
            (unknown(Unknown::Session), rest(), Leave),
            (unknown(Unknown::Other), rest(), rest()),
            (Err(Missed::Again(String::new())), Again, Again),
            (Err(Missed::Refused(Refusal::default())), Again, Again),
        ];
        for (answer, usual, last_word) in answers {
            for kind in TaskKind::ALL.into_iter().map(Some).chain([None]) {
                let leaves = kind == Some(TaskKind::Uninstall);
                let expected = if leaves { &last_word } else { &usual };
                assert_eq!(after_report(kind, true, &answer), *expected, "{kind:?} {answer:?}");
                assert_eq!(after_report(kind, false, &answer), usual, "{kind:?} {answer:?}");
            }
        }
    }

    #[test]
    fn what_follows_a_renewal() {
        for (answer, after) in [
            (Ok(RenewReply { then: Then::GoOn }), AfterRenewal::GoOn),
            (Ok(RenewReply { then: Then::Stop }), AfterRenewal::Stop),
            (Err(Missed::Over), AfterRenewal::Forget),
            (Err(Missed::Unknown(Unknown::Session, String::new())), AfterRenewal::Stop),
            (Err(Missed::Again(String::new())), AfterRenewal::Missed),
            (Err(Missed::Refused(Refusal::default())), AfterRenewal::Missed),
        ] {
            assert_eq!(after_renewal(&answer), after, "{answer:?}");
        }
    }
}
