//! What an operator may do with a run: the actions of the workflow model, from every state in which
//! they make sense, idempotent there and refused with a reason elsewhere.

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

/// An action that makes a new run out of an ended one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Again {
    /// From the top, adopting what already holds.
    Rerun,
    /// From the top, after undoing what was done.
    RestartClean,
}

/// What an action comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    /// It is so already; a wake-up does no harm.
    Already,
    /// The run, still active, was told.
    Told(Progress, Note),
    /// The ended run changed, and stays ended.
    Changed(Progress, Note),
    /// The ended run goes on: it needs its machine again.
    Reopened(Progress, Note),
}

/// Who asked, and why.
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
        // What failed on a node has made something in MAAS: it is given up, and that is taken back.
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

/// A failed run that goes on only to take back what it did. What an attempt came to that nobody knows of is found out first.
fn given_up(run: &Run, who: &Who) -> Acted {
    let mut progress = reopened(run, Action::Resume);
    let (by, reason) = (who.by.clone(), who.reason.clone());
    let undoing = progress.halt.as_ref().is_some_and(|halt| halt.undoing)
        || progress.current().is_some_and(|step| step.undo);
    if undoing {
        // What was to be taken back and then done anew is only taken back.
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

/// A run that did not end well and is not to go on any more, because a person has decided about what it worked on: it ends in this
/// state. None where there is nothing to decide.
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
        // Who asks for a stop does not wait for a backoff to end.
        step.not_before = None;
    }
    let what = match kind {
        HaltKind::Cancel => "cancel requested",
        HaltKind::Freeze => "freeze requested",
    };
    Acted::Told(progress, Note::new(who.because(what), here!()))
}

/// Retry, resume and adopt: the failed run goes on at the step where it stands.
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

/// The stage where a run stands, if only an agent can say what is there, by doing it.
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
    // A cancel that was already undoing stays a cancel; any other wish to stop is withdrawn.
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
            // A rerun that has not yet found out what holds goes on finding out.
            _ if scanning => Verb::Observe,
            Action::Adopt => Verb::Observe,
            // What the last attempt did must be found out before anything else is done.
            Action::Resume if begun && step.open => Verb::Inquire,
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
        // What goes on with a node is asked of the node.
        RunPhase::Canceled | RunPhase::Succeeded if run.is_of_node() => {
            format!("farrier why {}", run.spec.id)
        }
        RunPhase::Canceled | RunPhase::Succeeded => run.command("rerun"),
        RunPhase::Pending | RunPhase::Running => format!("farrier why {}", run.spec.id),
    };
    Refusal::precondition("ALREADY_FINISHED", said).next(next)
}

/// The progress with which a new run takes up where an ended one left off.
pub fn again(run: &Run, how: Again) -> Result<Progress, Refusal> {
    if !run.ended() {
        let said = format!("{} is still at work: cancel it before starting over", run.spec.id);
        return Err(Refusal::precondition("RUN_ACTIVE", said).next(run.command("cancel")));
    }
    let mut progress = Progress::fresh(&run.spec.steps);
    match how {
        // Its stages go by what they find, and adopt what holds one by one.
        Again::Rerun if run.is_of_node() => {}
        Again::Rerun => {
            let done = |step: &&StepState| !step.undo && step.state == StepPhase::Succeeded;
            progress.scan = run.progress.steps.iter().filter(done).map(|step| step.of).max();
            if let Some(step) = progress.scan.and_then(|index| progress.steps.get_mut(index)) {
                step.pursuit = Verb::Observe;
            }
        }
        Again::RestartClean => {
            let mut steps = undo_steps(run, &run.progress);
            steps.append(&mut progress.steps);
            progress.steps = steps;
        }
    }
    Ok(progress)
}
