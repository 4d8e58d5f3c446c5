//! Gates that a request can override, and the override that a request carries.
//!
//! A gate is a named rule that may refuse a request. Most gates cannot be overridden; [`Gate`]
//! lists those that can. An override names the gates and gives a reason. Only the named gates are
//! passed. The override is stored with the run, so it also holds when the run starts late, is
//! resumed, or is rerun on a machine.

use crate::effect::DesiredPower;
use crate::id::BudgetId;
use crate::node::DecommissionMode;
use crate::plan::{Params, RunType};
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};
use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

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

/// Stands between the command that satisfies a gate and the flags that override it.
pub const OR_REPEAT: &str = "   # or repeat it with ";

/// Stands before the name of a budget in an override.
const BUDGET: &str = "budget:";

/// The number of characters of an unknown gate that a message shows.
const MAX_SHOWN: usize = 64;

/// A gate that can be overridden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    InService,
    Health,
    NodeHealth,
    Cleanup,
    Agent,
    Maas,
    Devices,
    UnfinishedDisk,
    /// The disruption budgets; an override names each budget that it passes.
    Budget,
    Approval,
}

impl Gate {
    pub const ALL: [Gate; 10] = [
        Self::InService,
        Self::Health,
        Self::NodeHealth,
        Self::Cleanup,
        Self::Agent,
        Self::Maas,
        Self::Devices,
        Self::UnfinishedDisk,
        Self::Budget,
        Self::Approval,
    ];

    /// The word for the gate in refusals, in `--override` and in the history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InService => "in-service",
            Self::Health => "health",
            Self::NodeHealth => "node-health",
            Self::Cleanup => "cleanup",
            Self::Agent => "agent",
            Self::Maas => "maas",
            Self::Devices => "devices",
            Self::UnfinishedDisk => "unfinished-disk",
            Self::Budget => "budget",
            Self::Approval => "approval",
        }
    }

    /// A sentence that says what the gate protects.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::InService => {
                "Machines that are in service or held by an operation keep their power, network, fabric, disks and uptime, and are not flagged."
            }
            Self::Health => {
                "No operation starts on an object while a health report prevents changes, and no work is placed while one prevents allocations."
            }
            Self::NodeHealth => {
                "A quarantined node is released when its agent reports that it is healthy and MAAS has its machine as Deployed."
            }
            Self::Cleanup => {
                "A retired node serves again only after its last cleanup has finished."
            }
            Self::Agent => {
                "The node's agent drains and cleans the node; the operation waits for it."
            }
            Self::Maas => "MAAS releases the machine of a node that is removed.",
            Self::Devices => "A rack is deleted only when no device is in it.",
            Self::UnfinishedDisk => {
                "A machine whose last disk write did not finish does not leave maintenance or the inventory."
            }
            Self::Budget => {
                "No more machines of a disruption budget are out of service at once than it allows."
            }
            Self::Approval => {
                "A request of a class that the approval policy names starts after another person has approved it."
            }
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gate| gate.as_str() == word)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The gates of the onboarding of a node.
pub const ONBOARD_NODE: &[Gate] = &[Gate::Health, Gate::Approval];
/// The gates of the maintenance and of the reprovision of a rack.
pub const RACK_MAINTENANCE: &[Gate] =
    &[Gate::InService, Gate::Health, Gate::Budget, Gate::Approval];
/// The gates of a rerun and of a clean restart. A run on a node has none of them.
pub const RESTART: &[Gate] =
    &[Gate::InService, Gate::Health, Gate::UnfinishedDisk, Gate::Budget, Gate::Approval];
pub const DELETE_RACK: &[Gate] = &[Gate::Devices];
/// The gates of flagging a machine as RMA or Retired.
pub const FLAG_MACHINE: &[Gate] = &[Gate::InService];
pub const DELETE_MACHINE: &[Gate] = &[Gate::UnfinishedDisk];
pub const RELEASE_NODE: &[Gate] = &[Gate::Health, Gate::NodeHealth, Gate::Approval];
pub const REACTIVATE_NODE: &[Gate] = &[Gate::Health, Gate::Cleanup, Gate::Approval];

/// The gates of a run of this type that a client starts on a machine.
pub fn machine_run(run_type: RunType) -> &'static [Gate] {
    match run_type == RunType::ExitMaintenance {
        true => RESTART,
        false => RACK_MAINTENANCE,
    }
}

/// The gates of a power request to power shelves. Switching on takes nothing from a machine.
pub const fn shelf_power(to: DesiredPower) -> &'static [Gate] {
    match to {
        DesiredPower::Off => RACK_MAINTENANCE,
        DesiredPower::On => &[Gate::Health, Gate::Approval],
    }
}

/// The gates of a firmware request. The firmware of power shelves restarts no machine.
pub fn component_firmware(targets: &[TargetId]) -> &'static [Gate] {
    match targets.iter().all(|target| target.kind == TargetKind::PowerShelf) {
        true => &[Gate::Health, Gate::Approval],
        false => RACK_MAINTENANCE,
    }
}

/// The gates of a request that takes a node out of service. Only the agent can clean a system that
/// stays installed, and only a full decommission can do without MAAS.
pub const fn decommission(mode: DecommissionMode) -> &'static [Gate] {
    match mode {
        DecommissionMode::SoftReset | DecommissionMode::StorageCleanup => {
            &[Gate::Health, Gate::Budget, Gate::Approval]
        }
        DecommissionMode::Reimage | DecommissionMode::Drain | DecommissionMode::Retire => {
            &[Gate::Health, Gate::Agent, Gate::Budget, Gate::Approval]
        }
        DecommissionMode::FullDecommission => {
            &[Gate::Health, Gate::Agent, Gate::Maas, Gate::Budget, Gate::Approval]
        }
        DecommissionMode::Reactivate => REACTIVATE_NODE,
    }
}

/// The override of a request: the gates that it names, and the reason. Empty: no gate is passed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredOverrides")]
pub struct Overrides {
    /// Without [`Gate::Budget`], which `budgets` names.
    gates: BTreeSet<Gate>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    budgets: BTreeSet<BudgetId>,
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
        reason: String,
    },
    Forced(Option<String>),
}

impl From<StoredOverrides> for Overrides {
    fn from(stored: StoredOverrides) -> Self {
        match stored {
            StoredOverrides::Named { gates, budgets, reason } => Self { gates, budgets, reason },
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
        let (mut named, mut budgets) = (BTreeSet::new(), BTreeSet::new());
        for (index, word) in gates.iter().enumerate() {
            let gate = Gate::parse(word.split_once(':').map_or(word, |(gate, _)| gate));
            let gate = gate.filter(|gate| *gate == Gate::Budget || !word.contains(':'));
            if let Some(gate) = gate.filter(|gate| of_request.contains(gate)) {
                match gate == Gate::Budget {
                    true => drop(budgets.insert(budget_named(index, word)?)),
                    false => drop(named.insert(gate)),
                }
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
        let reason = text::check_optional_reason(REASON, reason)?;
        match (named.is_empty() && budgets.is_empty(), reason.is_empty()) {
            (false, true) => Err(Refusal::missing(REASON)),
            (true, false) => {
                let instead = format!("name the gate to override ({listed}), or leave it out");
                Err(Refusal::invalid(REASON, "is given without a gate", instead))
            }
            (true, true) | (false, false) => Ok(Self { gates: named, budgets, reason }),
        }
    }

    /// An override of these gates. For values that are known to be valid.
    pub fn of(gates: &[Gate], reason: &str) -> Self {
        let gates = gates.iter().copied().filter(|gate| *gate != Gate::Budget).collect();
        Self { gates, budgets: BTreeSet::new(), reason: reason.into() }
    }

    /// The same override, which also passes this budget.
    #[must_use]
    pub fn and_budget(mut self, budget: &BudgetId) -> Self {
        self.budgets.insert(budget.clone());
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
        let none = named.is_empty() && budgets.is_empty();
        let reason = if none { String::new() } else { self.reason.clone() };
        Self { gates: named, budgets, reason }
    }

    pub fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.budgets.is_empty()
    }

    /// The budgets that the override passes.
    pub const fn budgets(&self) -> &BTreeSet<BudgetId> {
        &self.budgets
    }

    /// The named gates, each as `--override` takes it.
    pub fn words(&self) -> Vec<String> {
        let gates = self.gates.iter().map(ToString::to_string);
        gates.chain(self.budgets.iter().map(budget_word)).collect()
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
        self.only(&self.before_admission().chain([Gate::Budget]).collect::<Vec<_>>())
    }

    /// The override that a run was started with. The only place that reads the parameters of older
    /// versions.
    pub fn of_params(params: &Params) -> Self {
        if let Some(words) = params.get(GATE_OVERRIDE) {
            let budget = |word: &str| word.strip_prefix(BUDGET).map(BudgetId::trusted);
            return Self {
                gates: words.split(',').filter_map(Gate::parse).collect(),
                budgets: words.split(',').filter_map(budget).collect(),
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

/// The gates of these refusals.
pub fn gates_of(refusals: &[Refusal]) -> Vec<Gate> {
    refusals.iter().filter_map(|refusal| refusal.gate).collect()
}

/// The gate that refuses; none if the request is admitted, or refused by another rule.
pub fn gate_of<T>(decision: &Result<T, Refusal>) -> Option<Gate> {
    decision.as_ref().err().and_then(|refusal| refusal.gate)
}

/// Lets the command of every refusal name all gates that refuse, so that one repetition passes
/// all of them.
pub fn name_all(refusals: &mut [Refusal], named: &Overrides) {
    let mut all = named.clone();
    all.gates.extend(gates_of(refusals));
    let all = all.flags();
    for refusal in refusals {
        if let (Some(gate), Some(next)) = (refusal.gate, &mut refusal.next_command) {
            *next = next.replace(&named.flags_with(gate), &all);
        }
    }
}

/// The refusal to answer with: the first. If it can be overridden, it has the sentences of all that
/// can, because its command names their gates too.
pub fn answer(refusals: &[Refusal]) -> Option<Refusal> {
    let (first, others) = refusals.split_first()?;
    let mut answer = first.clone();
    if answer.gate.is_some() {
        for other in others.iter().filter(|other| other.gate.is_some()) {
            answer.message = format!("{}; {}", answer.message, other.message);
        }
    }
    Some(answer)
}

fn join<'a>(gates: impl Iterator<Item = &'a Gate>) -> String {
    let word = |gate: &Gate| match *gate == Gate::Budget {
        true => "budget:NAME",
        false => gate.as_str(),
    };
    gates.map(word).collect::<Vec<_>>().join(", ")
}

/// The word of a budget's gate: `budget:NAME`.
pub fn budget_word(budget: &BudgetId) -> String {
    format!("{BUDGET}{budget}")
}

/// The budget that a word of an override names.
fn budget_named(index: usize, word: &str) -> Result<BudgetId, Refusal> {
    let field = format!("gate_override.gates[{index}]");
    match word.strip_prefix(BUDGET) {
        Some(name) => BudgetId::parse_field(name, &field),
        None => {
            let instead = "name the budget: budget:NAME, from `farrier budget list`";
            Err(Refusal::invalid(&field, "names no budget", instead))
        }
    }
}
