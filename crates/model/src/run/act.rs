//! Operator actions on runs. Each action is idempotent in the states that allow it, and refused
//! with a reason in all others.

use super::next::undo_steps;
use super::{Halt, HaltKind, Note, Progress, Run, RunPhase, StepPhase, StepState, Workflow};
use crate::effect::{Effect, Verb};
use crate::here;
use crate::node::Stage;
use crate::refusal::Refusal;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// An action on the run itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Cancel,
    RetryStep,
    Resume,
    Adopt,
    MarkManual,
}

/// An action that creates a new run from an ended one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartMode {
    /// From the first step, skipping the steps that hold already.
    Rerun,
    /// From the first step, after undoing what was done.
    RestartClean,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    /// The run is in that state already. Waking it is harmless.
    Already,
    /// The run is active; the request is recorded in its progress.
    Told(Progress, Note),
    /// The ended run changed, and stays ended.
    Changed(Progress, Note),
    /// The ended run continues, so it must hold its target again.
    Reopened(Progress, Note),
}

/// The operator who requested an action, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub by: String,
    pub reason: String,
}

impl Who {
    fn because(&self, what: &str) -> String {
        let by = &self.by;
        match self.reason.as_str() {
            "" => format!("{what} by {by}"),
            reason => format!("{what} by {by}: {reason}"),
        }
    }
}

impl Action {
    pub const ALL: [Action; 5] =
        [Self::Cancel, Self::RetryStep, Self::Resume, Self::Adopt, Self::MarkManual];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::RetryStep => "retry-step",
            Self::Resume => "resume",
            Self::Adopt => "adopt",
            Self::MarkManual => "mark-manual",
        }
    }
}

pub fn act(run: &Run, action: Action, who: &Who, now: Timestamp) -> Result<Acted, Refusal> {
    match action {
        Action::Cancel => cancel(run, who),
        Action::MarkManual => mark_manual(run, who, now),
        Action::RetryStep => go_on(run, action, who),
        Action::Resume => go_on(run, action, who),
        Action::Adopt => go_on(run, action, who),
    }
}

fn cancel(run: &Run, who: &Who) -> Result<Acted, Refusal> {
    match (run.progress.workflow, &run.progress.halt) {
        (Workflow::Pending | Workflow::Running | Workflow::Compensating, Some(halt))
            if halt.kind == HaltKind::Cancel =>
        {
            Ok(Acted::Already)
        }
        (Workflow::Pending | Workflow::Running | Workflow::Compensating, _) => {
            Ok(halt(run, HaltKind::Cancel, who))
        }
        // A failed run on a node may have created objects in MAAS: canceling it undoes them.
        (Workflow::FailedRetryable | Workflow::FailedManualIntervention, _) if run.is_of_node() => {
            Ok(given_up(run, who))
        }
        (Workflow::Cancelled, _) if run.is_of_node() => Ok(Acted::Already),
        (
            Workflow::FailedRetryable
            | Workflow::FailedManualIntervention
            | Workflow::Completed
            | Workflow::Cancelled
            | Workflow::Reconciled,
            _,
        ) => Err(finished(run, Action::Cancel)),
    }
}

/// Continues a failed run only to undo its steps. If the result of its last attempt is unknown,
/// that is read first.
fn given_up(run: &Run, who: &Who) -> Acted {
    let mut progress = reopened(run, Action::Resume);
    let (by, reason) = (who.by.clone(), who.reason.clone());
    let undoing = progress.halt.as_ref().is_some_and(|halt| halt.undoing)
        || progress.current().is_some_and(|step| step.undo);
    if undoing {
        // A restart that was still undoing keeps only its undo steps.
        let mut left = progress.steps.split_off(progress.at);
        left.retain(|step| step.undo);
        progress.steps.append(&mut left);
    }
    progress.halt = Some(Halt { kind: HaltKind::Cancel, by, reason, undoing });
    Acted::Reopened(progress, Note::new(who.because("given up"), here!()))
}

fn mark_manual(run: &Run, who: &Who, now: Timestamp) -> Result<Acted, Refusal> {
    match run.progress.workflow {
        Workflow::Pending | Workflow::Running | Workflow::Compensating => {
            match &run.progress.halt {
                Some(halt) if halt.kind == HaltKind::Freeze => Ok(Acted::Already),
                Some(_) | None => Ok(halt(run, HaltKind::Freeze, who)),
            }
        }
        Workflow::FailedManualIntervention => Ok(Acted::Already),
        Workflow::FailedRetryable => {
            let mut progress = run.progress.clone();
            let (by, reason) = (who.by.clone(), who.reason.clone());
            let undoing = progress.halt.is_some_and(|halt| halt.undoing);
            progress.halt = Some(Halt { kind: HaltKind::Freeze, by, reason, undoing });
            progress.workflow = Workflow::FailedManualIntervention;
            progress.finished_at = progress.finished_at.or(Some(now));
            Ok(Acted::Changed(progress, Note::new(who.because("frozen"), here!())))
        }
        Workflow::Completed | Workflow::Cancelled | Workflow::Reconciled => {
            Err(finished(run, Action::MarkManual))
        }
    }
}

/// Ends a failed run in the state `end`, after an operator has decided about its target. None when
/// the run has not failed or is in that state already.
pub fn close(run: &Run, end: Workflow, who: &Who) -> Option<(Progress, Note)> {
    if run.phase() != RunPhase::Failed || run.progress.workflow == end {
        return None;
    }
    let progress = Progress { workflow: end, ..run.progress.clone() };
    Some((progress, Note::new(who.because(end.as_str()), here!())))
}

fn halt(run: &Run, kind: HaltKind, who: &Who) -> Acted {
    let mut progress = run.progress.clone();
    let (by, reason) = (who.by.clone(), who.reason.clone());
    let undoing = progress.halt.is_some_and(|halt| halt.undoing);
    progress.halt = Some(Halt { kind, by, reason, undoing });
    if let Some(step) = progress.current_mut() {
        // A requested stop does not wait for the end of a backoff.
        step.not_before = None;
    }
    let what = match kind {
        HaltKind::Cancel => "cancel requested",
        HaltKind::Freeze => "freeze requested",
    };
    Acted::Told(progress, Note::new(who.because(what), here!()))
}

/// Retry, resume and adopt: the failed run continues at its current step.
fn go_on(run: &Run, action: Action, who: &Who) -> Result<Acted, Refusal> {
    match run.progress.workflow {
        Workflow::FailedRetryable | Workflow::FailedManualIntervention => {
            match unseen(run).filter(|_| action == Action::Adopt) {
                Some(stage) => Err(not_observable(run, stage)),
                None => {
                    let note = Note::new(who.because(action.as_str()), here!());
                    Ok(Acted::Reopened(reopened(run, action), note))
                }
            }
        }
        Workflow::Pending | Workflow::Running | Workflow::Compensating => match action {
            Action::RetryStep | Action::Resume => Ok(Acted::Already),
            Action::Cancel | Action::Adopt | Action::MarkManual => Err(Refusal::precondition(
                "RUN_ACTIVE",
                format!("{} is still at work: only a failed step can be adopted", run.spec.id),
            )
            .next(format!("farrier why {}", run.spec.id))),
        },
        Workflow::Completed | Workflow::Cancelled | Workflow::Reconciled => {
            Err(finished(run, action))
        }
    }
}

/// The current stage of the run, if it is an agent's task: only executing it shows whether it is
/// done.
fn unseen(run: &Run) -> Option<Stage> {
    let step = run.progress.current().and_then(|step| run.plan_step(step))?;
    let Effect::Stage { stage, .. } = &step.effect else { return None };
    stage.task().is_some().then_some(*stage)
}

fn not_observable(run: &Run, stage: Stage) -> Refusal {
    let said = format!("nothing shows whether {stage} is done but doing it: it cannot be adopted");
    Refusal::precondition("NOT_OBSERVABLE", said).next(run.command("retry-step"))
}

fn reopened(run: &Run, action: Action) -> Progress {
    let mut progress = run.progress.clone();
    let retries =
        progress.current().and_then(|step| run.plan_step(step)).map_or(0, |plan| plan.max_retries);
    // A cancel that is already undoing stays a cancel; any other stop request is withdrawn.
    let undoing = progress.halt.filter(|halt| halt.undoing);
    progress.halt = undoing.map(|halt| Halt { kind: HaltKind::Cancel, ..halt });
    progress.failure = None;
    progress.finished_at = None;
    let scanning = progress.scan.is_some();
    if let Some(step) = progress.current_mut() {
        let begun = step.attempt > 0;
        step.state = if begun { StepPhase::Running } else { StepPhase::Waiting };
        step.finished_at = None;
        step.asked = None;
        step.not_before = None;
        step.looks = 0;
        step.budget = step.attempt + 1 + retries;
        step.pursuit = match action {
            // A rerun that was still scanning continues its scan.
            _ if scanning => Verb::Observe,
            Action::Adopt => Verb::Observe,
            // The status of the last attempt must be known before anything else is done.
            Action::Resume if begun && step.open => Verb::GetStatus,
            Action::Resume | Action::RetryStep | Action::Cancel | Action::MarkManual => {
                Verb::Perform
            }
        };
        if step.pursuit == Verb::Perform {
            step.open = false;
            step.doubt = None;
        }
    }
    progress.workflow = match progress.started_at {
        None => Workflow::Pending,
        Some(_) => super::next::moving(&progress),
    };
    progress
}

fn finished(run: &Run, action: Action) -> Refusal {
    let said = format!(
        "{} already ended {}: there is nothing to {}",
        run.spec.id,
        run.phase().as_str(),
        action.as_str()
    );
    let next = match run.phase() {
        RunPhase::Failed => run.command("retry-step"),
        // Further actions are requested on the node, not on its run.
        RunPhase::Canceled | RunPhase::Succeeded if run.is_of_node() => {
            format!("farrier why {}", run.spec.id)
        }
        RunPhase::Canceled | RunPhase::Succeeded => run.command("rerun"),
        RunPhase::Pending | RunPhase::Running => format!("farrier why {}", run.spec.id),
    };
    Refusal::precondition("ALREADY_FINISHED", said).next(next)
}

/// The initial progress of a new run that repeats an ended one.
pub fn restart(run: &Run, how: RestartMode) -> Result<Progress, Refusal> {
    if !run.ended() {
        let said = format!("{} is still at work: cancel it before starting over", run.spec.id);
        return Err(Refusal::precondition("RUN_ACTIVE", said).next(run.command("cancel")));
    }
    let mut progress = Progress::fresh(&run.spec.steps);
    match how {
        // The stages of a node check what holds already, so no scan is needed.
        RestartMode::Rerun if run.is_of_node() => {}
        RestartMode::Rerun => {
            let done = |step: &&StepState| !step.undo && step.state == StepPhase::Succeeded;
            progress.scan = run.progress.steps.iter().filter(done).map(|step| step.of).max();
            if let Some(step) = progress.scan.and_then(|index| progress.steps.get_mut(index)) {
                step.pursuit = Verb::Observe;
            }
        }
        RestartMode::RestartClean => {
            let mut steps = undo_steps(run, &run.progress);
            steps.append(&mut progress.steps);
            progress.steps = steps;
        }
    }
    Ok(progress)
}
