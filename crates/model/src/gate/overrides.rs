//! The override of a request: which gates it passes, how it is stored, and what is recorded.

use super::{BUDGET, Gate, budget_word};
use crate::id::BudgetId;
use crate::plan::Params;
use crate::refusal::Refusal;
use crate::text;
use crate::window::{StartRuleId, StartRuleKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The parameters of a run that store its override: the words of the gates, separated by commas,
/// and the reason.
pub const GATE_OVERRIDE: &str = "gate_override";
pub const GATE_OVERRIDE_REASON: &str = "gate_override_reason";

/// The parameters in which older versions stored an override. The value is the reason.
const OLD_PARAMS: [(&str, &[Gate]); 4] = [
    ("forced", &[Gate::InService, Gate::Health]),
    ("health_override", &[Gate::Health]),
    ("without_agent", &[Gate::Agent]),
    ("without_maas", &[Gate::Maas]),
];

/// The number of characters of an unknown gate that a message shows.
const MAX_SHOWN: usize = 64;

/// The override of a request: the gates that it names, and the reason. Empty: no gate is passed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredOverrides")]
pub struct Overrides {
    /// Without [`Gate::NAMED`], which `budgets` and `rules` name.
    pub(super) gates: BTreeSet<Gate>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    budgets: BTreeSet<BudgetId>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    rules: BTreeSet<StartRuleId>,
    reason: String,
}

/// An override as it is stored in a record. Older versions stored the reason of a force.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredOverrides {
    Named {
        gates: BTreeSet<Gate>,
        #[serde(default)]
        budgets: BTreeSet<BudgetId>,
        #[serde(default)]
        rules: BTreeSet<StartRuleId>,
        reason: String,
    },
    Forced(Option<String>),
}

impl From<StoredOverrides> for Overrides {
    fn from(stored: StoredOverrides) -> Self {
        match stored {
            StoredOverrides::Named { gates, budgets, rules, reason } => {
                Self { gates, budgets, rules, reason }
            }
            StoredOverrides::Forced(None) => Self::default(),
            StoredOverrides::Forced(Some(reason)) => {
                Self::of(&[Gate::InService, Gate::Health], &reason)
            }
        }
    }
}

impl Overrides {
    /// Checks the override of a request. `of_request` are the gates that the request has: to name
    /// another one would have no effect, so it is refused.
    pub fn parse(gates: &[String], reason: &str, of_request: &[Gate]) -> Result<Self, Refusal> {
        const REASON: &str = "gate_override.reason";
        let listed = join(of_request.iter());
        let mut found = Self::default();
        for (index, word) in gates.iter().enumerate() {
            let gate = Gate::parse(word.split_once(':').map_or(word, |(gate, _)| gate));
            let gate = gate.filter(|gate| Gate::NAMED.contains(gate) || !word.contains(':'));
            if let Some(gate) = gate.filter(|gate| of_request.contains(gate)) {
                found.add(index, gate, word)?;
                continue;
            }
            let shown: String = word.chars().take(MAX_SHOWN).collect();
            let problem = match gate {
                Some(gate) => format!("is {gate}, which is not a gate of this request"),
                None => format!("is {shown:?}, which cannot be overridden"),
            };
            let instead = format!("the gates of this request that can be overridden: {listed}");
            return Err(Refusal::invalid(
                &format!("gate_override.gates[{index}]"),
                problem,
                instead,
            ));
        }
        found.reason = text::check_optional_reason(REASON, reason)?;
        match (found.is_empty(), found.reason.is_empty()) {
            (false, true) => Err(Refusal::missing(REASON)),
            (true, false) => {
                let instead = format!("name the gate to override ({listed}), or leave it out");
                Err(Refusal::invalid(REASON, "is given without a gate", instead))
            }
            (true, true) | (false, false) => Ok(found),
        }
    }

    /// Adds the gate that a word of a request names.
    fn add(&mut self, index: usize, gate: Gate, word: &str) -> Result<(), Refusal> {
        let field = format!("gate_override.gates[{index}]");
        let name = || {
            word.split_once(':').map(|(_, name)| name).ok_or_else(|| {
                let instead = format!("write {gate}:NAME, with a name from `farrier {gate} list`");
                Refusal::invalid(&field, format!("names no {gate}"), instead)
            })
        };
        if gate == Gate::Budget {
            self.budgets.insert(BudgetId::parse_field(name()?, &field)?);
        } else if let Some(kind) = StartRuleKind::ALL.into_iter().find(|one| one.gate() == gate) {
            self.rules.insert(StartRuleId::parse_field(kind, name()?, &field)?);
        } else {
            self.gates.insert(gate);
        }
        Ok(())
    }

    /// An override of these gates. For values that are known to be valid.
    pub fn of(gates: &[Gate], reason: &str) -> Self {
        let gates = gates.iter().copied().filter(|gate| !Gate::NAMED.contains(gate)).collect();
        Self { gates, reason: reason.into(), ..Self::default() }
    }

    /// The same override, which also passes this budget.
    #[must_use]
    pub fn and_budget(mut self, budget: &BudgetId) -> Self {
        self.budgets.insert(budget.clone());
        self
    }

    /// The same override, which also passes this window or freeze.
    #[must_use]
    pub fn and_rule(mut self, rule: &StartRuleId) -> Self {
        self.rules.insert(rule.clone());
        self
    }

    /// The part of the override that names these gates.
    #[must_use]
    pub fn only(&self, gates: &[Gate]) -> Self {
        let named: BTreeSet<Gate> = self.gates().filter(|gate| gates.contains(gate)).collect();
        let budgets = match gates.contains(&Gate::Budget) {
            true => self.budgets.clone(),
            false => BTreeSet::new(),
        };
        let rules = self.rules.iter().filter(|rule| gates.contains(&rule.kind.gate()));
        let part =
            Self { gates: named, budgets, rules: rules.cloned().collect(), ..Self::default() };
        match part.is_empty() {
            true => part,
            false => Self { reason: self.reason.clone(), ..part },
        }
    }

    pub fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.budgets.is_empty() && self.rules.is_empty()
    }

    /// The budgets that the override passes.
    pub const fn budgets(&self) -> &BTreeSet<BudgetId> {
        &self.budgets
    }

    /// The windows and freezes that the override passes.
    pub const fn rules(&self) -> &BTreeSet<StartRuleId> {
        &self.rules
    }

    pub fn names_rule(&self, rule: &StartRuleId) -> bool {
        self.rules.contains(rule)
    }

    /// The named gates, each as `--override` takes it.
    pub fn words(&self) -> Vec<String> {
        let gates = self.gates.iter().map(ToString::to_string);
        let budgets = self.budgets.iter().map(budget_word);
        gates.chain(budgets).chain(self.rules.iter().map(ToString::to_string)).collect()
    }

    pub fn passes(&self, gate: Gate) -> bool {
        self.gates.contains(&gate)
    }

    pub fn gates(&self) -> impl Iterator<Item = Gate> + '_ {
        self.gates.iter().copied()
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// For a dry run: each named gate, and whether it is among those that refuse the request. The
    /// gates `agent` and `maas` refuse nothing: they leave steps out.
    pub fn describe(&self, refusing: &[Gate]) -> Vec<String> {
        let note = |gate: Gate| match refusing.contains(&gate) {
            true if gate == Gate::Agent => "the tasks of the agent would be left out".into(),
            true if gate == Gate::Maas => "the steps in MAAS would be left out".into(),
            true => format!("gate {gate} refuses it, and the override passes it"),
            false => format!("gate {gate} is named by the override, and does not refuse it"),
        };
        self.before_admission().map(note).collect()
    }

    /// The gates but `approval`, which is asked after all others and records itself.
    fn before_admission(&self) -> impl Iterator<Item = Gate> + '_ {
        self.gates().filter(|gate| *gate != Gate::Approval)
    }

    /// The same override without the gate `approval`: another operation needs its own approval.
    #[must_use]
    pub fn without_approval(&self) -> Self {
        self.only(&self.before_admission().chain(Gate::NAMED).collect::<Vec<_>>())
    }

    /// The override that a run was started with. The only place that reads the parameters of older
    /// versions.
    pub fn of_params(params: &Params) -> Self {
        if let Some(words) = params.get(GATE_OVERRIDE) {
            let budget = |word: &str| word.strip_prefix(BUDGET).map(BudgetId::trusted);
            let rule = |word: &str| {
                let (kind, name) = word.split_once(':')?;
                Some(StartRuleId::trusted(StartRuleKind::parse(kind)?, name))
            };
            return Self {
                gates: words.split(',').filter_map(Gate::parse).collect(),
                budgets: words.split(',').filter_map(budget).collect(),
                rules: words.split(',').filter_map(rule).collect(),
                reason: params.get(GATE_OVERRIDE_REASON).cloned().unwrap_or_default(),
            };
        }
        let mut found = Self::default();
        for (name, gates) in OLD_PARAMS {
            let Some(reason) = params.get(name) else { continue };
            found.gates.extend(gates);
            found.reason = match found.reason.as_str() {
                "" => reason.clone(),
                before => format!("{before}; {reason}"),
            };
        }
        found
    }

    /// Stores the override in the parameters of a run, in place of any other.
    pub fn store_in(&self, params: &mut Params) {
        remove_from(params);
        if !self.is_empty() {
            params.insert(GATE_OVERRIDE.into(), self.words().join(","));
            params.insert(GATE_OVERRIDE_REASON.into(), self.reason.clone());
        }
    }

    /// The flags with which the request passes this gate too.
    pub fn flags_with(&self, gate: Gate) -> String {
        let mut with = self.clone();
        with.gates.insert(gate);
        with.flags()
    }

    /// The flags with which the request passes what this override names.
    pub fn flags(&self) -> String {
        format!("--override {} --reason …", self.words().join(","))
    }

    /// Words of the history, to be appended to the message of an event; empty without an override.
    /// `refusing` are the gates that would refuse the request: a named gate that would not is
    /// recorded as named only.
    pub fn history_note(&self, by: &str, refusing: &[Gate]) -> String {
        let reason = &self.reason;
        let note = |gate: Gate| match refusing.contains(&gate) {
            true => format!("; gate {gate} overridden by {by}: {reason}"),
            false => format!("; gate {gate} named by {by}, and it did not refuse: {reason}"),
        };
        self.before_admission().map(note).collect()
    }

    /// Words of the history about the gate `approval`; empty if the override does not name it.
    pub fn approval_note(&self, by: &str, refuses: bool) -> String {
        let reason = &self.reason;
        match (self.passes(Gate::Approval), refuses) {
            (false, _) => String::new(),
            (true, true) => format!("gate approval overridden by {by} (break-glass): {reason}"),
            (true, false) => {
                format!("gate approval named by {by}, and it did not refuse: {reason}")
            }
        }
    }
}

/// Removes the override from the parameters of a run.
pub fn remove_from(params: &mut Params) {
    params.remove(GATE_OVERRIDE);
    params.remove(GATE_OVERRIDE_REASON);
    for (name, _) in OLD_PARAMS {
        params.remove(name);
    }
}

/// The parameters without the override.
pub fn without_overrides(mut params: Params) -> Params {
    remove_from(&mut params);
    params
}

fn join<'a>(gates: impl Iterator<Item = &'a Gate>) -> String {
    let word = |gate: &Gate| match Gate::NAMED.contains(gate) {
        true => format!("{gate}:NAME"),
        false => gate.to_string(),
    };
    gates.map(word).collect::<Vec<_>>().join(", ")
}
