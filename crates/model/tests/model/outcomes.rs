//! What became of an operation, in explanations.

use crate::support::{RunDriver, at, done, fault, netboot, spec, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::CallVerb;
use model::fault::{Fault, FaultCode};
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::refusal::RefusedRequest;
use model::run::{CallResult, Policy, Run, decide};
use model::why::{
    RunContext, Urgency, explain_machine, explain_run, operation_words, possible_damage,
    refused_words, skipped_firmware,
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
