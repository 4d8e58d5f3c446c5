//! The decisions about the waves, and the requests of operators in every state.

use super::rollout;
use crate::support::at;
use model::id::{MachineId, RunId};
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::refusal::Reason;
use model::rollout::{
    BatchSize, FailureGroup, FailureLimit, Pace, Rollout, RolloutPause, RolloutRequest,
    RolloutStage, RolloutTurnInput, TargetCounts, TargetState, apply_rollout_request, check_skip,
    explain_rollout, plan_targets,
};
use model::time::Timestamp;
use model::why::{Urgency, rank_rollout};

fn open(due_now: bool, next_due: Option<i64>) -> RolloutTurnInput {
    RolloutTurnInput { wave_open: true, due_now, next_due: next_due.map(at) }
}

#[track_caller]
fn next(rollout: &Rollout, seen: RolloutTurnInput, now: i64) -> (Rollout, String) {
    match rollout.next(&seen, at(now)) {
        LifecycleDecision::Transition(change) => (change.record.clone(), change.note.message),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn idles(rollout: &Rollout, seen: RolloutTurnInput, now: i64) -> Option<Timestamp> {
    match rollout.next(&seen, at(now)) {
        LifecycleDecision::Idle(_) => None,
        LifecycleDecision::IdleUntil(until, _) => Some(until),
        other => panic!("{other:?}"),
    }
}

/// The counts after all targets of the begun waves are done.
fn all_done(rollout: &mut Rollout) {
    let count = rollout.wave_end - rollout.counts.done;
    rollout.counts.shift(TargetState::Pending, TargetState::Done, count);
}

#[test]
fn a_rollout_goes_through_its_waves() {
    let pace = Pace {
        canary: 1,
        batch: BatchSize::Count(2),
        soak_seconds: 60,
        wave_approval: true,
        ..Pace::default()
    };
    let mut one = rollout(4, pace);
    one.spec.start_at = Some(at(50));
    assert_eq!(idles(&one, open(false, None), 49), Some(at(50)));
    let settled = RolloutTurnInput::default();
    let (mut one, note) = next(&one, settled, 50);
    assert_eq!(
        (one.wave, one.wave_end, note.as_str()),
        (1, 1, "wave 1 begins, with 1 of 4 targets")
    );
    assert_eq!(idles(&one, open(true, None), 51), Some(at(51)));
    assert_eq!(idles(&one, open(false, Some(70)), 51), Some(at(70)));
    assert_eq!(idles(&one, open(false, None), 51), None);
    all_done(&mut one);
    let (one, _) = next(&one, settled, 60);
    assert_eq!(one.stage, RolloutStage::Soaking { until: at(120) });
    assert_eq!(idles(&one, settled, 119), Some(at(120)));
    let (one, _) = next(&one, settled, 120);
    assert_eq!((one.stage, one.state_name()), (RolloutStage::AwaitingApproval, "AwaitingApproval"));
    assert_eq!(idles(&one, settled, 500), None);
    let promoted = apply_rollout_request(&one, &RolloutRequest::Promote, "ada", at(501));
    let (mut one, note) = promoted.unwrap().unwrap();
    assert_eq!((one.wave, one.wave_end), (2, 3));
    assert_eq!(note.message, "promoted: wave 2 begins, with 2 of 4 targets");
    all_done(&mut one);
    one.spec.pace = Pace { canary: 1, batch: BatchSize::Count(2), ..Pace::default() };
    let (mut one, _) = next(&one, settled, 502);
    assert_eq!((one.wave, one.wave_end), (3, 4));
    all_done(&mut one);
    // No soak and no approval after the last wave.
    one.spec.pace.soak_seconds = 60;
    let (one, note) = next(&one, settled, 503);
    assert_eq!((one.stage, one.state_name()), (RolloutStage::Done, "Done"));
    assert_eq!(note, "all 4 targets are settled: 4 done");
    let gone = one.next(&settled, at(500 * 86_400));
    assert!(matches!(gone, LifecycleDecision::Remove(_)), "{gone:?}");
}

#[test]
fn failures_beyond_the_limit_pause_it_until_a_person_accepts_them() {
    let pace =
        Pace { batch: BatchSize::Count(10), stop_after: FailureLimit::Count(2), ..Pace::default() };
    let (mut one, _) = next(&rollout(20, pace), RolloutTurnInput::default(), 0);
    one.counts = TargetCounts { pending: 15, active: 4, failed: 1, ..TargetCounts::default() };
    assert_eq!(idles(&one, open(false, None), 1), None);
    assert!(one.free_slots(at(0)) > 0);
    one.counts.shift(TargetState::Active, TargetState::Failed, 1);
    let (paused, note) = next(&one, open(false, None), 2);
    assert_eq!(note, "paused: 2 of 20 targets failed; what runs finishes");
    assert_eq!((paused.state_name(), paused.free_slots(at(0))), ("Paused", 0));
    assert_eq!(idles(&paused, open(false, None), 3), None);
    let resumed = apply_rollout_request(&paused, &RolloutRequest::Resume, "ada", at(4));
    let (resumed, _) = resumed.unwrap().unwrap();
    assert_eq!((resumed.state_name(), resumed.new_failures()), ("Running", 0));
    assert_eq!(idles(&resumed, open(false, None), 5), None);
    // Failures of the last targets end it: there is nothing left to hold back.
    let mut last = resumed;
    last.counts = TargetCounts { done: 10, failed: 10, ..TargetCounts::default() };
    last.wave_end = 20;
    let (ended, _) = next(&last, RolloutTurnInput::default(), 6);
    assert_eq!(ended.state_name(), "Done");
}

#[test]
fn slots_are_what_the_limit_leaves() {
    let pace = Pace { max_in_flight: Some(3), ..Pace::default() };
    let mut one = rollout(9, pace);
    assert_eq!(one.free_slots(at(0)), 0);
    one.stage = RolloutStage::Running;
    one.counts.active = 2;
    assert_eq!(one.free_slots(at(0)), 1);
    one.counts.active = 5;
    assert_eq!(one.free_slots(at(0)), 0);
    one.spec.pace.max_in_flight = None;
    assert!(one.free_slots(at(0)) > 1_000);
}

const STAGES: [RolloutStage; 7] = [
    RolloutStage::Waiting,
    RolloutStage::Running,
    RolloutStage::Soaking { until: Timestamp::from_millis(9_000_000) },
    RolloutStage::AwaitingApproval,
    RolloutStage::Aborting,
    RolloutStage::Done,
    RolloutStage::Aborted,
];

/// What each request does in each stage, without and with a pause: changes, nothing, refused.
#[test]
fn every_request_in_every_state() {
    let requests = [
        ("pause", RolloutRequest::Pause { reason: "lunch".into() }, "++++---", "....---"),
        ("resume", RolloutRequest::Resume, "-------", "++++---"),
        (
            "abort",
            RolloutRequest::Abort { cancel_running: false, reason: "wrong".into() },
            "++++.--",
            "++++---",
        ),
        (
            "abort and cancel",
            RolloutRequest::Abort { cancel_running: true, reason: "wrong".into() },
            "+++++--",
            "++++---",
        ),
        ("promote", RolloutRequest::Promote, "+-++---", "-------"),
        ("retry", RolloutRequest::RetryFailed, "++++-+-", "++++---"),
        (
            "update",
            RolloutRequest::Update(Box::new(Pace { soak_seconds: 5, ..Pace::default() })),
            "++++---",
            "++++---",
        ),
    ];
    for (name, request, plain, paused) in requests {
        for (pause, expected) in [(false, plain), (true, paused)] {
            for (stage, expected) in STAGES.into_iter().zip(expected.chars()) {
                // An ending rollout has no pause.
                if pause && (stage == RolloutStage::Aborting || stage.has_ended()) {
                    continue;
                }
                let mut one = rollout(9, Pace::default());
                one.stage = stage;
                one.counts = TargetCounts { pending: 8, failed: 1, ..TargetCounts::default() };
                one.pause = pause.then(|| RolloutPause {
                    reason: "lunch".into(),
                    by: "ada".into(),
                    since: at(0),
                });
                let found = match apply_rollout_request(&one, &request, "ada", at(1)) {
                    Ok(Some((after, _))) => {
                        assert_ne!(after, one);
                        '+'
                    }
                    Ok(None) => '.',
                    Err(refusal) => {
                        assert_eq!(refusal.reason, Reason::RolloutState);
                        assert_eq!(
                            refusal.next_command.as_deref(),
                            Some("farrier rollout get ro-1")
                        );
                        '-'
                    }
                };
                assert_eq!(found, expected, "{name} at {stage:?}, paused: {pause}");
            }
        }
    }
}

#[test]
fn requests_count_the_targets_that_they_change() {
    let mut one = rollout(9, Pace::default());
    one.stage = RolloutStage::Running;
    one.counts =
        TargetCounts { pending: 3, waiting: 2, active: 1, failed: 3, ..TargetCounts::default() };
    let abort = RolloutRequest::Abort { cancel_running: true, reason: "wrong".into() };
    let (aborted, _) = apply_rollout_request(&one, &abort, "ada", at(1)).unwrap().unwrap();
    assert_eq!((aborted.counts.skipped, aborted.counts.active), (5, 1));
    assert_eq!((aborted.counts.pending, aborted.counts.waiting), (0, 0));
    assert_eq!(idles(&aborted, open(false, None), 2), None);
    let retry = RolloutRequest::RetryFailed;
    let (again, _) = apply_rollout_request(&one, &retry, "ada", at(1)).unwrap().unwrap();
    assert_eq!((again.counts.failed, again.counts.pending), (0, 6));
    one.counts.failed = 0;
    assert!(apply_rollout_request(&one, &retry, "ada", at(1)).is_err());
    // The canary is over when the pace can change.
    let pace = Pace { canary: 7, soak_seconds: 1, ..Pace::default() };
    let update = RolloutRequest::Update(Box::new(pace));
    let (slower, note) = apply_rollout_request(&one, &update, "ada", at(1)).unwrap().unwrap();
    assert_eq!((slower.spec.pace.canary, slower.spec.pace.soak_seconds), (0, 1));
    assert_eq!(note.message, "pace changed: soak 0s → 1s");
}

#[test]
fn only_a_target_that_is_not_at_work_can_be_skipped() {
    let one = rollout(1, Pace::default());
    let row = plan_targets(&[MachineId::trusted("m-1")], at(0)).remove(0);
    for state in TargetState::ALL {
        for run in [None, Some(RunId::trusted("op-1"))] {
            let mut row = row.clone();
            (row.state, row.run) = (state, run.clone());
            let idle = matches!(state, TargetState::Pending | TargetState::Waiting)
                || (state == TargetState::Active && run.is_none());
            let checked = check_skip(&one, &row);
            assert_eq!(checked.is_ok(), idle, "{state:?} {run:?}");
            if let Err(refusal) = checked {
                let next = refusal.next_command.unwrap();
                let at_work = state == TargetState::Active;
                assert_eq!(next.starts_with("farrier operation cancel op-1"), at_work, "{next}");
            }
        }
    }
}

#[test]
fn a_rollout_that_waits_for_a_person_is_in_the_list_of_attention() {
    for stage in STAGES {
        for paused in [false, true] {
            let mut one = rollout(9, Pace::default());
            one.stage = stage;
            if paused {
                one = one.paused("lunch", "ada", at(5));
            }
            let rank = rank_rollout(&one);
            assert_eq!(rank.is_some(), Rollout::STOPPED.contains(&one.state_name()), "{one:?}");
            if let Some(rank) = rank {
                assert_eq!(rank.urgency, Urgency::Stopped);
            }
        }
    }
}

#[test]
fn why_names_the_wait_the_failures_and_the_next_command() {
    let mut one = rollout(9, Pace::default());
    one.counts = TargetCounts { pending: 6, waiting: 1, failed: 2, ..TargetCounts::default() };
    let failures = [FailureGroup {
        fault: "bmc-unreachable".into(),
        count: 2,
        example: "m-1".into(),
        reason: "operation: no answer".into(),
    }];
    let mut waits = plan_targets(&[MachineId::trusted("m-3")], at(0));
    waits[0].reason = "held by op-7".into();
    for (stage, waiting_for, next) in [
        (RolloutStage::Waiting, "its start time", "promote"),
        (RolloutStage::Running, "wave 0: 0 active and 1 waiting targets", "watch"),
        (
            RolloutStage::Soaking { until: at(60) },
            "the end of the soak after wave 0, in 1m 0s",
            "promote",
        ),
        (
            RolloutStage::AwaitingApproval,
            "a person, who lets the wave after wave 0 begin",
            "promote",
        ),
        (RolloutStage::Aborting, "the end of 0 active targets", "watch"),
        (RolloutStage::Done, "", "targets"),
        (RolloutStage::Aborted, "", "targets"),
    ] {
        one.stage = stage;
        let told = explain_rollout(&one, &failures, &waits, at(0));
        assert_eq!(told.waiting_for, waiting_for, "{stage:?}");
        let first = &told.next_commands[0];
        assert!(first.starts_with(&format!("farrier rollout {next} ro-1")), "{first}");
        assert_eq!(told.failed, "2 × bmc-unreachable, such as m-1: operation: no answer");
        assert_eq!(told.notes, ["m-3: held by op-7"]);
        assert!(told.headline.contains("6 pending, 1 waiting, 2 failed"), "{}", told.headline);
    }
    one.stage = RolloutStage::Running;
    let paused = one.paused("2 of 9 targets failed", "engine", at(5));
    let told = explain_rollout(&paused, &failures, &[], at(9));
    assert_eq!(told.waiting_for, "a person: engine paused it: 2 of 9 targets failed");
    assert_eq!(
        (told.since, told.next_commands[0].as_str()),
        (Some(at(5)), "farrier rollout resume ro-1")
    );
}
