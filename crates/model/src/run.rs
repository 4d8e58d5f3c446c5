//! Runs: one execution of a plan on one machine, device or rack.
//!
//! A run is an immutable [`RunSpec`] and a mutable [`Progress`]. Two functions move it: [`next`]
//! decides what to do now, [`classify_answer`] what a provider's answer means. `actions` has what
//! operators can do to a run. Customers call the same record an operation.
//!
//! The intent of a provider call is part of the progress ([`StepState::intent`]), so committing the
//! progress commits the intent. An intent with another claim's epoch was left behind by a crash.
//! The only legal follow-up is to get the status of its key.

pub mod actions;
mod classify;
mod decide;
mod estimate;
mod machine_update;
mod next;
mod remaining;

pub use classify::{AnswerClassification, Policy, abandon_call, classify_answer};
pub use decide::{AfterCommit, CallResult, Decision, FailedAttempt, decide};
pub use estimate::{PreviewedStep, TimeEstimate, UsualTime, usual_of_group};
pub use machine_update::apply_to_machine;
pub use next::{PlannedCall, RunDecision, RunTransition, next};
pub use remaining::{RemainingStep, describe_inquiry, describe_stop, remaining_steps};

use crate::blast_radius::Impact;
use crate::effect::{CallVerb, Effect, EffectKey};
use crate::fault::{EffectOutcome, Fault, FaultClass};
use crate::id::{PlanId, RunId};
use crate::lifecycle::SubjectId;
use crate::plan::{OnFailure, Params, RunStep, RunType, UNDO_PREFIX};
use crate::target::TargetId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of these rules. A run that was started under another version is refused.
pub const ENGINE_VERSION: u32 = 1;

/// The immutable part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    pub id: RunId,
    /// The stored name dates from when only machines had runs.
    #[serde(rename = "machine_id")]
    pub target: TargetId,
    pub request_id: String,
    pub run_type: RunType,
    pub plan_id: PlanId,
    /// The plan's steps, resolved when the run was created.
    pub steps: Vec<RunStep>,
    pub params: Params,
    pub initiator: String,
    #[serde(rename = "parent")]
    pub rerun_of: Option<RunId>,
    /// The way in which it was derived from its parent.
    #[serde(default, rename = "again")]
    pub restart: Option<actions::RestartMode>,
    pub on_failure: OnFailure,
    /// The run on a rack that started this one as a child. The child works under the parent's
    /// claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "part_of")]
    pub parent_run: Option<RunId>,
    /// The record whose lifecycle waits for this run; it is woken when the run moves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_to: Option<SubjectId>,
    /// The other targets that the run holds until it ends: the devices of a rack in its scope.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "claims")]
    pub held_targets: Vec<TargetId>,
    #[serde(rename = "engine")]
    pub engine_version: u32,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub spec: RunSpec,
    pub progress: Progress,
    pub version: i64,
}

/// The eight workflow states, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workflow {
    Pending,
    Running,
    Completed,
    FailedRetryable,
    FailedManualIntervention,
    Cancelled,
    Compensating,
    Reconciled,
}

/// The five phases, for customers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Canceled,
}

/// The mutable part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub workflow: Workflow,
    pub steps: Vec<StepState>,
    /// The index of the current step.
    #[serde(rename = "at")]
    pub step_index: usize,
    /// During a rerun: the index of the step that is checked for whether it holds already.
    #[serde(rename = "scan")]
    pub scan_index: Option<usize>,
    #[serde(rename = "halt")]
    pub stop_request: Option<StopRequest>,
    /// An operator adopted the observed state.
    pub adopted: bool,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub failure: Option<Failure>,
}

/// A request to stop the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    pub kind: StopKind,
    pub reason: String,
    pub by: String,
    /// A cancel has stopped the work and the undo steps are running. A freeze keeps this flag: such
    /// a run can only end canceled.
    pub undoing: bool,
}

impl StopRequest {
    /// ` by ada: wrong rack`, for a sentence about the run that was stopped.
    pub fn describe(&self) -> String {
        match self.reason.as_str() {
            "" => format!(" by {}", self.by),
            reason => format!(" by {}: {reason}", self.by),
        }
    }

    /// Describes a stop request of a run that ended although its work could not be stopped.
    pub fn describe_unfinished(&self) -> String {
        format!("the cancel that {} asked for could not be carried out", self.by)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopKind {
    Cancel,
    Freeze,
}

/// The reason why a run failed, and at which step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub fault: Fault,
    pub step: String,
    pub attempts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StepPhase {
    Waiting,
    Running,
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepState {
    /// The index of the plan step that this state executes or undoes.
    #[serde(rename = "of")]
    pub plan_step: usize,
    pub undo: bool,
    pub state: StepPhase,
    /// The current or last attempt; it is part of the effect key. Zero before the first attempt.
    pub attempt: u32,
    /// The number of the last attempt that is allowed.
    #[serde(rename = "budget")]
    pub max_attempt: u32,
    /// The attempt was requested and its result is not settled yet.
    #[serde(rename = "open")]
    pub attempt_open: bool,
    /// The start of the attempt; its deadline counts from here.
    pub attempt_since: Timestamp,
    /// The verb of the next provider call.
    #[serde(rename = "pursuit")]
    pub next_verb: CallVerb,
    /// The provider call whose intent is committed and whose answer is not.
    #[serde(rename = "asked")]
    pub intent: Option<CallIntent>,
    /// The fault that made the attempt's result uncertain, until it is known.
    #[serde(rename = "doubt")]
    pub uncertain_fault: Option<Fault>,
    /// The number of consecutive calls that failed to get the status of the attempt.
    #[serde(rename = "looks")]
    pub failed_status_calls: u32,
    pub not_before: Option<Timestamp>,
    /// The time since which a busy peer has kept the step from starting. None: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_since: Option<Timestamp>,
    pub message: String,
    pub started_at: Option<Timestamp>,
    /// The start of the wait for its end: its own start, or the action that continued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallIntent {
    pub verb: CallVerb,
    /// The epoch of the claim that committed the intent.
    pub epoch: i64,
    pub at: Timestamp,
}

/// A decision in words, and the line of code that took it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryNote {
    pub message: String,
    pub code_line: &'static str,
}

impl HistoryNote {
    pub fn new(text: impl Into<String>, code_line: &'static str) -> Self {
        Self { message: text.into(), code_line }
    }
}

impl Workflow {
    pub const ALL: [Workflow; 8] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::FailedRetryable,
        Self::FailedManualIntervention,
        Self::Cancelled,
        Self::Compensating,
        Self::Reconciled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::FailedManualIntervention => "failed_manual_intervention",
            Self::Cancelled => "cancelled",
            Self::Compensating => "compensating",
            Self::Reconciled => "reconciled",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    pub const fn phase(self) -> RunPhase {
        match self {
            Self::Pending => RunPhase::Pending,
            Self::Running | Self::Compensating => RunPhase::Running,
            Self::Completed | Self::Reconciled => RunPhase::Succeeded,
            Self::FailedRetryable | Self::FailedManualIntervention => RunPhase::Failed,
            Self::Cancelled => RunPhase::Canceled,
        }
    }

    pub const fn failed(self) -> bool {
        matches!(self.phase(), RunPhase::Failed)
    }

    pub const fn ended(self) -> bool {
        self.phase().ended()
    }
}

impl RunPhase {
    pub const ALL: [RunPhase; 5] =
        [Self::Pending, Self::Running, Self::Succeeded, Self::Failed, Self::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Canceled => "CANCELED",
        }
    }

    pub const fn ended(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

impl StepState {
    pub(crate) fn new(plan_step: usize, undo: bool, max_retries: u32) -> Self {
        Self {
            plan_step,
            undo,
            state: StepPhase::Waiting,
            attempt: 0,
            max_attempt: 1 + max_retries,
            attempt_open: false,
            attempt_since: Timestamp::default(),
            next_verb: CallVerb::Perform,
            intent: None,
            uncertain_fault: None,
            failed_status_calls: 0,
            not_before: None,
            busy_since: None,
            message: String::new(),
            started_at: None,
            waiting_since: None,
            finished_at: None,
        }
    }
}

impl Progress {
    /// The progress of a new run.
    pub fn fresh(steps: &[RunStep]) -> Self {
        let forward = steps.iter().enumerate();
        Self {
            workflow: Workflow::Pending,
            steps: forward.map(|(of, step)| StepState::new(of, false, step.max_retries)).collect(),
            step_index: 0,
            scan_index: None,
            stop_request: None,
            adopted: false,
            started_at: None,
            finished_at: None,
            failure: None,
        }
    }

    /// The current step; during a rerun's scan, the step being checked.
    pub fn current(&self) -> Option<&StepState> {
        self.steps.get(self.scan_index.unwrap_or(self.step_index))
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut StepState> {
        self.steps.get_mut(self.scan_index.unwrap_or(self.step_index))
    }

    /// A cancel that has not stopped the work yet; of a run that has failed, one that could not.
    pub fn unfinished_cancel(&self) -> Option<&StopRequest> {
        self.stop_request.as_ref().filter(|halt| halt.kind == StopKind::Cancel && !halt.undoing)
    }

    /// True if a requested stop has not taken effect yet.
    pub fn halting(&self) -> bool {
        self.stop_request
            .as_ref()
            .is_some_and(|halt| halt.kind == StopKind::Freeze || !halt.undoing)
    }
}

impl Run {
    pub fn new(spec: RunSpec) -> Self {
        let progress = Progress::fresh(&spec.steps);
        Self { spec, progress, version: 1 }
    }

    pub fn phase(&self) -> RunPhase {
        self.progress.workflow.phase()
    }

    pub fn ended(&self) -> bool {
        self.progress.workflow.ended()
    }

    pub fn works_on_node(&self) -> bool {
        RunType::NODES.contains(&self.spec.run_type)
    }

    /// Impact on the target of the call that this commit intends. None for a call that starts
    /// nothing, and for the runs of a node, whose stages move it themselves.
    pub fn intended_impact(&self) -> Option<Impact> {
        let step = self.progress.current()?;
        let starts = step.intent.as_ref()?.verb == CallVerb::Perform;
        if !starts || self.works_on_node() {
            return None;
        }
        self.effect(step)?.facts().takes
    }

    /// The command for an action on this run.
    pub fn command(&self, action: &str) -> String {
        let id = &self.spec.id;
        match action {
            "cancel" => format!("farrier cancel {id}"),
            action => format!("farrier operation {action} {id}"),
        }
    }

    /// The plan's step that a step state belongs to.
    pub fn plan_step(&self, state: &StepState) -> Option<&RunStep> {
        self.spec.steps.get(state.plan_step)
    }

    pub fn step_name(&self, state: &StepState) -> String {
        let name = self.plan_step(state).map_or("?", |step| step.name.as_str());
        if state.undo { format!("{UNDO_PREFIX}{name}") } else { name.to_string() }
    }

    /// The effect of this step, or its undo.
    pub fn effect(&self, state: &StepState) -> Option<Effect> {
        let effect = &self.plan_step(state)?.effect;
        if !state.undo {
            return Some(effect.clone());
        }
        let mut undo = effect.undo()?;
        if let Effect::Leave { joined_by, .. } = &mut undo
            && self.spec.restart == Some(actions::RestartMode::RestartClean)
        {
            joined_by.clone_from(&self.spec.rerun_of);
        }
        Some(undo)
    }

    /// True if an attempt of this step may have reached its device, and its outcome is not known.
    pub fn outcome_unknown(&self, state: &StepState) -> bool {
        let name = self.step_name(state);
        let unknown = self.progress.failure.as_ref().is_some_and(|failure| {
            failure.step == name && failure.fault.code.effect_outcome() == EffectOutcome::Unknown
        });
        state.attempt > 0 && (unknown || state.attempt_open)
    }

    /// The name of the current or failed step; empty when there is none.
    pub fn current_step(&self) -> String {
        match self.progress.current() {
            Some(state) if state.state == StepPhase::Failed => self.step_name(state),
            Some(state) if !self.ended() && self.progress.workflow != Workflow::Pending => {
                self.step_name(state)
            }
            Some(_) | None => String::new(),
        }
    }

    pub fn key(&self, state: &StepState) -> EffectKey {
        EffectKey::new(&self.spec.id, &self.step_name(state), state.attempt)
    }

    /// The committed intent that is not settled yet.
    pub fn open_call(&self) -> Option<(EffectKey, CallVerb)> {
        let state = self.progress.current()?;
        state.intent.as_ref().map(|requested| (self.key(state), requested.verb))
    }
}

impl Failure {
    /// The workflow state in which a run with this failure ends.
    pub fn workflow(&self) -> Workflow {
        match self.fault.class() {
            FaultClass::Retryable => Workflow::FailedRetryable,
            FaultClass::NeedsIntervention | FaultClass::Rejected | FaultClass::Bug => {
                Workflow::FailedManualIntervention
            }
        }
    }
}
