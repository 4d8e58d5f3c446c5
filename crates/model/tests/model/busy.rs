//! A busy peer is waited for until the deadline of the step, and uses up no retries.

use crate::nodes::{Work, run};
use crate::support::{RunDriver, at, done, fault, note};
use model::effect::CallVerb;
use model::fault::FaultCode;
use model::run::actions::Action;
use model::run::{CallResult, Policy, RunPhase, Workflow, decide};
use model::why::{RunContext, explain_run};

/// The timeout of `commission_node`.
const COMMISSION_SECONDS: i64 = 600;

/// An onboarding whose MAAS is asked to commission.
fn commissioning() -> RunDriver {
    let mut driver = RunDriver::begin(run(Work::Onboard));
    while !driver.open_call().unwrap().1.starts_with("commission_node/") {
        driver.answer(done());
    }
    driver
}

/// An image sync takes minutes: the attempts go on with growing pauses, and end at the deadline.
#[test]
fn a_busy_maas_is_waited_for_until_the_deadline() {
    let mut driver = commissioning();
    let (began, mut attempts) = (driver.now, 0);
    while !driver.run.ended() {
        driver.answer(fault(FaultCode::MaasBusy));
        attempts += 1;
        assert!(attempts < 100, "it does not end");
    }
    let took = driver.now.since(began).as_secs();
    assert_eq!(took, COMMISSION_SECONDS.unsigned_abs(), "{attempts} attempts");
    assert!((8..40).contains(&attempts), "{attempts}: the pauses grow");
    let failure = driver.run.progress.failure.clone().unwrap();
    assert_eq!((failure.fault.code, failure.attempts), (FaultCode::MaasBusy, attempts));
    assert_eq!(driver.run.progress.workflow, Workflow::FailedRetryable);
    // The operator gets the whole time again.
    driver.act(Action::RetryStep);
    driver.answer(fault(FaultCode::MaasBusy)).answer(done());
    assert!(driver.open_call().unwrap().1.starts_with("wait_for_ready/"));
}

/// Other faults still have the retries of the stage, however long MAAS was busy before.
#[test]
fn a_busy_peer_uses_up_no_retries() {
    let mut driver = commissioning();
    for _ in 0..5 {
        driver.answer(fault(FaultCode::MaasBusy));
    }
    for attempt in 6..=8 {
        driver.expect(CallVerb::Perform, &format!("commission_node/{attempt}"));
        assert_eq!(driver.run.phase(), RunPhase::Running);
        driver.answer(fault(FaultCode::MaasFailed));
    }
    assert_eq!(driver.run.progress.failure.clone().unwrap().fault.code, FaultCode::MaasFailed);
    let mut plain = RunDriver::of(vec![note(1)]);
    plain.answer(fault(FaultCode::BmcBusy)).answer(fault(FaultCode::BmcBusy));
    assert!(plain.run.ended(), "only what is busy for minutes is waited for");
}

/// `farrier why` names whom it waits for, why, until when, and a cancel ends the wait at once.
#[test]
fn the_wait_is_explained_and_can_be_canceled() {
    let driver = commissioning();
    let answer = CallResult::Answered(CallVerb::Perform, fault(FaultCode::MaasBusy));
    let now = driver.now;
    let waiting = decide(&driver.run, 1, Some(&answer), Policy::default(), now).run;
    let reported = explain_run(&waiting, RunContext::default(), now);
    let words =
        "the MAAS of site-1, which is busy: as told (step commission_node is tried again in";
    assert!(reported.waiting_for.starts_with(words), "{}", reported.waiting_for);
    assert!(reported.waiting_for.ends_with("and for 10m 0s more)"), "{}", reported.waiting_for);
    let mut canceled = RunDriver { run: waiting, then: driver.then, now };
    canceled.act(Action::Cancel);
    let (verb, key) = canceled.open_call().unwrap();
    assert_eq!((verb, key.as_str()), (CallVerb::Perform, "undo-commission_node/1"));
    assert_eq!(canceled.now, now, "nothing is waited for");
    assert!(at(0) < now);
}
