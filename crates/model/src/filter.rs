//! Filters: `phase=READY AND labels.env in (prod, stage) AND condition.Reachable!=true`.
//!
//! One small language for every list and watch. A filter is parsed once, at the API boundary; an
//! error points at the character. The store turns the parsed terms into SQL, and a watch calls
//! [`Filter::matches`]. A test checks that both agree.

mod field;
mod named;
mod parse;

pub use named::{FilterValues, NamedField};

use crate::access::{LabelSelector, Scope};
use crate::condition::ConditionType;
use crate::lifecycle::Lifecycle;
use crate::machine::{Labels, Machine};
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
    /// The notices that a notifier gets.
    Notice,
    /// The labels that limit a role binding.
    Selector,
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

/// All terms must hold; an empty filter matches everything that its caller may see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    pub terms: Vec<FilterTerm>,
    /// Objects that the caller of the list or watch may see. A run is seen by the labels of its
    /// machine.
    pub scope: Scope,
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
    /// A label that every match must have, if the filter or its scope names one.
    pub fn label(&self) -> Option<(&str, &str)> {
        let scope = self.scope.only_selector().into_iter().flat_map(LabelSelector::terms);
        self.terms.iter().chain(scope).find_map(|term| {
            let FilterField::Label(key) = &term.field else { return None };
            match term.values.as_slice() {
                [value] if !term.negated => Some((key.as_str(), value.as_str())),
                _ => None,
            }
        })
    }

    /// Matches what this filter matches in a scope.
    #[must_use]
    pub fn within(self, scope: Scope) -> Self {
        Self { scope: self.scope.intersect(scope), ..self }
    }

    /// Matches everything in the scope of this filter.
    #[must_use]
    pub fn only_scope(&self) -> Self {
        Self { terms: Vec::new(), scope: self.scope.clone() }
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
        Self::of_term(FilterTerm {
            field: FilterField::RunPhase,
            negated: false,
            values: words.into(),
        })
    }

    /// Matches what both filters match.
    pub fn and(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self.within(other.scope)
    }

    fn of_term(term: FilterTerm) -> Self {
        Self { terms: vec![term], scope: Scope::Everything }
    }

    pub fn parse(text: &str, subject: FilterSubject) -> Result<Self, Refusal> {
        parse::parse(text, subject)
    }

    /// The terms on fields that never change. An object that they do not match never matches.
    pub fn fixed_terms(&self) -> Self {
        let fixed = self.terms.iter().filter(|term| term.field.is_fixed());
        Self { terms: fixed.cloned().collect(), scope: Scope::Everything }
    }

    /// Without the terms on states of a run's machine.
    pub fn without_machine_states(&self) -> Self {
        let others = self.terms.iter().filter(|term| !term.field.is_state_of_machine());
        Self { terms: others.cloned().collect(), scope: self.scope.clone() }
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
        Self::of_term(FilterTerm { field: FilterField::State, negated, values })
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
        Self::of_term(FilterTerm { field, negated: false, values: vec![value.into()] })
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
        // The items have no labels, so a limited scope has none of them.
        self.scope == Scope::Everything
            && self.terms.iter().all(|term| {
                if let FilterField::Label(key) = &term.field {
                    return term.compare(item.label(key).cloned());
                }
                let FilterField::Named(name) = &term.field else { return false };
                let values = item.values_of(name);
                values.iter().any(|value| term.values.contains(value)) != term.negated
            })
    }

    /// Matches a record that is seen by its own labels, or everything is in the scope.
    pub fn matches_record<R: Lifecycle>(&self, record: &R) -> bool {
        let labels = record.seen_by_machine().is_none().then_some(&record.head().labels);
        self.matches_record_seen_by(record, labels)
    }

    /// Matches a record. `labels` decide whether it is in the scope; none: it is in no limited one.
    pub fn matches_record_seen_by<R: Lifecycle>(
        &self,
        record: &R,
        labels: Option<&Labels>,
    ) -> bool {
        let in_scope = match &self.scope {
            Scope::Everything => true,
            Scope::Labels(_) => labels.is_some_and(|labels| self.scope.contains(labels)),
        };
        in_scope && self.terms.iter().all(|term| term.compare(record.filter_value(&term.field)))
    }

    pub fn matches(&self, item: FilterItem<'_>) -> bool {
        self.scope_holds(item) && self.terms.iter().all(|term| term.holds(item))
    }

    /// A run whose machine is gone, or whose target is no machine, is in no limited scope.
    fn scope_holds(&self, item: FilterItem<'_>) -> bool {
        match item {
            _ if self.scope == Scope::Everything => true,
            FilterItem::Machine(machine) => self.scope.contains(&machine.labels),
            FilterItem::Run(run, machine) => {
                let own = machine.filter(|one| run.spec.target.machine().as_ref() == Some(&one.id));
                own.is_some_and(|machine| self.scope.contains(&machine.labels))
            }
            FilterItem::Plan(_) => false,
        }
    }

    /// True if matching a run needs its machine.
    pub fn needs_machine(&self) -> bool {
        self.scope != Scope::Everything || self.terms.iter().any(|term| term.field.is_of_machine())
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
    pub(crate) fn compare(&self, value: Option<String>) -> bool {
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
