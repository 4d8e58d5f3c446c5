//! Gates: whether an operation may start on a machine now.
//!
//! The same function guards every door: StartRun, the customer's verbs, and reopening a failed run.
//! The store calls it in the transaction that writes the run, so two requests cannot both pass.

use super::{Machine, Phase};
use crate::condition::ConditionType;
use crate::plan::RunType;
use crate::refusal::Refusal;

/// The phases in which a run of this type may start.
pub const fn allowed(run_type: RunType) -> &'static [Phase] {
    use Phase::{FactoryReady, Maintenance, Ready};
    match run_type {
        RunType::EnterMaintenance => &[FactoryReady, Ready, Maintenance],
        RunType::Reboot => &[Ready, Maintenance],
        RunType::ExitMaintenance
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma => &[Maintenance],
    }
}

pub fn admit(machine: &Machine, run_type: RunType) -> Result<(), Refusal> {
    let id = &machine.id;
    let what = run_type.as_str();
    for (flag, undo) in
        [(ConditionType::Retired, "clear-retired"), (ConditionType::Rma, "clear-rma")]
    {
        if machine.is(flag) {
            let said = format!("{id} is flagged {}: {what} is blocked", flag.as_str());
            return Err(Refusal::precondition("MACHINE_BLOCKED", said)
                .next(format!("farrier admin {undo} {id} --reason …")));
        }
    }
    if let Some(run) = &machine.active_run {
        let said = format!(
            "{id} is held by operation {run}: {what} must wait until it ends or is canceled"
        );
        return Err(Refusal::precondition("MACHINE_BUSY", said).next(format!("farrier why {run}")));
    }
    if !allowed(run_type).contains(&machine.phase) {
        let phases: Vec<_> = allowed(run_type).iter().map(|phase| phase.as_str()).collect();
        let said = format!(
            "{what} needs phase {}, and {id} is in phase {}",
            phases.join(" or "),
            machine.phase.as_str()
        );
        return Err(Refusal::precondition("WRONG_PHASE", said).next(way_in(machine)));
    }
    Ok(())
}

/// Every gate that needs a phase is opened by entering maintenance.
fn way_in(machine: &Machine) -> String {
    format!("farrier enter-maintenance {}", machine.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Evidence;
    use crate::id::{MachineId, RunId};
    use crate::machine::{Labels, MachineSpec};
    use crate::time::Timestamp;

    fn machine(phase: Phase) -> Machine {
        let id = MachineId::trusted("m-1");
        let mut machine =
            Machine::new(id, MachineSpec::default(), Labels::new(), Timestamp::default());
        machine.phase = phase;
        machine
    }

    /// Rows: the run types. Columns: FACTORY_READY, READY, MAINTENANCE.
    #[test]
    fn gates_by_phase() {
        let table = [
            (RunType::Reboot, [false, true, true]),
            (RunType::Reimage, [false, false, true]),
            (RunType::EnterMaintenance, [true, true, true]),
            (RunType::ExitMaintenance, [false, false, true]),
            (RunType::Upgrade, [false, false, true]),
            (RunType::NetReconfig, [false, false, true]),
            (RunType::Rma, [false, false, true]),
        ];
        assert_eq!(table.len(), RunType::ALL.len());
        for (run_type, row) in table {
            for (phase, open) in Phase::ALL.into_iter().zip(row) {
                let verdict = admit(&machine(phase), run_type);
                assert_eq!(verdict.is_ok(), open, "{run_type:?} in {phase:?}");
                if let Err(refusal) = verdict {
                    assert_eq!(refusal.reason, "WRONG_PHASE");
                    assert_eq!(refusal.next.as_deref(), Some("farrier enter-maintenance m-1"));
                }
            }
        }
    }

    #[test]
    fn flags_and_other_operations_shut_every_gate() {
        for run_type in RunType::ALL {
            for flag in [ConditionType::Rma, ConditionType::Retired] {
                let mut flagged = machine(Phase::Maintenance);
                flagged.learn(&[Evidence::new(flag, true, "test")], Timestamp::default());
                assert_eq!(admit(&flagged, run_type).unwrap_err().reason, "MACHINE_BLOCKED");
            }
            let mut busy = machine(Phase::Maintenance);
            busy.active_run = Some(RunId::trusted("op-7"));
            let refusal = admit(&busy, run_type).unwrap_err();
            assert_eq!(refusal.reason, "MACHINE_BUSY");
            assert!(refusal.said.contains("op-7"));
        }
    }
}
