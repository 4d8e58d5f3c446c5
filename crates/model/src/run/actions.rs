//! Operator actions on runs. Each action is idempotent in the states that allow it, and refused
//! with a reason in all others.

use super::next::undo_with_predecessors;
use super::{
    HistoryNote, Progress, Run, RunPhase, StepPhase, StepState, StopKind, StopRequest, Workflow,
};
use crate::effect::{CallVerb, Effect};
use crate::here;
use crate::id::RunId;
use crate::node::NodeStage;
use crate::refusal::{Reason, Refusal};
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

impl RestartMode {
    pub const ALL: [RestartMode; 2] = [Self::Rerun, Self::RestartClean];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::RestartClean => "restart-clean",
        }
    }

    /// The history text about a restart: of which run, by whom, and why.
    pub fn describe(self, original: &RunId, requester: &Requester) -> String {
        let what = match self {
            Self::Rerun => "rerun of",
            Self::RestartClean => "clean restart of",
        };
        requester.because(&format!("{what} {original}"))
    }
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionResult {
    /// The run is in that state already. Waking it is harmless.
    Unchanged,
    /// The run is active; the request is recorded in its progress.
    Recorded(Progress, HistoryNote),
    /// The ended run changed, and stays ended.
    Changed(Progress, HistoryNote),
    /// The ended run continues, so it must hold its target again.
    Reopened(Progress, HistoryNote),
}

/// The operator who requested an action, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    pub by: String,
    pub reason: String,
}

impl Requester {
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

pub fn apply_action(
    run: &Run,
    action: Action,
    requester: &Requester,
    now: Timestamp,
) -> Result<ActionResult, Refusal> {
    match action {
        Action::Cancel => cancel(run, requester, now),
        Action::MarkManual => mark_manual(run, requester, now),
        Action::RetryStep => resume_run(run, action, requester, now),
        Action::Resume => resume_run(run, action, requester, now),
        Action::Adopt => resume_run(run, action, requester, now),
    }
}

fn cancel(run: &Run, requester: &Requester, now: Timestamp) -> Result<ActionResult, Refusal> {
    match (run.progress.workflow, &run.progress.stop_request) {
        (Workflow::Pending | Workflow::Running | Workflow::Compensating, Some(halt))
            if halt.kind == StopKind::Cancel =>
        {
            Ok(ActionResult::Unchanged)
        }
        (Workflow::Pending | Workflow::Running | Workflow::Compensating, _) => {
            Ok(halt(run, StopKind::Cancel, requester))
        }
        // A failed run on a node may have created objects in MAAS: canceling it undoes them.
        (Workflow::FailedRetryable | Workflow::FailedManualIntervention, _)
            if run.works_on_node() =>
        {
            Ok(cancel_failed(run, requester, now))
        }
        (Workflow::Cancelled, _) if run.works_on_node() => Ok(ActionResult::Unchanged),
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
fn cancel_failed(run: &Run, requester: &Requester, now: Timestamp) -> ActionResult {
    let mut progress = reopened(run, Action::Resume, now);
    let (by, reason) = (requester.by.clone(), requester.reason.clone());
    let undoing = progress.stop_request.as_ref().is_some_and(|halt| halt.undoing)
        || progress.current().is_some_and(|step| step.undo);
    if undoing {
        // A restart that was still undoing keeps only its undo steps.
        let mut left = progress.steps.split_off(progress.step_index);
        left.retain(|step| step.undo);
        progress.steps.append(&mut left);
    }
    progress.stop_request = Some(StopRequest { kind: StopKind::Cancel, by, reason, undoing });
    ActionResult::Reopened(progress, HistoryNote::new(requester.because("given up"), here!()))
}

fn mark_manual(run: &Run, requester: &Requester, now: Timestamp) -> Result<ActionResult, Refusal> {
    match run.progress.workflow {
        Workflow::Pending | Workflow::Running | Workflow::Compensating => {
            match &run.progress.stop_request {
                Some(halt) if halt.kind == StopKind::Freeze => Ok(ActionResult::Unchanged),
                Some(_) | None => Ok(halt(run, StopKind::Freeze, requester)),
            }
        }
        Workflow::FailedManualIntervention => Ok(ActionResult::Unchanged),
        Workflow::FailedRetryable => {
            let mut progress = run.progress.clone();
            let (by, reason) = (requester.by.clone(), requester.reason.clone());
            let undoing = progress.stop_request.is_some_and(|halt| halt.undoing);
            progress.stop_request =
                Some(StopRequest { kind: StopKind::Freeze, by, reason, undoing });
            progress.workflow = Workflow::FailedManualIntervention;
            progress.finished_at = progress.finished_at.or(Some(now));
            Ok(ActionResult::Changed(
                progress,
                HistoryNote::new(requester.because("frozen"), here!()),
            ))
        }
        Workflow::Completed | Workflow::Cancelled | Workflow::Reconciled => {
            Err(finished(run, Action::MarkManual))
        }
    }
}

/// Ends a failed run in the state `end`, after an operator has decided about its target. None when
/// the run has not failed or is in that state already.
pub fn close(run: &Run, end: Workflow, requester: &Requester) -> Option<(Progress, HistoryNote)> {
    if run.phase() != RunPhase::Failed || run.progress.workflow == end {
        return None;
    }
    let progress = Progress { workflow: end, ..run.progress.clone() };
    Some((progress, HistoryNote::new(requester.because(end.as_str()), here!())))
}

fn halt(run: &Run, kind: StopKind, requester: &Requester) -> ActionResult {
    let mut progress = run.progress.clone();
    let (by, reason) = (requester.by.clone(), requester.reason.clone());
    let undoing = progress.stop_request.is_some_and(|halt| halt.undoing);
    progress.stop_request = Some(StopRequest { kind, by, reason, undoing });
    if let Some(step) = progress.current_mut() {
        // A requested stop does not wait for the end of a backoff.
        step.not_before = None;
    }
    let what = match kind {
        StopKind::Cancel => "cancel requested",
        StopKind::Freeze => "freeze requested",
    };
    ActionResult::Recorded(progress, HistoryNote::new(requester.because(what), here!()))
}

/// Retry, resume and adopt: the failed run continues at its current step.
fn resume_run(
    run: &Run,
    action: Action,
    requester: &Requester,
    now: Timestamp,
) -> Result<ActionResult, Refusal> {
    match run.progress.workflow {
        Workflow::FailedRetryable | Workflow::FailedManualIntervention => {
            match unobservable_stage(run).filter(|_| action == Action::Adopt) {
                Some(stage) => Err(not_observable(run, stage)),
                None => {
                    let note = HistoryNote::new(requester.because(action.as_str()), here!());
                    Ok(ActionResult::Reopened(reopened(run, action, now), note))
                }
            }
        }
        Workflow::Pending | Workflow::Running | Workflow::Compensating => {
            let id = &run.spec.id;
            let message = match action {
                Action::Adopt => {
                    format!("{id} is still at work: only a failed step can be adopted")
                }
                Action::RetryStep | Action::Resume | Action::Cancel | Action::MarkManual => {
                    format!("{id} is still at work: there is nothing to {}", action.as_str())
                }
            };
            Err(Refusal::new(Reason::RunActive, message).next(format!("farrier why {id}")))
        }
        Workflow::Completed | Workflow::Cancelled | Workflow::Reconciled => {
            Err(finished(run, action))
        }
    }
}

/// The current stage of the run, if it is an agent's task: only executing it shows whether it is
/// done.
fn unobservable_stage(run: &Run) -> Option<NodeStage> {
    let step = run.progress.current().and_then(|step| run.plan_step(step))?;
    let Effect::Stage { stage, .. } = &step.effect else { return None };
    stage.task().is_some().then_some(*stage)
}

fn not_observable(run: &Run, stage: NodeStage) -> Refusal {
    let message =
        format!("nothing shows whether {stage} is done but doing it: it cannot be adopted");
    Refusal::new(Reason::NotObservable, message).next(run.command("retry-step"))
}

fn reopened(run: &Run, action: Action, now: Timestamp) -> Progress {
    let mut progress = run.progress.clone();
    let retries =
        progress.current().and_then(|step| run.plan_step(step)).map_or(0, |plan| plan.max_retries);
    // A cancel that is already undoing stays a cancel; any other stop request is withdrawn.
    let undoing = progress.stop_request.filter(|halt| halt.undoing);
    progress.stop_request = undoing.map(|halt| StopRequest { kind: StopKind::Cancel, ..halt });
    progress.failure = None;
    progress.finished_at = None;
    let scanning = progress.scan_index.is_some();
    if let Some(step) = progress.current_mut() {
        let begun = step.attempt > 0;
        step.state = if begun { StepPhase::Running } else { StepPhase::Waiting };
        step.finished_at = None;
        step.waiting_since = begun.then_some(now);
        step.intent = None;
        step.not_before = None;
        step.busy_since = None;
        step.failed_status_calls = 0;
        step.max_attempt = step.attempt + 1 + retries;
        step.next_verb = match action {
            // A rerun that was still scanning continues its scan.
            _ if scanning => CallVerb::Observe,
            Action::Adopt => CallVerb::Observe,
            // The status of the last attempt must be known before anything else is done.
            Action::Resume if begun && step.attempt_open => CallVerb::GetStatus,
            Action::Resume | Action::RetryStep | Action::Cancel | Action::MarkManual => {
                CallVerb::Perform
            }
        };
        if step.next_verb == CallVerb::Perform {
            step.attempt_open = false;
            step.uncertain_fault = None;
        }
    }
    progress.workflow = match progress.started_at {
        None => Workflow::Pending,
        Some(_) => super::next::active_workflow(&progress),
    };
    progress
}

fn finished(run: &Run, action: Action) -> Refusal {
    let message = format!(
        "{} already ended {}: there is nothing to {}",
        run.spec.id,
        run.phase().as_str(),
        action.as_str()
    );
    let show = format!("farrier operation get {}", run.spec.id);
    let next = match run.phase() {
        // A cancel asks for less to happen: the answer offers no action that does more.
        _ if action == Action::Cancel => show,
        RunPhase::Failed => run.command("retry-step"),
        // Further actions are requested on the node, not on its run.
        RunPhase::Canceled | RunPhase::Succeeded if run.works_on_node() => {
            format!("farrier why {}", run.spec.id)
        }
        RunPhase::Canceled => run.command("rerun"),
        // A rerun would repeat what is done, a disk write for example.
        RunPhase::Succeeded => show,
        RunPhase::Pending | RunPhase::Running => format!("farrier why {}", run.spec.id),
    };
    Refusal::new(Reason::AlreadyFinished, message).next(next)
}

/// The initial progress of a new run that repeats an ended one. `superseded`: another run has
/// changed the target since.
///
/// A rerun adopts what holds already of a run that failed or was canceled: it continues that work.
/// After a success, or when another run has followed, there is nothing to continue. The operator
/// wants the work to be done again, so nothing is adopted.
pub fn restart(run: &Run, how: RestartMode, superseded: bool) -> Result<Progress, Refusal> {
    if !run.ended() {
        let message = format!("{} is still at work: cancel it before starting over", run.spec.id);
        return Err(Refusal::new(Reason::RunActive, message).next(run.command("cancel")));
    }
    let mut progress = Progress::fresh(&run.spec.steps);
    match how {
        // The stages of a node check what holds already, so no scan is needed.
        RestartMode::Rerun if run.works_on_node() => {}
        RestartMode::Rerun if superseded || run.phase() == RunPhase::Succeeded => {}
        RestartMode::Rerun => {
            let done = |step: &&StepState| !step.undo && step.state == StepPhase::Succeeded;
            progress.scan_index =
                run.progress.steps.iter().filter(done).map(|step| step.plan_step).max();
            if let Some(step) = progress.scan_index.and_then(|index| progress.steps.get_mut(index))
            {
                step.next_verb = CallVerb::Observe;
            }
        }
        RestartMode::RestartClean => {
            let mut steps = undo_with_predecessors(run);
            steps.append(&mut progress.steps);
            progress.steps = steps;
        }
    }
    Ok(progress)
}
