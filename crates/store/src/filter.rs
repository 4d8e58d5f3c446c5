//! Filters as SQL. The terms come parsed from the model; the derived states are compiled from the very
//! rule lists that the model computes them by.

use crate::driver::Dialect;
use crate::value::Value;
use model::filter::{Field, Filter, Term};
use model::machine::view::{EFFECTIVE, EffectiveState, Guard, LIFECYCLE, LifecycleState, Rules};

/// A WHERE clause in the making.
pub(crate) struct Select {
    dialect: Dialect,
    /// The column that names the machine: machines and runs each have one.
    machine_id: &'static str,
    terms: Vec<String>,
    pub values: Vec<Value>,
}

impl Select {
    pub fn new(dialect: Dialect, machine_id: &'static str) -> Self {
        Self { dialect, machine_id, terms: Vec::new(), values: Vec::new() }
    }

    /// A placeholder for the value.
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
}

fn term_sql(term: &Term, select: &mut Select) -> String {
    let column = column(&term.field, select);
    let values: Vec<String> = term.values.iter().map(|one| select.bind(one.as_str())).collect();
    let values = values.join(", ");
    if term.negated {
        // A label that is not there is none of the values.
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
