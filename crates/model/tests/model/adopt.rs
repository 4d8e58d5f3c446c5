//! Adoption: a step whose goal already holds counts as done, in a rerun and by an operator's
//! action.

use crate::support::{RunDriver, done, fault, join, netboot, note, spec, wipe};
use model::effect::{CallVerb, ProviderAnswer};
use model::fault::FaultCode;
use model::plan::RunStep;
use model::run::Workflow;
use model::run::actions::{Action, RestartMode, restart};

fn steps() -> Vec<RunStep> {
    vec![netboot(0), wipe(0), note(0)]
}

fn differs() -> Result<ProviderAnswer, model::fault::Fault> {
    Ok(ProviderAnswer::Differs("something else".into()))
}

/// A rerun of a run whose first `held` steps succeeded before the next one failed.
fn rerun(claimed: usize) -> RunDriver {
    rerun_of(steps(), claimed, false)
}

fn rerun_of(steps: Vec<RunStep>, claimed: usize, superseded: bool) -> RunDriver {
    let mut driver = RunDriver::of(steps.clone());
    for _ in 0..claimed {
        driver.answer(done());
    }
    if claimed < steps.len() {
        driver.answer(fault(FaultCode::EffectFailed));
        assert_eq!(driver.run.progress.workflow, Workflow::FailedRetryable);
    }
    let progress = restart(&driver.run, RestartMode::Rerun, superseded).unwrap();
    RunDriver::with(spec(steps), progress)
}

/// A disk write, a later step whose goal another image reaches as well, and the step that failed.
fn with_join() -> Vec<RunStep> {
    vec![netboot(0), wipe(0), join(0), note(0)]
}

fn messages(driver: &RunDriver) -> Vec<&str> {
    driver.run.progress.steps.iter().map(|step| step.message.as_str()).collect()
}

/// The host is a member of its cluster, with whatever image: the image is compared as well.
#[test]
fn a_later_step_does_not_imply_a_disk_write() {
    let mut driver = rerun_of(with_join(), 3, false);
    driver.expect(CallVerb::Observe, "join/0").answer(done());
    driver.expect(CallVerb::Observe, "wipe/0").answer(done());
    driver.expect(CallVerb::Perform, "note/1");
    let adopted = ["adopted: implied by step join", "adopted: it holds", "adopted: it holds", ""];
    assert_eq!(messages(&driver), adopted);
    driver.answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Completed);
}

#[test]
fn another_image_on_the_disk_is_written_again_with_all_that_follows() {
    let mut driver = rerun_of(with_join(), 3, false);
    driver.expect(CallVerb::Observe, "join/0").answer(done());
    driver.expect(CallVerb::Observe, "wipe/0").answer(differs());
    driver.expect(CallVerb::Observe, "netboot/0").answer(done());
    for key in ["wipe/1", "join/1", "note/1"] {
        driver.expect(CallVerb::Perform, key).answer(done());
    }
    assert_eq!(driver.run.progress.workflow, Workflow::Completed);
    assert_eq!(messages(&driver), ["adopted: it holds", "it holds", "it holds", "it holds"]);
}

/// No run waits for the rest of the effect: the operator wants the work to be done again.
#[test]
fn what_was_followed_by_another_run_or_succeeded_is_done_again() {
    for (claimed, superseded) in [(3, true), (4, false), (4, true)] {
        let mut driver = rerun_of(with_join(), claimed, superseded);
        for key in ["netboot/1", "wipe/1", "join/1", "note/1"] {
            driver.expect(CallVerb::Perform, key).answer(done());
        }
        assert_eq!(driver.run.progress.workflow, Workflow::Completed);
    }
}

#[test]
fn the_last_step_that_holds_adopts_all_before_it() {
    let mut driver = rerun(2);
    driver.expect(CallVerb::Observe, "wipe/0").answer(done()).expect(CallVerb::Perform, "note/1");
    let adopted = ["adopted: implied by step wipe", "adopted: it holds", ""];
    assert_eq!(messages(&driver), adopted);
    driver.answer(done());
    // No operator adopted a state: the run completed normally.
    assert_eq!(driver.run.progress.workflow, Workflow::Completed);
}

#[test]
fn what_does_not_hold_is_looked_for_further_back() {
    let mut driver = rerun(2);
    driver.expect(CallVerb::Observe, "wipe/0").answer(differs());
    driver
        .expect(CallVerb::Observe, "netboot/0")
        .answer(done())
        .expect(CallVerb::Perform, "wipe/1");
    driver.answer(done()).expect(CallVerb::Perform, "note/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Completed);
}

#[test]
fn when_nothing_holds_all_is_done_from_the_top() {
    let mut driver = rerun(2);
    driver.answer(differs()).expect(CallVerb::Observe, "netboot/0").answer(differs());
    for key in ["netboot/1", "wipe/1", "note/1"] {
        driver.expect(CallVerb::Perform, key).answer(done());
    }
    assert_eq!(driver.run.progress.workflow, Workflow::Completed);
}

#[test]
fn a_rerun_of_a_run_that_did_nothing_begins_at_the_top() {
    rerun(0).expect(CallVerb::Perform, "netboot/1");
}

#[test]
fn a_look_that_never_answers_counts_as_not_holding() {
    let mut driver = rerun(1);
    for _ in 0..8 {
        driver.expect(CallVerb::Observe, "netboot/0").answer(fault(FaultCode::BmcUnreachable));
    }
    driver.expect(CallVerb::Perform, "netboot/1");
}

#[test]
fn a_canceled_rerun_does_not_undo_what_it_only_adopted() {
    let mut driver = rerun(2);
    driver.answer(done()).expect(CallVerb::Perform, "note/1").act(Action::Cancel).interrupt();
    driver.answer(Ok(ProviderAnswer::Stopped));
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
    assert_eq!(driver.run.progress.steps.len(), 3);
}

/// Regression, found by the walk: the step that was being observed stayed failed, and broke the run
/// later.
#[test]
fn a_rerun_that_is_frozen_while_looking_goes_on_looking() {
    for action in [Action::RetryStep, Action::Resume, Action::Adopt] {
        let mut driver = rerun(2);
        driver.act(Action::MarkManual).take_over();
        assert_eq!(driver.run.progress.workflow, Workflow::FailedManualIntervention);
        driver.act(action).expect(CallVerb::Observe, "wipe/0").answer(differs());
        driver.expect(CallVerb::Observe, "netboot/0").answer(differs());
        for key in ["netboot/1", "wipe/1", "note/1"] {
            driver.expect(CallVerb::Perform, key).answer(done());
        }
        assert_eq!(driver.run.progress.workflow, Workflow::Completed, "{action:?}");
    }
}

/// A run whose destructive step has an unknown outcome.
fn unknown() -> RunDriver {
    let mut driver = RunDriver::of(steps());
    driver
        .answer(done())
        .answer(fault(FaultCode::AnswerLost))
        .expect(CallVerb::GetStatus, "wipe/1");
    driver.answer(Ok(ProviderAnswer::Unknown("no trace".into())));
    let failure = driver.run.progress.failure.as_ref().expect("it failed");
    assert_eq!(failure.fault.code, FaultCode::OutcomeUnknown);
    driver
}

#[test]
fn what_holds_is_adopted_and_the_rest_is_done() {
    let mut driver = unknown();
    driver.act(Action::Adopt).expect(CallVerb::Observe, "wipe/1").answer(done());
    driver.expect(CallVerb::Perform, "note/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Reconciled);
    assert_eq!(driver.run.progress.steps[1].message, "adopted: it holds");
}

#[test]
fn what_differs_is_not_adopted() {
    let mut driver = unknown();
    driver.act(Action::Adopt).answer(differs());
    let progress = &driver.run.progress;
    assert_eq!(progress.workflow, Workflow::FailedManualIntervention);
    let failure = progress.failure.as_ref().unwrap();
    assert_eq!((failure.fault.code, failure.step.as_str()), (FaultCode::NotAdoptable, "wipe"));
    assert!(failure.fault.message.contains("something else"), "{}", failure.fault.message);
    // The outcome of the attempt is still unknown.
    driver.act(Action::Resume).expect(CallVerb::GetStatus, "wipe/1");
}

#[test]
fn an_observation_that_never_comes_is_not_an_adoption() {
    let mut driver = unknown();
    driver.act(Action::Adopt);
    for _ in 0..8 {
        driver.expect(CallVerb::Observe, "wipe/1").answer(fault(FaultCode::BmcUnreachable));
    }
    let failure = driver.run.progress.failure.as_ref().unwrap();
    assert_eq!(failure.fault.code, FaultCode::NotAdoptable);
}

/// Regression, found by the walk: the run failed instead of being canceled, or was stopped without
/// a status call.
#[test]
fn a_cancel_while_observing_is_kept() {
    let mut driver = unknown();
    driver.act(Action::Adopt).act(Action::Cancel).answer(differs());
    driver.expect(CallVerb::GetStatus, "wipe/1").answer(Ok(ProviderAnswer::NeverStarted));
    // A late call must find the key stopped before the run ends.
    driver.expect(CallVerb::Stop, "wipe/1").answer(Ok(ProviderAnswer::Stopped));
    driver.expect(CallVerb::Perform, "undo-netboot/1").answer(done());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);

    let mut driver = RunDriver::of(vec![wipe(0)]);
    driver.answer(fault(FaultCode::EffectFailed)).act(Action::Adopt).act(Action::Cancel);
    driver.answer(differs());
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
}
