use PowerGoal::{Cycle, Off, On};
use PowerStage::{Begun, ForcingOff, ShuttingDown, Starting};
use model::effect::PowerOffPolicy;
use model::fault::{Fault, FaultCode};
use model::time::Timestamp;
use providers::power::*;
use std::time::Duration;

const TIMEOUTS: PowerTimeouts = PowerTimeouts {
    graceful: Duration::from_secs(60),
    force: true,
    change: Duration::from_secs(100),
    repeat_after: Duration::from_secs(30),
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

#[test]
fn every_stage_has_its_decision() {
    use PowerState as P;
    let request = PowerDecision::Command;
    let table = [
        (On, Begun, P::On, 0, PowerDecision::Done("it was on already")),
        (On, Begun, P::Off, 0, request(PowerCommand::Start, Starting(at(0)))),
        (Off, Begun, P::Off, 0, PowerDecision::Done("it was off already")),
        (Off, Begun, P::On, 0, request(PowerCommand::Shutdown, ShuttingDown(at(0)))),
        (Cycle, Begun, P::Changing, 0, PowerDecision::Wait),
        (Cycle, Begun, P::Off, 5, request(PowerCommand::Start, Starting(at(5)))),
        (Cycle, Begun, P::On, 5, request(PowerCommand::Shutdown, ShuttingDown(at(5)))),
        (Cycle, ShuttingDown(at(0)), P::On, 59, PowerDecision::Wait),
        (
            Cycle,
            ShuttingDown(at(0)),
            P::Changing,
            60,
            request(PowerCommand::ForceOff, ForcingOff(at(60))),
        ),
        (Cycle, ShuttingDown(at(0)), P::Off, 20, request(PowerCommand::Start, Starting(at(20)))),
        (Off, ShuttingDown(at(0)), P::Off, 20, PowerDecision::Done("it is off")),
        (Cycle, ForcingOff(at(0)), P::On, 5, PowerDecision::Wait),
        (Cycle, ForcingOff(at(0)), P::On, 30, request(PowerCommand::ForceOff, ForcingOff(at(0)))),
        (Cycle, ForcingOff(at(0)), P::On, 32, PowerDecision::Wait),
        (Off, ForcingOff(at(0)), P::Off, 5, PowerDecision::Done("it is off")),
        (Cycle, Starting(at(0)), P::Off, 5, PowerDecision::Wait),
        (Cycle, Starting(at(0)), P::Off, 60, request(PowerCommand::Start, Starting(at(0)))),
        (Cycle, Starting(at(0)), P::Changing, 99, PowerDecision::Wait),
        (Cycle, Starting(at(0)), P::On, 5, PowerDecision::Done("it was seen off, and is on again")),
        (On, Starting(at(0)), P::On, 5, PowerDecision::Done("it is on")),
        (Cycle, PowerStage::Done, P::Off, 5, PowerDecision::Done("it was done before")),
    ];
    for (goal, stage, observed, now, expected) in table {
        let found = next_decision(goal, stage, observed, at(now), &TIMEOUTS);
        assert_eq!(found, expected, "{goal:?} {stage:?} {observed:?} at {now}");
    }
}

#[test]
fn a_timeout_fails_with_the_observed_state() {
    let stubborn = PowerTimeouts { force: false, ..TIMEOUTS };
    for (stage, observed, timeout, words) in [
        (ShuttingDown(at(0)), PowerState::On, &stubborn, "does not allow force"),
        (ForcingOff(at(0)), PowerState::On, &TIMEOUTS, "told to switch off and did not within"),
        (Starting(at(0)), PowerState::Off, &TIMEOUTS, "told to start and did not within"),
        (Starting(at(0)), PowerState::Changing, &TIMEOUTS, "told to start"),
        (PowerStage::Stopped, PowerState::On, &TIMEOUTS, "stopped before it began"),
    ] {
        let decision = next_decision(Cycle, stage, observed, at(100), timeout);
        let PowerDecision::Fail(fault) = decision else { panic!("{stage:?}: {decision:?}") };
        assert!(fault.message.contains(words), "{fault}");
    }
}

fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
    PowerOffPolicy { graceful_seconds, force }
}

/// Rows: configuration, policy of the step, whether the BMC supports a graceful shutdown.
/// Expected: the graceful period in seconds, and whether force is allowed.
#[test]
fn a_step_overrides_the_configured_policy() {
    let configured = |seconds, force| PowerTimeouts {
        graceful: Duration::from_secs(seconds),
        force,
        ..TIMEOUTS
    };
    let table = [
        (configured(60, true), power_off(None, None), true, Some((60, true))),
        (configured(60, true), power_off(None, None), false, Some((0, true))),
        (configured(60, true), power_off(Some(5), None), true, Some((5, true))),
        (configured(60, true), power_off(Some(0), None), true, Some((0, true))),
        (configured(60, true), power_off(None, Some(false)), true, Some((60, false))),
        (configured(60, true), power_off(None, Some(false)), false, None),
        (configured(60, false), power_off(None, None), true, Some((60, false))),
        (configured(60, false), power_off(None, None), false, None),
        (configured(60, false), power_off(Some(0), None), false, Some((0, true))),
        (configured(60, false), power_off(Some(5), Some(true)), false, Some((0, true))),
        (configured(0, true), power_off(None, None), true, Some((0, true))),
        (configured(0, true), power_off(None, Some(false)), true, Some((60, false))),
        (configured(0, true), power_off(Some(9), Some(false)), true, Some((9, false))),
    ];
    for (configured, power_off, can, expected) in table {
        let found = timeouts_for(&configured, power_off, can);
        let found = found.map(|found| (found.graceful.as_secs(), found.force)).ok();
        assert_eq!(found, expected, "{configured:?} {power_off:?} can shut down: {can}");
    }
}

#[test]
fn a_refused_shutdown_leads_to_force_or_to_a_fault() {
    let no = |code| Fault::new(code, "the BMC said no");
    let polite = PowerTimeouts { force: false, ..TIMEOUTS };
    for code in [FaultCode::EffectFailed, FaultCode::NotSupported] {
        let left = after_refusal(no(code), PowerCommand::Shutdown, &TIMEOUTS).unwrap();
        let cut = next_decision(Cycle, ShuttingDown(at(5)), PowerState::On, at(5), &left);
        assert_eq!(cut, PowerDecision::Command(PowerCommand::ForceOff, ForcingOff(at(5))));
        let fault = after_refusal(no(code), PowerCommand::Shutdown, &polite).unwrap_err();
        assert!(fault.code == code && fault.message.contains("said no; force"), "{fault}");
    }
    for (code, request) in [
        (FaultCode::BmcBusy, PowerCommand::Shutdown),
        (FaultCode::AnswerLost, PowerCommand::Shutdown),
        (FaultCode::EffectFailed, PowerCommand::ForceOff),
        (FaultCode::NotSupported, PowerCommand::Start),
    ] {
        assert_eq!(
            after_refusal(no(code), request, &TIMEOUTS),
            Err(no(code)),
            "{code:?} {request:?}"
        );
    }
}

/// Without force no sequence forces the power off, whatever the machine does.
#[test]
fn without_force_the_power_is_never_cut() {
    let polite = PowerTimeouts { force: false, ..TIMEOUTS };
    for goal in [Off, Cycle] {
        let mut stage = Begun;
        let mut fault = None;
        for second in 0..1_000 {
            match next_decision(goal, stage, PowerState::On, at(second), &polite) {
                PowerDecision::Command(PowerCommand::Shutdown, next) => stage = next,
                PowerDecision::Wait => {}
                PowerDecision::Fail(found) => {
                    fault = Some(found);
                    break;
                }
                other @ (PowerDecision::Command(..) | PowerDecision::Done(_)) => {
                    panic!("{other:?}")
                }
            }
        }
        assert_eq!(fault.map(|fault| fault.code), Some(FaultCode::ReadBackDiffers));
    }
}

/// Every sequence ends, whatever the machine does.
#[test]
fn a_power_sequence_always_ends() {
    for goal in [On, Off, Cycle] {
        for observed in [PowerState::On, PowerState::Off] {
            let mut stage = Begun;
            let ended = (0..1_000).any(|second| {
                match next_decision(goal, stage, observed, at(second), &TIMEOUTS) {
                    PowerDecision::Command(_, next) => stage = next,
                    PowerDecision::Wait => {}
                    PowerDecision::Done(_) | PowerDecision::Fail(_) => return true,
                }
                false
            });
            assert!(ended, "{goal:?} with power always {observed:?}");
        }
    }
}
