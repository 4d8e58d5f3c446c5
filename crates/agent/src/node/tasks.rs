//! Executes the node's tasks one after another: take, store, execute, store the result, report,
//! forget.
//!
//! After a crash, Farrier returns a begun task to the agent, which starts it again from its
//! beginning. A task with a stored result is only reported again. A task that Farrier no longer
//! wants is forgotten. An agent whose lease was not renewed in time stops the task, because Farrier
//! may have given it up, and asks for it again once a controller answers.

use super::EnrolledService;
use super::controller::{RequestError, Unknown};
use super::deadline::{Deadline, Lease};
use super::journal::{StoredTask, TaskResult, UninstallMarker};
use super::log::TaskLog;
use super::task_execution::{TaskExecution, TaskOutcome};
use super::timing::with_jitter;
use crate::console::print_line;
use crate::timing::Backoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use wire::node::{
    RenewReply, RenewRequest, ReportReply, ReportRequest, TakeReply, Task, TaskInstruction,
    TaskKind,
};

/// Renewals per lease duration.
const RENEWALS: u32 = 3;
const MAX_LEASE_SECONDS: u64 = 3_600;
/// As many parts as the beginning of a log can have, and one for a cut line.
const MAX_LAST_PARTS: usize = 4;

/// The reason why `run_tasks` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceEnd {
    /// The stop flag is set.
    Stopped,
    /// Farrier has accepted the report of the uninstall.
    Uninstall,
    /// There is a new token to enroll with.
    Reenroll,
}

/// The next action after the answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AfterReport {
    Forget,
    Uninstall,
    Retry,
    /// The session is unknown, for this reason.
    PauseRarely(String),
}

/// A report of the uninstall may have been accepted although its answer was lost: then the node has
/// been deleted since, or its session revoked.
fn after_report(
    kind: Option<TaskKind>,
    ok: bool,
    answer: &Result<ReportReply, RequestError>,
) -> AfterReport {
    let last_word = ok && kind == Some(TaskKind::Uninstall);
    match answer {
        Ok(ReportReply {})
        | Err(RequestError::SessionUnknown(Unknown::Deleted | Unknown::Session, _))
            if last_word =>
        {
            AfterReport::Uninstall
        }
        Ok(ReportReply {}) | Err(RequestError::TaskOver) => AfterReport::Forget,
        Err(RequestError::SessionUnknown(
            Unknown::Deleted | Unknown::Session | Unknown::Other,
            message,
        )) => AfterReport::PauseRarely(message.clone()),
        Err(RequestError::Retryable(_) | RequestError::TokenRefused(_)) => AfterReport::Retry,
    }
}

/// The next action after the answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterRenewal {
    Continue,
    /// There was no answer; the work continues while the lease lasts, because Farrier may still
    /// want it.
    NoAnswer,
    Stop,
    Forget,
}

fn after_renewal(answer: &Result<RenewReply, RequestError>) -> AfterRenewal {
    match answer {
        Ok(RenewReply { next_action: TaskInstruction::Continue }) => AfterRenewal::Continue,
        Ok(RenewReply { next_action: TaskInstruction::Stop })
        | Err(RequestError::SessionUnknown(_, _)) => AfterRenewal::Stop,
        Err(RequestError::TaskOver) => AfterRenewal::Forget,
        Err(RequestError::Retryable(_) | RequestError::TokenRefused(_)) => AfterRenewal::NoAnswer,
    }
}

/// `No` if Farrier has withdrawn the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultRequested {
    Yes,
    No,
    /// The lease was lost, so this is unknown.
    Unknown,
}

/// The result of a request for a task.
enum TakeResult {
    Answered(Option<Task>),
    NoAnswer,
    Unknown,
}

/// The task whose lease is renewed while it is executed.
struct LeasedTask<'a> {
    task: &'a Task,
    log: &'a TaskLog,
    lease: &'a Lease,
    stop: &'a AtomicBool,
}

impl EnrolledService<'_> {
    /// Runs until the end. An error means that the state directory cannot be read.
    pub fn run_tasks(&self) -> Result<ServiceEnd, String> {
        let mut backoff = self.service.timing.backoff();
        let mut claimed = self.service.journal.stored_task()?;
        while !self.has_ended() {
            // Heartbeats list the task until it has been reported, so that Farrier does not take it
            // for lost.
            self.shared.set_task(claimed.as_ref().map(|claimed| claimed.task.id.as_str()));
            claimed = match claimed {
                Some(StoredTask { task, result: Some(ended) }) => {
                    match self.report(&task, &ended, &mut backoff)? {
                        AfterReport::Uninstall => return Ok(ServiceEnd::Uninstall),
                        AfterReport::Forget => None,
                        AfterReport::PauseRarely(_) if self.has_new_token() => {
                            return Ok(ServiceEnd::Reenroll);
                        }
                        AfterReport::Retry | AfterReport::PauseRarely(_) => {
                            Some(StoredTask { task, result: Some(ended) })
                        }
                    }
                }
                begun => match self.take(&mut backoff) {
                    TakeResult::Answered(task) => self.resume_or_start(begun, task)?,
                    TakeResult::NoAnswer => begun,
                    TakeResult::Unknown if self.has_new_token() => return Ok(ServiceEnd::Reenroll),
                    TakeResult::Unknown => begun,
                },
            };
        }
        Ok(ServiceEnd::Stopped)
    }

    /// Asks for a task; pauses before the next request if necessary.
    fn take(&self, backoff: &mut Backoff) -> TakeResult {
        let since = Instant::now();
        match self.service.controller.take(&self.session) {
            Ok(TakeReply { task }) => {
                backoff.reset();
                if task.is_none() {
                    // A server that answers "none" at once is not asked again at once.
                    let early = self.service.timing.pause.saturating_sub(since.elapsed());
                    self.shared.pause_until_woken(early);
                }
                TakeResult::Answered(task)
            }
            Err(RequestError::SessionUnknown(_, message)) => {
                self.pause_rarely(&message);
                TakeResult::Unknown
            }
            Err(
                RequestError::Retryable(_) | RequestError::TaskOver | RequestError::TokenRefused(_),
            ) => {
                self.shared.pause_until_woken(with_jitter(backoff.next_delay()));
                TakeResult::NoAnswer
            }
        }
    }

    /// The session is unknown: retry rarely, until a heartbeat is answered.
    fn pause_rarely(&self, message: &str) {
        self.report_unknown_session(message);
        self.shared.pause_until_woken(self.service.timing.rare);
    }

    fn has_new_token(&self) -> bool {
        let token = self.service.config.token.read().ok().flatten();
        token.is_some_and(|token| super::enroll::token_checksum(&token) != self.node.token_sha256)
    }

    /// Continues with the task that Farrier returned; `begun` is the stored task.
    fn resume_or_start(
        &self,
        begun: Option<StoredTask>,
        task: Option<Task>,
    ) -> Result<Option<StoredTask>, String> {
        let before = begun.map(|claimed| claimed.task.id);
        let Some(task) = task else {
            if let Some(id) = before {
                print_line(&format!("{id} had begun, and the request was withdrawn"));
                self.service.journal.remove_task()?;
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
        self.execute(task)
    }

    fn execute(&self, task: Task) -> Result<Option<StoredTask>, String> {
        let claimed = StoredTask { task, result: None };
        if !self.store_or_pause(&claimed) {
            return Ok(Some(claimed));
        }
        let task = claimed.task;
        self.shared.set_task(Some(&task.id));
        print_line(&format!("{}: {}", task.id, task.kind));
        let log = Arc::new(TaskLog::default());
        let (outcome, desired) = self.run_leased(&task, &log);
        if self.has_ended() && !outcome.ok {
            // The agent itself was stopped; its next process starts the task again.
            return Ok(Some(StoredTask { task, result: None }));
        }
        print_line(&format!(
            "{}: {}: {}",
            task.id,
            if outcome.ok { "done" } else { "failed" },
            outcome.message
        ));
        match desired {
            ResultRequested::Yes => {}
            ResultRequested::No => {
                self.service.journal.remove_task()?;
                return Ok(None);
            }
            // Begun and without a result: the agent asks for it again.
            ResultRequested::Unknown => return Ok(Some(StoredTask { task, result: None })),
        }
        self.send_last_parts(&task, &log);
        let ended = TaskResult { ok: outcome.ok, message: outcome.message, log: log.final_part() };
        let claimed = StoredTask { task, result: Some(ended) };
        self.store_until_written(&claimed);
        Ok(Some(claimed))
    }

    /// Executes a task in a thread and renews its lease meanwhile.
    fn run_leased(&self, task: &Task, log: &Arc<TaskLog>) -> (TaskOutcome, ResultRequested) {
        let stop = AtomicBool::new(false);
        let lease = Lease::new(lease_length(task));
        let mark = self.service.mark("task");
        let work = TaskExecution {
            config: self.service.config,
            task,
            mark: &mark,
            deadline: Deadline::new(Duration::from_secs(task.deadline_seconds), &stop)
                .with_lease(&lease),
            log,
            poll_interval: self.service.timing.poll_interval,
        };
        thread::scope(|scope| {
            let (sender, done) = mpsc::channel::<()>();
            let worker = scope.spawn(move || {
                // Dropped at the end of the thread, even by a panic.
                let _sender = sender;
                work.execute()
            });
            let desired =
                self.keep_lease(LeasedTask { task, log, lease: &lease, stop: &stop }, &done);
            let outcome = worker.join().unwrap_or_else(|_| panicked());
            match desired {
                // Work that succeeded in spite of it need not be repeated.
                ResultRequested::Yes if lease.was_lost() && !outcome.ok => {
                    (outcome, ResultRequested::Unknown)
                }
                ResultRequested::Yes | ResultRequested::No | ResultRequested::Unknown => {
                    (outcome, desired)
                }
            }
        })
    }

    /// Renews the lease until the work is done or is no longer wanted.
    fn keep_lease(&self, leased: LeasedTask<'_>, done: &Receiver<()>) -> ResultRequested {
        let LeasedTask { task, log, lease, stop } = leased;
        let every = lease_length(task) / RENEWALS;
        let mut backoff = self.service.timing.backoff();
        let mut wait = every;
        // Bounded by the work, which has its own deadline.
        loop {
            match done.recv_timeout(wait) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return ResultRequested::Yes,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let sent = Instant::now();
            wait = match self.renew(task, log) {
                AfterRenewal::Continue => {
                    lease.renewed(sent);
                    backoff.reset();
                    // A long log is sent sooner, but with a pause: each renewal is a database write
                    // for Farrier.
                    if log.exceeds_one_part() {
                        self.service.timing.pause.min(every)
                    } else {
                        every
                    }
                }
                AfterRenewal::NoAnswer => with_jitter(backoff.next_delay()).min(every),
                AfterRenewal::Stop => {
                    stop.store(true, Ordering::Relaxed);
                    return ResultRequested::Yes;
                }
                AfterRenewal::Forget => {
                    stop.store(true, Ordering::Relaxed);
                    return ResultRequested::No;
                }
            };
            if self.has_ended() {
                stop.store(true, Ordering::Relaxed);
                return ResultRequested::Yes;
            }
        }
    }

    fn renew(&self, task: &Task, log: &TaskLog) -> AfterRenewal {
        let part = log.next_part();
        let renew = RenewRequest { id: task.id.clone(), log: part.clone() };
        let after = after_renewal(&self.service.controller.renew(&self.session, &renew));
        match after {
            AfterRenewal::Continue | AfterRenewal::Stop => log.drop_part(&part),
            AfterRenewal::NoAnswer | AfterRenewal::Forget => {}
        }
        after
    }

    /// Sends the parts of the log that do not fit into the report, while Farrier answers.
    fn send_last_parts(&self, task: &Task, log: &TaskLog) {
        for _ in 0..MAX_LAST_PARTS {
            if !log.exceeds_report() || self.renew(task, log) != AfterRenewal::Continue {
                return;
            }
        }
    }

    fn report(
        &self,
        task: &Task,
        ended: &TaskResult,
        backoff: &mut Backoff,
    ) -> Result<AfterReport, String> {
        let report = ReportRequest {
            id: task.id.clone(),
            ok: Some(ended.ok),
            message: ended.message.clone(),
            log: ended.log.clone(),
        };
        let answer = self.service.controller.report(&self.session, &report);
        let after = after_report(TaskKind::parse(&task.kind), ended.ok, &answer);
        match &after {
            AfterReport::Forget => {
                backoff.reset();
                self.service.journal.remove_task()?;
            }
            AfterReport::Uninstall => {
                self.service
                    .journal
                    .store_uninstall_marker(&UninstallMarker { task: task.id.clone() })?;
            }
            AfterReport::Retry => self.shared.pause_until_woken(with_jitter(backoff.next_delay())),
            AfterReport::PauseRarely(text) => self.pause_rarely(text),
        }
        Ok(after)
    }

    /// Stores the task. The agent must not act on a task that it could not store.
    fn store_or_pause(&self, claimed: &StoredTask) -> bool {
        match self.service.journal.store_task(claimed) {
            Ok(()) => {
                self.shared.set_storage_problem(None);
                true
            }
            Err(message) => {
                print_line(&message);
                self.shared.set_storage_problem(Some(message));
                self.shared.pause(self.service.timing.longest_pause);
                false
            }
        }
    }

    /// The work is done and must not be repeated because of a full disk: retries for as long as the
    /// agent runs.
    fn store_until_written(&self, claimed: &StoredTask) {
        while !self.store_or_pause(claimed) && !self.has_ended() {}
    }
}

fn lease_length(task: &Task) -> Duration {
    Duration::from_secs(task.lease_seconds.clamp(1, MAX_LEASE_SECONDS))
}

fn panicked() -> TaskOutcome {
    TaskOutcome {
        ok: false,
        message: "the agent broke while it carried this out; see its log".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Refusal;

    #[test]
    fn answers_to_reports_are_classified() {
        use AfterReport::*;
        let unknown = |why| Err(RequestError::SessionUnknown(why, "why".into()));
        let rest = || PauseRarely("why".into());
        let answers: [(Result<ReportReply, RequestError>, AfterReport, AfterReport); 7] = [
            (Ok(ReportReply {}), Forget, Uninstall),
            (Err(RequestError::TaskOver), Forget, Forget),
            (unknown(Unknown::Deleted), rest(), Uninstall),
            (unknown(Unknown::Session), rest(), Uninstall),
            (unknown(Unknown::Other), rest(), rest()),
            (Err(RequestError::Retryable(String::new())), Retry, Retry),
            (Err(RequestError::TokenRefused(Refusal::default())), Retry, Retry),
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
    fn answers_to_renewals_are_classified() {
        for (answer, after) in [
            (Ok(RenewReply { next_action: TaskInstruction::Continue }), AfterRenewal::Continue),
            (Ok(RenewReply { next_action: TaskInstruction::Stop }), AfterRenewal::Stop),
            (Err(RequestError::TaskOver), AfterRenewal::Forget),
            (
                Err(RequestError::SessionUnknown(Unknown::Session, String::new())),
                AfterRenewal::Stop,
            ),
            (Err(RequestError::Retryable(String::new())), AfterRenewal::NoAnswer),
            (Err(RequestError::TokenRefused(Refusal::default())), AfterRenewal::NoAnswer),
        ] {
            assert_eq!(after_renewal(&answer), after, "{answer:?}");
        }
    }
}
