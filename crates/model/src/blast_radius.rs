//! The blast radius: which machines lose power or the fabric, or are restarted, computed before
//! anything runs.

use crate::condition::ConditionType;
use crate::gate::{Gate, Overrides};
use crate::id::{MachineId, NodeId, PowerShelfId, RackId, RunId};
use crate::machine::{Machine, Phase};
use crate::refusal::{Reason, Refusal};
use crate::target::TargetId;

/// The number of machines that a message names: more than a rack holds. The rest is counted.
pub const MAX_NAMED: usize = 64;

/// The impact on the affected machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impact {
    PowerLoss,
    /// New firmware restarts them.
    Restart,
    /// Their distributed workloads break off.
    FabricLoss,
}

impl Impact {
    const fn said(self) -> &'static str {
        match self {
            Self::PowerLoss => "take power from",
            Self::Restart => "restart",
            Self::FabricLoss => "take the fabric from",
        }
    }
}

/// An affected machine, and the objection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffectedMachine {
    pub machine: MachineId,
    pub objection: Option<ImpactObjection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImpactObjection {
    /// It is READY and not drained.
    InService,
    /// It serves as this node.
    Serves(NodeId),
    /// This operation holds it.
    HeldBy(RunId),
    /// Its record cannot be read, so its use is unknown.
    Unreadable,
}

impl ImpactObjection {
    /// The objection in words, for one or more machines.
    fn said(&self, machines: &[&str]) -> String {
        let verb = if machines.len() == 1 { "is" } else { "are" };
        let machines = machines.join(", ");
        match self {
            Self::InService => format!("{machines} {verb} READY and in service"),
            Self::Serves(node) => format!("{machines} serves as {node}"),
            Self::HeldBy(run) => format!("{machines} {verb} held by {run}"),
            Self::Unreadable => format!("{machines} cannot be read, and may be in service"),
        }
    }
}

impl AffectedMachine {
    /// `serves` is the node in service on the machine, if there is one.
    pub fn of(machine: &Machine, serves: Option<&NodeId>) -> Self {
        let in_service = machine.phase == Phase::Ready && !machine.is(ConditionType::Drained);
        let objection = match (&machine.active_run, serves, in_service) {
            (Some(run), _, _) => Some(ImpactObjection::HeldBy(run.clone())),
            (None, Some(node), _) => Some(ImpactObjection::Serves(node.clone())),
            (None, None, true) => Some(ImpactObjection::InService),
            (None, None, false) => None,
        };
        Self { machine: machine.id.clone(), objection }
    }

    /// A machine whose record cannot be read.
    pub const fn unreadable(machine: MachineId) -> Self {
        Self { machine, objection: Some(ImpactObjection::Unreadable) }
    }

    pub const fn is_needed(&self) -> bool {
        self.objection.is_some()
    }

    /// The objection in words, if there is one.
    pub fn said(&self) -> Option<String> {
        self.objection.as_ref().map(|against| against.said(&[self.machine.as_str()]))
    }
}

/// A machine or switch, and the power shelves that feed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoweredDevice {
    pub target: TargetId,
    pub rack: Option<RackId>,
    /// Empty means unknown: any shelf of its rack may feed it.
    pub feeds: Vec<PowerShelfId>,
    /// The objection to taking it down; machines only.
    pub affected: Option<AffectedMachine>,
}

/// True if a device with these feeds loses power when the shelves `off` are switched off: one of
/// them feeds it, and no other shelf that feeds it is known to stay on.
pub fn loses_power(
    feeds: &[PowerShelfId],
    off: &[PowerShelfId],
    stays_on: impl Fn(&PowerShelfId) -> bool,
) -> bool {
    let (goes_off, other): (Vec<_>, Vec<_>) = feeds.iter().partition(|id| off.contains(id));
    !goes_off.is_empty() && !other.into_iter().any(stays_on)
}

/// The gate for machines in service: they are affected only by an override.
pub fn check_impact(
    what: &str,
    impact: Impact,
    affected: &[AffectedMachine],
    overrides: &Overrides,
) -> Result<(), Refusal> {
    if overrides.passes(Gate::InService) {
        return Ok(());
    }
    let Some(missed) = format_needed(affected) else { return Ok(()) };
    let message = format!("{what} would {} machines that are needed: {missed}", impact.said());
    let flags = overrides.flags_with(Gate::InService);
    Err(Refusal::new(Reason::MachinesInService, message)
        .at_gate(Gate::InService)
        .next(format!("repeat it with {flags}, or move their work away first")))
}

/// The needed machines, grouped by objection. One sentence per objection keeps the message for a
/// whole rack short. None if no machine is needed.
fn format_needed(affected: &[AffectedMachine]) -> Option<String> {
    let needed = || affected.iter().filter_map(|one| Some((one.objection.as_ref()?, &one.machine)));
    let mut groups: Vec<(&ImpactObjection, Vec<&str>)> = Vec::new();
    for (against, machine) in needed().take(MAX_NAMED) {
        match groups.iter_mut().find(|(known, _)| *known == against) {
            Some((_, machines)) => machines.push(machine.as_str()),
            None => groups.push((against, vec![machine.as_str()])),
        }
    }
    let mut message: Vec<String> =
        groups.iter().map(|(against, machines)| against.said(machines)).collect();
    let more = needed().count().saturating_sub(MAX_NAMED);
    if more > 0 {
        message.push(format!("and {more} more"));
    }
    (!message.is_empty()).then(|| message.join("; "))
}
