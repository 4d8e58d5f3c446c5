//! Disruption budgets: how many machines of a part of the fleet may be out of service at once.
//!
//! A budget selects machines by a filter over what does not change while they work: labels, rack,
//! provider, id. [`unavailability`] is the one rule for whether a machine serves. An operation
//! takes a machine that serves; one that does not serve already takes nothing more, so it can be
//! healed. The store keeps the members of each budget and counts; [`BudgetUse`] decides.

mod verdict;

pub use verdict::{BudgetUse, MAX_NAMED, UnavailableMachine, describe_uses, history_notes, refuse};

use crate::blast_radius::Impact;
use crate::condition::ConditionType;
use crate::effect::Effect;
use crate::filter::{Filter, FilterField, FilterItem, FilterSubject, FilterTerm, FilterValues};
use crate::id::{BudgetId, PowerShelfId, RackId};
use crate::machine::admit::impact_of;
use crate::machine::{Machine, Phase};
use crate::node::{DecommissionMode, MODE, NodeState};
use crate::plan::{RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::run::RunSpec;
use crate::target::TargetId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The number of budgets that may exist. A change of a machine's labels is matched against all.
pub const MAX_BUDGETS: usize = 200;

/// How many machines of a domain may be unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxUnavailable {
    Count(u32),
    Percent(u32),
}

/// The failure domain within which the limit holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureDomain {
    /// All machines of the budget.
    #[default]
    All,
    Rack,
    /// The value of this label.
    Label(String),
    /// The power shelves that feed a machine: it counts in the domain of each.
    Feed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub id: BudgetId,
    pub filter: String,
    pub max_unavailable: MaxUnavailable,
    #[serde(default)]
    pub per: FailureDomain,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(skip)]
    pub version: i64,
}

impl MaxUnavailable {
    /// Parses `3` or `5%`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        const INSTEAD: &str = "write a count such as 3, or a percentage such as 5%";
        if text.is_empty() {
            return Err(Refusal::missing(field));
        }
        let shown: String = text.chars().take(32).collect();
        let refused = || Refusal::invalid(field, format!("is {shown:?}"), INSTEAD);
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        if !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(refused());
        }
        match (number.parse().map_err(|_| refused())?, percent) {
            (0, _) => {
                let problem = "is 0, so every operation would be refused";
                Err(Refusal::invalid(field, problem, "write 1 or more, or a percentage"))
            }
            (count, false) => Ok(Self::Count(count)),
            (percent @ 1..=100, true) => Ok(Self::Percent(percent)),
            (_, true) => {
                Err(Refusal::invalid(field, format!("is {shown:?}"), "write at most 100%"))
            }
        }
    }

    /// How many of `total` machines may be unavailable. A percentage rounds down.
    pub const fn of(self, total: u64) -> u64 {
        match self {
            Self::Count(count) => count as u64,
            Self::Percent(percent) => total.saturating_mul(percent as u64) / 100,
        }
    }
}

impl fmt::Display for MaxUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FailureDomain {
    /// Parses `rack`, `feed`, `labels.KEY`, or nothing.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        match (text, text.strip_prefix("labels.")) {
            ("", _) => Ok(Self::All),
            ("rack", _) => Ok(Self::Rack),
            ("feed", _) => Ok(Self::Feed),
            (_, Some(key)) if !key.is_empty() && key.len() <= 63 => Ok(Self::Label(key.into())),
            (other, _) => {
                let shown: String = other.chars().take(80).collect();
                let instead = "write rack, feed or labels.KEY, or leave it out";
                Err(Refusal::invalid(field, format!("is {shown:?}"), instead))
            }
        }
    }

    /// The domains of a machine. The empty word stands for machines without rack, label or feeds.
    fn of(&self, machine: &Machine) -> BTreeSet<String> {
        let spec = &machine.spec;
        let one = |name: Option<String>| BTreeSet::from([name.unwrap_or_default()]);
        match self {
            Self::All => one(None),
            Self::Rack => one(spec.rack.as_ref().map(RackId::to_string)),
            Self::Label(key) => one(machine.labels.get(key).cloned()),
            Self::Feed if spec.feeds.is_empty() => one(None),
            Self::Feed => spec.feeds.iter().map(PowerShelfId::to_string).collect(),
        }
    }

    /// A domain in a sentence, to be put behind the name of the budget.
    fn describe(&self, domain: &str) -> String {
        match (self, domain) {
            (Self::All, _) => String::new(),
            (Self::Rack, "") => " (without a rack)".into(),
            (Self::Label(key), "") => format!(" (without the label {key})"),
            (Self::Feed, "") => " (feeds unknown)".into(),
            (Self::Rack | Self::Feed, domain) => format!(" ({domain})"),
            (Self::Label(key), domain) => format!(" ({key}={domain})"),
        }
    }
}

impl fmt::Display for FailureDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Rack => f.write_str("rack"),
            Self::Label(key) => write!(f, "labels.{key}"),
            Self::Feed => f.write_str("feed"),
        }
    }
}

/// A budget with its filter parsed.
#[derive(Debug, Clone)]
pub struct BudgetRule {
    pub id: BudgetId,
    filter: Filter,
    per: FailureDomain,
}

impl Budget {
    /// Checks the filter: it must select machines, by fields that do not change when one stops to
    /// serve.
    pub fn rule(&self) -> Result<BudgetRule, Refusal> {
        let filter = machines_by_lasting_fields("budget.filter", &self.filter)?;
        Ok(BudgetRule { id: self.id.clone(), filter, per: self.per.clone() })
    }

    /// Refuses a budget that would refuse everything. `totals` are its domains with the number of
    /// their machines.
    pub fn check_allows(&self, totals: &[(String, u64)]) -> Result<(), Refusal> {
        let MaxUnavailable::Percent(percent) = self.max_unavailable else { return Ok(()) };
        const FIELD: &str = "budget.max_unavailable";
        if totals.is_empty() {
            let problem = format!("is {percent}%, and no machine counts in the budget");
            let instead = "write a count such as 1, or register and label the machines first";
            return Err(Refusal::invalid(FIELD, problem, instead));
        }
        let none = totals.iter().find(|(_, total)| self.max_unavailable.of(*total) == 0);
        let Some((domain, total)) = none else { return Ok(()) };
        let at = self.per.describe(domain);
        let problem =
            format!("is {percent}%, which is 0 of {total}{at}: every operation would be refused");
        let least = 100u64.div_ceil((*total).max(1));
        let instead = format!("write 1, or at least {least}%");
        Err(Refusal::invalid(FIELD, problem, instead))
    }

    /// True if the other budget has the same settings.
    pub fn same_as(&self, other: &Self) -> bool {
        (&self.filter, self.max_unavailable, &self.per)
            == (&other.filter, other.max_unavailable, &other.per)
    }

    /// The settings in words, for the history.
    pub fn describe(&self) -> String {
        let per = match self.per == FailureDomain::All {
            true => String::new(),
            false => format!(" per {}", self.per),
        };
        let of = if self.filter.is_empty() { "all machines" } else { &self.filter };
        format!("at most {}{per} of {of}", self.max_unavailable)
    }

    /// What the update changes, in words, for the history.
    pub fn describe_changes(&self, after: &Self) -> String {
        let pairs = [
            ("filter", self.filter.clone(), after.filter.clone()),
            (
                "max_unavailable",
                self.max_unavailable.to_string(),
                after.max_unavailable.to_string(),
            ),
            ("per", self.per.to_string(), after.per.to_string()),
        ];
        let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
        changed
            .map(|(name, before, after)| format!("{name} changed from {before:?} to {after:?}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub fn exists_already(&self) -> Refusal {
        let id = &self.id;
        let message = format!("the budget {id} exists already, and is desired in another way");
        Refusal::new(Reason::BudgetExists, message)
            .next(format!("farrier budget get {id}   # or: farrier budget update {id} …"))
    }
}

/// Parses a filter over machines. It may select only by fields that do not change when a machine
/// stops serving.
pub fn machines_by_lasting_fields(field: &str, text: &str) -> Result<Filter, Refusal> {
    let filter = Filter::parse(text, FilterSubject::Machine).map_err(|refusal| {
        let message = format!("{field}: {}", refusal.message);
        Refusal { message, field: Some(field.into()), ..refusal }
    })?;
    if let Some(term) = filter.terms.iter().find(|term| !is_lasting(term)) {
        let word = if let FilterField::Condition(condition) = &term.field {
            format!("condition.{}", condition.as_str())
        } else {
            "a phase or state".into()
        };
        let problem = format!("names {word}, which changes when a machine stops serving");
        let instead = "select by labels.KEY, rack_id, provider or machine_id";
        return Err(Refusal::invalid(field, problem, instead));
    }
    Ok(filter)
}

/// Whether a term is about something that stays while operations run.
const fn is_lasting(term: &FilterTerm) -> bool {
    match term.field {
        FilterField::MachineId
        | FilterField::Provider
        | FilterField::Rack
        | FilterField::Label(_) => true,
        FilterField::Phase
        | FilterField::EffectiveState
        | FilterField::LifecycleState
        | FilterField::Condition(_)
        | FilterField::RunPhase
        | FilterField::Type
        | FilterField::RunId
        | FilterField::PlanId
        | FilterField::RequestId
        | FilterField::TargetKind
        | FilterField::Initiator
        | FilterField::PartOf
        | FilterField::CreatedFrom
        | FilterField::CreatedBefore
        | FilterField::WorkflowState
        | FilterField::RecordId
        | FilterField::State
        | FilterField::HardwareType
        | FilterField::Site
        | FilterField::Named(_) => false,
    }
}

impl BudgetRule {
    /// The domains in which a machine counts; empty if it is no member. A machine that was never in
    /// service, or is flagged, is outside.
    pub fn domains(&self, machine: &Machine) -> BTreeSet<String> {
        let counts = machine.phase != Phase::FactoryReady
            && !machine.is(ConditionType::Rma)
            && !machine.is(ConditionType::Retired);
        match counts && self.filter.matches(FilterItem::Machine(machine)) {
            true => self.per.of(machine),
            false => BTreeSet::new(),
        }
    }

    /// The machines that may be members, for the query of them all.
    pub const fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl FilterValues for Budget {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "budget_id" => vec![self.id.to_string()],
            "per" => vec![self.per.to_string()],
            _ => Vec::new(),
        }
    }
}

/// Why a machine does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailability {
    /// This operation, or this power shelf, takes it away.
    TakenBy(String),
    Phase(Phase),
    Unreachable,
    Node(NodeState),
}

impl fmt::Display for Unavailability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenBy(taker) => f.write_str(taker),
            Self::Phase(phase) => write!(f, "phase {}", phase.as_str()),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Node(state) => write!(f, "node {state}"),
        }
    }
}

/// Why a machine does not serve; none if it does. `node` is the state of the node on it, `taker` an
/// operation that takes it away. A machine that was never probed counts as reachable.
pub fn unavailability(
    machine: &Machine,
    node: Option<NodeState>,
    taker: Option<&str>,
) -> Option<Unavailability> {
    if let Some(taker) = taker {
        return Some(Unavailability::TakenBy(taker.to_string()));
    }
    if machine.phase != Phase::Ready {
        return Some(Unavailability::Phase(machine.phase));
    }
    let reachable = machine.conditions.get(ConditionType::Reachable);
    if reachable.is_some_and(|known| !known.status) {
        return Some(Unavailability::Unreachable);
    }
    node.filter(|state| *state != NodeState::Active).map(Unavailability::Node)
}

/// True if nothing that decides about budgets differs between two states of a machine: neither its
/// membership nor whether it serves.
pub fn same_for_budgets(before: &Machine, after: &Machine) -> bool {
    let unreachable = |one: &Machine| {
        one.conditions.get(ConditionType::Reachable).is_some_and(|known| !known.status)
    };
    same_membership(before, after)
        && before.phase == after.phase
        && unreachable(before) == unreachable(after)
}

/// True if a machine is a member of the same budgets in both states.
pub fn same_membership(before: &Machine, after: &Machine) -> bool {
    let outside = |one: &Machine| {
        (
            one.phase == Phase::FactoryReady,
            one.is(ConditionType::Rma),
            one.is(ConditionType::Retired),
        )
    };
    let (a, b) = (&before.spec, &after.spec);
    before.labels == after.labels
        && (&a.rack, &a.feeds, &a.provider) == (&b.rack, &b.feeds, &b.provider)
        && outside(before) == outside(after)
}

/// The devices from which a run takes something, with what it takes. The parts of a run on a rack
/// count for it.
pub fn losses(spec: &RunSpec) -> Vec<(TargetId, Impact)> {
    let mut found = Vec::new();
    if takes_machine(spec) {
        found.push((spec.target.clone(), Impact::Maintenance));
    }
    add_losses(&spec.target, spec.run_type, &spec.steps, &mut found);
    found
}

/// A machine that enters maintenance is taken even if it is drained first, and so is the machine of
/// a node that is drained or decommissioned.
fn takes_machine(spec: &RunSpec) -> bool {
    match spec.run_type {
        RunType::EnterMaintenance => true,
        RunType::NodeDrain | RunType::Decommission => {
            spec.params.get(MODE).map(String::as_str) != Some(DecommissionMode::Reactivate.as_str())
        }
        RunType::Reboot
        | RunType::Reimage
        | RunType::ExitMaintenance
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma
        | RunType::ExitRma
        | RunType::Join
        | RunType::Power
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check
        | RunType::Onboard => false,
    }
}

fn add_losses(
    target: &TargetId,
    run_type: RunType,
    steps: &[RunStep],
    found: &mut Vec<(TargetId, Impact)>,
) {
    if let Some(impact) = impact_of(run_type, steps) {
        found.push((target.clone(), impact));
    }
    for group in steps.iter().filter_map(|step| Effect::group(&step.effect)) {
        for part in &group.child_runs {
            add_losses(&part.target, part.run_type, &part.steps, found);
        }
    }
}
