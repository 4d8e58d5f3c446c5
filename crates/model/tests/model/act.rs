//! The actions of operators in each of the eight workflow states.

use crate::support::{RunDriver, at, done, fault, join, netboot, note, who, wipe};
use model::effect::{CallVerb, ProviderAnswer};
use model::fault::FaultCode;
use model::refusal::RefusalKind;
use model::run::actions::{Action, ActionResult, RestartMode, apply_action, restart};
use model::run::{CallResult, FailedAttempt, Policy, Run, StepPhase, StopKind, Workflow, decide};

/// A run in that state, reached as real runs reach it.
fn run_in(workflow: Workflow) -> Run {
    let mut driver = RunDriver::of(vec![netboot(0), wipe(0)]);
    match workflow {
        Workflow::Pending => return crate::support::run(vec![netboot(0), wipe(0)]),
        Workflow::Running => {}
        Workflow::Completed => {
            driver.answer(done()).answer(done());
        }
        Workflow::FailedRetryable => {
            driver.answer(fault(FaultCode::EffectFailed));
        }
        Workflow::FailedManualIntervention => {
            driver.answer(done()).answer(fault(FaultCode::AnswerLost));
            driver.answer(Ok(ProviderAnswer::Unknown("no trace of it".into())));
        }
        Workflow::Cancelled => {
            driver
                .act(Action::Cancel)
                .interrupt()
                .answer(Ok(ProviderAnswer::Stopped))
                .answer(done());
        }
        Workflow::Compensating => {
            driver.act(Action::Cancel).interrupt().answer(Ok(ProviderAnswer::Stopped));
        }
        Workflow::Reconciled => {
            driver.answer(done()).answer(fault(FaultCode::EffectFailed)).act(Action::Adopt);
            driver.answer(done());
        }
    }
    assert_eq!(driver.run.progress.workflow, workflow, "{:#?}", driver.run.progress);
    driver.run
}

/// The result of an action in one word.
fn outcome(run: &Run, action: Action) -> String {
    match apply_action(run, action, &who(), at(9)) {
        Ok(ActionResult::Unchanged) => "already".into(),
        Ok(ActionResult::Recorded(progress, note)) => {
            assert!(note.message.contains("alice") && !note.code_line.is_empty(), "{note:?}");
            assert!(!progress.workflow.ended());
            "told".into()
        }
        Ok(ActionResult::Changed(progress, note)) => {
            assert!(note.message.contains("because"), "{note:?}");
            assert!(progress.workflow.ended());
            "changed".into()
        }
        Ok(ActionResult::Reopened(progress, _)) => {
            assert!(!progress.workflow.ended() && progress.failure.is_none());
            assert_eq!(progress.finished_at, None);
            "reopened".into()
        }
        Err(refusal) => {
            assert_eq!(refusal.kind(), RefusalKind::Precondition);
            assert!(refusal.message.contains("op-1"), "{refusal}");
            let next = refusal.next_command.expect("it says what to type");
            assert!(next.starts_with("farrier ") && next.contains("op-1"), "{next}");
            refusal.reason.as_str().into()
        }
    }
}

const ACTIVE: &str = "RUN_ACTIVE";
const ENDED: &str = "ALREADY_FINISHED";

#[test]
fn every_state_and_every_action() {
    use Workflow::{
        Cancelled, Compensating, Completed, FailedManualIntervention, FailedRetryable, Pending,
        Reconciled, Running,
    };
    // Columns: cancel, retry-step, resume, adopt, mark-manual.
    let table = [
        (Pending, ["told", ACTIVE, ACTIVE, ACTIVE, "told"]),
        (Running, ["told", ACTIVE, ACTIVE, ACTIVE, "told"]),
        (Compensating, ["already", ACTIVE, ACTIVE, ACTIVE, "told"]),
        (FailedRetryable, [ENDED, "reopened", "reopened", "reopened", "changed"]),
        (FailedManualIntervention, [ENDED, "reopened", "reopened", "reopened", "already"]),
        (Completed, [ENDED, ENDED, ENDED, ENDED, ENDED]),
        (Cancelled, [ENDED, ENDED, ENDED, ENDED, ENDED]),
        (Reconciled, [ENDED, ENDED, ENDED, ENDED, ENDED]),
    ];
    assert_eq!(table.len(), Workflow::ALL.len());
    for (workflow, row) in table {
        let run = run_in(workflow);
        for (action, expected) in Action::ALL.into_iter().zip(row) {
            assert_eq!(outcome(&run, action), expected, "{} in {workflow:?}", action.as_str());
        }
    }
}

/// Canceling a failed run on a node undoes what it created. Canceling is idempotent.
#[test]
fn what_failed_on_a_node_can_be_given_up() {
    let of_node = |workflow| {
        let mut run = run_in(workflow);
        run.spec.run_type = model::plan::RunType::Onboard;
        run
    };
    for (workflow, expected) in [
        (Workflow::Pending, "told"),
        (Workflow::Running, "told"),
        (Workflow::Compensating, "already"),
        (Workflow::FailedRetryable, "reopened"),
        (Workflow::FailedManualIntervention, "reopened"),
        (Workflow::Completed, ENDED),
        (Workflow::Cancelled, "already"),
        (Workflow::Reconciled, ENDED),
    ] {
        assert_eq!(outcome(&of_node(workflow), Action::Cancel), expected, "{workflow:?}");
    }
    // The work is undone, and then the run is canceled.
    let mut driver = RunDriver::of(vec![netboot(0), wipe(0)]);
    driver.run.spec.run_type = model::plan::RunType::Onboard;
    driver.answer(done()).answer(fault(FaultCode::EffectFailed)).act(Action::Cancel);
    assert_eq!(
        driver.run.progress.stop_request.as_ref().map(|halt| halt.by.as_str()),
        Some("alice")
    );
    assert_eq!(driver.run.progress.workflow, Workflow::Compensating, "{:?}", driver.run.progress);
    driver.expect(CallVerb::Perform, "undo-netboot/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
}

/// A clean restart failed while undoing its parent's work. Canceling it completes the undo, but
/// does not start the steps.
#[test]
fn what_is_given_up_while_it_is_undone_is_undone_to_its_end() {
    let mut driver = RunDriver::of(vec![netboot(0), wipe(0)]);
    driver.run.spec.run_type = model::plan::RunType::Onboard;
    driver.answer(done()).answer(fault(FaultCode::EffectFailed));
    let progress = restart(&driver.run, RestartMode::RestartClean, false).expect("anew");
    let mut driver = RunDriver::with(driver.run.spec.clone(), progress);
    driver.expect(CallVerb::Perform, "undo-netboot/1");
    while !driver.run.ended() {
        driver.answer(fault(FaultCode::CapabilityMissing));
    }
    assert!(driver.run.progress.workflow.failed(), "{:?}", driver.run.progress);
    driver.act(Action::Cancel);
    assert_eq!(driver.run.progress.workflow, Workflow::Compensating);
    assert!(driver.run.progress.steps.iter().all(|step| step.undo), "{:?}", driver.run.progress);
    driver.answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
}

#[test]
fn what_is_frozen_says_who_did_that_and_why() {
    let mut run = run_in(Workflow::FailedRetryable);
    let Ok(ActionResult::Changed(progress, _)) =
        apply_action(&run, Action::MarkManual, &who(), at(9))
    else {
        panic!("it was not frozen");
    };
    run.progress = progress;
    let reported = model::why::explain_run(&run, Default::default(), at(9)).headline;
    assert!(reported.ends_with("waits for a person, frozen by alice: because"), "{reported}");
    let Ok(ActionResult::Reopened(progress, _)) =
        apply_action(&run, Action::RetryStep, &who(), at(9))
    else {
        panic!("it does not go on");
    };
    assert_eq!(progress.stop_request, None);
}

#[test]
fn a_new_run_is_made_of_an_ended_one_only() {
    for workflow in Workflow::ALL {
        let run = run_in(workflow);
        for how in [RestartMode::Rerun, RestartMode::RestartClean] {
            match restart(&run, how, false) {
                Ok(progress) => {
                    assert!(workflow.ended(), "{workflow:?}");
                    assert_eq!(progress.workflow, Workflow::Pending);
                    assert_eq!((progress.stop_request, progress.failure), (None, None));
                }
                Err(refusal) => {
                    assert!(!workflow.ended(), "{workflow:?}");
                    assert_eq!(refusal.reason.as_str(), ACTIVE);
                    assert_eq!(refusal.next_command.as_deref(), Some("farrier cancel op-1"));
                }
            }
        }
    }
}

#[test]
fn asking_twice_is_asking_once() {
    let mut run = run_in(Workflow::Running);
    for (action, kind) in
        [(Action::MarkManual, StopKind::Freeze), (Action::Cancel, StopKind::Cancel)]
    {
        let Ok(ActionResult::Recorded(progress, _)) = apply_action(&run, action, &who(), at(9))
        else {
            panic!("{action:?} was not taken");
        };
        run.progress = progress;
        assert_eq!(run.progress.stop_request.as_ref().map(|halt| halt.kind), Some(kind));
        assert_eq!(apply_action(&run, action, &who(), at(9)), Ok(ActionResult::Unchanged));
    }
}

#[test]
fn retrying_is_a_new_attempt_and_resuming_looks_first() {
    let unknown = run_in(Workflow::FailedManualIntervention);
    let mut retried = RunDriver::begin(unknown.clone());
    retried.act(Action::RetryStep).expect(CallVerb::Perform, "wipe/2");
    let mut resumed = RunDriver::begin(unknown);
    resumed.act(Action::Resume).expect(CallVerb::GetStatus, "wipe/1");
    // An attempt that is known to have ended needs no status call.
    let mut plain = RunDriver::begin(run_in(Workflow::FailedRetryable));
    plain.act(Action::Resume).expect(CallVerb::Perform, "netboot/2").answer(done());
    plain.expect(CallVerb::Perform, "wipe/1").answer(done());
    assert_eq!(plain.run.progress.workflow, Workflow::Completed);
}

#[test]
fn a_failed_run_gets_its_retries_again() {
    let mut driver = RunDriver::of(vec![note(1)]);
    for attempt in ["note/1", "note/2"] {
        driver.expect(CallVerb::Perform, attempt).answer(fault(FaultCode::EffectFailed));
    }
    assert_eq!(driver.run.progress.workflow, Workflow::FailedRetryable);
    driver.act(Action::RetryStep);
    for attempt in ["note/3", "note/4"] {
        driver.expect(CallVerb::Perform, attempt).answer(fault(FaultCode::EffectFailed));
    }
    assert_eq!(driver.run.progress.workflow, Workflow::FailedRetryable);
}

#[test]
fn a_cancel_undoes_what_was_begun_last_first() {
    let mut driver = RunDriver::of(vec![netboot(0), wipe(0), join(0), note(0)]);
    driver.answer(done()).answer(done()).expect(CallVerb::Perform, "join/1");
    driver.act(Action::Cancel).interrupt().expect(CallVerb::Stop, "join/1");
    driver
        .answer(Ok(ProviderAnswer::Stopped))
        .expect(CallVerb::Perform, "undo-join/1")
        .answer(done());
    driver.expect(CallVerb::Perform, "undo-netboot/1").answer(done());
    let progress = &driver.run.progress;
    assert_eq!(progress.workflow, Workflow::Cancelled);
    let states: Vec<_> = progress.steps.iter().map(|step| step.state).collect();
    use StepPhase::{Failed, Succeeded, Waiting};
    assert_eq!(states, [Succeeded, Succeeded, Failed, Waiting, Succeeded, Succeeded]);
}

/// A device that is being written is not released before the work has ended, however often the stop
/// reports that it has not.
#[test]
fn what_cannot_be_stopped_is_seen_through() {
    let mut driver = RunDriver::of(vec![wipe(0), note(0)]);
    driver.act(Action::Cancel).interrupt();
    for _ in 0..20 {
        driver.expect(CallVerb::Stop, "wipe/1").answer(Ok(ProviderAnswer::UnderWay));
    }
    driver.expect(CallVerb::Stop, "wipe/1").answer(done());
    let progress = &driver.run.progress;
    assert_eq!(progress.workflow, Workflow::Cancelled);
    assert_eq!(progress.steps[0].state, StepPhase::Succeeded);
}

#[test]
fn a_failed_undo_does_not_keep_the_others_from_being_undone() {
    let mut driver = RunDriver::of(vec![netboot(0), join(0), note(0)]);
    driver.answer(done()).answer(done()).act(Action::Cancel).interrupt();
    driver.answer(Ok(ProviderAnswer::Stopped)).expect(CallVerb::Perform, "undo-join/1");
    driver.answer(fault(FaultCode::CapabilityMissing)).expect(CallVerb::Perform, "undo-netboot/1");
    driver.answer(done());
    let progress = &driver.run.progress;
    assert_eq!(progress.workflow, Workflow::Cancelled);
    let failure = progress.failure.as_ref().expect("it says what could not be undone");
    assert_eq!((failure.fault.code, failure.step.as_str()), (FaultCode::UndoFailed, "undo-join"));
}

/// Regression, found by the walk: a freeze during the undo steps made the run forget that it was
/// canceled.
#[test]
fn a_canceled_run_that_is_frozen_and_resumed_stays_canceled() {
    let mut driver = RunDriver::begin(run_in(Workflow::Compensating));
    driver.take_over().expect(CallVerb::GetStatus, "undo-netboot/1").act(Action::MarkManual);
    driver.answer(Ok(ProviderAnswer::NeverStarted)).expect(CallVerb::Stop, "undo-netboot/1");
    driver.answer(Ok(ProviderAnswer::Stopped));
    assert_eq!(driver.run.progress.workflow, Workflow::FailedManualIntervention);
    // The first key is stopped for good, so the run continues under another.
    driver.act(Action::Resume).expect(CallVerb::Perform, "undo-netboot/2");
    driver.answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
}

/// Regression, found by the walk: a second cancel repeated all undo steps under the keys of the
/// first.
#[test]
fn a_cancel_after_a_freeze_goes_on_undoing() {
    let mut run = run_in(Workflow::Compensating);
    let steps = run.progress.steps.len();
    for action in [Action::MarkManual, Action::Cancel] {
        let Ok(ActionResult::Recorded(progress, _)) = apply_action(&run, action, &who(), at(9))
        else {
            panic!("{action:?} was not taken");
        };
        run.progress = progress;
    }
    let mut driver = RunDriver::begin(run);
    driver.expect(CallVerb::GetStatus, "undo-netboot/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
    assert_eq!(driver.run.progress.steps.len(), steps);
}

/// Regression, found by the walk: the undo steps of the cancel reused the keys of the restart.
#[test]
fn a_clean_restart_that_is_canceled_undoes_under_new_keys() {
    let ended = run_in(Workflow::Completed);
    let progress = restart(&ended, RestartMode::RestartClean, false).unwrap();
    let mut driver = RunDriver::with(ended.spec, progress);
    assert_eq!(driver.run.progress.workflow, Workflow::Compensating);
    driver.expect(CallVerb::Perform, "undo-netboot/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Running);
    driver.expect(CallVerb::Perform, "netboot/1").answer(done()).act(Action::Cancel).interrupt();
    driver
        .answer(Ok(ProviderAnswer::Stopped))
        .expect(CallVerb::Perform, "undo-netboot/2")
        .answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
}

#[test]
fn a_foreign_engine_version_is_refused_not_guessed() {
    let mut run = run_in(Workflow::Running);
    run.spec.engine_version += 1;
    let driver = RunDriver::begin(run);
    let progress = &driver.run.progress;
    assert_eq!(progress.workflow, Workflow::FailedManualIntervention);
    assert_eq!(progress.failure.as_ref().unwrap().fault.code, FaultCode::ForeignEngine);
    assert_eq!(driver.open_call(), None);
}

/// A status call failed, and the run waits for its backoff.
#[test]
fn who_asks_for_a_stop_does_not_wait_for_a_backoff() {
    for action in [Action::Cancel, Action::MarkManual] {
        let mut run = run_in(Workflow::Running);
        run.progress.steps[0].not_before = Some(at(100));
        let Ok(ActionResult::Recorded(progress, _)) = apply_action(&run, action, &who(), at(9))
        else {
            panic!("{action:?} is accepted by a run that waits");
        };
        assert_eq!(progress.steps[0].not_before, None, "{action:?}");
    }
}

/// A refused cancel proposes nothing that would do the work again.
#[test]
fn a_refused_cancel_recommends_nothing_destructive() {
    for workflow in [Workflow::Completed, Workflow::FailedRetryable, Workflow::Cancelled] {
        let run = run_in(workflow);
        let refusal = apply_action(&run, Action::Cancel, &who(), at(9)).unwrap_err();
        let expected = format!("farrier operation get {}", run.spec.id);
        assert_eq!(refusal.next_command, Some(expected), "{workflow:?}");
    }
}

/// After a success, no refused action proposes to do the work again.
#[test]
fn a_success_is_not_recommended_to_be_repeated() {
    for workflow in [Workflow::Completed, Workflow::Reconciled] {
        let run = run_in(workflow);
        for action in Action::ALL {
            let refusal = apply_action(&run, action, &who(), at(9)).unwrap_err();
            let expected = format!("farrier operation get {}", run.spec.id);
            assert_eq!(refusal.next_command, Some(expected), "{workflow:?} {action:?}");
        }
    }
}

/// The log of a run has a line about every failed attempt.
#[test]
fn a_failed_attempt_is_worth_a_line() {
    let after = |driver: &RunDriver, result| {
        let given = CallResult::Answered(CallVerb::Perform, result);
        let decided = decide(&driver.run, 1, Some(&given), Policy::default(), driver.now);
        FailedAttempt::between(&driver.run, &decided.run)
    };
    let mut driver = RunDriver::of(vec![netboot(1)]);
    assert_eq!(after(&driver, done()), None);
    for (expected, again) in [("attempt 1 failed: ", true), ("attempt 2 failed: ", false)] {
        let failed = after(&driver, fault(FaultCode::EffectFailed)).unwrap();
        assert!(failed.message.starts_with(expected), "{failed:?}");
        assert_eq!(failed.message.ends_with("; trying again"), again, "{failed:?}");
        driver.answer(fault(FaultCode::EffectFailed));
    }
}

/// Every effect in progress, and what a dry run of a cancel says that a stop leaves behind.
#[test]
fn a_stop_says_what_it_leaves() {
    use crate::support::spec;
    use model::effect::{DesiredPower, DeviceWork, DiskContent, Effect};
    use model::machine::DiskReport;
    use model::plan::RunStep;
    use model::run::describe_stop;
    for effect in crate::stored::golden_effects() {
        let step = RunStep {
            name: "s".into(),
            timeout_seconds: 60,
            max_retries: 0,
            effect: effect.clone(),
        };
        let driver = RunDriver::of(vec![step]);
        let said = describe_stop(&driver.run, None).expect("an effect in progress");
        let expected = match (effect.facts().disk, &effect) {
            (Some(DiskContent::Nothing), _) => "the disks of m-1 may be half erased",
            (Some(_), _) => "s would be stopped: the disk of m-1 may hold a part of",
            (None, Effect::Device { work: DeviceWork::Firmware { .. } }) => {
                "s would not be stopped"
            }
            (None, Effect::ChildRuns { .. }) => "s would begin on no further device",
            (None, Effect::Power { to: DesiredPower::Off, .. }) => "m-1 may be off, and would stay",
            (None, Effect::Power { to: DesiredPower::On, .. }) => "m-1 may still be off, and would",
            (None, _) => "s would be stopped; what it has done to m-1 until then stays",
        };
        assert!(said.contains(expected), "{effect:?}: {said}");
    }
    // The percentage is that of the write in progress, as the provider knows it.
    let driver = RunDriver::of(vec![crate::support::wipe(0)]);
    let said = describe_stop(&driver.run, Some(DiskReport::Written(60))).unwrap();
    let expected = "wipe would be stopped at 60 %: the disk of m-1 would hold a part of";
    assert!(said.starts_with(expected), "{said}");
    // Before its first step, and after its end, a run has nothing in progress.
    let fresh = model::run::Run::new(spec(vec![crate::support::wipe(0)]));
    assert_eq!(describe_stop(&fresh, None), None);
}
