//! Changes that a run makes to its machine: every run type, every end, both values of `OnFailure`.

use crate::support::{at, note, spec};
use model::condition::{ConditionObservation, ConditionType};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{OnFailure, RunType};
use model::run::{
    Failure, Run, RunPhase, RunSpec, StopKind, StopRequest, Workflow, apply_to_machine,
};

use ConditionType::{Drained, NeedsIntervention, OperationCanceled, Reachable, Rma};

fn machine(phase: Phase) -> Machine {
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
    machine.phase = phase;
    machine.active_run = Some(RunId::trusted("op-1"));
    machine
}

fn run_in(run_type: RunType, on_failure: OnFailure, workflow: Workflow) -> Run {
    let mut run = Run::new(RunSpec { run_type, on_failure, ..spec(vec![note(0)]) });
    run.progress.workflow = workflow;
    if workflow.failed() {
        let fault = Fault::new(FaultCode::CommandFailed, "exit status 1");
        run.progress.failure = Some(Failure { fault, step: "note".into(), attempts: 1 });
    }
    run
}

/// Rules 2 and 4 of the documents, written out by hand.
#[test]
fn every_type_every_end_both_plans() {
    let mut cases = 0;
    for run_type in RunType::ALL {
        for workflow in Workflow::ALL {
            for on_failure in [OnFailure::KeepPhase, OnFailure::EnterMaintenance] {
                for before in Phase::ALL {
                    cases += 1;
                    let run = run_in(run_type, on_failure, workflow);
                    let mut machine = machine(before);
                    apply_to_machine(&mut machine, &run, &[], at(5));
                    let case = format!("{run_type:?} {workflow:?} {on_failure:?} {before:?}");
                    let end = run.phase();

                    let opted_in = on_failure == OnFailure::EnterMaintenance;
                    let phase = match (end, run_type) {
                        (RunPhase::Succeeded, RunType::EnterMaintenance | RunType::ExitRma) => {
                            Phase::Maintenance
                        }
                        (RunPhase::Succeeded, RunType::ExitMaintenance) => Phase::Ready,
                        (RunPhase::Failed | RunPhase::Canceled, _) if opted_in => {
                            Phase::Maintenance
                        }
                        _ => before,
                    };
                    assert_eq!(machine.phase, phase, "{case}");

                    let failed = end == RunPhase::Failed;
                    assert_eq!(machine.is(NeedsIntervention), failed, "{case}");
                    let canceled = end == RunPhase::Canceled;
                    assert_eq!(machine.is(OperationCanceled), canceled, "{case}");
                    assert!(!machine.is(Drained), "{case}");
                    let back_in_service =
                        end == RunPhase::Succeeded && run_type == RunType::ExitMaintenance;
                    let known = machine.conditions.get(Drained).is_some();
                    assert_eq!(known, back_in_service, "{case}");
                    let active = machine.active_run.is_some();
                    assert_eq!(active, !end.ended(), "{case}");
                }
            }
        }
    }
    assert_eq!(cases, RunType::ALL.len() * 8 * 2 * 3);
}

/// Drained is what was observed at the end. Without an observation the machine counts as in
/// service.
#[test]
fn leaving_maintenance_keeps_a_node_that_is_observed_as_empty() {
    let observed = |status, reason| vec![ConditionObservation::new(Drained, status, reason)];
    for (evidence, drained, reason) in [
        (observed(true, "Evicted"), true, "Evicted"),
        (observed(true, "NotInCluster"), false, "InService"),
        (observed(false, "Schedulable"), false, "InService"),
        (Vec::new(), false, "InService"),
    ] {
        let mut machine = machine(Phase::Maintenance);
        machine.learn(&[ConditionObservation::new(Drained, true, "Evicted")], at(1));
        let run = run_in(RunType::ExitMaintenance, OnFailure::KeepPhase, Workflow::Completed);
        apply_to_machine(&mut machine, &run, &evidence, at(5));
        let known = machine.conditions.get(Drained).unwrap();
        assert_eq!((known.status, known.reason.as_str()), (drained, reason), "{evidence:?}");
    }
}

/// A machine in no cluster counts as drained until a node on it serves.
#[test]
fn a_node_that_was_onboarded_is_not_drained_for_being_in_no_cluster() {
    for (reason, run_type, workflow, drained) in [
        ("NotInCluster", RunType::Onboard, Workflow::Completed, false),
        ("NotInCluster", RunType::Onboard, Workflow::Cancelled, true),
        ("NotInCluster", RunType::NodeDrain, Workflow::Completed, true),
        ("Evicted", RunType::Onboard, Workflow::Completed, true),
    ] {
        let mut machine = machine(Phase::FactoryReady);
        machine.learn(&[ConditionObservation::new(Drained, true, reason)], at(1));
        assert_eq!(machine.outdated_by_service().is_some(), reason == "NotInCluster");
        apply_to_machine(
            &mut machine,
            &run_in(run_type, OnFailure::KeepPhase, workflow),
            &[],
            at(5),
        );
        assert_eq!(machine.is(Drained), drained, "{reason} {run_type:?} {workflow:?}");
    }
}

#[test]
fn a_failure_names_its_code_and_its_run() {
    let mut failed = machine(Phase::Ready);
    let run = run_in(RunType::Reboot, OnFailure::KeepPhase, Workflow::FailedRetryable);
    apply_to_machine(&mut failed, &run, &[], at(5));
    let known = failed.conditions.get(NeedsIntervention).unwrap();
    assert_eq!((known.reason.as_str(), known.last_transition), ("command-failed:op-1", at(5)));

    let mut canceled = machine(Phase::Ready);
    let run = run_in(RunType::Reboot, OnFailure::KeepPhase, Workflow::Cancelled);
    apply_to_machine(&mut canceled, &run, &[], at(6));
    assert_eq!(
        canceled.conditions.get(OperationCanceled).unwrap().reason.as_str(),
        "Canceled:op-1"
    );
}

#[test]
fn needs_intervention_lasts_until_a_later_success() {
    for workflow in Workflow::ALL {
        let mut machine = machine(Phase::Maintenance);
        machine.learn(&[ConditionObservation::new(NeedsIntervention, true, "earlier")], at(1));
        let run = run_in(RunType::Upgrade, OnFailure::KeepPhase, workflow);
        apply_to_machine(&mut machine, &run, &[], at(5));
        let cleared = run.phase() == RunPhase::Succeeded;
        assert_eq!(machine.is(NeedsIntervention), !cleared, "{workflow:?}");
        let known = machine.conditions.get(NeedsIntervention).unwrap();
        assert_eq!(known.last_transition, if cleared { at(5) } else { at(1) });
    }
}

#[test]
fn operation_canceled_lasts_until_the_next_run_starts() {
    for workflow in Workflow::ALL {
        let mut machine = machine(Phase::Maintenance);
        machine.learn(&[ConditionObservation::new(OperationCanceled, true, "earlier")], at(1));
        let run = run_in(RunType::Upgrade, OnFailure::KeepPhase, workflow);
        apply_to_machine(&mut machine, &run, &[], at(5));
        assert_eq!(machine.is(OperationCanceled), run.ended(), "{workflow:?}");
    }
}

#[test]
fn a_cancel_that_could_not_undo_needs_a_person() {
    let mut run = run_in(RunType::Reimage, OnFailure::KeepPhase, Workflow::Cancelled);
    let fault = Fault::new(FaultCode::UndoFailed, "the boot order stayed");
    run.progress.failure = Some(Failure { fault, step: "undo-netboot".into(), attempts: 3 });
    let mut machine = machine(Phase::Maintenance);
    apply_to_machine(&mut machine, &run, &[], at(5));
    assert!(machine.is(OperationCanceled) && machine.is(NeedsIntervention));
    assert_eq!(
        machine.conditions.get(NeedsIntervention).unwrap().reason.as_str(),
        "undo-failed:op-1"
    );
}

#[test]
fn a_freeze_moves_no_phase_whatever_the_plan_says() {
    let on_failure = OnFailure::EnterMaintenance;
    let mut run = run_in(RunType::Reboot, on_failure, Workflow::FailedManualIntervention);
    let (kind, by, reason) = (StopKind::Freeze, "alice".into(), String::new());
    run.progress.stop_request = Some(StopRequest { kind, by, reason, undoing: false });
    let mut machine = machine(Phase::Ready);
    apply_to_machine(&mut machine, &run, &[], at(5));
    assert_eq!(machine.phase, Phase::Ready);
    assert!(machine.is(NeedsIntervention));
}

#[test]
fn only_a_good_end_brings_a_machine_back_from_rma() {
    for workflow in Workflow::ALL {
        let mut machine = machine(Phase::Ready);
        machine.learn(&[ConditionObservation::new(Rma, true, "RmaRun")], at(1));
        let run = run_in(RunType::ExitRma, OnFailure::KeepPhase, workflow);
        apply_to_machine(&mut machine, &run, &[], at(5));
        let back = run.phase() == RunPhase::Succeeded;
        assert_eq!(machine.is(Rma), !back, "{workflow:?}");
        let phase = if back { Phase::Maintenance } else { Phase::Ready };
        assert_eq!(machine.phase, phase, "{workflow:?}");
        if back {
            assert_eq!(machine.conditions.get(Rma).unwrap().reason.as_str(), "Returned:op-1");
        }
    }
}

#[test]
fn a_machine_that_another_run_holds_is_not_let_go() {
    let mut machine = machine(Phase::Ready);
    machine.active_run = Some(RunId::trusted("op-2"));
    let run = run_in(RunType::Reboot, OnFailure::KeepPhase, Workflow::Completed);
    apply_to_machine(&mut machine, &run, &[], at(5));
    assert_eq!(machine.active_run, Some(RunId::trusted("op-2")));
}

#[test]
fn evidence_is_taken_in_before_the_verdict() {
    let mut machine = machine(Phase::Maintenance);
    let observed = [
        ConditionObservation::new(Reachable, true, "SshOK"),
        ConditionObservation::new(Drained, true, "NoPods"),
    ];
    let run = run_in(RunType::ExitMaintenance, OnFailure::KeepPhase, Workflow::Running);
    apply_to_machine(&mut machine, &run, &observed, at(5));
    assert!(machine.is(Reachable) && machine.is(Drained));
    // The end of the run overrides the observations of earlier steps.
    let run = run_in(RunType::ExitMaintenance, OnFailure::KeepPhase, Workflow::Completed);
    apply_to_machine(&mut machine, &run, &[], at(6));
    assert!(machine.is(Reachable) && !machine.is(Drained));
}

/// A check that only informs never fails its run: what it could not observe is unknown.
#[test]
fn a_cluster_that_cannot_be_asked_does_not_fail_a_maintenance() {
    use crate::support::fault;
    use model::effect::{CallVerb, ClusterExpectation, Effect};
    use model::run::{CallResult, Decision, Policy, decide};
    let look = |expect, advisory| model::plan::RunStep {
        name: "look".into(),
        timeout_seconds: 60,
        max_retries: 0,
        effect: Effect::Verify { cluster_ref: "c".into(), expect, advisory },
    };
    let unknown = |code: &str| (Drained, false, format!("Unknown:{code}"));
    let (drained, ready) = (ClusterExpectation::Drained, ClusterExpectation::Ready);
    let enter = RunType::EnterMaintenance;
    for (run_type, expect, code, expected) in [
        (enter, drained, FaultCode::ClusterUnreachable, Some(unknown("cluster-unreachable"))),
        (enter, drained, FaultCode::CredentialMissing, Some(unknown("credential-missing"))),
        (enter, drained, FaultCode::WorkerPanicked, Some(unknown("worker-panicked"))),
        (RunType::ExitMaintenance, ready, FaultCode::ClusterUnreachable, None),
    ] {
        let run = |advisory| {
            let steps = vec![look(expect, advisory)];
            decide(
                &Run::new(RunSpec { run_type, ..spec(steps) }),
                1,
                None,
                Policy::default(),
                at(1),
            )
            .run
        };
        let answer = |run: &Run| {
            let given = CallResult::Answered(CallVerb::Perform, fault(code));
            decide(run, 1, Some(&given), Policy::default(), at(2))
        };
        let Decision { run: ended, evidence, .. } = answer(&run(true));
        let case = format!("{run_type:?} {code:?}: {:?}", ended.progress);
        if code == FaultCode::WorkerPanicked {
            // It may have happened, so the status is asked first.
            assert!(!ended.ended(), "{case}");
            continue;
        }
        assert_eq!(ended.phase(), RunPhase::Succeeded, "{case}");
        assert!(ended.progress.steps[0].message.starts_with("not known: "), "{case}");
        let reported: Vec<_> =
            evidence.iter().map(|one| (one.condition, one.status, one.reason.clone())).collect();
        assert_eq!(reported, expected.into_iter().collect::<Vec<_>>(), "{case}");
        // A check that decides still fails.
        assert_eq!(answer(&run(false)).run.phase(), RunPhase::Failed, "{case}");
    }
}
