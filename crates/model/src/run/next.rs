//! Decides what a run does now.

use super::{
    Asked, ENGINE_VERSION, Failure, HaltKind, Note, Progress, Run, StepPhase, StepState, Workflow,
};
use crate::effect::{Effect, Order, Verb};
use crate::fault::{Code, Fault};
use crate::here;
use crate::plan::RunType;
use crate::time::{Timestamp, spoken};
use std::time::Duration;

/// The timeout of a call that changes nothing.
pub const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Idle until woken.
    Rest,
    /// Idle until this time.
    Until(Timestamp),
    /// A transition that needs no provider call.
    Become(Box<Move>),
    /// A provider call; its intent must be committed before it is made.
    Do(Box<Asking>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub progress: Progress,
    pub note: Note,
}

/// A provider call, the progress that records its intent, and how long to wait for the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    pub order: Order,
    pub progress: Progress,
    pub timeout: Duration,
    pub note: Note,
}

pub fn next(run: &Run, epoch: i64, now: Timestamp) -> Next {
    let progress = &run.progress;
    if progress.workflow.ended() {
        return Next::Rest;
    }
    if run.spec.engine != ENGINE_VERSION {
        return foreign(run, now);
    }
    match progress.workflow {
        Workflow::Pending if progress.halting() => become_(halted(run, now)),
        Workflow::Pending => become_(begin(run, now)),
        Workflow::Running | Workflow::Compensating => advance(run, epoch, now),
        Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::FailedManualIntervention
        | Workflow::Cancelled
        | Workflow::Reconciled => Next::Rest,
    }
}

fn become_(step: Move) -> Next {
    Next::Become(Box::new(step))
}

fn foreign(run: &Run, now: Timestamp) -> Next {
    let said = format!(
        "the run was started by engine version {}, this is version {ENGINE_VERSION}",
        run.spec.engine
    );
    let mut progress = run.progress.clone();
    fail(run, &mut progress, Fault::new(Code::ForeignEngine, said.clone()), now);
    become_(Move { progress, note: Note::new(said, here!()) })
}

fn begin(run: &Run, now: Timestamp) -> Move {
    let mut progress = run.progress.clone();
    progress.started_at = progress.started_at.or(Some(now));
    progress.workflow = moving(&progress);
    Move { progress, note: Note::new("started", here!()) }
}

/// Running, or compensating while the current step is an undo.
pub(super) fn moving(progress: &Progress) -> Workflow {
    match progress.current() {
        Some(step) if step.undo => Workflow::Compensating,
        Some(_) | None => Workflow::Running,
    }
}

fn advance(run: &Run, epoch: i64, now: Timestamp) -> Next {
    let progress = &run.progress;
    let Some(step) = progress.current() else {
        return become_(if progress.halting() { halted(run, now) } else { finished(run, now) });
    };
    if step.asked.is_some() {
        return become_(taken_over(run, step, now));
    }
    match step.state {
        StepPhase::Waiting if progress.halting() => become_(halted(run, now)),
        // An open attempt may still be in progress on the device: its status is read first.
        StepPhase::Running if progress.halting() && !step.open => become_(halted(run, now)),
        StepPhase::Waiting | StepPhase::Running => match step.not_before {
            Some(at) if at > now => Next::Until(at),
            Some(_) | None => ask(run, step, epoch, now),
        },
        StepPhase::Succeeded | StepPhase::Failed => {
            let mut progress = progress.clone();
            let said = format!("step {} is in hand although it has ended", run.step_name(step));
            fail(run, &mut progress, Fault::new(Code::ProtocolBroken, said.clone()), now);
            become_(Move { progress, note: Note::new(said, here!()) })
        }
    }
}

/// Takes over a call whose intent was committed under an earlier claim and never settled: that
/// worker crashed or lost its lease. After a call that changes the device its status is read; other
/// calls are simply repeated.
fn taken_over(run: &Run, step: &StepState, now: Timestamp) -> Move {
    let mut progress = run.progress.clone();
    let said = match step.asked.as_ref().map_or(step.pursuit, |asked| asked.verb) {
        Verb::Perform | Verb::Follow => {
            format!("took over step {}: looking what became of it", run.step_name(step))
        }
        Verb::GetStatus | Verb::Observe | Verb::Stop => {
            format!("took over step {}", run.step_name(step))
        }
    };
    if let Some(step) = progress.current_mut() {
        if step.asked.take().is_some_and(|asked| changes_the_world(asked.verb)) {
            step.pursuit = Verb::GetStatus;
            // The attempt was not supervised meanwhile: if it is still in progress, it gets its
            // full time again.
            step.attempt_since = now;
        }
        step.looks = 0;
        step.not_before = None;
    }
    Move { progress, note: Note::new(said, here!()) }
}

const fn changes_the_world(verb: Verb) -> bool {
    match verb {
        Verb::Perform | Verb::Follow => true,
        Verb::GetStatus | Verb::Observe | Verb::Stop => false,
    }
}

/// The provider call for the current step, with its intent recorded in the progress.
fn ask(run: &Run, step: &StepState, epoch: i64, now: Timestamp) -> Next {
    let (Some(effect), Some(plan)) = (run.effect(step), run.plan_step(step)) else {
        let mut progress = run.progress.clone();
        let said = format!("step {} does not stand in the plan", run.step_name(step));
        fail(run, &mut progress, Fault::new(Code::ProtocolBroken, said.clone()), now);
        return become_(Move { progress, note: Note::new(said, here!()) });
    };
    let mut progress = run.progress.clone();
    let name = run.step_name(step);
    // The deadline passed while the run was idle: read the status once more, then stop it.
    let late = step.pursuit == Verb::Follow && now >= step.attempt_since + plan.timeout();
    let verb = if late { Verb::GetStatus } else { step.pursuit };
    let mut note = Note::new(format!("step {name}: {}", asking_words(verb)), here!());
    let mut attempt = step.attempt;
    if let Some(step) = progress.current_mut() {
        if step.state == StepPhase::Waiting {
            step.state = StepPhase::Running;
            step.started_at = Some(now);
            note = Note::new(format!("step {name} started"), here!());
        }
        if verb == Verb::Perform {
            if !step.open {
                step.attempt += 1;
                step.open = true;
                if step.attempt > 1 {
                    let said = format!("step {name}: attempt {}", step.attempt);
                    note = Note::new(said, here!());
                }
            }
            // An effect that turned out not to have started gets its full time.
            step.attempt_since = now;
        }
        attempt = step.attempt;
        step.not_before = None;
        step.asked = Some(Asked { verb, epoch, at: now });
    }
    let timeout = match verb {
        Verb::Perform | Verb::Follow => {
            let since = progress.current().map_or(now, |step| step.attempt_since);
            (since + plan.timeout()).since(now)
        }
        Verb::GetStatus | Verb::Observe | Verb::Stop => LOOK_TIMEOUT,
    };
    let key = crate::effect::Key::new(&run.spec.id, &name, attempt);
    let order = Order { key, verb, effect, logged: 0 };
    Next::Do(Box::new(Asking { order, progress, timeout, note }))
}

/// The verb in words, for the history.
const fn asking_words(verb: Verb) -> &'static str {
    match verb {
        Verb::Perform => "asked for",
        Verb::Follow => "following it",
        Verb::GetStatus => "asking what became of it",
        Verb::Observe => "asking whether it already holds",
        Verb::Stop => "asking for it to stop",
    }
}

/// Ends the run after its last step.
fn finished(run: &Run, now: Timestamp) -> Move {
    let mut progress = run.progress.clone();
    progress.finished_at = Some(now);
    let canceled = progress.halt.as_ref().is_some_and(|halt| halt.kind == HaltKind::Cancel);
    if canceled {
        progress.failure = progress.failure.or_else(|| undo_failure(run));
    }
    progress.workflow = match (canceled, progress.adopted) {
        (true, _) => Workflow::Cancelled,
        (false, true) => Workflow::Reconciled,
        (false, false) => Workflow::Completed,
    };
    let took = progress.started_at.map_or(Duration::ZERO, |start| now.since(start));
    let said = format!("{} after {}", progress.workflow.phase().as_str(), spoken(took));
    Move { progress, note: Note::new(said, here!()) }
}

/// The failure of an undo step, read from the steps: a freeze in between overwrites `failure`.
fn undo_failure(run: &Run) -> Option<Failure> {
    let mut undo = run.progress.steps.iter().rev().take_while(|step| step.undo);
    let step = undo.find(|step| step.state == StepPhase::Failed)?;
    let name = run.step_name(step);
    let fault = Fault::new(Code::UndoFailed, format!("step {name} failed: {}", step.message));
    Some(Failure { fault, step: name, attempts: step.attempt })
}

/// The current work has stopped as requested: a frozen run waits for the operator, a canceled run
/// starts its undo steps.
pub(super) fn halted(run: &Run, now: Timestamp) -> Move {
    let mut progress = run.progress.clone();
    let Some(halt) = progress.halt.clone() else {
        return finished(run, now);
    };
    let why = if halt.reason.is_empty() { String::new() } else { format!(": {}", halt.reason) };
    match halt.kind {
        HaltKind::Freeze => {
            let said = format!("frozen by {}{why}", halt.by);
            let fault = Fault::new(Code::FrozenByOperator, said.clone());
            fail(run, &mut progress, fault, now);
            Move { progress, note: Note::new(said, here!()) }
        }
        HaltKind::Cancel => {
            close_step(&mut progress, StepPhase::Failed, "canceled", now);
            progress.halt = Some(super::Halt { undoing: true, ..halt.clone() });
            progress.scan = None;
            let mut undo = undo_steps(run, &progress);
            // A run that began by undoing its parent's work has used these effect keys already.
            for step in &mut undo {
                let same = progress.steps.iter().filter(|one| one.undo && one.of == step.of);
                let used = same.map(|one| one.attempt).max().unwrap_or(0);
                step.attempt += used;
                step.budget += used;
            }
            progress.at = progress.steps.len();
            progress.steps.extend(undo);
            let said = format!("canceled by {}{why}", halt.by);
            if progress.at == progress.steps.len() {
                progress.finished_at = Some(now);
                progress.workflow = Workflow::Cancelled;
                return Move { progress, note: Note::new(said, here!()) };
            }
            progress.started_at = progress.started_at.or(Some(now));
            progress.workflow = Workflow::Compensating;
            Move { progress, note: Note::new(format!("{said}; undoing"), here!()) }
        }
    }
}

/// The steps that undo what was done or started, in reverse order.
pub(super) fn undo_steps(run: &Run, progress: &Progress) -> Vec<StepState> {
    let done_or_begun = progress.steps.iter().filter(|step| !step.undo && step.attempt > 0);
    done_or_begun
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
            plan.effect.undo().map(|_| StepState::new(step.of, true, plan.max_retries.max(2)))
        })
        .collect()
}

/// Ends the current step.
pub(super) fn close_step(progress: &mut Progress, state: StepPhase, said: &str, now: Timestamp) {
    if let Some(step) = progress.current_mut()
        && step.state != StepPhase::Succeeded
        && (step.state == StepPhase::Running || state == StepPhase::Succeeded)
    {
        step.state = state;
        step.finished_at = Some(now);
        step.asked = None;
        step.not_before = None;
        step.message = said.to_string();
    }
}

/// Ends the run with a fault at the current step.
pub(super) fn fail(run: &Run, progress: &mut Progress, fault: Fault, now: Timestamp) {
    close_step(progress, StepPhase::Failed, &fault.said, now);
    let (step, attempts) = match progress.current() {
        Some(step) => (run.step_name(step), step.attempt),
        None => (String::new(), 0),
    };
    let failure = Failure { fault, step, attempts };
    progress.workflow = failure.workflow();
    progress.failure = Some(failure);
    progress.finished_at = Some(now);
}
