//! The decisions about one target: every state and stage by what is found there.

use super::{machine, rollout};
use crate::support::{RunDriver, at, fault, note};
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::fault::FaultCode;
use model::id::{MachineId, RolloutId, RunId};
use model::machine::{Machine, Phase};
use model::plan::{Maintenance, RunType};
use model::refusal::{Reason, Refusal};
use model::rollout::{
    ConditionGate, Pace, RefusedStart, Rollout, RolloutStage, RolloutTarget, SequenceFacts,
    TargetContext, TargetStage, TargetState, TargetStep, stage_after,
};
use model::run::Run;

const DEADLINE: i64 = 3_600;

fn target(state: TargetState, stage: Option<TargetStage>) -> RolloutTarget {
    let machine = MachineId::trusted("m-1");
    RolloutTarget { state, stage, ..RolloutTarget::new(machine, 0, at(0)) }
}

fn running() -> Rollout {
    let mut rollout = rollout(3, Pace::default());
    (rollout.stage, rollout.wave, rollout.wave_end) = (RolloutStage::Running, 1, 1);
    rollout
}

fn seen<'a>(machine: &'a Machine, run: Option<&'a Run>) -> TargetContext<'a> {
    TargetContext { machine: Some(machine), run, other: None }
}

#[track_caller]
fn changed(step: TargetStep) -> RolloutTarget {
    match step {
        TargetStep::Change(row) => *row,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_sequence_leaves_out_what_a_machine_in_maintenance_does_not_need() {
    use TargetStage::{EnterMaintenance, ExitMaintenance, Gate, Operation};
    for (in_maintenance, was_in_maintenance, has_gate, stages) in [
        (false, false, false, vec![EnterMaintenance, Operation, ExitMaintenance]),
        (false, false, true, vec![EnterMaintenance, Operation, ExitMaintenance, Gate]),
        (true, true, false, vec![Operation]),
        (true, true, true, vec![Operation]),
        // A target that failed, and is tried again.
        (true, false, true, vec![Operation, ExitMaintenance, Gate]),
    ] {
        let facts = SequenceFacts { in_maintenance, was_in_maintenance, has_gate };
        let mut found = Vec::new();
        let mut done = None;
        while let Some(stage) = stage_after(done, facts) {
            found.push(stage);
            done = Some(stage);
        }
        assert_eq!(found, stages, "{facts:?}");
    }
}

#[test]
fn a_cluster_is_drained_on_the_way_in_and_uncordoned_on_the_way_out() {
    let plain = machine("m-1", Phase::Ready);
    let mut clustered = plain.clone();
    clustered.spec.target_cluster_ref = "prod".into();
    for (stage, run_type, plan) in [
        (TargetStage::EnterMaintenance, RunType::EnterMaintenance, Maintenance::EnterDraining),
        (TargetStage::ExitMaintenance, RunType::ExitMaintenance, Maintenance::ExitUncordoning),
    ] {
        assert_eq!(stage.maintenance_run(&plain), Some((run_type, None)));
        assert_eq!(stage.maintenance_run(&clustered), Some((run_type, Some(plan))));
    }
    for stage in [TargetStage::Operation, TargetStage::Gate] {
        assert_eq!(stage.maintenance_run(&clustered), None);
    }
}

#[test]
fn a_target_whose_turn_has_come() {
    let rollout = running();
    let other = RolloutId::trusted("ro-2");
    let with = |condition, status, reason: &str| {
        let mut machine = machine("m-1", Phase::Ready);
        machine.learn(&[ConditionObservation::new(condition, status, reason)], at(0));
        machine
    };
    let mut as_wanted = machine("m-1", Phase::Ready);
    as_wanted.learn(&[imaged("debian-12")], at(0));
    let mut other_image = machine("m-1", Phase::Ready);
    other_image.learn(&[imaged("debian-11")], at(0));
    for state in [TargetState::Pending, TargetState::Waiting] {
        let row = target(state, None);
        let settled = |machine: Option<&Machine>| {
            let seen = TargetContext { machine, run: None, other: None };
            changed(row.next(&rollout, seen, at(10)))
        };
        assert_eq!(settled(None).state, TargetState::Gone);
        for flag in [ConditionType::Retired, ConditionType::Rma] {
            assert_eq!(settled(Some(&with(flag, true, "why"))).state, TargetState::Gone);
        }
        assert_eq!(settled(Some(&as_wanted)).state, TargetState::PassedOver);
        let lost = settled(Some(&with(ConditionType::Reachable, false, "no answer")));
        assert_eq!(lost.state, TargetState::Waiting);
        assert_eq!(lost.reason, "it is not reachable: no answer");
        assert_eq!((lost.due_at, lost.refused_since), (Some(at(20)), Some(at(10))));
        let ready = machine("m-1", Phase::Ready);
        let held = TargetContext { other: Some(&other), ..seen(&ready, None) };
        let held = changed(row.next(&rollout, held, at(10)));
        assert_eq!((held.state, held.reason.as_str()), (TargetState::Waiting, "ro-2 works on it"));
        for (machine, stage, was) in [
            (&ready, TargetStage::EnterMaintenance, false),
            (&other_image, TargetStage::EnterMaintenance, false),
            (&machine("m-1", Phase::Maintenance), TargetStage::Operation, true),
        ] {
            match row.next(&rollout, seen(machine, None), at(10)) {
                TargetStep::Start(begun, first) => {
                    assert_eq!(
                        (first, begun.was_in_maintenance, begun.wave),
                        (stage, Some(was), 1)
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_waiting_target_is_skipped_at_its_deadline() {
    let rollout = running();
    let mut machine = machine("m-1", Phase::Ready);
    let lost = ConditionObservation::new(ConditionType::Reachable, false, "no answer");
    machine.learn(&[lost], at(0));
    let mut row = target(TargetState::Pending, None);
    row = changed(row.next(&rollout, seen(&machine, None), at(10)));
    let late = changed(row.next(&rollout, seen(&machine, None), at(10 + DEADLINE - 5)));
    assert_eq!((late.state, late.due_at), (TargetState::Waiting, Some(at(10 + DEADLINE))));
    let ended = changed(late.next(&rollout, seen(&machine, None), at(10 + DEADLINE)));
    assert_eq!(ended.state, TargetState::Skipped);
    assert_eq!(ended.reason, "it is not reachable: no answer (waited 1h 0m)");
}

/// A run that is active, has succeeded, or has failed.
fn runs() -> [Run; 3] {
    let active = RunDriver::of(vec![note(0)]).run;
    let mut done = RunDriver::of(vec![note(0)]);
    done.answer(crate::support::done());
    let mut failed = RunDriver::of(vec![note(0)]);
    failed.answer(fault(FaultCode::EffectFailed));
    assert!(!active.ended() && done.run.ended() && failed.run.ended());
    [active, done.run, failed.run]
}

#[test]
fn a_target_after_the_end_of_its_run() {
    use TargetStage::{EnterMaintenance, ExitMaintenance, Operation};
    let rollout = running();
    let (ready, inside) = (machine("m-1", Phase::Ready), machine("m-1", Phase::Maintenance));
    let [active, done, failed] = runs();
    for (stage, machine, was, next) in [
        (EnterMaintenance, &inside, false, Some(Operation)),
        (Operation, &inside, false, Some(ExitMaintenance)),
        (Operation, &inside, true, None),
        (ExitMaintenance, &ready, false, None),
    ] {
        let row = RolloutTarget {
            run: Some(done.spec.id.clone()),
            was_in_maintenance: Some(was),
            ..target(TargetState::Active, Some(stage))
        };
        assert_eq!(row.next(&rollout, seen(machine, Some(&active)), at(9)), TargetStep::Keep);
        match (row.next(&rollout, seen(machine, Some(&done)), at(9)), next) {
            (TargetStep::Start(_, started), Some(next)) => assert_eq!(started, next),
            (TargetStep::Change(row), None) => assert_eq!(row.state, TargetState::Done),
            (other, _) => panic!("{stage:?}: {other:?}"),
        }
        let ended = changed(row.next(&rollout, seen(machine, Some(&failed)), at(9)));
        assert_eq!((ended.state, ended.stage), (TargetState::Failed, Some(stage)));
        assert_eq!(ended.fault, FaultCode::EffectFailed.as_str());
        let stays = ended.reason.ends_with("; it stays in maintenance");
        assert_eq!(stays, machine.phase == Phase::Maintenance, "{}", ended.reason);
        let lost = changed(row.next(&rollout, seen(machine, None), at(9)));
        assert_eq!(lost.state, TargetState::Failed);
    }
}

#[test]
fn a_gate_opens_waits_or_fails_its_target() {
    let mut rollout = running();
    rollout.spec.gate = Some(ConditionGate {
        condition: ConditionType::InCustomerCluster,
        status: true,
        hold_seconds: 0,
    });
    let mut ready = machine("m-1", Phase::Ready);
    let [_, done, _] = runs();
    let row = RolloutTarget {
        run: Some(done.spec.id.clone()),
        was_in_maintenance: Some(false),
        ..target(TargetState::Active, Some(TargetStage::ExitMaintenance))
    };
    let at_gate = changed(row.next(&rollout, seen(&ready, Some(&done)), at(10)));
    assert_eq!((at_gate.stage, at_gate.run.clone()), (Some(TargetStage::Gate), None));
    let waits = changed(at_gate.next(&rollout, seen(&ready, None), at(10)));
    assert_eq!((waits.state, waits.due_at), (TargetState::Active, Some(at(20))));
    assert_eq!(waits.reason, "waits until condition.InCustomerCluster=true");
    let late = changed(waits.next(&rollout, seen(&ready, None), at(10 + DEADLINE)));
    assert_eq!(late.state, TargetState::Failed);
    let joined = ConditionObservation::new(ConditionType::InCustomerCluster, true, "joined");
    ready.learn(&[joined], at(11));
    let open = changed(waits.next(&rollout, seen(&ready, None), at(20)));
    assert_eq!(open.state, TargetState::Done);
}

fn refusal(reason: Reason) -> Refusal {
    Refusal::new(reason, "the reason")
}

#[test]
fn a_refused_start_waits_ends_or_pauses_the_rollout() {
    let rollout = running();
    let stage = TargetStage::Operation;
    let begun = target(TargetState::Active, Some(TargetStage::EnterMaintenance));
    let fresh = target(TargetState::Pending, None);
    for (row, reason, state) in [
        (&fresh, Reason::MachineBusy, TargetState::Waiting),
        (&fresh, Reason::MachinesInService, TargetState::Waiting),
        (&fresh, Reason::NotFound, TargetState::Skipped),
        (&fresh, Reason::FieldInvalid, TargetState::Skipped),
        (&begun, Reason::MachineBusy, TargetState::Active),
        (&begun, Reason::NotFound, TargetState::Failed),
    ] {
        let refused = row.clone().refused(&rollout, stage, &refusal(reason), at(9));
        let RefusedStart::Target(after) = refused else { panic!("{reason:?}: {refused:?}") };
        assert_eq!(after.state, state, "{reason:?}");
        assert!(after.reason.contains("the reason"), "{}", after.reason);
        assert_eq!(after.run, None);
    }
    for (row, state) in [(fresh, TargetState::Pending), (begun, TargetState::Active)] {
        let refused = row.refused(&rollout, stage, &refusal(Reason::PermissionDenied), at(9));
        let RefusedStart::NoRights(after, reason) = refused else { panic!("{refused:?}") };
        assert_eq!((after.state, reason.as_str()), (state, "the reason"));
        assert_eq!(after.due_at, Some(at(19)));
    }
    // A begun target that is refused until its deadline has failed where it is.
    let mut row = target(TargetState::Active, Some(stage));
    for now in [0, DEADLINE] {
        let refused = row.refused(&rollout, stage, &refusal(Reason::MachineBusy), at(now));
        let RefusedStart::Target(after) = refused else { panic!("{refused:?}") };
        row = *after;
    }
    assert_eq!(row.state, TargetState::Failed);
    assert!(row.reason.contains("it stays in maintenance"), "{}", row.reason);
}

#[test]
fn an_abort_that_cancels_leaves_nothing_at_work() {
    let mut rollout = running();
    (rollout.stage, rollout.cancel_running) = (RolloutStage::Aborting, true);
    let inside = machine("m-1", Phase::Maintenance);
    let [active, done, _] = runs();
    let row = RolloutTarget {
        run: Some(active.spec.id.clone()),
        was_in_maintenance: Some(false),
        ..target(TargetState::Active, Some(TargetStage::Operation))
    };
    let cancel = row.next(&rollout, seen(&inside, Some(&active)), at(9));
    assert_eq!(cancel, TargetStep::Cancel(active.spec.id.clone()));
    let ended = changed(row.next(&rollout, seen(&inside, Some(&done)), at(9)));
    assert_eq!(ended.state, TargetState::Failed);
    let refused = RolloutTarget { run: None, ..row };
    let ended = changed(refused.next(&rollout, seen(&inside, None), at(9)));
    assert_eq!(ended.reason, "the rollout was aborted; it stays in maintenance");
    // Without it, the sequence goes on to its end.
    rollout.cancel_running = false;
    let goes_on = refused.next(&rollout, seen(&inside, None), at(9));
    assert!(matches!(goes_on, TargetStep::Start(_, TargetStage::Operation)), "{goes_on:?}");
}

#[test]
fn what_is_settled_stays_and_request_ids_name_the_attempt() {
    let rollout = running();
    let ready = machine("m-1", Phase::Ready);
    for state in TargetState::ALL {
        assert_eq!(TargetState::parse(state.as_str()), Some(state));
        let settled = !TargetState::OPEN.contains(&state);
        let step = target(state, None).next(&rollout, seen(&ready, None), at(1));
        assert_eq!(step == TargetStep::Keep, settled, "{state:?}");
    }
    for stage in TargetStage::ALL {
        assert_eq!(TargetStage::parse(stage.as_str()), Some(stage));
    }
    let row = target(TargetState::Pending, None);
    let id = row.request_id(&rollout.id(), TargetStage::Operation);
    assert_eq!(id, "ro-1:operation:1");
    let again = RolloutTarget { attempt: 2, ..row.clone() };
    assert_ne!(again.request_id(&rollout.id(), TargetStage::Operation), id);
    let run = RunId::trusted("op-1");
    let started = row.started(TargetStage::Operation, run.clone(), at(5));
    assert_eq!((started.state, started.run), (TargetState::Active, Some(run)));
}
