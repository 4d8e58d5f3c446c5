//! Lifecycles: the parts that all records with a state share.
//!
//! Racks, switches, power shelves, hosts, nodes, sites and rollouts are records. The pure function
//! [`Lifecycle::next`] decides the next transition of a record: it stays idle, waits until a time,
//! changes or is removed. A change may also start runs, let accepted runs begin, or cancel runs. A
//! lifecycle never touches hardware: runs do, and wake the record when they end. So one turn of a
//! lifecycle is one transaction, and a crash cannot leave half of it behind.

use crate::effect::{DeviceFacts, Effect};
use crate::filter::FilterField;
use crate::health::HealthSummary;
use crate::host::Host;
use crate::id::{MachineId, PlanId, PowerShelfId, RackId, RunId};
use crate::machine::{Labels, MachineSpec};
use crate::node::Node;
use crate::plan::{OnFailure, RunStep, RunType};
use crate::power_shelf::PowerShelf;
use crate::rack::Rack;
use crate::refusal::Refusal;
use crate::rollout::Rollout;
use crate::run::{ENGINE_VERSION, HistoryNote, Run, RunPhase, RunSpec, StopRequest};
use crate::site::Site;
use crate::switch::Switch;
use crate::target::TargetId;
use crate::text;
use crate::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The kinds of records with a lifecycle, other than runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    Rack,
    Switch,
    PowerShelf,
    /// The firmware reprovisioning of a machine.
    Host,
    Node,
    Site,
    Rollout,
}

impl SubjectKind {
    pub const ALL: [Self; 7] = [
        Self::Rack,
        Self::Switch,
        Self::PowerShelf,
        Self::Host,
        Self::Node,
        Self::Site,
        Self::Rollout,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Switch => "switch",
            Self::PowerShelf => "power_shelf",
            Self::Host => "host",
            Self::Node => "node",
            Self::Site => "site",
            Self::Rollout => "rollout",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The names of all states of this kind.
    pub const fn states(self) -> &'static [&'static str] {
        match self {
            Self::Rack => Rack::STATES,
            Self::Switch => Switch::STATES,
            Self::PowerShelf => PowerShelf::STATES,
            Self::Host => Host::STATES,
            Self::Node => Node::STATES,
            Self::Site => Site::STATES,
            Self::Rollout => Rollout::STATES,
        }
    }
}

/// The id of a record with its kind. The queue and the history store it as one string, see
/// [`SubjectId::key`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SubjectId {
    pub kind: SubjectKind,
    pub id: String,
}

impl SubjectId {
    pub fn new(kind: SubjectKind, id: impl Into<String>) -> Self {
        Self { kind, id: id.into() }
    }

    /// The stored form. An id usually shows its kind by its prefix; a host has the id of its
    /// machine, so it is stored as `host:<id>`.
    pub fn key(&self) -> String {
        match self.kind {
            SubjectKind::Rack
            | SubjectKind::Switch
            | SubjectKind::PowerShelf
            | SubjectKind::Node
            | SubjectKind::Site
            | SubjectKind::Rollout => self.id.clone(),
            SubjectKind::Host => format!("host:{}", self.id),
        }
    }
}

impl SubjectId {
    /// Reads the stored form that `key` writes.
    pub fn from_key(kind: SubjectKind, key: &str) -> Self {
        let id = match kind {
            SubjectKind::Rack
            | SubjectKind::Switch
            | SubjectKind::PowerShelf
            | SubjectKind::Node
            | SubjectKind::Site
            | SubjectKind::Rollout => key,
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

/// The fields that every record with a lifecycle has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordHeader {
    pub id: String,
    #[serde(default)]
    pub labels: Labels,
    /// The rack that holds the device, and the slot in it, counted from the bottom.
    #[serde(default)]
    pub rack: Option<RackId>,
    #[serde(default)]
    pub slot: Option<u32>,
    /// The run that works on the record now, or has reserved it.
    #[serde(default)]
    pub active_run: Option<RunId>,
    /// The summary of its health reports.
    #[serde(default, skip_serializing_if = "HealthSummary::is_clear")]
    pub health: HealthSummary,
    /// Marked for deletion.
    #[serde(default)]
    pub deleted: bool,
    /// The time when the record entered its current state.
    pub since: Timestamp,
    /// The version of the row that was read; the store increments it on every write.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl RecordHeader {
    pub fn new(id: impl Into<String>, labels: Labels, now: Timestamp) -> Self {
        Self {
            id: id.into(),
            labels,
            rack: None,
            slot: None,
            active_run: None,
            health: HealthSummary::default(),
            deleted: false,
            since: now,
            version: 1,
            created_at: now,
            updated_at: now,
        }
    }
}

/// The owner's description of a device other than a machine; its rack and slot are in its header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSpec {
    pub provider: String,
    pub bmc_endpoint: String,
    pub bmc_credential: String,
    /// The address of a switch's operating system.
    pub ssh_endpoint: String,
    pub ssh_credential: String,
    pub serial: String,
    /// Its height in rack units; None means unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height_u: Option<u32>,
    /// The power shelves that feed it, sorted. Empty means unknown: any shelf of its rack may.
    /// Always empty for a power shelf.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feeds: Vec<PowerShelfId>,
}

impl DeviceSpec {
    /// Checks every field. `noun` is the resource's name in requests: `switch`, `power_shelf`.
    pub fn checked(self, noun: &str) -> Result<Self, Refusal> {
        let field = |name: &str| format!("{noun}.spec.{name}");
        text::check_short(&field("provider"), &self.provider)?;
        text::check_endpoint(&field("bmc_endpoint"), &self.bmc_endpoint)?;
        text::check_endpoint(&field("ssh_endpoint"), &self.ssh_endpoint)?;
        text::check_optional_name(&field("bmc_credential"), &self.bmc_credential)?;
        text::check_optional_name(&field("ssh_credential"), &self.ssh_credential)?;
        text::check_short(&field("serial"), &self.serial)?;
        Ok(self)
    }
}

/// Providers take the same connection data for every kind of device.
impl From<DeviceSpec> for MachineSpec {
    fn from(spec: DeviceSpec) -> Self {
        Self {
            provider: spec.provider,
            bmc_endpoint: spec.bmc_endpoint,
            bmc_credential: spec.bmc_credential,
            ssh_endpoint: spec.ssh_endpoint,
            ssh_credential: spec.ssh_credential,
            serial: spec.serial,
            feeds: spec.feeds,
            ..Self::default()
        }
    }
}

/// The reason why a record is idle: one sentence for the operator. A wait without a reason does not
/// compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleReason(pub String);

impl IdleReason {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// A run to start, requested by a lifecycle, an API request or a group step.
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

/// The plan that names the steps of the runs of this type that no stored plan starts.
pub fn lifecycle_plan_id(run_type: RunType) -> PlanId {
    let name = run_type.as_str().to_lowercase().replace('_', "-");
    PlanId::trusted(format!("lifecycle-{name}"))
}

impl NewRun {
    /// The new run, before its first step.
    pub fn into_run(self, at: Timestamp) -> Run {
        Run::new(RunSpec {
            id: self.id,
            target: self.target,
            request_id: self.request_id,
            run_type: self.run_type,
            plan_id: lifecycle_plan_id(self.run_type),
            steps: self.steps,
            params: self.params,
            initiator: self.initiator,
            rerun_of: None,
            restart: None,
            on_failure: OnFailure::KeepPhase,
            parent_run: self.part_of,
            reports_to: self.reports_to,
            held_targets: self.claims,
            engine_version: ENGINE_VERSION,
            created_at: at,
        })
    }
}

/// The decision of one turn of a lifecycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifecycleDecision<R> {
    /// Idle until woken.
    Idle(IdleReason),
    /// Idle until this time, or until woken before.
    IdleUntil(Timestamp, IdleReason),
    Transition(Box<LifecycleChange<R>>),
    /// The record is deleted; only its history remains.
    Remove(HistoryNote),
}

impl<R> LifecycleDecision<R> {
    pub fn idle(message: impl Into<String>) -> Self {
        Self::Idle(IdleReason::new(message))
    }

    pub fn idle_until(at: Timestamp, message: impl Into<String>) -> Self {
        Self::IdleUntil(at, IdleReason::new(message))
    }

    /// A changed record, without any effect on runs.
    pub fn change(record: R, note: HistoryNote) -> Self {
        LifecycleChange::new(record, note).into()
    }
}

impl<R> From<LifecycleChange<R>> for LifecycleDecision<R> {
    fn from(change: LifecycleChange<R>) -> Self {
        Self::Transition(Box::new(change))
    }
}

/// A changed record with the runs that the change starts, lets begin or cancels. The engine commits
/// all of it in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleChange<R> {
    pub record: R,
    pub note: HistoryNote,
    pub start: Vec<NewRun>,
    /// Accepted runs that may begin now.
    pub begin: Vec<RunId>,
    pub cancel: Vec<(RunId, String)>,
}

impl<R> LifecycleChange<R> {
    pub fn new(record: R, note: HistoryNote) -> Self {
        Self { record, note, start: Vec::new(), begin: Vec::new(), cancel: Vec::new() }
    }
}

/// The input of a turn besides the record itself.
#[derive(Debug, Clone)]
pub struct DeviceContext {
    /// The id for a run that this turn may start.
    pub fresh: RunId,
    /// The run that the record waits for, if any.
    pub run: Option<Run>,
    /// The reason why an accepted request may not begin now.
    pub against: Option<String>,
}

/// A record with states, which the engine moves by calling [`Lifecycle::next`].
pub trait Lifecycle:
    Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    const KIND: SubjectKind;
    /// The names of all states, in display order.
    const STATES: &'static [&'static str];
    /// The input that a turn needs besides the record.
    type TurnInput: Send;

    fn head(&self) -> &RecordHeader;
    fn head_mut(&mut self) -> &mut RecordHeader;
    /// The name of the current state, for lists, events and metrics.
    fn state_name(&self) -> &'static str;
    fn next(&self, observed: &Self::TurnInput, now: Timestamp) -> LifecycleDecision<Self>;

    /// The normal time of the record in its current state; none means without limit. A record that
    /// stays longer is shown as stuck.
    fn normal_duration(&self) -> Option<Duration> {
        None
    }

    /// The states from which a transition to the current state is legal; the store checks it on
    /// write. None means any.
    fn legal_source_states(&self) -> Option<Vec<&'static str>> {
        None
    }

    /// The value of a field in a filter; none if the record has no such field, or no value there.
    fn filter_value(&self, field: &FilterField) -> Option<String> {
        field.of_record(self)
    }

    /// The machine whose labels decide who may see the record; none if its own labels decide.
    fn seen_by_machine(&self) -> Option<&MachineId> {
        None
    }

    /// True if the record takes no machine out of service any more: what it has taken counts as
    /// given back.
    fn releases_machines(&self) -> bool {
        false
    }

    /// Merges what a run has read from the device into the record.
    fn merge_facts(&mut self, _facts: &DeviceFacts) {}

    fn subject(&self) -> SubjectId {
        SubjectId::new(Self::KIND, self.head().id.as_str())
    }
}

/// The access to the header in an `impl Lifecycle`: every record has it in its field `head`.
macro_rules! head_in_field {
    () => {
        fn head(&self) -> &$crate::lifecycle::RecordHeader {
            &self.head
        }

        fn head_mut(&mut self) -> &mut $crate::lifecycle::RecordHeader {
            &mut self.head
        }
    };
}
pub(crate) use head_in_field;

/// The status of the run that a record waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AwaitedRunStatus {
    Active,
    Succeeded,
    /// The run failed, was canceled, or no longer exists.
    Failed(DeviceFailure),
}

/// A failure of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFailure {
    #[serde(rename = "said")]
    pub message: String,
    /// The run that failed.
    pub run: Option<RunId>,
    /// The fault code; empty when there was no fault.
    pub code: String,
}

impl DeviceFailure {
    /// A failure without a run and without a fault code.
    pub fn plain(message: impl Into<String>) -> Self {
        Self { message: message.into(), run: None, code: String::new() }
    }
}

/// The status of the run that a record waits for; a run that is gone has failed.
pub fn awaited_status(run: Option<&Run>) -> AwaitedRunStatus {
    let gone = || DeviceFailure::plain("its operation is not there any more");
    run.map_or_else(|| AwaitedRunStatus::Failed(gone()), awaited_run_status)
}

impl DeviceContext {
    pub fn waited(&self) -> AwaitedRunStatus {
        awaited_status(self.run.as_ref())
    }
}

/// The status of a run, for the record that waits for it.
pub fn awaited_run_status(run: &Run) -> AwaitedRunStatus {
    let error = |text: String, code: &str| {
        AwaitedRunStatus::Failed(DeviceFailure {
            message: text,
            run: Some(run.spec.id.clone()),
            code: code.into(),
        })
    };
    match (run.phase(), &run.progress.failure) {
        (RunPhase::Pending | RunPhase::Running, _) => AwaitedRunStatus::Active,
        (RunPhase::Succeeded, _) => AwaitedRunStatus::Succeeded,
        (RunPhase::Failed | RunPhase::Canceled, Some(failure)) => {
            let text = format!("{}: {}", failure.step, failure.fault.message);
            error(text, failure.fault.code.as_str())
        }
        (RunPhase::Failed | RunPhase::Canceled, None) => {
            let by = run.progress.stop_request.as_ref().map(StopRequest::describe);
            error(format!("{} was canceled{}", run.spec.id, by.unwrap_or_default()), "")
        }
    }
}

pub fn run_step(name: &str, timeout_seconds: u32, max_retries: u32, effect: Effect) -> RunStep {
    RunStep { name: name.into(), timeout_seconds, max_retries, effect }
}
