//! Fan-out: a rack step starts and follows child runs, one for each device.
//!
//! The request id of a child is the effect key of the attempt that starts it, so after a crash the
//! next worker finds the started children and starts the rest. A child is created in a transaction
//! that locks the parent and checks its claim and its halt flag: a worker that has lost the claim,
//! or whose parent is to stop, starts nothing. A child that an earlier attempt has completed is not
//! started again. The step ends when no child is active.

mod child_status;

pub(crate) use child_status::{child_runs, failed_child, has_active_children};

use crate::admission::{Admission, Created, Holds, time_after_runs};
use crate::holds::halt_run;
use crate::rack::load_device_power;
use crate::{Engine, FaultResult};
use child_status::{
    ChildStatus, ChildStatuses, LoggedStatuses, all_done, counted, failure, read_child_statuses,
    some_of, to_begin,
};
use futures_util::stream::{self, StreamExt};
use model::effect::{
    CallOutcome, CallVerb, ChildRunGroup, EffectKey, ProviderAnswer, ProviderCall,
};
use model::fault::{Fault, FaultCode};
use model::here;
use model::id::RunId;
use model::lifecycle::NewRun;
use model::rack::format_power;
use model::run::actions::Action;
use model::run::{Run, StopKind};
use model::target::TargetId;
use model::time::Timestamp;
use providers::{Journal, Target};
use std::sync::Arc;
use std::time::Duration;
use store::{Cause, Enqueue, NewEvent, Result, StoreError, Tx};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The wait for a wake-up signal before the children are read again.
const POLL: Duration = Duration::from_secs(2);
/// The delay after a conflict or a database failure. The step's deadline bounds the retries.
const RETRY: Duration = Duration::from_millis(100);
/// The time that a stop waits for its children before it answers that some are still active.
/// Shorter than the timeout of a read-only call.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The most devices observed concurrently.
const MAX_CONCURRENT_PROBES: usize = 16;

/// The parent run as claimed by this worker.
pub(crate) struct Parent {
    pub run: Run,
    pub epoch: i64,
    pub group: ChildRunGroup,
    /// Signaled when the parent is woken, usually because a child has ended.
    pub woken_up: Notify,
}

/// Fans a parent run out into child runs.
#[derive(Clone)]
pub(crate) struct FanOut(pub(crate) Engine);

impl FanOut {
    pub(crate) async fn execute(
        &self,
        parent: &Arc<Parent>,
        call: &ProviderCall,
        journal: &Journal,
    ) -> FaultResult<ProviderAnswer> {
        match call.verb {
            CallVerb::Perform if !parent.group.skip_if_all_hold.is_empty() => {
                match self.observe_goal(parent, call, journal).await {
                    Some(outcome) => Ok(ProviderAnswer::Done(outcome)),
                    None => self.start_and_follow(parent, call, journal).await,
                }
            }
            CallVerb::Perform | CallVerb::Follow => {
                self.start_and_follow(parent, call, journal).await
            }
            CallVerb::GetStatus => {
                let parts = self.child_statuses(parent, &call.key).await.map_err(unread)?;
                let begun = parts.iter().any(|(_, one)| *one != ChildStatus::NotBegun);
                Ok(match (begun, all_done(&parts)) {
                    (_, Some(outcome)) => ProviderAnswer::Done(outcome),
                    (true, None) => ProviderAnswer::UnderWay,
                    (false, None) => ProviderAnswer::NeverStarted,
                })
            }
            CallVerb::Observe => self.observe_children(call, &parent.group, journal).await,
            CallVerb::Stop => self.stop_all(parent, &call.key).await,
        }
    }

    /// Starts children and waits until all have ended, or after a failure until the started ones
    /// have ended. The step's deadline ends it.
    async fn start_and_follow(
        &self,
        parent: &Arc<Parent>,
        call: &ProviderCall,
        journal: &Journal,
    ) -> FaultResult<ProviderAnswer> {
        // A turn that waits for children must not use up a slot that they need.
        let _waits = self.0.scheduler().mark_waiting();
        let mut reported = LoggedStatuses::default();
        loop {
            let parts = match self.begin_children(parent, &call.key).await {
                Ok(Some(parts)) => parts,
                Ok(None) => {
                    let message = "the operation is claimed by another replica, or is to stop";
                    return Err(Fault::new(FaultCode::AnswerLost, message));
                }
                Err(StoreError::Conflict | StoreError::Unavailable(_)) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                // Started children continue even if they cannot be read here.
                Err(error @ (StoreError::Refused(_) | StoreError::Corrupt(_))) => {
                    return Err(Fault::new(FaultCode::AnswerLost, error.to_string()));
                }
            };
            reported.log_changes(&parts, journal).await;
            if let Some(outcome) = all_done(&parts) {
                return Ok(ProviderAnswer::Done(outcome));
            }
            let going = parts.iter().any(|(_, one)| matches!(one, ChildStatus::Going(_)));
            if let (false, Some(fault)) = (going, failure(&parts)) {
                return Err(self.with_power(parent, fault).await);
            }
            // A lost signal costs time, never work.
            let _ = tokio::time::timeout(POLL, parent.woken_up.notified()).await;
        }
    }

    /// Adds to the fault of a power sequence which devices are on and off. If that cannot be read,
    /// the fault is returned unchanged.
    async fn with_power(&self, parent: &Parent, fault: Fault) -> Fault {
        if !parent.group.switches_power() {
            return fault;
        }
        let devices = parent.run.spec.held_targets.clone();
        match self
            .0
            .store()
            .read(devices, |devices, tx| Box::pin(load_device_power(tx, devices)))
            .await
        {
            Ok(known) => {
                Fault { message: format!("{}; {}", fault.message, format_power(&known)), ..fault }
            }
            Err(error) => {
                tracing::warn!(run = %parent.run.spec.id, %error, "reading power states failed");
                fault
            }
        }
    }

    /// The outcome if the goal of the group already holds and no child was started. If the goal
    /// cannot be observed, the step is executed.
    async fn observe_goal(
        &self,
        parent: &Arc<Parent>,
        call: &ProviderCall,
        journal: &Journal,
    ) -> Option<CallOutcome> {
        let parts = self.child_statuses(parent, &call.key).await.ok()?;
        if parts.iter().any(|(_, one)| *one != ChildStatus::NotBegun) {
            return None;
        }
        let group = &parent.group;
        let desired = ChildRunGroup { child_runs: group.skip_if_all_hold.clone(), ..group.clone() };
        match self.observe_children(call, &desired, journal).await {
            Ok(ProviderAnswer::Done(outcome)) => {
                let text = format!("already so, and nothing was touched: {}", outcome.message);
                journal.write_line(text.clone()).await;
                Some(CallOutcome { message: text, ..outcome })
            }
            Ok(ProviderAnswer::Differs(observed)) => {
                journal.write_line(format!("to be done: {observed}")).await;
                None
            }
            Ok(
                ProviderAnswer::UnderWay
                | ProviderAnswer::NeverStarted
                | ProviderAnswer::Unknown(_)
                | ProviderAnswer::Stopped,
            ) => None,
            Err(fault) => {
                journal
                    .write_line(format!("to be done, as it cannot be seen: {}", fault.message))
                    .await;
                None
            }
        }
    }

    /// Starts as many children as may be active and returns the statuses. None: the worker has lost
    /// its claim, or the parent is to stop.
    async fn begin_children(
        &self,
        parent: &Arc<Parent>,
        key: &EffectKey,
    ) -> Result<Option<ChildStatuses>> {
        let parts = self.child_statuses(parent, key).await?;
        if to_begin(&parts, &parent.group) == 0 {
            return Ok(Some(parts));
        }
        let (parent, key) = (Arc::clone(parent), key.clone());
        let begin = StartChildren { parent, key, random: self.0.random(), now: self.0.now() };
        let begun =
            self.0.store().write("start_children", begin, |begin, tx| Box::pin(begin.run(tx)));
        let (parts, created) = begun.await?;
        self.0.after_commit(created);
        Ok(parts)
    }

    async fn child_statuses(&self, parent: &Arc<Parent>, key: &EffectKey) -> Result<ChildStatuses> {
        let input = (Arc::clone(parent), key.clone());
        self.0
            .store()
            .scan(input, |(parent, key), tx| Box::pin(read_child_statuses(tx, key, &parent.group)))
            .await
    }

    /// Requests that every active child stops and waits until all have: other runs may take a
    /// stopped child's device.
    async fn stop_all(&self, parent: &Arc<Parent>, key: &EffectKey) -> FaultResult<ProviderAnswer> {
        let timeouts = Instant::now() + STOP_TIMEOUT;
        loop {
            let input = (Arc::clone(parent), key.clone(), self.0.now());
            let parts =
                self.0.store().retry_write("stop_children", input, |(parent, key, now), tx| {
                    Box::pin(halt_children(tx, parent, key, *now))
                });
            let parts = parts.await.map_err(unread)?;
            let going = parts.iter().any(|(_, one)| matches!(one, ChildStatus::Going(_)));
            if !going {
                return Ok(all_done(&parts).map_or(ProviderAnswer::Stopped, ProviderAnswer::Done));
            }
            let woken = tokio::time::timeout(POLL, parent.woken_up.notified()).await;
            if woken.is_err() && Instant::now() > timeouts {
                return Ok(ProviderAnswer::UnderWay);
            }
        }
    }

    /// Observes on every device whether the goal of its steps holds.
    async fn observe_children(
        &self,
        call: &ProviderCall,
        group: &ChildRunGroup,
        journal: &Journal,
    ) -> FaultResult<ProviderAnswer> {
        let mut calls = Vec::new();
        for part in &group.child_runs {
            for step in &part.steps {
                // Devices are only observed here, whatever the verb of the parent's call.
                let (effect, verb) = (step.effect.clone(), CallVerb::Observe);
                let call = ProviderCall { effect, verb, ..call.clone() };
                calls.push((self.0.clone(), part.target.clone(), call, journal.clone()));
            }
        }
        let probes = stream::iter(calls).map(|(engine, id, call, journal)| async move {
            let observed = match engine.find_target(&id).await {
                Ok(target) => engine.fan_out().call_provider(&target, &call, &journal).await,
                Err(fault) => Err(fault),
            };
            (id, observed)
        });
        let mut probes = probes.buffer_unordered(MAX_CONCURRENT_PROBES).boxed();
        let mut wrong = Vec::new();
        while let Some((target, observed)) = probes.next().await {
            match observed {
                Ok(ProviderAnswer::Done(_)) => {}
                Ok(ProviderAnswer::Differs(text)) => wrong.push(format!("{target}: {text}")),
                Ok(
                    ProviderAnswer::UnderWay
                    | ProviderAnswer::NeverStarted
                    | ProviderAnswer::Unknown(_)
                    | ProviderAnswer::Stopped,
                ) => wrong.push(format!("{target}: it cannot be seen")),
                Err(fault) => return Err(fault),
            }
        }
        Ok(match wrong.is_empty() {
            true => ProviderAnswer::Done(CallOutcome {
                message: format!("{} as wanted", counted(group.child_runs.len())),
                ..CallOutcome::default()
            }),
            false => ProviderAnswer::Differs(some_of(&wrong)),
        })
    }

    async fn call_provider(
        &self,
        target: &Target,
        call: &ProviderCall,
        journal: &Journal,
    ) -> FaultResult<ProviderAnswer> {
        match self.0.providers().get(&target.spec.provider) {
            Some(provider) => provider.call(target, call, journal).await,
            None => Err(no_provider(&target.spec.provider)),
        }
    }
}

pub(crate) fn no_provider(name: &str) -> Fault {
    Fault::new(FaultCode::ProviderMissing, format!("this server has no provider {name:?}"))
}

/// A failed read is not a failure of the children.
fn unread(error: StoreError) -> Fault {
    Fault::new(FaultCode::DatabaseUnreachable, format!("Farrier's own database: {error}"))
}

/// Starts as many children as may be active, unless one has failed or the parent is to stop.
struct StartChildren {
    parent: Arc<Parent>,
    key: EffectKey,
    random: u64,
    now: Timestamp,
}

impl StartChildren {
    async fn run(&self, tx: &mut Tx) -> Result<(Option<ChildStatuses>, Created)> {
        let mut created = Created::default();
        if !self.may_start(tx).await? {
            return Ok((None, created));
        }
        let mut parts = read_child_statuses(tx, &self.key, &self.parent.group).await?;
        let count = to_begin(&parts, &self.parent.group);
        let next = parts.iter_mut().filter(|(_, one)| *one == ChildStatus::NotBegun).take(count);
        let next: Vec<_> = next.collect();
        let targets: Vec<TargetId> = next.iter().map(|(part, _)| part.target.clone()).collect();
        let taken = tx.active_runs_on(&targets).await?;
        let at = time_after_runs(tx, self.now, &targets).await?;
        let spec = &self.parent.run.spec;
        let event = event(at, format!("a part of {}", spec.id), &spec.initiator);
        for (count, (part, status)) in next.into_iter().enumerate() {
            if let Some(holder) = taken.get(&part.target.key()) {
                let text = part.target.refuse_held(holder).message;
                *status = ChildStatus::Failed { run: holder.clone(), message: text };
                continue;
            }
            let id = RunId::new(self.now, self.random.wrapping_add((count as u64) << 32));
            let new = NewRun {
                id: id.clone(),
                target: part.target.clone(),
                run_type: part.run_type,
                steps: part.steps.clone(),
                request_id: self.key.to_string(),
                initiator: spec.initiator.clone(),
                part_of: Some(spec.id.clone()),
                reports_to: spec.reports_to.clone(),
                claims: Vec::new(),
                params: model::plan::Params::new(),
            };
            let (run, enqueue, holds) = (new.into_run(at), Enqueue::Now, Holds::Nothing);
            created.add(tx, Admission { run, enqueue, holds, event: &event }).await?;
            *status = ChildStatus::Going(id);
        }
        Ok((Some(parts), created))
    }
}

impl StartChildren {
    /// False if the worker has lost its claim or the parent is to stop. The parent stays locked
    /// until the children are written.
    async fn may_start(&self, tx: &mut Tx) -> Result<bool> {
        let claimed = tx.run_with_claim_locked(&self.parent.run.spec.id).await?;
        Ok(claimed.is_some_and(|claimed| {
            let requested = claimed.run.open_call().is_some_and(|(key, verb)| {
                key == self.key && matches!(verb, CallVerb::Perform | CallVerb::Follow)
            });
            let mine = claimed.epoch == self.parent.epoch && claimed.owner.is_some();
            mine && requested && !claimed.run.progress.halting()
        }))
    }
}

/// Requests that every active child stops: frozen when the parent is frozen, canceled otherwise.
/// Children hold their devices until they have ended.
async fn halt_children(
    tx: &mut Tx,
    parent: &Parent,
    key: &EffectKey,
    now: Timestamp,
) -> Result<ChildStatuses> {
    let parts = read_child_statuses(tx, key, &parent.group).await?;
    let Run { spec, progress, .. } = &parent.run;
    let action = match progress.stop_request.as_ref().map(|halt| halt.kind) {
        Some(StopKind::Freeze) => Action::MarkManual,
        Some(StopKind::Cancel) | None => Action::Cancel,
    };
    // Without a request to stop, the step of the parent has reached its deadline.
    let reason = match &progress.stop_request {
        Some(_) => format!("{} is to stop", spec.id),
        None => {
            let step = parent.run.current_step();
            format!("{step} of {} did not end in time", spec.id)
        }
    };
    let event = event(now, String::new(), "engine");
    for (_, status) in &parts {
        if let ChildStatus::Going(run) = status {
            halt_run(tx, run, action, &reason, &event).await?;
        }
    }
    Ok(parts)
}

fn event(at: Timestamp, message: String, actor: &str) -> NewEvent {
    let decided_by = here!().into();
    NewEvent { cause: Cause::Engine, actor: actor.into(), message, decided_by, at }
}
