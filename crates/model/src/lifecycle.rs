//! Lifecycles: what every record with a state has in common.
//!
//! A rack, a switch, a power shelf, a host that is being reprovisioned: each is a record that a pure function moves on,
//! [`Lifecycle::next`]. It may rest, wait for a time, or become another record, and with that start runs, let waiting ones
//! begin, or cancel them. It never touches hardware: runs do that, and report back by waking it. So a turn of a lifecycle
//! is one transaction, whoever dies when.

use crate::effect::{Effect, Facts};
use crate::health::Standing;
use crate::host::Host;
use crate::id::{PlanId, RackId, RunId};
use crate::machine::{Labels, MachineSpec};
use crate::node::Node;
use crate::plan::{OnFailure, RunStep, RunType};
use crate::power_shelf::PowerShelf;
use crate::rack::Rack;
use crate::refusal::Refusal;
use crate::run::{ENGINE_VERSION, Note, Run, RunPhase, RunSpec};
use crate::site::Site;
use crate::switch::Switch;
use crate::target::TargetId;
use crate::text;
use crate::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The kinds of record with a lifecycle, beside runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    Rack,
    Switch,
    PowerShelf,
    /// The reprovisioning of a machine's firmware.
    Host,
    Node,
    Site,
}

impl SubjectKind {
    pub const ALL: [Self; 6] =
        [Self::Rack, Self::Switch, Self::PowerShelf, Self::Host, Self::Node, Self::Site];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Switch => "switch",
            Self::PowerShelf => "power_shelf",
            Self::Host => "host",
            Self::Node => "node",
            Self::Site => "site",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Every state that a record of this kind can be in, by its word.
    pub const fn states(self) -> &'static [&'static str] {
        match self {
            Self::Rack => Rack::STATES,
            Self::Switch => Switch::STATES,
            Self::PowerShelf => PowerShelf::STATES,
            Self::Host => Host::STATES,
            Self::Node => Node::STATES,
            Self::Site => Site::STATES,
        }
    }
}

/// The name of a record with a lifecycle. In the queue and in the history it is one word, as for a target of a run.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SubjectId {
    pub kind: SubjectKind,
    pub id: String,
}

impl SubjectId {
    pub fn new(kind: SubjectKind, id: impl Into<String>) -> Self {
        Self { kind, id: id.into() }
    }

    /// The word it has in the queue. Most have ids that say what they are; a host has the id of its machine.
    pub fn key(&self) -> String {
        match self.kind {
            SubjectKind::Rack
            | SubjectKind::Switch
            | SubjectKind::PowerShelf
            | SubjectKind::Node
            | SubjectKind::Site => self.id.clone(),
            SubjectKind::Host => format!("host:{}", self.id),
        }
    }
}

impl SubjectId {
    /// From the word it has in the queue.
    pub fn of_key(kind: SubjectKind, key: &str) -> Self {
        let id = match kind {
            SubjectKind::Rack
            | SubjectKind::Switch
            | SubjectKind::PowerShelf
            | SubjectKind::Node
            | SubjectKind::Site => key,
            SubjectKind::Host => key.strip_prefix("host:").unwrap_or(key),
        };
        Self::new(kind, id)
    }
}

impl fmt::Display for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

impl fmt::Debug for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

/// What every such record has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub id: String,
    #[serde(default)]
    pub labels: Labels,
    /// Where it stands: the rack, and the place in it, counted from the bottom.
    #[serde(default)]
    pub rack: Option<RackId>,
    #[serde(default)]
    pub slot: Option<u32>,
    /// Who works on it now, or has claimed it.
    #[serde(default)]
    pub active_run: Option<RunId>,
    /// What its health reports come to.
    #[serde(default, skip_serializing_if = "Standing::is_clear")]
    pub health: Standing,
    /// Marked for deletion.
    #[serde(default)]
    pub deleted: bool,
    /// Since when it has been in its state.
    pub since: Timestamp,
    /// The version it was read at; the store moves it on.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Head {
    pub fn new(id: impl Into<String>, labels: Labels, now: Timestamp) -> Self {
        Self {
            id: id.into(),
            labels,
            rack: None,
            slot: None,
            active_run: None,
            health: Standing::default(),
            deleted: false,
            since: now,
            version: 1,
            created_at: now,
            updated_at: now,
        }
    }
}

/// How a device other than a machine is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSpec {
    pub provider: String,
    pub bmc_endpoint: String,
    pub bmc_credential: String,
    /// Where a switch's own system answers.
    pub ssh_endpoint: String,
    pub ssh_credential: String,
    pub serial: String,
}

impl DeviceSpec {
    /// Checks every field. `noun` is what it is called on the wire: `switch`, `power_shelf`.
    pub fn checked(self, noun: &str) -> Result<Self, Refusal> {
        let field = |name: &str| format!("{noun}.spec.{name}");
        text::short(&field("provider"), &self.provider)?;
        text::endpoint(&field("bmc_endpoint"), &self.bmc_endpoint)?;
        text::endpoint(&field("ssh_endpoint"), &self.ssh_endpoint)?;
        text::optional_name(&field("bmc_credential"), &self.bmc_credential)?;
        text::optional_name(&field("ssh_credential"), &self.ssh_credential)?;
        text::short(&field("serial"), &self.serial)?;
        Ok(self)
    }
}

/// A provider is told of every device in the same words.
impl From<DeviceSpec> for MachineSpec {
    fn from(spec: DeviceSpec) -> Self {
        Self {
            provider: spec.provider,
            bmc_endpoint: spec.bmc_endpoint,
            bmc_credential: spec.bmc_credential,
            ssh_endpoint: spec.ssh_endpoint,
            ssh_credential: spec.ssh_credential,
            serial: spec.serial,
            ..Self::default()
        }
    }
}

/// Why a record rests: a sentence, and what is normal in this state, for those who ask what is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why(pub String);

impl Why {
    pub fn new(said: impl Into<String>) -> Self {
        Self(said.into())
    }
}

/// A run that a lifecycle, a request or a group wants started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    pub id: RunId,
    pub target: TargetId,
    pub run_type: RunType,
    pub steps: Vec<RunStep>,
    pub request_id: String,
    pub initiator: String,
    pub part_of: Option<RunId>,
    pub reports_to: Option<SubjectId>,
    pub claims: Vec<TargetId>,
    pub params: crate::plan::Params,
}

impl NewRun {
    /// As it was decided on, with nothing done.
    pub fn run(self, at: Timestamp) -> Run {
        let word = self.run_type.as_str().to_lowercase().replace('_', "-");
        Run::new(RunSpec {
            id: self.id,
            target: self.target,
            request_id: self.request_id,
            run_type: self.run_type,
            plan_id: PlanId::trusted(format!("lifecycle-{word}")),
            steps: self.steps,
            params: self.params,
            initiator: self.initiator,
            parent: None,
            restart: None,
            on_failure: OnFailure::KeepPhase,
            part_of: self.part_of,
            reports_to: self.reports_to,
            claims: self.claims,
            engine: ENGINE_VERSION,
            created_at: at,
        })
    }
}

/// What a lifecycle does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<R> {
    /// Nothing, until it is woken.
    Rest(Why),
    /// Nothing, until then.
    Until(Timestamp, Why),
    Become(Box<Change<R>>),
    /// It is gone, and nothing is left of it but its history.
    Remove(Note),
}

/// A changed record, and what its change asks of the engine: one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<R> {
    pub record: R,
    pub note: Note,
    pub start: Vec<NewRun>,
    /// Runs that were accepted, and may begin now.
    pub begin: Vec<RunId>,
    pub cancel: Vec<(RunId, String)>,
}

impl<R> Change<R> {
    pub fn new(record: R, note: Note) -> Self {
        Self { record, note, start: Vec::new(), begin: Vec::new(), cancel: Vec::new() }
    }
}

/// What a turn sees beside the record itself.
#[derive(Debug, Clone)]
pub struct DeviceContext {
    /// An id for a run that this turn may start. A change that starts several counts on from it.
    pub fresh: RunId,
    /// The run that the record waits for, where it does.
    pub run: Option<Run>,
    /// Why what was asked of it may not begin now, although it was accepted.
    pub against: Option<String>,
}

/// A record that moves by itself.
pub trait Lifecycle:
    Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    const KIND: SubjectKind;
    /// Every state by its word, in the order in which they are shown.
    const STATES: &'static [&'static str];
    /// What a turn must know beside the record.
    type Seen: Send;

    fn head(&self) -> &Head;
    fn head_mut(&mut self) -> &mut Head;
    /// The state, in one word, for lists, events and metrics.
    fn word(&self) -> &'static str;
    fn next(&self, seen: &Self::Seen, now: Timestamp) -> Next<Self>;

    /// How long it is normally in its state; none where it may stay as long as it likes.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The states from which it may have come to this one, where somebody owns the ways between them. None: from any.
    fn sources(&self) -> Option<Vec<&'static str>> {
        None
    }

    /// Takes in what a run has read of it.
    fn learn(&mut self, _facts: &Facts) {}

    fn subject(&self) -> SubjectId {
        SubjectId::new(Self::KIND, self.head().id.as_str())
    }
}

/// How the run is that a record waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    Going,
    Done,
    /// It failed, was canceled, or is not there: what to say.
    Failed(Trouble),
}

/// What went wrong with a device, and how to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    pub said: String,
    /// The run that ran into it.
    pub run: Option<RunId>,
    /// Its fault's code; empty where there is none.
    pub code: String,
}

impl DeviceContext {
    pub fn waited(&self) -> Waited {
        match &self.run {
            None => Waited::Failed(Trouble {
                said: "its operation is not there any more".into(),
                run: None,
                code: String::new(),
            }),
            Some(run) => waited(run),
        }
    }
}

/// How a run is, for who waits for it.
pub fn waited(run: &Run) -> Waited {
    let trouble = |said: String, code: &str| {
        Waited::Failed(Trouble { said, run: Some(run.spec.id.clone()), code: code.into() })
    };
    match (run.phase(), &run.progress.failure) {
        (RunPhase::Pending | RunPhase::Running, _) => Waited::Going,
        (RunPhase::Succeeded, _) => Waited::Done,
        (RunPhase::Failed | RunPhase::Canceled, Some(failure)) => {
            let said = format!("{}: {}", failure.step, failure.fault.said);
            trouble(said, failure.fault.code.as_str())
        }
        (RunPhase::Failed | RunPhase::Canceled, None) => {
            trouble(format!("{} was canceled", run.spec.id), "")
        }
    }
}

/// A step of a run that a lifecycle starts.
pub fn run_step(name: &str, timeout_seconds: u32, max_retries: u32, effect: Effect) -> RunStep {
    RunStep { name: name.into(), timeout_seconds, max_retries, effect }
}
