//! Compiles filters to SQL. Derived states are compiled from the rule lists that the model computes
//! them by.

use crate::driver::Dialect;
use crate::value::Value;
use model::filter::{Field, Filter, Term};
use model::machine::view::{EFFECTIVE, EffectiveState, Guard, LIFECYCLE, LifecycleState, Rules};
use model::run::{RunPhase, Workflow};

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

pub(crate) fn sql_of(filter: &Filter, select: &mut Select) {
    for term in &filter.terms {
        let sql = term_sql(term, select);
        select.terms.push(sql);
    }
    select.terms.extend(active_or_ended(filter).map(String::from));
}

/// A term that lets the database use an index on active or on ended runs, if the filter implies one
/// of the two. A filter by machine or run id has a better index already.
fn active_or_ended(filter: &Filter) -> Option<&'static str> {
    let wanted = || filter.terms.iter().filter(|term| !term.negated);
    if wanted().any(|term| matches!(term.field, Field::MachineId | Field::RunId)) {
        return None;
    }
    if wanted().any(|term| term.values.iter().all(|word| ended(&term.field, word) == Some(false))) {
        return Some("s.id IN (SELECT id FROM subjects WHERE holds_machine IS NOT NULL)");
    }
    // The index is ordered by id within each phase. Several phases would need a sort.
    let one_end = |term: &Term| {
        let word = term.values.first().filter(|_| term.values.len() == 1);
        let is_end = word.is_some_and(|word| ended(&term.field, word) == Some(true));
        is_end && term.field == Field::RunPhase
    };
    wanted().any(one_end).then_some("s.ended_at IS NOT NULL")
}

/// True if a run with this value has ended, false if it has not, `None` if the field does not tell.
fn ended(field: &Field, word: &str) -> Option<bool> {
    match field {
        Field::RunPhase => {
            let phase = RunPhase::ALL.into_iter().find(|phase| phase.as_str() == word);
            phase.map(RunPhase::ended)
        }
        Field::WorkflowState => Workflow::parse(word).map(Workflow::ended),
        Field::MachineId
        | Field::Phase
        | Field::EffectiveState
        | Field::LifecycleState
        | Field::Provider
        | Field::Rack
        | Field::Label(_)
        | Field::Condition(_)
        | Field::Type
        | Field::RunId
        | Field::PlanId
        | Field::RequestId => None,
    }
}

fn term_sql(term: &Term, select: &mut Select) -> String {
    let column = column(&term.field, select);
    let values: Vec<String> = term.values.iter().map(|one| select.bind(one.as_str())).collect();
    let values = values.join(", ");
    if term.negated {
        // A missing label equals none of the values.
        format!("({column} IS NULL OR {column} NOT IN ({values}))")
    } else {
        format!("{column} IN ({values})")
    }
}

fn column(field: &Field, select: &mut Select) -> String {
    match field {
        Field::MachineId => select.machine_id.into(),
        Field::Phase => "machines.phase".into(),
        Field::RunPhase => "s.phase".into(),
        Field::EffectiveState => case(EFFECTIVE, EffectiveState::as_str),
        Field::LifecycleState => case(LIFECYCLE, LifecycleState::as_str),
        Field::Provider => "machines.provider".into(),
        Field::Rack => "machines.rack_id".into(),
        Field::Label(key) => {
            let key = select.bind(key.as_str());
            select.dialect.json_text("machines.labels", &key)
        }
        Field::Condition(condition) => {
            format!("(CASE WHEN {} THEN 'true' ELSE 'false' END)", guard_sql(Guard::Is(*condition)))
        }
        Field::Type => "r.type".into(),
        Field::RunId => "r.id".into(),
        Field::PlanId => "r.plan_id".into(),
        Field::RequestId => "r.request_id".into(),
        Field::WorkflowState => "s.workflow".into(),
    }
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
