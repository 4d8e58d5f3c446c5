//! The blast radius: which machines lose power, the fabric, their network or their disks, or are
//! restarted, computed before anything runs.
//!
//! [`objection_of_service`] is the one rule for machines in service: every command that takes
//! something from a machine asks it, through [`check_impact`].

use crate::condition::ConditionType;
use crate::gate::{Gate, Overrides};
use crate::id::{MachineId, NodeId, PowerShelfId, RackId, RunId};
use crate::machine::{Machine, Phase};
use crate::node::NodeState;
use crate::refusal::{Reason, Refusal};
use crate::target::TargetId;

/// The number of machines that a message names: more than a rack holds. The rest is counted.
pub const MAX_NAMED: usize = 64;

/// The impact on the affected machines, the least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// They enter maintenance without a drain.
    Maintenance,
    /// They are flagged RMA or Retired.
    OperationsBlocked,
    /// The documented REBOOT, which phase READY allows.
    Reboot,
    /// Their distributed workloads break off.
    FabricLoss,
    NetworkLoss,
    /// A command, a boot from the network, or a change of cluster.
    SystemChange,
    /// New firmware, or a power cycle.
    Restart,
    /// Their disks are overwritten.
    DiskLoss,
    PowerLoss,
}

impl Impact {
    pub const ALL: [Self; 9] = [
        Self::Maintenance,
        Self::OperationsBlocked,
        Self::Reboot,
        Self::FabricLoss,
        Self::NetworkLoss,
        Self::SystemChange,
        Self::Restart,
        Self::DiskLoss,
        Self::PowerLoss,
    ];

    const fn said(self) -> &'static str {
        match self {
            Self::Maintenance => "take out of service",
            Self::OperationsBlocked => "block every operation on",
            Self::Reboot => "reboot",
            Self::FabricLoss => "take the fabric from",
            Self::NetworkLoss => "take the network from",
            Self::SystemChange => "change the system of",
            Self::Restart => "restart",
            Self::DiskLoss => "overwrite the disks of",
            Self::PowerLoss => "take power from",
        }
    }

    /// True if the system of the machine stops: a node on it cannot stay `active`.
    pub const fn takes_down(self) -> bool {
        match self {
            Self::Reboot | Self::Restart | Self::DiskLoss | Self::PowerLoss => true,
            Self::Maintenance
            | Self::OperationsBlocked
            | Self::FabricLoss
            | Self::NetworkLoss
            | Self::SystemChange => false,
        }
    }
}

/// The node on a machine, if it uses the machine: see [`NodeState::uses_machine`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingNode {
    pub id: NodeId,
    pub state: NodeState,
}

/// An affected machine, and the objection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffectedMachine {
    pub machine: MachineId,
    pub objection: Option<ImpactObjection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImpactObjection {
    /// It is READY or IN_SERVICE, and not drained.
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
            Self::InService => format!("{machines} {verb} in service and not drained"),
            Self::Serves(node) => format!("{machines} serves as {node}"),
            Self::HeldBy(run) => format!("{machines} {verb} held by {run}"),
            Self::Unreadable => format!("{machines} cannot be read, and may be in service"),
        }
    }
}

impl AffectedMachine {
    /// A machine that another device or its rack takes down. `node` is the node that uses it.
    pub fn of(machine: &Machine, node: Option<&ServingNode>) -> Self {
        let objection = match &machine.active_run {
            Some(run) => Some(ImpactObjection::HeldBy(run.clone())),
            None => objection_of_service(machine, node, Impact::PowerLoss),
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

/// The rule for machines in service: the objection to an impact on this machine. It is the only
/// place that decides whether a machine is in service.
///
/// A machine is in service while it is in phase READY or in lifecycle state IN_SERVICE and was not
/// observed as drained, or while a node on it is active, offline or draining. A REBOOT is allowed
/// in phase READY as documented, and entering maintenance takes nothing yet: only an active node
/// objects to these two.
pub fn objection_of_service(
    machine: &Machine,
    node: Option<&ServingNode>,
    impact: Impact,
) -> Option<ImpactObjection> {
    let mild = match impact {
        Impact::Maintenance | Impact::Reboot => true,
        Impact::OperationsBlocked
        | Impact::FabricLoss
        | Impact::NetworkLoss
        | Impact::SystemChange
        | Impact::Restart
        | Impact::DiskLoss
        | Impact::PowerLoss => false,
    };
    let objects = |node: &&ServingNode| match mild {
        true => node.state == NodeState::Active,
        false => node.state.uses_machine(),
    };
    if let Some(node) = node.filter(objects) {
        return Some(ImpactObjection::Serves(node.id.clone()));
    }
    let meant_to_serve = match machine.phase {
        Phase::Ready => true,
        Phase::FactoryReady => machine.is(ConditionType::InCustomerCluster),
        Phase::Maintenance => false,
    };
    let in_service = !mild && meant_to_serve && !machine.is(ConditionType::Drained);
    in_service.then_some(ImpactObjection::InService)
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
