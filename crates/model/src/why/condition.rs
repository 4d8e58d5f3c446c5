//! The commands that repair the cause of a bad condition of a machine.

use crate::condition::{Condition, ConditionType, POWERED_OFF};
use crate::fault::{Fault, FaultCode, Incident};
use crate::machine::Machine;

/// The commands that repair the cause of a bad condition, best first.
pub(super) fn condition_repairs(
    machine: &Machine,
    condition: ConditionType,
    known: &Condition,
) -> impl Iterator<Item = String> {
    let id = &machine.id;
    let mut commands = match FaultCode::parse(&known.reason) {
        Some(code) => {
            let fault = condition_fault(machine, condition, code);
            let incident =
                Incident { fault: &fault, run: None, machine: Some(machine), node: None };
            incident.commands()
        }
        None if condition == ConditionType::Reachable && known.reason == POWERED_OFF => {
            vec![format!("farrier machine power {id} on")]
        }
        None => Vec::new(),
    };
    if commands.is_empty() {
        commands.push(format!("farrier machine inspect {id}"));
    }
    commands.push(format!("farrier history {id}"));
    commands.into_iter()
}

/// The fault behind a condition: a probe uses the credential of the spec.
fn condition_fault(machine: &Machine, condition: ConditionType, code: FaultCode) -> Fault {
    let credential = match condition == ConditionType::Reachable {
        true => &machine.spec.ssh_credential,
        false => &machine.spec.bmc_credential,
    };
    let credential = Some(credential.clone()).filter(|name| !name.is_empty());
    Fault::new(code, "").with(|facts| facts.credential = credential)
}

/// The commands for a READY machine with a bad condition. Power needs the BMC, so one that cannot
/// be reached comes first.
pub(super) fn service_repairs(
    machine: &Machine,
    condition: ConditionType,
    known: &Condition,
) -> Vec<String> {
    let on = format!("farrier machine power {} on", machine.id);
    let bmc = machine.conditions.get(ConditionType::BmcReachable).filter(|bmc| !bmc.status);
    match (bmc, condition == ConditionType::Reachable) {
        (Some(bmc), _) => condition_repairs(machine, ConditionType::BmcReachable, bmc).collect(),
        (None, true) => {
            let reboot = format!("farrier reboot {}", machine.id);
            let reboot = Some(reboot).filter(|_| known.reason != POWERED_OFF);
            let others = condition_repairs(machine, condition, known).filter(|one| *one != on);
            [on.clone()].into_iter().chain(reboot).chain(others).collect()
        }
        (None, false) => condition_repairs(machine, condition, known).collect(),
    }
}
