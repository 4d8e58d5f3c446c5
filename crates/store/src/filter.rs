//! Compiles filters to SQL. Derived states are compiled from the rule lists that the model computes
//! them by.

use crate::driver::Dialect;
use crate::value::Value;
use model::access::{LabelSelector, Scope};
use model::filter::{Filter, FilterField, FilterTerm};
use model::machine::Phase;
use model::machine::view::{EFFECTIVE, EffectiveState, Guard, LIFECYCLE, LifecycleState, Rules};
use model::run::{RunPhase, Workflow};
use model::target::TargetKind;

/// Builds a WHERE clause.
pub(crate) struct Select {
    dialect: Dialect,
    /// The column with the machine id: it differs between lists of machines and of runs.
    machine_id: &'static str,
    terms: Vec<String>,
    pub values: Vec<Value>,
}

impl Select {
    pub fn new(dialect: Dialect, machine_id: &'static str) -> Self {
        Self { dialect, machine_id, terms: Vec::new(), values: Vec::new() }
    }

    /// Adds a parameter and returns its placeholder.
    pub fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    pub fn compare(&mut self, column: &str, sign: &str, value: Option<&str>) {
        if let Some(value) = value {
            let bound = self.bind(value);
            self.terms.push(format!("{column} {sign} {bound}"));
        }
    }

    pub fn require(&mut self, term: &str) {
        self.terms.push(term.into());
    }

    pub fn clause(&self) -> String {
        if self.terms.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.terms.join(" AND "))
        }
    }
}

pub(crate) fn compile_filter(filter: &Filter, select: &mut Select) {
    for term in &filter.terms {
        let sql = term_sql(term, select);
        select.terms.push(sql);
    }
    if let Scope::Labels(selectors) = &filter.scope {
        let sql = scope_sql(selectors, select);
        select.terms.push(sql);
    }
    select.terms.extend(index_hint(filter).map(String::from));
}

/// Without selectors nothing is in the scope.
fn scope_sql(selectors: &[LabelSelector], select: &mut Select) -> String {
    if selectors.is_empty() {
        return "1 = 0".into();
    }
    let selected = selectors.iter().map(|selector| {
        let terms: Vec<String> =
            selector.terms().iter().map(|term| column_sql(term, select)).collect();
        format!("({})", terms.join(" AND "))
    });
    let selected: Vec<String> = selected.collect();
    format!("({})", selected.join(" OR "))
}

/// A term that lets the database use an index on active or on ended runs, if the filter implies one
/// of the two. A filter by machine or run id has a better index already.
fn index_hint(filter: &Filter) -> Option<&'static str> {
    // A term without values selects any value, so it implies nothing.
    let desired = || filter.terms.iter().filter(|term| !term.negated && !term.values.is_empty());
    if desired().any(|term| matches!(term.field, FilterField::MachineId | FilterField::RunId)) {
        return None;
    }
    if desired()
        .any(|term| term.values.iter().all(|name| implies_ended(&term.field, name) == Some(false)))
    {
        return Some("s.id IN (SELECT id FROM subjects WHERE holds_machine IS NOT NULL)");
    }
    // The index is ordered by id within each phase. Several phases would need a sort.
    let one_end = |term: &FilterTerm| {
        let name = term.values.first().filter(|_| term.values.len() == 1);
        let is_end = name.is_some_and(|name| implies_ended(&term.field, name) == Some(true));
        is_end && term.field == FilterField::RunPhase
    };
    desired().any(one_end).then_some("s.ended_at IS NOT NULL")
}

/// True if a run with this value has ended, false if it has not, `None` if the field does not tell.
fn implies_ended(field: &FilterField, name: &str) -> Option<bool> {
    match field {
        FilterField::RunPhase => {
            let phase = RunPhase::ALL.into_iter().find(|phase| phase.as_str() == name);
            phase.map(RunPhase::ended)
        }
        FilterField::WorkflowState => Workflow::parse(name).map(Workflow::ended),
        FilterField::MachineId
        | FilterField::Phase
        | FilterField::EffectiveState
        | FilterField::LifecycleState
        | FilterField::Provider
        | FilterField::Rack
        | FilterField::Label(_)
        | FilterField::Condition(_)
        | FilterField::Type
        | FilterField::RunId
        | FilterField::PlanId
        | FilterField::RequestId
        | FilterField::TargetKind
        | FilterField::Initiator
        | FilterField::PartOf
        | FilterField::CreatedFrom
        | FilterField::CreatedBefore
        | FilterField::RecordId
        | FilterField::State
        | FilterField::HardwareType
        | FilterField::Site
        | FilterField::Named(_) => None,
    }
}

fn term_sql(term: &FilterTerm, select: &mut Select) -> String {
    let is_phase = |value: &String| Phase::parse(value).is_some();
    if term.field != FilterField::Phase || term.values.iter().all(is_phase) {
        return column_sql(term, select);
    }
    // The values that are no phases are compared with the lifecycle state.
    let (phases, states) = term.values.iter().cloned().partition(is_phase);
    let parts = [(FilterField::Phase, phases), (FilterField::LifecycleState, states)];
    let parts = parts.into_iter().filter(|(_, values): &(_, Vec<String>)| !values.is_empty());
    let parts: Vec<String> = parts
        .map(|(field, values)| {
            column_sql(&FilterTerm { field, negated: term.negated, values }, select)
        })
        .collect();
    format!("({})", parts.join(if term.negated { " AND " } else { " OR " }))
}

fn column_sql(term: &FilterTerm, select: &mut Select) -> String {
    let column = column(&term.field, select);
    if let Some((earliest, latest)) = term.time_range() {
        let (from, to) = (select.bind(earliest), select.bind(latest));
        return format!("{column} >= {from} AND {column} < {to}");
    }
    if term.values.is_empty() {
        let sign = if term.negated { "IS" } else { "IS NOT" };
        return format!("{column} {sign} NULL");
    }
    let values: Vec<String> = term.values.iter().map(|one| select.bind(one.as_str())).collect();
    let values = values.join(", ");
    if term.negated {
        // A missing label equals none of the values.
        format!("({column} IS NULL OR {column} NOT IN ({values}))")
    } else {
        format!("{column} IN ({values})")
    }
}

fn column(field: &FilterField, select: &mut Select) -> String {
    match field {
        FilterField::MachineId => select.machine_id.into(),
        FilterField::Phase => "machines.phase".into(),
        FilterField::RunPhase => "s.phase".into(),
        FilterField::EffectiveState => case(EFFECTIVE, EffectiveState::as_str),
        FilterField::LifecycleState => case(LIFECYCLE, LifecycleState::as_str),
        FilterField::Provider => "machines.provider".into(),
        FilterField::Rack => "machines.rack_id".into(),
        // From the index: it has no labels of a row whose labels are no JSON.
        FilterField::Label(key) => {
            let key = select.bind(key.as_str());
            format!(
                "(SELECT one.value FROM machine_labels one \
                 WHERE one.machine_id = machines.id AND one.key = {key})"
            )
        }
        FilterField::Condition(condition) => {
            format!("(CASE WHEN {} THEN 'true' ELSE 'false' END)", guard_sql(Guard::Is(*condition)))
        }
        FilterField::Type => "r.type".into(),
        FilterField::RunId => "r.id".into(),
        FilterField::PlanId => "r.plan_id".into(),
        FilterField::RequestId => "r.request_id".into(),
        FilterField::TargetKind => target_kind(),
        FilterField::Initiator => select.dialect.json_text("r.spec", "'initiator'"),
        FilterField::PartOf => "COALESCE(r.part_of, '')".into(),
        FilterField::CreatedFrom | FilterField::CreatedBefore => "r.created_at".into(),
        FilterField::WorkflowState => "s.workflow".into(),
        // Records are matched after they are read; no query of machines or runs has these fields.
        FilterField::RecordId
        | FilterField::State
        | FilterField::HardwareType
        | FilterField::Site
        | FilterField::Named(_) => "NULL".into(),
    }
}

/// The kind in the stored key of a run's target. The key of a machine has none.
fn target_kind() -> String {
    let others = TargetKind::ALL.into_iter().filter(|kind| *kind != TargetKind::Machine);
    let arms: Vec<String> = others
        .map(TargetKind::as_str)
        .map(|kind| format!("WHEN r.machine_id LIKE '{kind}:%' THEN '{kind}'"))
        .collect();
    format!("(CASE {} ELSE '{}' END)", arms.join(" "), TargetKind::Machine.as_str())
}

fn case<V: Copy>(rules: Rules<V>, name: fn(V) -> &'static str) -> String {
    let arms: Vec<String> = rules
        .iter()
        .map(|(guard, value)| format!("WHEN {} THEN '{}'", guard_sql(*guard), name(*value)))
        .collect();
    format!("(CASE {} END)", arms.join(" "))
}

fn guard_sql(guard: Guard) -> String {
    match guard {
        Guard::Is(condition) => format!("(machines.holds & {}) <> 0", condition.bit()),
        Guard::Active => "machines.active_run IS NOT NULL".into(),
        Guard::PhaseIs(phase) => format!("machines.phase = '{}'", phase.as_str()),
        Guard::Always => "1 = 1".into(),
    }
}
