//! Gates: whether an operation may start on a machine now.
//!
//! The same function guards every entry: StartRun, the customer's requests, and reopening a failed
//! run. It is called in the transaction that writes the run, so two requests cannot both pass.

use super::{Machine, Phase};
use crate::condition::ConditionType;
use crate::effect::Effect;
use crate::health::HealthImpact;
use crate::plan::{HEALTH_OVERRIDE, RunStep, RunType};
use crate::refusal::Refusal;
use crate::target::TargetId;

/// The phases in which a run of this type may start.
pub const fn phases_for_run_type(run_type: RunType) -> &'static [Phase] {
    use Phase::{FactoryReady, Maintenance, Ready};
    match run_type {
        // The steps of a POWER run are checked one by one; powering on is harmless.
        RunType::EnterMaintenance
        | RunType::Power
        | RunType::ExitRma
        | RunType::Intake
        | RunType::Check
        // The state of the node is the gate.
        | RunType::Decommission
        | RunType::NodeDrain => &[FactoryReady, Ready, Maintenance],
        // A machine in service is not touched, unless the rack's own gate has admitted it.
        RunType::RackMaintenance | RunType::Firmware | RunType::Fabric | RunType::Onboard => {
            &[FactoryReady, Maintenance]
        }
        RunType::Reboot => &[Ready, Maintenance],
        RunType::ExitMaintenance
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma => &[Maintenance],
    }
}

/// The phases that allow an effect, whatever the type of its run.
pub const fn phases_for_effect(effect: &Effect) -> &'static [Phase] {
    phases_for_run_type(effect.facts().gate)
}

/// The impact for the health gate: the run changes the machine, or also places workloads on it.
fn health_impact(run_type: RunType, steps: &[RunStep]) -> HealthImpact {
    match run_type {
        RunType::ExitMaintenance | RunType::Onboard => HealthImpact::PlaceWorkloads,
        // A machine may always be drained and decommissioned, even when its health forbids new
        // workloads.
        RunType::Decommission | RunType::NodeDrain => HealthImpact::Change,
        RunType::Reboot
        | RunType::Reimage
        | RunType::EnterMaintenance
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma
        | RunType::ExitRma
        | RunType::Power
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check => match steps.iter().any(|step| step.effect.facts().places_work) {
            true => HealthImpact::PlaceWorkloads,
            false => HealthImpact::Change,
        },
    }
}

/// Checks whether a run of this type with these steps may start.
pub fn admit(machine: &Machine, run_type: RunType, steps: &[RunStep]) -> Result<(), Refusal> {
    admit_with_override(machine, run_type, steps, None)
}

/// Like `admit`, with a reason that overrides the health gate. It overrides no other gate.
pub fn admit_with_override(
    machine: &Machine,
    run_type: RunType,
    steps: &[RunStep],
    force: Option<&str>,
) -> Result<(), Refusal> {
    let id = &machine.id;
    let what = run_type.as_str();
    let back = run_type == RunType::ExitRma;
    for (flag, undo, own_undo) in
        [(ConditionType::Retired, "clear-retired", false), (ConditionType::Rma, "clear-rma", back)]
    {
        if machine.is(flag) && !own_undo {
            let message = format!("{id} is flagged {}: {what} is blocked", flag.as_str());
            return Err(Refusal::precondition("MACHINE_BLOCKED", message)
                .next(format!("farrier admin {undo} {id} --reason …")));
        }
    }
    if back {
        admit_rma_return(machine, steps)?;
    }
    if let Some(run) = &machine.active_run {
        let message = format!(
            "{id} is held by operation {run}: {what} must wait until it ends or is canceled"
        );
        return Err(
            Refusal::precondition("MACHINE_BUSY", message).next(format!("farrier why {run}"))
        );
    }
    in_phase(machine, what, phases_for_run_type(run_type))?;
    for step in steps {
        let what = format!("step {} of this plan", step.name);
        in_phase(machine, &what, phases_for_effect(&step.effect))?;
    }
    let target = TargetId::from(&machine.id);
    machine.health.check_permitted(&target, what, health_impact(run_type, steps), force).map_err(
        |refusal| {
            let probe = format!("farrier health get {id}");
            // Node requests accept no health override, so the report has to be removed.
            let anyway = match RunType::NODES.contains(&run_type) {
                true => format!("farrier health remove {id} --source …"),
                false => {
                    format!("farrier run start {id} --type {what} --param {HEALTH_OVERRIDE}=REASON")
                }
            };
            refusal.next(format!("{probe}   # or, all the same: {anyway}"))
        },
    )
}

/// Only the run that returns the machine may start on a machine flagged RMA.
fn admit_rma_return(machine: &Machine, steps: &[RunStep]) -> Result<(), Refusal> {
    let id = &machine.id;
    if !machine.is(ConditionType::Rma) {
        let message = format!("{id} is not flagged RMA: there is nothing to come back from");
        return Err(Refusal::precondition("NOT_FLAGGED", message).next(format!("farrier get {id}")));
    }
    match steps.iter().find(|step| !step.effect.facts().allowed_in_exit_rma) {
        None => Ok(()),
        Some(step) => {
            let message = format!(
                "{id} is flagged RMA: step {} of this plan must wait until it is back",
                step.name
            );
            Err(Refusal::precondition("MACHINE_BLOCKED", message)
                .next(format!("farrier machine exit-rma {id}")))
        }
    }
}

/// Every phase gate can be satisfied by entering maintenance.
fn in_phase(machine: &Machine, what: &str, phases: &[Phase]) -> Result<(), Refusal> {
    if phases.contains(&machine.phase) {
        return Ok(());
    }
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let words: Vec<_> = phases.iter().map(|phase| phase.as_str()).collect();
    let message =
        format!("{what} needs phase {}, and {id} is in phase {phase}", words.join(" or "));
    Err(Refusal::precondition("WRONG_PHASE", message)
        .next(format!("farrier enter-maintenance {id}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ConditionObservation;
    use crate::effect::{DesiredPower, RmaAction};
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
            (RunType::Power, [true, true, true]),
        ];
        // `ExitRma` has its own gate.
        assert_eq!(table.len() + 1, RunType::PLANNED.len());
        for (run_type, row) in table {
            for (phase, open) in Phase::ALL.into_iter().zip(row) {
                let classification = admit(&machine(phase), run_type, &[]);
                assert_eq!(classification.is_ok(), open, "{run_type:?} in {phase:?}");
                if let Err(refusal) = classification {
                    assert_eq!(refusal.reason, "WRONG_PHASE");
                    assert_eq!(
                        refusal.next_command.as_deref(),
                        Some("farrier enter-maintenance m-1")
                    );
                }
            }
        }
    }

    /// The gate depends on the effects, not only on the run type.
    #[test]
    fn gates_by_effect() {
        use crate::effect::{NetbootMode, NodeLabels, PowerOffPolicy, RebootMode};
        let step =
            |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
        let command = |destructive| Effect::Ssh { command: "true".into(), destructive };
        let rma = |action| Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
        let power = |to| Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
        let table = [
            (Effect::Repave { image: "i".into() }, [false, false, true]),
            (Effect::Net { document: "n".into() }, [false, false, true]),
            (Effect::Netboot { mode: NetbootMode::Pxe }, [false, false, true]),
            (
                Effect::Join {
                    cluster_ref: "c".into(),
                    labels: NodeLabels::new(),
                    taints: Vec::new(),
                },
                [false, false, true],
            ),
            (rma(RmaAction::Record), [true, true, true]),
            (rma(RmaAction::PowerOff), [false, false, true]),
            (rma(RmaAction::Mark), [false, false, true]),
            (power(DesiredPower::On), [true, true, true]),
            (power(DesiredPower::Off), [false, true, true]),
            (Effect::Drain { cluster_ref: "c".into(), deadline_seconds: None }, [true, true, true]),
            (Effect::Uncordon { cluster_ref: "c".into(), own: false }, [true, true, true]),
            (command(true), [false, false, true]),
            (command(false), [true, true, true]),
            (
                Effect::Reboot {
                    mode: RebootMode::Bmc,
                    power_off: PowerOffPolicy::PROVIDER_DEFAULT,
                },
                [false, true, true],
            ),
        ];
        for (effect, row) in table {
            for (phase, open) in Phase::ALL.into_iter().zip(row) {
                let steps = [step(effect.clone())];
                let classification = admit(&machine(phase), RunType::EnterMaintenance, &steps);
                assert_eq!(classification.is_ok(), open, "{effect:?} in {phase:?}");
            }
        }
    }

    #[test]
    fn flags_and_other_operations_shut_every_gate() {
        for run_type in RunType::ALL {
            let own_undo = run_type == RunType::ExitRma;
            for flag in [ConditionType::Rma, ConditionType::Retired] {
                if own_undo && flag == ConditionType::Rma {
                    continue;
                }
                let mut flagged = machine(Phase::Maintenance);
                flagged
                    .learn(&[ConditionObservation::new(flag, true, "test")], Timestamp::default());
                assert_eq!(admit(&flagged, run_type, &[]).unwrap_err().reason, "MACHINE_BLOCKED");
            }
            let mut busy = machine(Phase::Maintenance);
            if own_undo {
                busy.learn(&[rma_flag(true)], Timestamp::default());
            }
            busy.active_run = Some(RunId::trusted("op-7"));
            let refusal = admit(&busy, run_type, &[]).unwrap_err();
            assert_eq!(refusal.reason, "MACHINE_BUSY");
            assert!(refusal.message.contains("op-7"));
        }
    }

    /// Rows: the request. Columns: admitted with an alert that prevents allocations, and with one
    /// that prevents state changes.
    #[test]
    fn gates_by_health() {
        use crate::effect::NodeLabels;
        use crate::health::{Alert, AlertClass, HealthReport, HealthSummary, Reports};
        let step =
            |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
        let cluster = || "c".to_string();
        let join = step(Effect::Join {
            cluster_ref: cluster(),
            labels: NodeLabels::new(),
            taints: Vec::new(),
        });
        let uncordon = step(Effect::Uncordon { cluster_ref: cluster(), own: false });
        let note = step(Effect::Ssh { command: "true".into(), destructive: false });
        let table: [(RunType, Vec<RunStep>, [bool; 2]); 6] = [
            (RunType::Reboot, vec![], [true, false]),
            (RunType::Reimage, vec![note], [true, false]),
            (RunType::Reimage, vec![join], [false, false]),
            (RunType::Upgrade, vec![uncordon], [false, false]),
            (RunType::EnterMaintenance, vec![], [true, false]),
            (RunType::ExitMaintenance, vec![], [false, false]),
        ];
        for (run_type, steps, row) in table {
            for (class, open) in [AlertClass::PreventAllocations, AlertClass::PreventStateChanges]
                .into_iter()
                .zip(row)
            {
                let alert = Alert {
                    component: String::new(),
                    message: "a fan is broken".into(),
                    classes: [class.as_str().to_string()].into(),
                    since: Timestamp::default(),
                };
                let report = HealthReport::new([("fan".to_string(), alert)]);
                let mut machine = machine(Phase::Maintenance);
                machine.health = HealthSummary::of(&Reports::from([("site".to_string(), report)]));
                let classification = admit(&machine, run_type, &steps);
                assert_eq!(classification.is_ok(), open, "{run_type:?} with {class:?}");
                if let Err(refusal) = classification {
                    assert!(
                        refusal.message.contains("site reports fan: a fan is broken"),
                        "{refusal}"
                    );
                }
                assert_eq!(
                    admit_with_override(&machine, run_type, &steps, Some("it must be")),
                    Ok(())
                );
                // The override applies to no other gate.
                machine.active_run = Some(RunId::trusted("op-7"));
                let refusal = admit_with_override(&machine, run_type, &steps, Some("it must be"))
                    .unwrap_err();
                assert_eq!(refusal.reason, "MACHINE_BUSY");
            }
        }
    }

    fn rma_flag(set: bool) -> ConditionObservation {
        ConditionObservation::new(ConditionType::Rma, set, "test")
    }

    #[test]
    fn the_way_back_from_rma_is_open_to_what_changes_nothing() {
        use crate::effect::PowerOffPolicy;
        let step =
            |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
        let power = |to| step(Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT });
        let wipe = step(Effect::Repave { image: "i".into() });
        for phase in Phase::ALL {
            let mut machine = machine(phase);
            let refusal =
                admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]).unwrap_err();
            assert_eq!(refusal.reason, "NOT_FLAGGED");
            machine.learn(&[rma_flag(true)], Timestamp::default());
            assert_eq!(admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]), Ok(()));
            for bad in [wipe.clone(), power(DesiredPower::Off)] {
                let refusal = admit(&machine, RunType::ExitRma, &[bad]).unwrap_err();
                assert_eq!(refusal.reason, "MACHINE_BLOCKED");
                assert_eq!(refusal.next_command.as_deref(), Some("farrier machine exit-rma m-1"));
            }
            let retired = ConditionObservation::new(ConditionType::Retired, true, "test");
            machine.learn(&[retired], Timestamp::default());
            let refusal = admit(&machine, RunType::ExitRma, &[]).unwrap_err();
            assert!(refusal.message.contains("Retired"), "{refusal}");
        }
    }
}
