//! Runs: one execution of a plan on one machine, or on one device or rack.
//!
//! A run is an unchanging [`RunSpec`] and a moving [`Progress`]. Two functions move it: [`next`] says
//! what is to be done now, [`judge`] says what an answer from the world means. `act` holds the seven
//! things an operator may ask for. Customers call the same record an operation.
//!
//! The intent to touch the world is part of the progress ([`StepState::asked`]), so committing the
//! progress is committing the intent. An intent found under another claim's epoch was left behind by
//! a crash, and the only legal thing to do with it is to inquire.

pub mod act;
mod aftermath;
mod decide;
mod judge;
mod next;

pub use aftermath::apply_to_machine;
pub use decide::{Decision, Given, Then, decide};
pub use judge::{Policy, Verdict, interrupt, judge};
pub use next::{Asking, Move, Next, next};

use crate::effect::{Effect, Key, Verb};
use crate::fault::{Class, Fault};
use crate::id::{PlanId, RunId};
use crate::lifecycle::SubjectId;
use crate::plan::{OnFailure, Params, RunStep, RunType, UNDO_PREFIX};
use crate::target::TargetId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of these rules. A run that was started under another version is refused, not guessed.
pub const ENGINE_VERSION: u32 = 1;

/// What never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    pub id: RunId,
    /// Stored under the name it had when only machines had runs.
    #[serde(rename = "machine_id")]
    pub target: TargetId,
    pub request_id: String,
    pub run_type: RunType,
    pub plan_id: PlanId,
    /// The plan as it was when the run started, with nothing left open.
    pub steps: Vec<RunStep>,
    pub params: Params,
    pub initiator: String,
    pub parent: Option<RunId>,
    /// How it was made out of its parent.
    #[serde(default, rename = "again")]
    pub restart: Option<act::RestartMode>,
    pub on_failure: OnFailure,
    /// The run on a rack that this is a part of. It works under that one's claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<RunId>,
    /// The record whose lifecycle waits for it, and is woken when it moves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_to: Option<SubjectId>,
    /// What else it holds while it lasts: the devices of a rack that are in its scope.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<TargetId>,
    pub engine: u32,
    pub created_at: Timestamp,
}

/// A run as it stands.
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

/// What moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub workflow: Workflow,
    pub steps: Vec<StepState>,
    /// The step that is being worked on.
    pub at: usize,
    /// The step that is being looked at while a rerun finds out what already holds.
    pub scan: Option<usize>,
    pub halt: Option<Halt>,
    /// An operator had the observed state adopted.
    pub adopted: bool,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub failure: Option<Failure>,
}

/// Somebody asked for the run to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    pub kind: HaltKind,
    pub reason: String,
    pub by: String,
    /// A cancel has stopped the work, and what can be undone is being undone. A freeze in the middle
    /// of that keeps it in mind: the run can only end canceled.
    pub undoing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HaltKind {
    Cancel,
    Freeze,
}

/// Why a run failed, and where.
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
    /// Which step of the plan this does, or undoes.
    pub of: usize,
    pub undo: bool,
    pub state: StepPhase,
    /// The attempt under way or last made; keys carry it. Zero before the first.
    pub attempt: u32,
    /// The last attempt that may be made.
    pub budget: u32,
    /// The attempt was asked for and has not been concluded.
    pub open: bool,
    /// Where the attempt's deadline is counted from.
    pub attempt_since: Timestamp,
    /// What to ask for next.
    pub pursuit: Verb,
    /// The order that was committed before the world heard of it.
    pub asked: Option<Asked>,
    /// The fault that left the attempt in doubt, while it is.
    pub doubt: Option<Fault>,
    /// How often looking failed in a row.
    pub looks: u32,
    pub not_before: Option<Timestamp>,
    pub message: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub verb: Verb,
    /// The claim under which it was asked.
    pub epoch: i64,
    pub at: Timestamp,
}

/// What was decided, in words, and the line that decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub said: String,
    pub line: &'static str,
}

impl Note {
    pub fn new(said: impl Into<String>, line: &'static str) -> Self {
        Self { said: said.into(), line }
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

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
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
    pub(crate) fn new(of: usize, undo: bool, max_retries: u32) -> Self {
        Self {
            of,
            undo,
            state: StepPhase::Waiting,
            attempt: 0,
            budget: 1 + max_retries,
            open: false,
            attempt_since: Timestamp::default(),
            pursuit: Verb::Perform,
            asked: None,
            doubt: None,
            looks: 0,
            not_before: None,
            message: String::new(),
            started_at: None,
            finished_at: None,
        }
    }
}

impl Progress {
    /// Nothing done yet.
    pub fn fresh(steps: &[RunStep]) -> Self {
        let forward = steps.iter().enumerate();
        Self {
            workflow: Workflow::Pending,
            steps: forward.map(|(of, step)| StepState::new(of, false, step.max_retries)).collect(),
            at: 0,
            scan: None,
            halt: None,
            adopted: false,
            started_at: None,
            finished_at: None,
            failure: None,
        }
    }

    /// The step that is being worked on or looked at.
    pub fn current(&self) -> Option<&StepState> {
        self.steps.get(self.scan.unwrap_or(self.at))
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut StepState> {
        self.steps.get_mut(self.scan.unwrap_or(self.at))
    }

    /// The run was asked to stop and has not yet done so.
    pub fn halting(&self) -> bool {
        self.halt.as_ref().is_some_and(|halt| halt.kind == HaltKind::Freeze || !halt.undoing)
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

    pub fn is_of_node(&self) -> bool {
        RunType::NODES.contains(&self.spec.run_type)
    }

    /// What to type for an action on it. What is done on a node is a workflow there, and its steps are stages.
    pub fn command(&self, action: &str) -> String {
        let id = &self.spec.id;
        match (self.is_of_node(), action) {
            (true, "retry-step") => format!("farrier workflow retry-stage {id}"),
            (true, action) => format!("farrier workflow {action} {id}"),
            (false, "cancel") => format!("farrier cancel {id}"),
            (false, action) => format!("farrier run {action} {id}"),
        }
    }

    /// The plan's step behind a step state.
    pub fn plan_step(&self, state: &StepState) -> Option<&RunStep> {
        self.spec.steps.get(state.of)
    }

    pub fn step_name(&self, state: &StepState) -> String {
        let name = self.plan_step(state).map_or("?", |step| step.name.as_str());
        if state.undo { format!("{UNDO_PREFIX}{name}") } else { name.to_string() }
    }

    /// What this step asks of the world.
    pub fn effect(&self, state: &StepState) -> Option<Effect> {
        let effect = &self.plan_step(state)?.effect;
        if state.undo { effect.undo() } else { Some(effect.clone()) }
    }

    /// The name of the step that is being worked on; empty when none is.
    pub fn current_step(&self) -> String {
        match self.progress.current() {
            Some(state) if state.state == StepPhase::Failed => self.step_name(state),
            Some(state) if !self.ended() && self.progress.workflow != Workflow::Pending => {
                self.step_name(state)
            }
            Some(_) | None => String::new(),
        }
    }

    pub fn key(&self, state: &StepState) -> Key {
        Key::new(&self.spec.id, &self.step_name(state), state.attempt)
    }

    /// The intent that is committed and not yet settled, if there is one.
    pub fn open_order(&self) -> Option<(Key, Verb)> {
        let state = self.progress.current()?;
        state.asked.as_ref().map(|asked| (self.key(state), asked.verb))
    }
}

impl Failure {
    /// The workflow state in which a run with this failure ends.
    pub fn workflow(&self) -> Workflow {
        match self.fault.class() {
            Class::Retryable => Workflow::FailedRetryable,
            Class::NeedsIntervention | Class::Rejected | Class::Bug => {
                Workflow::FailedManualIntervention
            }
        }
    }
}
