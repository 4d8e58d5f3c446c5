//! Decides what a run does now.

use super::{
    CallIntent, ENGINE_VERSION, Failure, HistoryNote, Progress, Run, StepPhase, StepState,
    StopKind, Workflow,
};
use crate::effect::{CallVerb, Effect, ProviderCall};
use crate::fault::{Fault, FaultCode};
use crate::plan::RunType;
use crate::time::{Timestamp, format_duration};
use crate::{here, note};
use std::time::Duration;

/// The timeout of a call that changes nothing.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDecision {
    /// Idle until woken.
    Idle,
    /// Idle until this time.
    IdleUntil(Timestamp),
    /// A transition that needs no provider call.
    Transition(Box<RunTransition>),
    /// A provider call; its intent must be committed before it is made.
    CallProvider(Box<PlannedCall>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTransition {
    pub progress: Progress,
    pub note: HistoryNote,
}

/// A provider call, the progress that records its intent, and how long to wait for the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    pub call: ProviderCall,
    pub progress: Progress,
    pub timeout: Duration,
    pub note: HistoryNote,
}

pub fn next(run: &Run, epoch: i64, now: Timestamp) -> RunDecision {
    let progress = &run.progress;
    if progress.workflow.ended() {
        return RunDecision::Idle;
    }
    if run.spec.engine_version != ENGINE_VERSION {
        return foreign(run, now);
    }
    match progress.workflow {
        Workflow::Pending if progress.halting() => become_(stop_run(run, now)),
        Workflow::Pending => become_(begin(run, now)),
        Workflow::Running | Workflow::Compensating => advance(run, epoch, now),
        Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::FailedManualIntervention
        | Workflow::Cancelled
        | Workflow::Reconciled => RunDecision::Idle,
    }
}

fn become_(step: RunTransition) -> RunDecision {
    RunDecision::Transition(Box::new(step))
}

fn foreign(run: &Run, now: Timestamp) -> RunDecision {
    let message = format!(
        "the run was started by engine version {}, this is version {ENGINE_VERSION}",
        run.spec.engine_version
    );
    let mut progress = run.progress.clone();
    fail(run, &mut progress, Fault::new(FaultCode::ForeignEngine, message.clone()), now);
    become_(RunTransition { progress, note: HistoryNote::new(message, here!()) })
}

fn begin(run: &Run, now: Timestamp) -> RunTransition {
    let mut progress = run.progress.clone();
    progress.started_at = progress.started_at.or(Some(now));
    progress.workflow = active_workflow(&progress);
    RunTransition { progress, note: note!("started") }
}

/// Running, or compensating while the current step is an undo.
pub(super) fn active_workflow(progress: &Progress) -> Workflow {
    match progress.current() {
        Some(step) if step.undo => Workflow::Compensating,
        Some(_) | None => Workflow::Running,
    }
}

fn advance(run: &Run, epoch: i64, now: Timestamp) -> RunDecision {
    let progress = &run.progress;
    let Some(step) = progress.current() else {
        return become_(if progress.halting() {
            stop_run(run, now)
        } else {
            complete_run(run, now)
        });
    };
    if step.intent.is_some() {
        return become_(take_over_call(run, step, now));
    }
    match step.state {
        StepPhase::Waiting if progress.halting() => become_(stop_run(run, now)),
        // An open attempt may still be in progress on the device: its status is read first.
        StepPhase::Running if progress.halting() && !step.attempt_open => {
            become_(stop_run(run, now))
        }
        StepPhase::Waiting | StepPhase::Running => match step.not_before {
            Some(at) if at > now => RunDecision::IdleUntil(at),
            Some(_) | None => plan_call(run, step, epoch, now),
        },
        StepPhase::Succeeded | StepPhase::Failed => {
            let mut progress = progress.clone();
            let message = format!("step {} is current although it has ended", run.step_name(step));
            fail(run, &mut progress, Fault::new(FaultCode::ProtocolBroken, message.clone()), now);
            become_(RunTransition { progress, note: HistoryNote::new(message, here!()) })
        }
    }
}

/// Takes over a call whose intent was committed under an earlier claim and never settled: that
/// worker crashed or lost its lease. After a call that changes the device its status is read; other
/// calls are simply repeated.
fn take_over_call(run: &Run, step: &StepState, now: Timestamp) -> RunTransition {
    let mut progress = run.progress.clone();
    let message = match step.intent.as_ref().map_or(step.next_verb, |requested| requested.verb) {
        CallVerb::Perform | CallVerb::Follow => {
            format!("took over step {}: looking what became of it", run.step_name(step))
        }
        CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => {
            format!("took over step {}", run.step_name(step))
        }
    };
    if let Some(step) = progress.current_mut() {
        if step.intent.take().is_some_and(|requested| changes_device(requested.verb)) {
            step.next_verb = CallVerb::GetStatus;
            // The attempt was not supervised meanwhile: if it is still in progress, it gets its
            // full time again.
            step.attempt_since = now;
        }
        step.failed_status_calls = 0;
        step.not_before = None;
    }
    RunTransition { progress, note: HistoryNote::new(message, here!()) }
}

const fn changes_device(verb: CallVerb) -> bool {
    match verb {
        CallVerb::Perform | CallVerb::Follow => true,
        CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => false,
    }
}

/// The provider call for the current step, with its intent recorded in the progress.
fn plan_call(run: &Run, step: &StepState, epoch: i64, now: Timestamp) -> RunDecision {
    let (Some(effect), Some(plan)) = (run.effect(step), run.plan_step(step)) else {
        let mut progress = run.progress.clone();
        let message = format!("step {} does not stand in the plan", run.step_name(step));
        fail(run, &mut progress, Fault::new(FaultCode::ProtocolBroken, message.clone()), now);
        return become_(RunTransition { progress, note: HistoryNote::new(message, here!()) });
    };
    let mut progress = run.progress.clone();
    let name = run.step_name(step);
    // The deadline passed while the run was idle: read the status once more, then stop it.
    let late = step.next_verb == CallVerb::Follow && now >= step.attempt_since + plan.timeout();
    let verb = if late { CallVerb::GetStatus } else { step.next_verb };
    let mut note = note!("step {name}: {}", asking_words(verb));
    let mut attempt = step.attempt;
    if let Some(step) = progress.current_mut() {
        if step.state == StepPhase::Waiting {
            step.state = StepPhase::Running;
            step.started_at = Some(now);
            note = note!("step {name} started");
        }
        step.waiting_since.get_or_insert(step.started_at.unwrap_or(now));
        if verb == CallVerb::Perform {
            if !step.attempt_open {
                step.attempt += 1;
                step.attempt_open = true;
                if step.attempt > 1 {
                    let message = format!("step {name}: attempt {}", step.attempt);
                    note = HistoryNote::new(message, here!());
                }
            }
            // An effect that turned out not to have started gets its full time.
            step.attempt_since = now;
        }
        attempt = step.attempt;
        step.not_before = None;
        step.intent = Some(CallIntent { verb, epoch, at: now });
    }
    let timeout = match verb {
        CallVerb::Perform | CallVerb::Follow => {
            let since = progress.current().map_or(now, |step| step.attempt_since);
            (since + plan.timeout()).since(now)
        }
        CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => STATUS_TIMEOUT,
    };
    let key = crate::effect::EffectKey::new(&run.spec.id, &name, attempt);
    let call = ProviderCall { key, verb, effect, log_offset_bytes: 0 };
    RunDecision::CallProvider(Box::new(PlannedCall { call, progress, timeout, note }))
}

/// The verb in words, for the history.
const fn asking_words(verb: CallVerb) -> &'static str {
    match verb {
        CallVerb::Perform => "asked for",
        CallVerb::Follow => "following it",
        CallVerb::GetStatus => "asking what became of it",
        CallVerb::Observe => "asking whether it already holds",
        CallVerb::Stop => "asking for it to stop",
    }
}

/// Ends the run after its last step.
fn complete_run(run: &Run, now: Timestamp) -> RunTransition {
    let mut progress = run.progress.clone();
    progress.finished_at = Some(now);
    let canceled = progress.stop_request.as_ref().is_some_and(|halt| halt.kind == StopKind::Cancel);
    if canceled {
        progress.failure = progress.failure.or_else(|| undo_failure(run));
    }
    progress.workflow = match (canceled, progress.adopted) {
        (true, _) => Workflow::Cancelled,
        (false, true) => Workflow::Reconciled,
        (false, false) => Workflow::Completed,
    };
    let took = progress.started_at.map_or(Duration::ZERO, |start| now.since(start));
    let message = format!("{} after {}", progress.workflow.phase().as_str(), format_duration(took));
    RunTransition { progress, note: HistoryNote::new(message, here!()) }
}

/// The failure of an undo step, read from the steps: a freeze in between overwrites `failure`.
fn undo_failure(run: &Run) -> Option<Failure> {
    let mut undo = run.progress.steps.iter().rev().take_while(|step| step.undo);
    let step = undo.find(|step| step.state == StepPhase::Failed)?;
    let name = run.step_name(step);
    let fault = Fault::new(FaultCode::UndoFailed, format!("step {name} failed: {}", step.message));
    Some(Failure { fault, step: name, attempts: step.attempt })
}

/// The current work has stopped as requested: a frozen run waits for the operator, a canceled run
/// starts its undo steps.
pub(super) fn stop_run(run: &Run, now: Timestamp) -> RunTransition {
    let mut progress = run.progress.clone();
    let Some(halt) = progress.stop_request.clone() else {
        return complete_run(run, now);
    };
    let why = if halt.reason.is_empty() { String::new() } else { format!(": {}", halt.reason) };
    match halt.kind {
        StopKind::Freeze => {
            let message = format!("frozen by {}{why}", halt.by);
            let fault = Fault::new(FaultCode::FrozenByOperator, message.clone());
            fail(run, &mut progress, fault, now);
            RunTransition { progress, note: HistoryNote::new(message, here!()) }
        }
        StopKind::Cancel => {
            close_step(&mut progress, StepPhase::Failed, "canceled", now);
            progress.stop_request = Some(super::StopRequest { undoing: true, ..halt.clone() });
            progress.scan_index = None;
            let mut undo = undo_steps(run, &progress);
            // A run that began by undoing its parent's work has used these effect keys already.
            for step in &mut undo {
                let same =
                    progress.steps.iter().filter(|one| one.undo && one.plan_step == step.plan_step);
                let used = same.map(|one| one.attempt).max().unwrap_or(0);
                step.attempt += used;
                step.max_attempt += used;
            }
            progress.step_index = progress.steps.len();
            progress.steps.extend(undo);
            let message = format!("canceled by {}{why}", halt.by);
            if progress.step_index == progress.steps.len() {
                progress.finished_at = Some(now);
                progress.workflow = Workflow::Cancelled;
                return RunTransition { progress, note: HistoryNote::new(message, here!()) };
            }
            progress.started_at = progress.started_at.or(Some(now));
            progress.workflow = Workflow::Compensating;
            RunTransition { progress, note: note!("{message}; undoing") }
        }
    }
}

/// The steps that undo what was done or started, in reverse order.
pub(super) fn undo_steps(run: &Run, progress: &Progress) -> Vec<StepState> {
    undo_each(run, progress.steps.iter().filter(|step| !step.undo && step.attempt > 0))
}

/// The same, and the steps of the runs that this one repeats: an onboarding that was restarted
/// works on what its predecessors left in MAAS. Each undo reads first and undoes only what is
/// the node's own.
pub(super) fn undo_with_predecessors(run: &Run) -> Vec<StepState> {
    let repeats = run.spec.restart.is_some() && run.spec.run_type == RunType::Onboard;
    let begun = |step: &&StepState| !step.undo && (step.attempt > 0 || repeats);
    undo_each(run, run.progress.steps.iter().filter(begun))
}

fn undo_each<'a>(
    run: &Run,
    begun: impl DoubleEndedIterator<Item = &'a StepState>,
) -> Vec<StepState> {
    begun
        .rev()
        .filter_map(|step| {
            let plan = run.plan_step(step)?;
            // A drained node stays cordoned: nothing may be scheduled on it.
            let emptied = matches!(plan.effect, Effect::Drain { .. })
                && step.state == StepPhase::Succeeded
                && RunType::NODES.contains(&run.spec.run_type);
            if emptied {
                return None;
            }
            plan.effect
                .undo()
                .map(|_| StepState::new(step.plan_step, true, plan.max_retries.max(2)))
        })
        .collect()
}

/// Ends the current step.
pub(super) fn close_step(progress: &mut Progress, state: StepPhase, message: &str, now: Timestamp) {
    if let Some(step) = progress.current_mut()
        && step.state != StepPhase::Succeeded
        && (step.state == StepPhase::Running || state == StepPhase::Succeeded)
    {
        step.state = state;
        step.finished_at = Some(now);
        step.intent = None;
        step.not_before = None;
        step.busy_since = None;
        step.message = message.to_string();
    }
}

/// Ends the run with a fault at the current step.
pub(super) fn fail(run: &Run, progress: &mut Progress, fault: Fault, now: Timestamp) {
    close_step(progress, StepPhase::Failed, &fault.message, now);
    let (step, attempts) = match progress.current() {
        Some(step) => (run.step_name(step), step.attempt),
        None => (String::new(), 0),
    };
    let failure = Failure { fault, step, attempts };
    progress.workflow = failure.workflow();
    progress.failure = Some(failure);
    progress.finished_at = Some(now);
}
