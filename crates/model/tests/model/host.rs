//! The firmware reprovisioning of a host as tables: every state with every request and every input.

use crate::support::{at, spec};
use model::fault::{Fault, FaultCode};
use model::firmware::{Firmware, FirmwareComponent, FirmwareResolution};
use model::host::{
    Host, HostState, HostTurnInput, MAX_FIRMWARE_UPGRADE_RETRIES, RACK_TIMEOUT, RETRY_INTERVAL,
    ReprovisionOwner, ReprovisionRequest,
};
use model::id::{FirmwareId, MachineId, RunId};
use model::lifecycle::{DeviceFailure, IdleReason, Lifecycle, LifecycleDecision};
use model::plan::RunType;
use model::refusal::{Reason, Refusal};
use model::run::{Failure, Run, RunSpec, StopKind, StopRequest, Workflow};
use model::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use std::time::Duration;

const SINCE: i64 = 100;

fn firmware(components: &[(&str, &str)]) -> FirmwareResolution {
    let component = |(name, version): &(&str, &str)| FirmwareComponent {
        name: (*name).into(),
        version: (*version).into(),
        url: "http://h/x".into(),
        sha256: "a".repeat(64),
    };
    let components = components.iter().map(component).collect();
    FirmwareResolution::Use(Box::new(Firmware {
        id: FirmwareId::trusted("fw-2"),
        hardware_type: "x".into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, components)]),
        is_default: true,
        available: true,
        created_at: at(0),
        version: 1,
    }))
}

fn run(id: &str, workflow: Workflow, code: Option<FaultCode>) -> Run {
    let run_type = RunType::Firmware;
    let mut run = Run::new(RunSpec { id: RunId::trusted(id), run_type, ..spec(Vec::new()) });
    run.progress.workflow = workflow;
    run.progress.failure = code.map(|code| Failure {
        fault: Fault::new(code, "it broke"),
        step: "firmware-bmc".into(),
        attempts: 1,
    });
    run
}

fn failed(id: &str, code: FaultCode) -> Run {
    run(id, Workflow::FailedRetryable, Some(code))
}

fn rack() -> ReprovisionOwner {
    ReprovisionOwner::Rack { operation: RunId::trusted("op-rack") }
}

fn person() -> ReprovisionOwner {
    ReprovisionOwner::Operator { name: "ada".into() }
}

fn fresh(owner: ReprovisionOwner) -> Option<ReprovisionRequest> {
    Some(ReprovisionRequest { owner, firmware: None, requested_at: at(90), started_at: None })
}

fn accepted_request(owner: ReprovisionOwner) -> Option<ReprovisionRequest> {
    let request = fresh(owner)?;
    Some(ReprovisionRequest { started_at: Some(at(95)), ..request })
}

fn host(state: HostState, request: Option<ReprovisionRequest>) -> Host {
    let mut host = Host::new(&MachineId::trusted("m-1"), at(0));
    host.head.since = at(SINCE);
    Host { state, request, ..host }
}

fn with_run(host: Host) -> Host {
    Host { run: Some(RunId::trusted("op-own")), ..host }
}

const fn checking(retry_count: u32) -> HostState {
    HostState::CheckingFirmwareV2 { retry_count }
}

const WAITING: HostState = HostState::WaitingForRackFirmwareUpgrade;

fn broken(retry_count: u32, code: &str) -> HostState {
    let cause = DeviceFailure {
        message: "it broke".into(),
        run: Some(RunId::trusted("op-old")),
        code: code.into(),
    };
    HostState::FailedFirmwareUpgrade { retry_count, cause }
}

fn context() -> HostTurnInput {
    HostTurnInput {
        fresh: RunId::trusted("op-new"),
        run: None,
        firmware: firmware(&[("BMC", "2.0")]),
        gate: Ok(()),
        operation: None,
        child_run: None,
        retry_interval: RETRY_INTERVAL,
    }
}

/// The next transition in one line: the new state with started and canceled runs, or how long it
/// waits and why.
fn describe_next(host: &Host, observed: &HostTurnInput, now: i64) -> String {
    match host.next(observed, at(now)) {
        LifecycleDecision::Idle(IdleReason(why)) => format!("rests: {why}"),
        LifecycleDecision::IdleUntil(until, IdleReason(why)) => {
            format!("until {}: {why}", until.since(at(0)).as_secs())
        }
        LifecycleDecision::Remove(_) => "removed".into(),
        LifecycleDecision::Transition(change) => {
            let mut words = vec![match &change.record.state {
                HostState::CheckingFirmwareV2 { retry_count } => format!("Checking {retry_count}"),
                HostState::FailedFirmwareUpgrade { retry_count, .. } => {
                    format!("Failed {retry_count}")
                }
                HostState::Ready => "Ready".into(),
                HostState::WaitingForRackFirmwareUpgrade => "Waiting".into(),
            }];
            words.extend(change.start.iter().map(|run| {
                assert_eq!(run.target, TargetId::from_key("m-1"));
                assert_eq!(run.run_type, RunType::Firmware);
                assert_eq!(run.reports_to, Some(host.subject()));
                assert_eq!(change.record.run.as_ref(), Some(&run.id));
                format!("starts {} of {} steps", run.id, run.steps.len())
            }));
            words.extend(change.cancel.iter().map(|(run, _)| format!("stops {run}")));
            match change.record.request {
                None => words.push("asked nothing".into()),
                Some(request) if request.started_at.is_none() => words.push("fresh".into()),
                Some(_) => {}
            }
            words.join(", ")
        }
    }
}

/// Rows: the states. Columns: a new request of the rack, one of an operator. Both start over.
#[test]
fn a_fresh_request_takes_the_branch_of_its_owner() {
    let states = [
        HostState::Ready,
        checking(2),
        WAITING,
        broken(0, "effect-failed"),
        broken(MAX_FIRMWARE_UPGRADE_RETRIES, "effect-failed"),
        broken(0, "outcome-unknown"),
    ];
    for state in states {
        let shown = format!("{state:?}");
        assert_eq!(
            describe_next(&host(state.clone(), fresh(rack())), &context(), 200),
            "Waiting",
            "{shown}"
        );
        assert_eq!(
            describe_next(&host(state, fresh(person())), &context(), 200),
            "Checking 0",
            "{shown}"
        );
    }
}

#[test]
fn what_is_at_work_is_seen_through_before_a_fresh_request() {
    let busy = with_run(host(checking(1), fresh(rack())));
    let going = HostTurnInput { run: Some(run("op-own", Workflow::Running, None)), ..context() };
    assert_eq!(describe_next(&busy, &going, 200), "rests: op-own upgrades its firmware");
    let done = HostTurnInput { run: Some(run("op-own", Workflow::Completed, None)), ..context() };
    assert_eq!(describe_next(&busy, &done, 200), "Waiting");
}

#[test]
fn checking_compares_installs_and_follows() {
    let plain = host(checking(1), accepted_request(person()));
    let own = |run: Run| (with_run(plain.clone()), HostTurnInput { run: Some(run), ..context() });
    let mut current = plain.clone();
    current.facts.firmware.insert("BMC".into(), "2.0".into());
    let refused = || Err(Refusal::new(Reason::MachineBusy, "m-1 is held by op-9"));
    let desired = |firmware: FirmwareResolution| HostTurnInput { firmware, ..context() };
    let table = [
        ((plain.clone(), context()), "Checking 1, starts op-new of 1 steps"),
        // The recorded version does not matter.
        ((current.clone(), context()), "Checking 1, starts op-new of 1 steps"),
        ((current, desired(firmware(&[("BMC", "2.0"), ("BIOS", "1.1")]))), {
            "Checking 1, starts op-new of 2 steps"
        }),
        ((plain.clone(), desired(firmware(&[]))), "Ready, asked nothing"),
        (
            (plain.clone(), desired(FirmwareResolution::Skip("not available".into()))),
            "Ready, asked nothing",
        ),
        (
            (plain.clone(), desired(FirmwareResolution::Unknown(FirmwareId::trusted("nope")))),
            "Failed 1",
        ),
        ((plain.clone(), HostTurnInput { gate: refused(), ..context() }), {
            "until 260: it may not be upgraded now: m-1 is held by op-9"
        }),
        (own(run("op-own", Workflow::Pending, None)), "rests: op-own upgrades its firmware"),
        (own(run("op-own", Workflow::Running, None)), "rests: op-own upgrades its firmware"),
        (own(run("op-own", Workflow::Completed, None)), "Ready, asked nothing"),
        (own(run("op-own", Workflow::Reconciled, None)), "Ready, asked nothing"),
        (own(failed("op-own", FaultCode::EffectFailed)), "Failed 1"),
        (own(run("op-own", Workflow::Cancelled, None)), "Ready, asked nothing"),
        ((with_run(plain), context()), "Failed 1"),
    ];
    for ((host, observed), expected) in table {
        assert_eq!(describe_next(&host, &observed, 200), expected, "{host:?} {observed:?}");
    }
}

#[test]
fn waiting_follows_the_part_and_then_the_operation() {
    let waiting = host(WAITING, accepted_request(rack()));
    let part = |run: Run| HostTurnInput {
        child_run: Some(run),
        operation: Some(self::run("op-rack", Workflow::Running, None)),
        ..context()
    };
    let parent = |run: Run| HostTurnInput { operation: Some(run), ..context() };
    let late = i64::try_from(RACK_TIMEOUT.as_secs()).unwrap() + SINCE;
    let not_yet = "op-rack is to upgrade its firmware, and has not come to it";
    let table = [
        (
            part(run("op-part", Workflow::Running, None)),
            200,
            "rests: op-part upgrades its firmware",
        ),
        (part(run("op-part", Workflow::Running, None)), late, {
            "rests: op-part upgrades its firmware"
        }),
        (part(run("op-part", Workflow::Completed, None)), 200, "Ready, asked nothing"),
        (part(failed("op-part", FaultCode::EffectFailed)), 200, "Failed 0"),
        (part(run("op-part", Workflow::Cancelled, None)), 200, "Ready, asked nothing"),
        (parent(run("op-rack", Workflow::Pending, None)), 200, &format!("until {late}: {not_yet}")),
        (parent(run("op-rack", Workflow::Running, None)), 200, &format!("until {late}: {not_yet}")),
        (parent(run("op-rack", Workflow::Running, None)), late, "Failed 0"),
        (parent(run("op-rack", Workflow::Completed, None)), 200, "Ready, asked nothing"),
        (parent(run("op-rack", Workflow::Cancelled, None)), 200, "Ready, asked nothing"),
        (parent(failed("op-rack", FaultCode::PartFailed)), 200, "Failed 0"),
        (context(), 200, "Failed 0"),
    ];
    for (observed, now, expected) in table {
        assert_eq!(describe_next(&waiting, &observed, now), expected, "{observed:?}");
    }
}

#[test]
fn a_failure_is_tried_again_where_that_does_no_harm() {
    let interval = i64::try_from(RETRY_INTERVAL.as_secs()).unwrap();
    let due = SINCE + interval;
    let rests = "rests: it broke; a person is waited for";
    let table = [
        (
            broken(0, "effect-failed"),
            due - 1,
            format!("until {due}: it broke; it is tried again then"),
        ),
        (broken(0, "effect-failed"), due, "Checking 1".into()),
        (broken(2, "effect-failed"), due, "Checking 3".into()),
        (broken(MAX_FIRMWARE_UPGRADE_RETRIES, "effect-failed"), due, rests.into()),
        // An uncertain outcome, a cancel and a rejected request need an operator.
        (broken(0, "outcome-unknown"), due, rests.into()),
        (broken(0, "part-failed"), due, rests.into()),
        (broken(0, "capability-missing"), due, rests.into()),
        (broken(0, ""), due, rests.into()),
    ];
    for owner in [rack(), person()] {
        for (state, now, expected) in &table {
            let host = host(state.clone(), accepted_request(owner.clone()));
            assert_eq!(describe_next(&host, &context(), *now), *expected, "{host:?}");
        }
    }
    let short = HostTurnInput { retry_interval: Duration::from_secs(1), ..context() };
    let quick = host(broken(0, "effect-failed"), accepted_request(person()));
    assert_eq!(describe_next(&quick, &short, SINCE + 1), "Checking 1");
}

/// The rack's operation is resumed by its own actions; its later results count for the host.
#[test]
fn what_the_rack_does_after_a_failure_counts() {
    let failed_host = host(broken(0, "effect-failed"), accepted_request(rack()));
    let part = |run: Run| HostTurnInput { child_run: Some(run), ..context() };
    let table = [
        (
            part(failed("op-old", FaultCode::EffectFailed)),
            "until 700: it broke; it is tried again then",
        ),
        (part(run("op-part", Workflow::Running, None)), "Waiting"),
        (part(run("op-part", Workflow::Completed, None)), "Ready, asked nothing"),
    ];
    for (observed, expected) in table {
        assert_eq!(describe_next(&failed_host, &observed, 200), expected, "{observed:?}");
    }
}

/// An operator may resume the failed run by its own actions.
#[test]
fn what_a_person_does_with_the_failed_run_counts() {
    let stuck = host(broken(3, "outcome-unknown"), accepted_request(person()));
    let old = |workflow| HostTurnInput { run: Some(run("op-old", workflow, None)), ..context() };
    let table = [
        (old(Workflow::Running), "rests: operation op-old goes on with what had failed"),
        (old(Workflow::Completed), "Ready, asked nothing"),
        (old(Workflow::Reconciled), "Ready, asked nothing"),
        (old(Workflow::Cancelled), "rests: it broke; a person is waited for"),
    ];
    for (observed, expected) in table {
        assert_eq!(describe_next(&stuck, &observed, 200), expected, "{observed:?}");
    }
    let unwanted = Host { request: None, ..stuck };
    let stops = "Failed 3, stops op-old, asked nothing";
    assert_eq!(describe_next(&unwanted, &old(Workflow::Running), 200), stops);
    // An operation on the whole rack is not canceled for one machine.
    let mut of_rack = run("op-old", Workflow::Running, None);
    of_rack.spec.target = TargetId::new(TargetKind::Rack, "rack-1");
    assert_eq!(
        unwanted.admit_withdrawal(Some(&of_rack)).unwrap_err().reason.as_str(),
        "REPROVISION_OF_RACK"
    );
    let observed = HostTurnInput { run: Some(of_rack), ..context() };
    assert_eq!(describe_next(&unwanted, &observed, 200), "Ready, asked nothing");
}

/// Every state can be left: a withdrawn request leads to Ready, once the active run has stopped.
#[test]
fn a_canceled_request_does_not_wait() {
    assert_eq!(
        describe_next(&host(HostState::Ready, None), &context(), 200),
        "rests: no request is pending"
    );
    for state in [checking(0), WAITING, broken(3, "outcome-unknown")] {
        assert_eq!(describe_next(&host(state, None), &context(), 200), "Ready, asked nothing");
    }
    let busy = with_run(host(checking(0), None));
    let mut own = run("op-own", Workflow::Running, None);
    let going = HostTurnInput { run: Some(own.clone()), ..context() };
    assert_eq!(describe_next(&busy, &going, 200), "Checking 0, stops op-own, asked nothing");
    own.progress.stop_request = Some(StopRequest {
        kind: StopKind::Cancel,
        reason: String::new(),
        by: String::new(),
        undoing: false,
    });
    let stopping = HostTurnInput { run: Some(own), ..context() };
    assert_eq!(describe_next(&busy, &stopping, 200), "rests: its operation is being stopped");
    let ended = HostTurnInput { run: Some(run("op-own", Workflow::Cancelled, None)), ..context() };
    assert_eq!(describe_next(&busy, &ended, 200), "Ready, asked nothing");
}

#[test]
fn an_operator_may_ask_from_ready_and_to_start_over() {
    for (host, admitted) in [
        (host(HostState::Ready, None), true),
        (host(HostState::Ready, fresh(rack())), false),
        (host(checking(0), accepted_request(person())), false),
        (host(WAITING, accepted_request(rack())), false),
        (host(broken(0, "effect-failed"), accepted_request(rack())), true),
        (host(broken(0, "effect-failed"), fresh(person())), false),
    ] {
        assert_eq!(host.admit().is_ok(), admitted, "{host:?}");
    }
}

#[test]
fn every_state_but_ready_says_why_and_what_to_type() {
    assert_eq!(host(HostState::Ready, None).explain(&context(), at(200)), None);
    for (state, owner) in [
        (checking(0), person()),
        (WAITING, rack()),
        (broken(0, "effect-failed"), person()),
        (broken(3, "effect-failed"), rack()),
    ] {
        let name = state.name();
        let reported = host(state, accepted_request(owner)).explain(&context(), at(200)).unwrap();
        assert!(reported.headline.contains(name), "{reported:?}");
        assert!(!reported.waiting_for.is_empty() && !reported.normal.is_empty(), "{reported:?}");
        let cancel = "farrier machine reprovision m-1 --cancel";
        assert!(reported.next_commands.iter().any(|command| command == cancel), "{reported:?}");
    }
    let retried = host(broken(0, "effect-failed"), accepted_request(person()));
    let reported = retried.explain(&context(), at(200)).unwrap();
    assert_eq!(reported.waiting_for, "the next attempt, in 8m 20s");
}
