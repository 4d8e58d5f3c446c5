//! The gate of a deletion: whether a machine may leave the inventory now.
//!
//! A machine that was registered in error, or that has left the site, may be deleted while nothing
//! uses it. Its history and its old operations stay.

use super::admit::in_phase;
use super::{Machine, Phase};
use crate::gate::Overrides;
use crate::host::Host;
use crate::id::RunId;
use crate::machine::view::LifecycleState;
use crate::node::{Node, NodeState};
use crate::refusal::{Reason, Refusal};
use crate::target::TargetId;

/// The objects that refer to a machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineReferences<'a> {
    /// An active run on the machine.
    pub run: Option<&'a RunId>,
    /// An operation of a rack that has the machine in its scope and has not ended.
    pub rack_operation: Option<&'a RunId>,
    pub host: Option<&'a Host>,
    /// The node on the machine that is not deleted.
    pub node: Option<&'a Node>,
}

/// Checks whether a machine may be deleted.
pub fn admit_deletion(
    machine: &Machine,
    by: MachineReferences<'_>,
    overrides: &Overrides,
) -> Result<(), Refusal> {
    let id = &machine.id;
    if let Some(run) = machine.active_run.as_ref().or(by.run) {
        return Err(TargetId::from(id).refuse_held(run));
    }
    if let Some(operation) = by.rack_operation {
        let message = format!("{id} is in the scope of {operation}, which has not begun");
        return Err(Refusal::new(Reason::MaintenancePending, message)
            .next(format!("farrier cancel {operation}")));
    }
    if let Some(host) = by.host {
        no_firmware_request(machine, host)?;
    }
    if let Some(node) = by.node.filter(|node| node.state != NodeState::Deleted) {
        let message = format!(
            "{id} is the machine of {}, which is {}: decommission the node first",
            node.head.id, node.state
        );
        return Err(Refusal::new(Reason::MachineHasNode, message).next(command_to_remove(node)));
    }
    in_phase(machine, "deleting a machine", &[Phase::FactoryReady, Phase::Maintenance])?;
    if machine.lifecycle_state() == LifecycleState::InService {
        let message = format!("{id} is in service: it is a member of its cluster");
        return Err(Refusal::new(Reason::MachinesInService, message)
            .next(format!("farrier enter-maintenance {id} --drain")));
    }
    if let Some(rack) = &machine.spec.rack {
        let message = format!("{id} stands in {rack}: take it out of the rack first");
        return Err(Refusal::new(Reason::MachineInRack, message)
            .next(format!("farrier machine update {id} --rack ''")));
    }
    // Registered again, the machine would look as if its disk had never been written.
    machine.check_disk("deleting a machine", overrides)
}

/// Refuses while a firmware upgrade is requested, in progress, or failed and not given up.
fn no_firmware_request(machine: &Machine, host: &Host) -> Result<(), Refusal> {
    let id = &machine.id;
    if host.request.is_none() && host.is_ready() {
        return Ok(());
    }
    let message = format!("an upgrade of the firmware of {id} is requested, or has failed");
    let next = match host.rack_operation() {
        Some(operation) => format!("farrier why {operation}"),
        None => format!("farrier machine reprovision {id} --cancel"),
    };
    Err(Refusal::new(Reason::ReprovisionUnderWay, message).next(next))
}

/// The command that brings a node nearer to its deletion.
fn command_to_remove(node: &Node) -> String {
    let id = &node.head.id;
    match node.state {
        NodeState::BootstrapIssued => format!("farrier node quarantine {id} --reason …"),
        NodeState::Enrolling
        | NodeState::Active
        | NodeState::Offline
        | NodeState::Quarantined
        | NodeState::Retired => format!("farrier node decommission {id} --mode full_decommission"),
        NodeState::Draining | NodeState::Removing | NodeState::Deleted => {
            format!("farrier why {id}")
        }
    }
}
