//! The turn of a run: advances one claimed run until it is idle.
//!
//! Each cycle decides, commits the intent, calls the provider, and keeps the answer until it is
//! committed. A commit conflicts when an action has changed the run: the turn reloads the run and
//! decides again with the same answer. It also conflicts when the claim is lost: the turn then ends
//! without a write.

mod commit;
mod executor;

use crate::Engine;
use crate::log_buffer::{LogBuffer, logged};
use crate::side_facts::SideFact;
use commit::DecisionCommit;
use futures_util::FutureExt;
use model::effect::{CallVerb, ProviderAnswer, ProviderCall};
use model::fault::{Fault, FaultCode};
use model::firmware::applied_by_step;
use model::machine::DiskReport;
use model::plan::RunType;
use model::run::{AfterCommit, CallResult, Decision, FailedAttempt, Run, RunPhase, decide};
use model::target::TargetKind;
use model::time::Timestamp;
use model::why::ended_waits;
use providers::{Journal, LogOutput, Stream, Target};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use store::{ClaimOutcome, ClaimedRun, Result, StepDuration, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at, timeout};

/// The interval at which the log of a call in progress is written.
const LOG_FLUSH_INTERVAL: Duration = Duration::from_millis(200);
/// The wait before a retry when the database is unavailable. A commit doubles it each time.
const DATABASE_RETRY: Duration = Duration::from_millis(250);
/// The number of conflicts in a row, with an unchanged stored run, that end the turn.
const MAX_COMMIT_CONFLICTS: u32 = 5;
const MAX_DATABASE_RETRY: Duration = Duration::from_secs(5);

/// The reason why a turn ended before the run was idle.
enum TurnEnd {
    /// Another worker has claimed the run.
    ClaimLost,
    /// The process is stopping; the claim is released.
    Released,
    /// The decision cannot be written although the stored run is unchanged. The run is retried
    /// after a backoff.
    Unwritable,
}

type TurnResult<T> = std::result::Result<T, TurnEnd>;

/// One claimed run.
pub(crate) struct Turn {
    engine: Engine,
    claimed: ClaimedRun,
    woken: Arc<Notify>,
    log_buffer: LogBuffer,
    target: Option<Target>,
    /// The report of the last call about the disk.
    disk_report: Option<DiskReport>,
}

impl Turn {
    pub fn new(engine: Engine, claimed: ClaimedRun, woken: Arc<Notify>) -> Self {
        // The log of a run on a rack already holds the notes of its admission.
        let fresh = claimed.run.version == 1 && claimed.run.spec.target.kind != TargetKind::Rack;
        let log_buffer = LogBuffer::new(claimed.run.spec.id.clone(), claimed.epoch, fresh);
        Self { engine, claimed, woken, log_buffer, target: None, disk_report: None }
    }

    /// Works until the run is idle, the claim is lost, or the process stops.
    pub async fn run(mut self) {
        let id = self.claimed.run.spec.id.clone();
        match self.advance_until_idle().await {
            Ok(()) => {}
            Err(TurnEnd::Unwritable) => {
                tracing::error!(run = %id, "the run's state cannot be written; it is retried after a backoff");
                self.engine.scheduler().requeue_with_backoff(id.object(), self.claimed.epoch).await;
            }
            Err(TurnEnd::ClaimLost) => {
                tracing::info!(run = %id, "another worker has taken the run over")
            }
            Err(TurnEnd::Released) => {
                self.log_buffer.flush(self.engine.store()).await;
                tracing::info!(run = %id, "released the run because the process stops");
            }
        }
    }

    async fn advance_until_idle(&mut self) -> TurnResult<()> {
        let mut given: Option<CallResult> = None;
        let mut open_call = None;
        let mut logs_failure = false;
        loop {
            let now = self.engine.now();
            let policy = self.engine.policy();
            let decision =
                decide(&self.claimed.run, self.claimed.epoch, given.as_ref(), policy, now);
            if std::mem::take(&mut logs_failure) {
                self.log_failed_attempt(&decision.run, now).await;
            }
            if !self.commit(&decision, now).await? {
                // The stored run has changed: decide again with the same answer. If its open call
                // differs, this turn's commit took effect although it was reported lost, and the
                // answer must not be applied to the next call.
                if self.claimed.run.open_call() != open_call {
                    given = None;
                }
                continue;
            }
            match decision.then {
                AfterCommit::CallProvider(call, limit) => {
                    self.ensure_fresh_lease().await?;
                    open_call = Some((call.key.clone(), call.verb));
                    given = Some(self.make_call(call, limit).await?);
                    logs_failure = true;
                }
                AfterCommit::IdleUntil(_) | AfterCommit::Idle => return Ok(()),
            }
        }
    }

    /// Adds a line to the log of the run if the decision concludes a failed attempt. It is written
    /// with the decision, so that a reader of the log sees it before the end of the run.
    async fn log_failed_attempt(&mut self, after: &Run, now: Timestamp) {
        let Some(failed) = FailedAttempt::between(&self.claimed.run, after) else { return };
        // Without the end of the log there is no offset for the line.
        if self.log_buffer.find_end(self.engine.store()).await.is_ok() {
            let data = format!("{}\n", failed.message).into_bytes();
            let line = LogOutput { stream: Stream::Stderr, data };
            self.log_buffer.add(&failed.step, failed.attempt, &line, now);
        }
    }

    /// Renews a lease that may have expired while the turn waited for the database, and reloads the
    /// run: another worker may have claimed it. No call is made under a stale lease.
    async fn ensure_fresh_lease(&mut self) -> TurnResult<()> {
        while !self.engine.scheduler().lease_is_fresh() {
            if let Err(error) = self.engine.scheduler().renew_lease().await {
                tracing::warn!(%error, "lease renewal failed; the provider call waits");
                self.pause(DATABASE_RETRY).await?;
                continue;
            }
            self.reload().await?;
        }
        Ok(())
    }

    /// Writes a decision. False when the stored run had changed; it has then been reloaded.
    async fn commit(&mut self, decision: &Decision, now: Timestamp) -> TurnResult<bool> {
        let hold = match decision.then {
            AfterCommit::CallProvider(..) => ClaimOutcome::Keep,
            AfterCommit::IdleUntil(at) => ClaimOutcome::Release(Some(at)),
            AfterCommit::Idle => ClaimOutcome::Release(None),
        };
        let mut wait = DATABASE_RETRY;
        let mut refused = 0;
        loop {
            match self.try_commit(decision, hold, now).await {
                Ok(version) => {
                    self.record_metrics(&decision.run);
                    self.note_durations(&decision.run, now);
                    self.probe_changed(&decision.run);
                    self.claimed.run = Run { version, ..decision.run.clone() };
                    return Ok(true);
                }
                Err(StoreError::Conflict) => {
                    let before = self.claimed.run.version;
                    self.reload().await?;
                    if self.claimed.run.version != before {
                        return Ok(false);
                    }
                    // The stored run is unchanged: an immediate retry would conflict again.
                    refused += 1;
                    if refused == MAX_COMMIT_CONFLICTS {
                        return Err(TurnEnd::Unwritable);
                    }
                    self.pause(wait).await?;
                }
                Err(error) => {
                    tracing::warn!(run = %self.claimed.run.spec.id, %error, "commit failed; retrying");
                    self.pause(wait).await?;
                    wait = (wait * 2).min(MAX_DATABASE_RETRY);
                }
            }
        }
    }

    /// Records how long the steps took that this commit has ended.
    fn note_durations(&self, committed: &Run, now: Timestamp) {
        let (run, machine) = (&committed.spec.id, committed.spec.target.machine());
        for (step, duration) in ended_waits(&self.claimed.run, committed) {
            let (run, machine) = (run.clone(), machine.clone());
            let fact = StepDuration { run, machine, step, ended_at: now, duration };
            self.engine.side_facts().note(SideFact::StepDuration(fact));
        }
    }

    /// Has the machines probed that the run may have changed without observing them, if this commit
    /// ends it: a run that switches power observes no host, and one that failed or was canceled
    /// observes nothing.
    fn probe_changed(&self, committed: &Run) {
        let ends = committed.ended() && !self.claimed.run.ended();
        let switches_power = committed.spec.run_type == RunType::Power;
        if ends && (switches_power || committed.phase() != RunPhase::Succeeded) {
            let (machines, target) = (self.engine.machines(), committed.spec.target.clone());
            tokio::spawn(async move { machines.probe_changed_by(&target).await });
        }
    }

    async fn try_commit(
        &mut self,
        decision: &Decision,
        hold: ClaimOutcome,
        now: Timestamp,
    ) -> Result<i64> {
        let (run, epoch, wakes) = (&decision.run, self.claimed.epoch, self.claimed.wakes_requested);
        if decision.notes.is_empty() && run.progress == self.claimed.run.progress {
            let due = match hold {
                ClaimOutcome::Release(due) => due,
                ClaimOutcome::Keep => Some(now),
            };
            let input = (run.spec.id.object(), epoch, wakes, due, now);
            let released =
                self.engine.store().write("release", input, |(id, epoch, wakes, due, now), tx| {
                    Box::pin(async move { tx.release(id, *epoch, *wakes, *due, *now) })
                });
            return released.await.map(|()| run.version);
        }
        // These facts belong to the step that was current before the decision.
        let facts = decision.facts.as_ref();
        let applied = facts.and_then(|facts| applied_by_step(&self.claimed.run, facts, now));
        let commit = |lines| {
            let commit = DecisionCommit {
                decision: decision.clone(),
                applied_firmware: applied.clone(),
                disk_report: self.disk_report,
                epoch,
                wakes,
                hold,
                lines,
                now,
            };
            self.engine.store().write("commit", commit, |commit, tx| Box::pin(commit.run(tx)))
        };
        let lines = self.log_buffer.waiting().to_vec();
        let count = lines.len();
        match commit(lines).await {
            Ok(version) => {
                self.log_buffer.written(count);
                Ok(version)
            }
            // Log lines that cannot be written must not block the run.
            Err(_) if count > 0 => commit(Vec::new()).await,
            Err(error) => Err(error),
        }
    }

    /// Reads the stored run. Fails when the claim is lost.
    async fn reload(&mut self) -> TurnResult<()> {
        let id = self.claimed.run.spec.id.clone();
        loop {
            let stored =
                self.engine.store().read_one(id.clone(), |id, tx| Box::pin(tx.run_with_claim(id)));
            match stored.await {
                Ok(Some(claimed))
                    if claimed.epoch == self.claimed.epoch && claimed.owner.is_some() =>
                {
                    self.claimed = claimed;
                    return Ok(());
                }
                Ok(_) => return Err(TurnEnd::ClaimLost),
                Err(error) => {
                    tracing::warn!(run = %id, %error, "reading the run failed; retrying");
                    self.pause(DATABASE_RETRY).await?;
                }
            }
        }
    }

    /// Waits for the database, unless the process stops.
    async fn pause(&self, wait: Duration) -> TurnResult<()> {
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = self.engine.stopped() => Err(TurnEnd::Released),
        }
    }

    /// Makes a provider call whose intent is committed, and waits for the answer.
    async fn make_call(&mut self, call: ProviderCall, limit: Duration) -> TurnResult<CallResult> {
        let given = self.execute(call.clone(), limit).await?;
        if let CallResult::Answered(CallVerb::GetStatus, Ok(ProviderAnswer::Done(_))) = &given {
            // The effect ended while no worker followed it. Following fetches the rest of its log;
            // it starts nothing, and its answer is ignored.
            self.execute(ProviderCall { verb: CallVerb::Follow, ..call }, limit).await?;
        }
        Ok(given)
    }

    async fn execute(&mut self, mut call: ProviderCall, limit: Duration) -> TurnResult<CallResult> {
        let verb = call.verb;
        self.disk_report = None;
        let executor = match self.executor(&call, limit).await? {
            Ok(executor) => executor,
            Err(fault) => {
                // A write begins with a call that performs it, and this one was not made.
                let writes = verb == CallVerb::Perform && call.effect.facts().disk.is_some();
                self.disk_report = writes.then_some(DiskReport::Untouched);
                return Ok(CallResult::Answered(verb, Err(fault)));
            }
        };
        let (step, attempt) = self.step();
        self.prepare_log(&mut call, &step, attempt).await?;

        let (journal, mut lines) = Journal::new();
        let started = Instant::now();
        let execution = AssertUnwindSafe(executor.execute(&call, &journal)).catch_unwind();
        let mut execution = std::pin::pin!(timeout(limit, execution));
        let mut flush = interval_at(started + LOG_FLUSH_INTERVAL, LOG_FLUSH_INTERVAL);
        let mut stop_at: Option<Instant> = None;
        let answered = loop {
            self.disk_report = journal.disk_report();
            tokio::select! {
                biased;
                result = &mut execution => break result,
                Some(line) = lines.recv() => {
                    self.log_buffer.add(&step, attempt, &line, self.engine.now());
                    if self.log_buffer.is_full() {
                        self.log_buffer.flush(self.engine.store()).await;
                    }
                }
                _ = flush.tick() => self.log_buffer.flush(self.engine.store()).await,
                () = self.woken.notified() => {
                    self.reload().await?;
                    if self.claimed.run.progress.halting() && is_interruptible(verb) {
                        return Ok(CallResult::Abandoned);
                    }
                    executor.notify();
                }
                () = self.engine.stopped(), if stop_at.is_none() => {
                    stop_at = Some(Instant::now() + self.engine.grace());
                }
                () = sleep_until(stop_at), if stop_at.is_some() => return Err(TurnEnd::Released),
            }
        };
        self.disk_report = journal.disk_report();
        while let Ok(line) = lines.try_recv() {
            self.log_buffer.add(&step, attempt, &line, self.engine.now());
        }
        metrics::histogram!(
            "farrier_provider_call_seconds", "verb" => verb.as_str(), "effect" => call.effect.name()
        )
        .record(started.elapsed().as_secs_f64());
        let result = match answered {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => {
                let message = format!("the provider panicked at step {step}");
                Err(Fault::new(FaultCode::WorkerPanicked, message))
            }
            Err(_) => {
                let message = format!("no answer within {}", model::time::format_duration(limit));
                Err(Fault::new(FaultCode::StepTimeout, message))
            }
        };
        Ok(CallResult::Answered(verb, result))
    }

    /// The name and the attempt number of the current step.
    fn step(&self) -> (String, u32) {
        let run = &self.claimed.run;
        let state = run.progress.current();
        state.map_or((String::new(), 0), |state| (run.step_name(state), state.attempt))
    }

    async fn prepare_log(
        &mut self,
        call: &mut ProviderCall,
        step: &str,
        attempt: u32,
    ) -> TurnResult<()> {
        let store = self.engine.store().clone();
        while let Err(error) = self.log_buffer.find_end(&store).await {
            tracing::warn!(%error, "reading the end of the log failed; retrying");
            self.pause(DATABASE_RETRY).await?;
        }
        if call.verb == CallVerb::Follow {
            self.log_buffer.flush(&store).await;
            let id = self.claimed.run.spec.id.clone();
            // Without the position some lines are logged twice; the call itself is not affected.
            call.log_offset_bytes = logged(&store, &id, step, attempt).await.unwrap_or_default();
        }
        Ok(())
    }

    fn record_metrics(&self, after: &Run) {
        if after.ended() && !self.claimed.run.ended() {
            log_end(after);
            metrics::counter!(
                "farrier_runs_finished_total",
                "type" => after.spec.run_type.as_str(),
                "phase" => after.phase().as_str()
            )
            .increment(1);
        }
        let first = self.claimed.run.progress.started_at.is_none();
        if let (true, Some(started)) = (first, after.progress.started_at) {
            metrics::histogram!("farrier_run_start_latency_seconds")
                .record(started.since(after.spec.created_at).as_secs_f64());
        }
    }
}

/// One line in the server's log for each operation that ends. A child run reports through its
/// parent, and a routine run that succeeded is not logged.
fn log_end(run: &Run) {
    let is_routine = run.spec.run_type.is_routine() && run.phase() == RunPhase::Succeeded;
    if run.spec.parent_run.is_some() || is_routine {
        return;
    }
    let (phase, kind) = (run.phase().as_str(), run.spec.run_type.as_str());
    let (id, target) = (&run.spec.id, &run.spec.target);
    let failure = run.progress.failure.as_ref().map(|failure| failure.fault.to_string());
    let failure = failure.unwrap_or_default();
    tracing::info!(run = %id, %target, kind, phase, failure, "operation ended");
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// True if a cancel interrupts the call. Calls that only read are short and run to their end.
const fn is_interruptible(verb: CallVerb) -> bool {
    match verb {
        CallVerb::Perform | CallVerb::Follow => true,
        CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => false,
    }
}
