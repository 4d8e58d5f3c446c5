//! The gates of a machine: by phase, effect, flag and health.

use model::condition::{ConditionObservation, ConditionType};
use model::effect::{DesiredPower, Effect, RmaAction};
use model::gate::{Gate, Overrides};
use model::id::{MachineId, RunId};
use model::machine::admit::{admit, admit_with_override};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{RunStep, RunType};
use model::time::Timestamp;

fn machine(phase: Phase) -> Machine {
    let id = MachineId::trusted("m-1");
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), Timestamp::default());
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
                assert_eq!(refusal.reason.as_str(), "WRONG_PHASE");
                assert_eq!(refusal.next_command.as_deref(), Some("farrier enter-maintenance m-1"));
            }
        }
    }
}

/// The gate depends on the effects, not only on the run type.
#[test]
fn gates_by_effect() {
    use model::effect::{NetbootMode, NodeLabels, PowerOffPolicy, RebootMode};
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let command = |destructive| Effect::Ssh { command: "true".into(), destructive };
    let rma = |action| Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let power = |to| Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let table = [
        (Effect::Repave { image: "i".into() }, [false, false, true]),
        (Effect::Net { document: "n".into() }, [false, false, true]),
        (Effect::Netboot { mode: NetbootMode::Pxe }, [false, false, true]),
        (
            Effect::Join { cluster_ref: "c".into(), labels: NodeLabels::new(), taints: Vec::new() },
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
            Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
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
            flagged.learn(&[ConditionObservation::new(flag, true, "test")], Timestamp::default());
            assert_eq!(
                admit(&flagged, run_type, &[]).unwrap_err().reason.as_str(),
                "MACHINE_BLOCKED"
            );
        }
        let mut busy = machine(Phase::Maintenance);
        if own_undo {
            busy.learn(&[rma_flag(true)], Timestamp::default());
        }
        busy.active_run = Some(RunId::trusted("op-7"));
        let refusal = admit(&busy, run_type, &[]).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
        assert!(refusal.message.contains("op-7"));
    }
}

/// Rows: the request. Columns: admitted with an alert that prevents allocations, and with one
/// that prevents state changes.
#[test]
fn gates_by_health() {
    use model::effect::NodeLabels;
    use model::health::{Alert, AlertClass, HealthReport, HealthSummary, Reports};
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
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
        for (class, open) in
            [AlertClass::PreventAllocations, AlertClass::PreventStateChanges].into_iter().zip(row)
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
                assert!(refusal.message.contains("site reports fan: a fan is broken"), "{refusal}");
            }
            let named = Overrides::of(&[Gate::Health], "it must be");
            assert_eq!(admit_with_override(&machine, run_type, &steps, &named), Ok(()));
            let other = Overrides::of(&[Gate::InService], "it must be");
            assert_eq!(admit_with_override(&machine, run_type, &steps, &other).is_ok(), open);
            // The override applies to no other gate.
            machine.active_run = Some(RunId::trusted("op-7"));
            let refusal = admit_with_override(&machine, run_type, &steps, &named).unwrap_err();
            assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
        }
    }
}

fn rma_flag(set: bool) -> ConditionObservation {
    ConditionObservation::new(ConditionType::Rma, set, "test")
}

#[test]
fn the_way_back_from_rma_is_open_to_what_changes_nothing() {
    use model::effect::PowerOffPolicy;
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let power = |to| step(Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT });
    let wipe = step(Effect::Repave { image: "i".into() });
    for phase in Phase::ALL {
        let mut machine = machine(phase);
        let refusal = admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "NOT_FLAGGED");
        machine.learn(&[rma_flag(true)], Timestamp::default());
        assert_eq!(admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]), Ok(()));
        for bad in [wipe.clone(), power(DesiredPower::Off)] {
            let refusal = admit(&machine, RunType::ExitRma, &[bad]).unwrap_err();
            assert_eq!(refusal.reason.as_str(), "MACHINE_BLOCKED");
            assert_eq!(refusal.next_command.as_deref(), Some("farrier machine exit-rma m-1"));
        }
        let retired = ConditionObservation::new(ConditionType::Retired, true, "test");
        machine.learn(&[retired], Timestamp::default());
        let refusal = admit(&machine, RunType::ExitRma, &[]).unwrap_err();
        assert!(refusal.message.contains("Retired"), "{refusal}");
    }
}
