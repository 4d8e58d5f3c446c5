//! Adoption: a step whose goal already holds counts as done, in a rerun and by an operator's
//! action.

use crate::support::{Story, done, fault, netboot, note, spec, wipe};
use model::effect::{Answer, Verb};
use model::fault::Code;
use model::plan::RunStep;
use model::run::act::{Action, RestartMode, restart};
use model::run::{StepPhase, Workflow};

fn steps() -> Vec<RunStep> {
    vec![netboot(0), wipe(0), note(0)]
}

fn differs() -> Result<Answer, model::fault::Fault> {
    Ok(Answer::Differs("something else".into()))
}

/// A rerun of a run whose first `held` steps succeeded before the next one failed.
fn rerun(held: usize) -> Story {
    let mut story = Story::of(steps());
    for _ in 0..held {
        story.answer(done());
    }
    if held < steps().len() {
        story.answer(fault(Code::EffectFailed));
        assert_eq!(story.run.progress.workflow, Workflow::FailedRetryable);
    }
    let progress = restart(&story.run, RestartMode::Rerun).unwrap();
    Story::with(spec(steps()), progress)
}

#[test]
fn the_last_step_that_holds_adopts_all_before_it() {
    let mut story = rerun(2);
    story.expect(Verb::Observe, "wipe/0").answer(done()).expect(Verb::Perform, "note/1");
    let messages: Vec<_> =
        story.run.progress.steps.iter().map(|step| step.message.as_str()).collect();
    assert_eq!(messages, ["adopted: implied by step wipe", "adopted: it holds", ""]);
    story.answer(done());
    // No operator adopted a state: the run completed normally.
    assert_eq!(story.run.progress.workflow, Workflow::Completed);
}

#[test]
fn what_does_not_hold_is_looked_for_further_back() {
    let mut story = rerun(2);
    story.expect(Verb::Observe, "wipe/0").answer(differs());
    story.expect(Verb::Observe, "netboot/0").answer(done()).expect(Verb::Perform, "wipe/1");
    story.answer(done()).expect(Verb::Perform, "note/1").answer(done());
    assert_eq!(story.run.progress.workflow, Workflow::Completed);
}

#[test]
fn when_nothing_holds_all_is_done_from_the_top() {
    let mut story = rerun(2);
    story.answer(differs()).expect(Verb::Observe, "netboot/0").answer(differs());
    for key in ["netboot/1", "wipe/1", "note/1"] {
        story.expect(Verb::Perform, key).answer(done());
    }
    assert_eq!(story.run.progress.workflow, Workflow::Completed);
}

#[test]
fn a_rerun_of_a_run_that_did_nothing_begins_at_the_top() {
    rerun(0).expect(Verb::Perform, "netboot/1");
}

#[test]
fn a_rerun_of_a_whole_success_may_have_nothing_to_do() {
    let mut story = rerun(3);
    story.expect(Verb::Observe, "note/0").answer(done());
    assert_eq!(story.run.progress.workflow, Workflow::Completed);
    assert!(story.run.progress.steps.iter().all(|step| step.state == StepPhase::Succeeded));
}

#[test]
fn a_look_that_never_answers_counts_as_not_holding() {
    let mut story = rerun(1);
    for _ in 0..8 {
        story.expect(Verb::Observe, "netboot/0").answer(fault(Code::BmcUnreachable));
    }
    story.expect(Verb::Perform, "netboot/1");
}

#[test]
fn a_canceled_rerun_does_not_undo_what_it_only_adopted() {
    let mut story = rerun(2);
    story.answer(done()).expect(Verb::Perform, "note/1").act(Action::Cancel).interrupt();
    story.answer(Ok(Answer::Stopped));
    assert_eq!(story.run.progress.workflow, Workflow::Cancelled);
    assert_eq!(story.run.progress.steps.len(), 3);
}

/// Regression, found by the walk: the step that was being observed stayed failed, and broke the run
/// later.
#[test]
fn a_rerun_that_is_frozen_while_looking_goes_on_looking() {
    for action in [Action::RetryStep, Action::Resume, Action::Adopt] {
        let mut story = rerun(2);
        story.act(Action::MarkManual).take_over();
        assert_eq!(story.run.progress.workflow, Workflow::FailedManualIntervention);
        story.act(action).expect(Verb::Observe, "wipe/0").answer(differs());
        story.expect(Verb::Observe, "netboot/0").answer(differs());
        for key in ["netboot/1", "wipe/1", "note/1"] {
            story.expect(Verb::Perform, key).answer(done());
        }
        assert_eq!(story.run.progress.workflow, Workflow::Completed, "{action:?}");
    }
}

/// A run whose destructive step has an unknown outcome.
fn unknown() -> Story {
    let mut story = Story::of(steps());
    story.answer(done()).answer(fault(Code::AnswerLost)).expect(Verb::GetStatus, "wipe/1");
    story.answer(Ok(Answer::Unknown("no trace".into())));
    let failure = story.run.progress.failure.as_ref().expect("it failed");
    assert_eq!(failure.fault.code, Code::OutcomeUnknown);
    story
}

#[test]
fn what_holds_is_adopted_and_the_rest_is_done() {
    let mut story = unknown();
    story.act(Action::Adopt).expect(Verb::Observe, "wipe/1").answer(done());
    story.expect(Verb::Perform, "note/1").answer(done());
    assert_eq!(story.run.progress.workflow, Workflow::Reconciled);
    assert_eq!(story.run.progress.steps[1].message, "adopted: it holds");
}

#[test]
fn what_differs_is_not_adopted() {
    let mut story = unknown();
    story.act(Action::Adopt).answer(differs());
    let progress = &story.run.progress;
    assert_eq!(progress.workflow, Workflow::FailedManualIntervention);
    let failure = progress.failure.as_ref().unwrap();
    assert_eq!((failure.fault.code, failure.step.as_str()), (Code::NotAdoptable, "wipe"));
    assert!(failure.fault.said.contains("something else"), "{}", failure.fault.said);
    // The outcome of the attempt is still unknown.
    story.act(Action::Resume).expect(Verb::GetStatus, "wipe/1");
}

#[test]
fn an_observation_that_never_comes_is_not_an_adoption() {
    let mut story = unknown();
    story.act(Action::Adopt);
    for _ in 0..8 {
        story.expect(Verb::Observe, "wipe/1").answer(fault(Code::BmcUnreachable));
    }
    let failure = story.run.progress.failure.as_ref().unwrap();
    assert_eq!(failure.fault.code, Code::NotAdoptable);
}

/// Regression, found by the walk: the run failed instead of being canceled, or was stopped without
/// a status call.
#[test]
fn a_cancel_while_observing_is_kept() {
    let mut story = unknown();
    story.act(Action::Adopt).act(Action::Cancel).answer(differs());
    story.expect(Verb::GetStatus, "wipe/1").answer(Ok(Answer::NeverStarted));
    // A late call must find the key stopped before the run ends.
    story.expect(Verb::Stop, "wipe/1").answer(Ok(Answer::Stopped));
    story.expect(Verb::Perform, "undo-netboot/1").answer(done());
    assert_eq!(story.run.progress.workflow, Workflow::Cancelled);

    let mut story = Story::of(vec![wipe(0)]);
    story.answer(fault(Code::EffectFailed)).act(Action::Adopt).act(Action::Cancel);
    story.answer(differs());
    assert_eq!(story.run.progress.workflow, Workflow::Cancelled);
}
