//! Filters: `phase=READY AND labels.env in (prod, stage) AND condition.Reachable!=true`.
//!
//! One small language for every list and watch. A filter is parsed once, at the API boundary; an
//! error points at the character. The store turns the parsed terms into SQL, and a watch calls
//! [`Filter::matches`]. A test checks that both agree.

mod named;
mod parse;

pub use named::{FilterValues, NamedField};

use crate::condition::ConditionType;
use crate::lifecycle::Lifecycle;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::run::{Run, RunPhase};

/// The length limit of a filter, in bytes.
pub const MAX_FILTER: usize = 4_096;
/// The number of terms that a filter may have.
pub const MAX_TERMS: usize = 32;
/// The number of values in one `in (…)`.
pub const MAX_VALUES: usize = 100;

/// The kind of object that is listed or watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterSubject {
    Machine,
    Run,
    Plan,
    Rack,
    Switch,
    PowerShelf,
    Node,
    Site,
    Health,
    Firmware,
    FirmwareHistory,
    Image,
    Credential,
    Identity,
    History,
    Replica,
    SimFault,
    SimEffect,
    ComponentFirmware,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterField {
    MachineId,
    /// The phase of the machine; of the lifecycle states that are no phases, its lifecycle state.
    Phase,
    /// The phase of the run.
    RunPhase,
    EffectiveState,
    LifecycleState,
    Provider,
    /// The rack that holds the machine.
    Rack,
    Label(String),
    Condition(ConditionType),
    Type,
    RunId,
    PlanId,
    RequestId,
    /// The kind of device that the run acts on.
    TargetKind,
    Initiator,
    /// The parent of a child run; empty for other runs.
    PartOf,
    /// The run was created at this time or later.
    CreatedFrom,
    /// The run was created before this time.
    CreatedBefore,
    WorkflowState,
    /// The id of a record: a rack, a switch, a power shelf, a node or a site.
    RecordId,
    /// The state of a record.
    State,
    /// The hardware type of a rack.
    HardwareType,
    /// The site of a node.
    Site,
    /// A field of a list that is filtered after its items were read.
    Named(&'static str),
}

/// One comparison: the field has one of the values, or none of them when `negated`. Without values:
/// it has any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterTerm {
    pub field: FilterField,
    pub negated: bool,
    pub values: Vec<String>,
}

/// All terms must hold; an empty filter matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    pub terms: Vec<FilterTerm>,
}

/// An object to match.
#[derive(Debug, Clone, Copy)]
pub enum FilterItem<'a> {
    Machine(&'a Machine),
    /// A run, with its machine when the filter needs it.
    Run(&'a Run, Option<&'a Machine>),
    Plan(&'a Plan),
}

impl Filter {
    /// A label that every match must have, if the filter names one.
    pub fn label(&self) -> Option<(&str, &str)> {
        self.terms.iter().find_map(|term| {
            let FilterField::Label(key) = &term.field else { return None };
            match term.values.as_slice() {
                [value] if !term.negated => Some((key.as_str(), value.as_str())),
                _ => None,
            }
        })
    }

    /// True if the filter asks for a child run: by its parent, or by its own id.
    pub fn names_child(&self) -> bool {
        let of_child =
            |term: &FilterTerm| matches!(term.field, FilterField::PartOf | FilterField::RunId);
        self.terms.iter().any(of_child)
    }

    /// Matches runs that have not ended.
    pub fn in_flight() -> Self {
        let words = [RunPhase::Pending, RunPhase::Running].map(|phase| phase.as_str().to_string());
        Self {
            terms: vec![FilterTerm {
                field: FilterField::RunPhase,
                negated: false,
                values: words.into(),
            }],
        }
    }

    /// Matches what both filters match.
    pub fn and(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self
    }

    pub fn parse(text: &str, subject: FilterSubject) -> Result<Self, Refusal> {
        parse::parse(text, subject)
    }

    /// The terms on fields that never change. An object that they do not match never matches.
    pub fn fixed_terms(&self) -> Self {
        let fixed = self.terms.iter().filter(|term| term.field.is_fixed());
        Self { terms: fixed.cloned().collect() }
    }

    /// Without the terms on states of a run's machine.
    pub fn without_machine_states(&self) -> Self {
        let others = self.terms.iter().filter(|term| !term.field.is_state_of_machine());
        Self { terms: others.cloned().collect() }
    }

    /// Matches records in one of these states.
    pub fn in_states(states: &[&str]) -> Self {
        Self::of_states(states, false)
    }

    /// Matches records in any other state.
    pub fn not_in_states(states: &[&str]) -> Self {
        Self::of_states(states, true)
    }

    fn of_states(states: &[&str], negated: bool) -> Self {
        let values = states.iter().map(ToString::to_string).collect();
        Self { terms: vec![FilterTerm { field: FilterField::State, negated, values }] }
    }

    /// The rack that every match must be in, if the filter names one.
    pub fn rack(&self) -> Option<&str> {
        let racks = self.terms.iter().filter(|term| term.field == FilterField::Rack);
        let mut racks = racks.filter(|term| !term.negated && term.values.len() == 1);
        racks.find_map(|term| term.values.first().map(String::as_str))
    }

    /// True if a term is about the state of a record.
    pub fn names_state(&self) -> bool {
        self.terms.iter().any(|term| term.field == FilterField::State)
    }

    /// Matches items whose named field has this value.
    pub fn named(field: &'static str, value: &str) -> Self {
        let field = FilterField::Named(field);
        Self { terms: vec![FilterTerm { field, negated: false, values: vec![value.into()] }] }
    }

    /// The one value that a named field of every match has, if the filter names one.
    pub fn named_value(&self, field: &'static str) -> Option<&str> {
        let named = FilterField::Named(field);
        let mut terms = self.terms.iter().filter(|term| term.field == named && !term.negated);
        terms.find_map(|term| match term.values.as_slice() {
            [value] => Some(value.as_str()),
            _ => None,
        })
    }

    /// Matches an item of a list with named fields.
    pub fn matches_values(&self, item: &impl FilterValues) -> bool {
        self.terms.iter().all(|term| {
            let FilterField::Named(name) = &term.field else { return false };
            let values = item.values_of(name);
            values.iter().any(|value| term.values.contains(value)) != term.negated
        })
    }

    pub fn matches_record<R: Lifecycle>(&self, record: &R) -> bool {
        self.terms.iter().all(|term| term.compare(record.filter_value(&term.field)))
    }

    pub fn matches(&self, item: FilterItem<'_>) -> bool {
        self.terms.iter().all(|term| term.holds(item))
    }

    /// True if matching a run needs its machine.
    pub fn needs_machine(&self) -> bool {
        self.terms.iter().any(|term| term.field.is_of_machine())
    }
}

impl FilterTerm {
    /// The range of a term about a time, in microseconds; the end does not belong to it.
    pub fn time_range(&self) -> Option<(i64, i64)> {
        let at = self.values.first().and_then(|at| at.parse().ok());
        if self.field == FilterField::CreatedFrom {
            return at.map(|at| (at, i64::MAX));
        }
        at.filter(|_| self.field == FilterField::CreatedBefore).map(|at| (i64::MIN, at))
    }

    fn holds(&self, item: FilterItem<'_>) -> bool {
        // A machine in a lifecycle state that is also a phase is in that phase.
        let lifecycle = FilterField::LifecycleState;
        if self.field == FilterField::Phase
            && lifecycle.read(item).is_some_and(|state| self.values.contains(&state))
        {
            return !self.negated;
        }
        self.compare(self.field.read(item))
    }

    /// Without values the field only has to have one.
    fn compare(&self, value: Option<String>) -> bool {
        if self.values.is_empty() {
            return value.is_some() != self.negated;
        }
        if let Some((earliest, latest)) = self.time_range() {
            let at = value.and_then(|at| at.parse().ok());
            return at.is_some_and(|at: i64| earliest <= at && at < latest);
        }
        let found = value.is_some_and(|value| self.values.contains(&value));
        found != self.negated
    }
}

impl FilterField {
    /// True if the field is a property of the machine, not of the run.
    pub const fn is_of_machine(&self) -> bool {
        match self {
            Self::Phase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_) => true,
            Self::MachineId
            | Self::RunPhase
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => false,
        }
    }

    /// True if the field of an object never changes.
    const fn is_fixed(&self) -> bool {
        match self {
            Self::MachineId
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::RecordId => true,
            Self::Phase
            | Self::RunPhase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_)
            | Self::WorkflowState
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => false,
        }
    }

    /// True if the field is a state of a machine, which changes with its runs.
    const fn is_state_of_machine(&self) -> bool {
        match self {
            Self::Phase | Self::EffectiveState | Self::LifecycleState | Self::Condition(_) => true,
            Self::MachineId
            | Self::RunPhase
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => false,
        }
    }

    /// The value of a field that every record has.
    pub fn of_record<R: Lifecycle>(&self, record: &R) -> Option<String> {
        let head = record.head();
        match self {
            Self::RecordId => Some(head.id.clone()),
            Self::State => Some(record.state_name().into()),
            Self::Rack => head.rack.as_ref().map(ToString::to_string),
            Self::Label(key) => head.labels.get(key).cloned(),
            Self::MachineId
            | Self::Phase
            | Self::RunPhase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Condition(_)
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    fn read(&self, item: FilterItem<'_>) -> Option<String> {
        match item {
            FilterItem::Machine(machine) => self.of_machine(machine),
            FilterItem::Run(run, machine) => self.of_run(run).or_else(|| self.of_machine(machine?)),
            FilterItem::Plan(plan) => self.of_plan(plan),
        }
    }

    fn of_machine(&self, machine: &Machine) -> Option<String> {
        match self {
            Self::MachineId => Some(machine.id.to_string()),
            Self::Phase => Some(machine.phase.as_str().into()),
            Self::EffectiveState => Some(machine.effective_state().as_str().into()),
            Self::LifecycleState => Some(machine.lifecycle_state().as_str().into()),
            Self::Provider => Some(machine.spec.provider.clone()),
            Self::Rack => machine.spec.rack.as_ref().map(ToString::to_string),
            Self::Label(key) => machine.labels.get(key).cloned(),
            Self::Condition(condition) => Some(machine.is(*condition).to_string()),
            Self::RunPhase
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    fn of_run(&self, run: &Run) -> Option<String> {
        match self {
            Self::MachineId => Some(run.spec.target.key()),
            Self::RunPhase => Some(run.phase().as_str().into()),
            Self::Type => Some(run.spec.run_type.as_str().into()),
            Self::RunId => Some(run.spec.id.to_string()),
            Self::PlanId => Some(run.spec.plan_id.to_string()),
            Self::RequestId => Some(run.spec.request_id.clone()),
            Self::TargetKind => Some(run.spec.target.kind.as_str().into()),
            Self::Initiator => Some(run.spec.initiator.clone()),
            Self::PartOf => {
                Some(run.spec.parent_run.as_ref().map(ToString::to_string).unwrap_or_default())
            }
            Self::CreatedFrom | Self::CreatedBefore => {
                Some(run.spec.created_at.as_micros().to_string())
            }
            Self::WorkflowState => Some(run.progress.workflow.as_str().into()),
            Self::Phase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_)
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    fn of_plan(&self, plan: &Plan) -> Option<String> {
        match self {
            Self::PlanId => Some(plan.id.to_string()),
            Self::Type => plan.default_for.map(|kind| kind.as_str().into()),
            Self::MachineId
            | Self::Phase
            | Self::RunPhase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_)
            | Self::RunId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }
}
