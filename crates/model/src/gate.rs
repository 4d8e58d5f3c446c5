//! Gates that a request can override, and the override that a request carries.
//!
//! A gate is a named rule that may refuse a request. Most gates cannot be overridden; [`Gate`]
//! lists those that can. An override names the gates and gives a reason. Only the named gates are
//! passed. The override is stored with the run, so it also holds when the run starts late, is
//! resumed, or is rerun on a machine.

mod overrides;

pub use overrides::{
    GATE_OVERRIDE, GATE_OVERRIDE_REASON, Overrides, remove_from, without_overrides,
};

use crate::effect::DesiredPower;
use crate::id::BudgetId;
use crate::node::DecommissionMode;
use crate::plan::RunType;
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Stands between the command that satisfies a gate and the flags that override it.
pub const OR_REPEAT: &str = "   # or repeat it with ";

/// Stands before the name of a budget in an override.
const BUDGET: &str = "budget:";

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
    /// The windows and the freezes; an override names each that it passes.
    Window,
    Freeze,
    Approval,
}

impl Gate {
    pub const ALL: [Gate; 12] = [
        Self::InService,
        Self::Health,
        Self::NodeHealth,
        Self::Cleanup,
        Self::Agent,
        Self::Maas,
        Self::Devices,
        Self::UnfinishedDisk,
        Self::Budget,
        Self::Window,
        Self::Freeze,
        Self::Approval,
    ];
    /// Those of which there are several: an override names each with its name.
    const NAMED: [Gate; 3] = [Self::Budget, Self::Window, Self::Freeze];

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
            Self::Window => "window",
            Self::Freeze => "freeze",
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
            Self::Window => {
                "Operations on the machines of a window start while it, or another window of theirs, is open."
            }
            Self::Freeze => "No operation starts on the machines of a freeze until it ends.",
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
    &[Gate::InService, Gate::Health, Gate::Budget, Gate::Window, Gate::Freeze, Gate::Approval];
/// The gates of a rerun and of a clean restart. A run on a node has none of them.
pub const RESTART: &[Gate] = &[
    Gate::InService,
    Gate::Health,
    Gate::UnfinishedDisk,
    Gate::Budget,
    Gate::Window,
    Gate::Freeze,
    Gate::Approval,
];
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
            &[Gate::Health, Gate::Budget, Gate::Window, Gate::Freeze, Gate::Approval]
        }
        DecommissionMode::Reimage | DecommissionMode::Drain | DecommissionMode::Retire => {
            &[Gate::Health, Gate::Agent, Gate::Budget, Gate::Window, Gate::Freeze, Gate::Approval]
        }
        DecommissionMode::FullDecommission => &[
            Gate::Health,
            Gate::Agent,
            Gate::Maas,
            Gate::Budget,
            Gate::Window,
            Gate::Freeze,
            Gate::Approval,
        ],
        DecommissionMode::Reactivate => REACTIVATE_NODE,
    }
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

/// The word of a budget's gate: `budget:NAME`.
pub fn budget_word(budget: &BudgetId) -> String {
    format!("{BUDGET}{budget}")
}
