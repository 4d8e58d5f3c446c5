//! The commands that repair the cause of a bad condition of a machine.

use super::Explanation;
use crate::condition::{Condition, ConditionType, POWERED_OFF};
use crate::fault::{Fault, FaultCode, Incident};
use crate::machine::view::EffectiveState;
use crate::machine::{Machine, MachineProblem};

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

/// Adds a BMC that cannot be used to what a machine at rest needs a person for otherwise. Its
/// repair comes first: the operations on the machine need it.
pub(super) fn add_unusable_bmc(machine: &Machine, reported: &mut Explanation) {
    let lost = machine.conditions.get(ConditionType::BmcReachable).filter(|bmc| !bmc.status);
    let attention = machine.effective_state() == EffectiveState::Attention;
    let Some(known) = lost.filter(|_| attention && machine.active_run.is_none()) else { return };
    let what = MachineProblem::BmcUnreachable(known).describe();
    reported.headline = format!("{}; {what}", reported.headline);
    let repair = condition_repairs(machine, ConditionType::BmcReachable, known).next();
    let new = repair.filter(|repair| !reported.next_commands.contains(repair));
    new.into_iter().for_each(|repair| reported.next_commands.insert(0, repair));
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
