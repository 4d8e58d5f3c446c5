//! Outcomes of operations, in explanations.

use crate::support::{RunDriver, at, done, fault, netboot, spec, wipe};
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::effect::CallVerb;
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, RunId};
use model::machine::view::EffectiveState;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::RunType;
use model::refusal::RefusedRequest;
use model::run::actions::Action;
use model::run::{CallResult, Policy, Run, RunPhase, apply_to_machine, decide};
use model::why::{
    RunContext, Urgency, explain_machine, explain_run, operation_words, possible_damage,
    refused_words, skipped_firmware, writes_disk,
};
use std::time::Duration;

fn machine() -> Machine {
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
    machine.phase = Phase::Maintenance;
    machine
}

fn needs_intervention(mut machine: Machine) -> Machine {
    let observed = ConditionObservation::new(ConditionType::NeedsIntervention, true, "why");
    machine.learn(&[observed], at(1));
    machine
}

/// The unknown outcome of a destructive step is told before everything else.
#[test]
fn possible_damage_comes_first() {
    let mut driver = RunDriver::of(vec![wipe(0)]);
    driver.answer(fault(FaultCode::AnswerLost));
    let told = Err(Fault::new(FaultCode::BmcUnreachable, "no answer"));
    while !driver.run.ended() {
        driver.answer(told.clone());
    }
    let words = "m-1 may be damaged: the outcome of step wipe of op-1 is unknown";
    assert_eq!(possible_damage(&driver.run).as_deref(), Some(words));
    let machine = needs_intervention(machine());
    let reported = explain_machine(&machine, Some(&driver.run), RunContext::default(), at(99));
    assert!(reported.headline.starts_with(words), "{}", reported.headline);
    assert!(reported.may_be_damaged);
    assert_eq!(reported.next_command(), Some("farrier operation resume op-1"));
}

/// A step that certainly did nothing, or one that is harmless, damages nothing.
#[test]
fn a_known_outcome_damages_nothing() {
    for (step, code) in [(wipe(0), FaultCode::EffectFailed), (netboot(0), FaultCode::EffectFailed)]
    {
        let driver = RunDriver::of(vec![step]);
        let answer = CallResult::Answered(CallVerb::Perform, fault(code));
        let run = decide(&driver.run, 1, Some(&answer), Policy::default(), at(9)).run;
        assert!(run.ended(), "{run:?}");
        assert_eq!(possible_damage(&run), None, "{code:?}");
    }
    assert_eq!(possible_damage(&RunDriver::of(vec![wipe(0)]).run), None, "it is at work");
}

#[test]
fn a_machine_that_was_reimaged_says_so_and_since_when() {
    let mut driver = RunDriver::of(vec![wipe(0)]);
    driver.now = at(70);
    driver.answer(done());
    let reported = explain_machine(&machine(), Some(&driver.run), RunContext::default(), at(99));
    assert_eq!(reported.headline, "m-1 is in maintenance, and REIMAGE op-1 succeeded");
    assert_eq!(reported.since, Some(at(70)));
    assert_eq!(reported.next_commands, ["farrier exit-maintenance m-1"]);
    let never = explain_machine(&machine(), None, RunContext::default(), at(99));
    assert!(never.headline.contains("as its operator intends"), "{}", never.headline);
}

/// The disk was written and the reboot into the new system failed: the machine is provisioned, and
/// never ready.
#[test]
fn a_reimage_that_fails_after_its_write_is_not_ready() {
    let mut driver = RunDriver::of(vec![wipe(0), netboot(0)]);
    let mut machine = machine();
    let written = imaged("ubuntu-2204");
    machine.learn(std::slice::from_ref(&written), at(2));
    driver.answer(done());
    driver.now = at(70);
    driver.answer(fault(FaultCode::EffectFailed));
    assert_eq!(driver.run.phase(), RunPhase::Failed);
    apply_to_machine(&mut machine, &driver.run, &[], at(70));
    assert!(machine.is(ConditionType::Provisioned), "the disk was written");
    for phase in Phase::ALL {
        machine.phase = phase;
        assert_eq!(machine.effective_state(), EffectiveState::Attention);
        let context = RunContext { imaging: Some(&driver.run), ..RunContext::default() };
        let reported = explain_machine(&machine, Some(&driver.run), context, at(99));
        let words = "m-1 needs attention: REIMAGE op-1 failed at step netboot";
        assert!(reported.headline.starts_with(words), "{}", reported.headline);
        assert!(!reported.headline.contains("ready"), "{}", reported.headline);
        assert!(reported.notes.is_empty(), "it is told already: {:?}", reported.notes);
    }
}

/// A cancel whose device cannot be read any more: the end of the operation, its explanation and its
/// history say that it was not carried out.
#[test]
fn a_cancel_that_was_not_carried_out_is_told() {
    let mut driver = RunDriver::of(vec![wipe(0)]);
    driver.act(Action::Cancel).interrupt();
    let mut last = String::new();
    while !driver.run.ended() {
        let answer = Err(Fault::new(FaultCode::BmcUnreachable, "no route"));
        let given = CallResult::Answered(driver.open_call().expect("a call").0, answer.clone());
        let decision = decide(&driver.run, 1, Some(&given), Policy::default(), driver.now);
        last = decision.notes.iter().map(|note| note.message.as_str()).collect();
        driver.answer(answer);
    }
    assert_eq!(driver.run.phase(), RunPhase::Failed);
    let words = "the cancel that alice asked for could not be carried out";
    let failure = driver.run.progress.failure.as_ref().expect("a failure");
    assert_eq!(failure.fault.code, FaultCode::OutcomeUnknown);
    assert!(failure.fault.message.ends_with(words), "{}", failure.fault.message);
    assert!(last.contains(words), "{last}");
    let told = explain_run(&driver.run, RunContext::default(), at(99));
    assert!(told.headline.ends_with(words), "{}", told.headline);
    // A failure without a cancel says nothing of one.
    let mut plain = RunDriver::of(vec![wipe(0)]);
    plain.answer(fault(FaultCode::EffectFailed));
    assert!(!format!("{:?}", plain.run.progress).contains("cancel"), "{:?}", plain.run.progress);
}

/// A later success of another operation clears NeedsIntervention, and the disk is what it was.
#[test]
fn the_last_operation_on_the_disk_is_told_after_others() {
    let mut imaging = RunDriver::of(vec![wipe(0)]);
    imaging.now = at(70);
    imaging.answer(fault(FaultCode::EffectFailed));
    let mut later = RunDriver::of(vec![netboot(0)]);
    later.run.spec.id = RunId::trusted("op-2");
    later.run.spec.run_type = RunType::ExitMaintenance;
    later.answer(done());
    assert!(writes_disk(&imaging.run) && !writes_disk(&later.run));
    let context = RunContext { imaging: Some(&imaging.run), ..RunContext::default() };
    let explained = |phase, context: RunContext| {
        let mut machine = Machine { phase, ..machine() };
        machine.record_change(context.imaging.expect("an operation on the disk"));
        machine.record_change(&later.run);
        explain_machine(&machine, Some(&later.run), context, at(99))
    };
    let reported = explained(Phase::Ready, context);
    let words = "m-1 is in phase READY, nothing active, but REIMAGE op-1 failed at step wipe";
    assert!(reported.headline.starts_with(words), "{}", reported.headline);
    assert_eq!(reported.next_command(), Some("farrier enter-maintenance m-1"));
    assert!(reported.next_commands.contains(&"farrier why op-1".to_string()), "{reported:?}");
    assert_eq!(reported.since, Some(at(70)));
    let note = "the last operation on its disk: REIMAGE op-1, requested by alice: FAILED 29s ago \
                at step wipe: as told";
    assert!(reported.notes.contains(&note.to_string()), "{:?}", reported.notes);
    let reported = explained(Phase::Maintenance, context);
    assert!(reported.notes.contains(&note.to_string()), "{:?}", reported.notes);
    // A good end makes the machine ready, and is told too.
    let mut good = RunDriver::of(vec![wipe(0)]);
    good.answer(done());
    let context = RunContext { imaging: Some(&good.run), ..RunContext::default() };
    let reported = explained(Phase::Ready, context);
    assert!(reported.headline.contains("ready for work"), "{}", reported.headline);
    assert!(reported.notes.iter().any(|note| note.contains("REIMAGE op-1")), "{reported:?}");
}

#[test]
fn an_operation_says_who_asked_and_how_it_ended() {
    let mut driver = RunDriver::of(vec![wipe(0)]);
    let reported = explain_run(&driver.run, RunContext::default(), at(30));
    assert_eq!(reported.requested_by, "alice, 30s ago");
    assert_eq!(operation_words(&driver.run, at(30)), "REIMAGE op-1, requested by alice: RUNNING");
    driver.now = at(70);
    driver.answer(done());
    assert_eq!(
        operation_words(&driver.run, at(80)),
        "REIMAGE op-1, requested by alice: SUCCEEDED 10s ago"
    );
}

#[test]
fn a_refused_request_is_told_for_a_day() {
    let refused = RefusedRequest {
        at: at(10),
        by: "bob".into(),
        request: "REIMAGE".into(),
        reason: "WRONG_PHASE".into(),
        message: "REIMAGE needs phase MAINTENANCE".into(),
    };
    assert_eq!(
        refused_words(Some(&refused), at(70)),
        "REIMAGE of bob, 1m 0s ago: REIMAGE needs phase MAINTENANCE (WRONG_PHASE)"
    );
    assert_eq!(refused_words(Some(&refused), at(10) + Duration::from_secs(86_400)), "");
    assert_eq!(refused_words(None, at(70)), "");
}

#[test]
fn skipped_firmware_is_told() {
    let mut run = Run::new(spec(vec![wipe(0)]));
    assert_eq!(skipped_firmware(&run), None);
    run.spec.params.insert("firmware_skipped".into(), "firmware fw-1 is not available".into());
    let words = "op-1 applied no firmware: firmware fw-1 is not available";
    assert_eq!(explain_run(&run, RunContext::default(), at(1)).notes, [words]);
}

#[test]
fn urgencies_are_worst_first() {
    assert!(Urgency::ALL.is_sorted());
}
