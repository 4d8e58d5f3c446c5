//! Rollouts and windows: their own window, and named windows and freezes that hold targets back.

use super::rollout;
use model::id::MachineId;
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::refusal::{Reason, Refusal, RefusingRule};
use model::rollout::{
    Pace, RefusedStart, Rollout, RolloutStage, RolloutTarget, RolloutTurnInput, TargetStage,
    TargetState, explain_rollout,
};
use model::time::Timestamp;
use model::window::{StartRuleId, StartRuleKind, WeeklyWindows};

const DAY: i64 = 86_400;

/// Seconds after midnight of 1970-01-01, a Thursday.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

/// A rollout at work whose targets are begun daily from 02:00 to 05:00.
fn nightly() -> Rollout {
    let window = WeeklyWindows::parse("window", "daily 02:00-05:00 UTC").ok();
    let mut one = rollout(9, Pace { window, ..Pace::default() });
    (one.stage, one.wave, one.wave_end) = (RolloutStage::Running, 1, 3);
    one.counts.active = 1;
    one
}

#[test]
fn targets_are_begun_only_while_its_window_is_open() {
    let one = nightly();
    for (hour, open) in [(0, false), (2, true), (4, true), (5, false), (23, false)] {
        let now = at(hour * 3_600);
        assert_eq!((one.free_slots(now) > 0, one.closed_window(now).is_none()), (open, open));
    }
    let always = Rollout { spec: rollout(9, Pace::default()).spec, ..nightly() };
    assert!(always.free_slots(at(0)) > 0 && always.closed_window(at(0)).is_none());
}

#[test]
fn it_wakes_when_its_window_opens_or_an_active_target_is_due() {
    let wakes = |next_due: Option<i64>, now: i64| {
        let seen = RolloutTurnInput { wave_open: true, due_now: false, next_due: next_due.map(at) };
        match nightly().next(&seen, at(now)) {
            LifecycleDecision::IdleUntil(until, _) => Some(until),
            LifecycleDecision::Idle(_) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wakes(None, 0), Some(at(2 * 3_600)));
    assert_eq!(wakes(None, 5 * 3_600), Some(at(DAY + 2 * 3_600)));
    assert_eq!(wakes(Some(60), 0), Some(at(60)));
    assert_eq!(wakes(Some(3 * 3_600), 0), Some(at(2 * 3_600)));
    assert_eq!(wakes(None, 3 * 3_600), None, "open: the end of the active target wakes it");
}

#[test]
fn why_says_when_the_window_opens() {
    let why = |now: i64| explain_rollout(&nightly(), &[], &[], at(now)).waiting_for;
    assert_eq!(
        why(0),
        "its window, which is closed until Thu 1970-01-01 02:00 UTC; \
         wave 1: 1 active and 0 waiting targets"
    );
    assert_eq!(why(3 * 3_600), "wave 1: 1 active and 0 waiting targets");
}

#[test]
fn a_changed_window_is_in_the_history() {
    let (before, after) = (Pace::default(), nightly().spec.pace);
    assert_eq!(before.differences(&after), ["window - → daily 02:00-05:00 UTC"]);
    let stored = serde_json::to_string(&after).unwrap();
    assert_eq!(serde_json::from_str::<Pace>(&stored).unwrap(), after);
}

/// A target that a window holds back is neither given up at the deadline nor failed.
#[test]
fn a_target_waits_for_a_named_window_as_long_as_it_takes() {
    let refusal = |opens_at: Option<Timestamp>| {
        let id = StartRuleId::trusted(StartRuleKind::Window, "night");
        Refusal::new(Reason::OutsideWindow, "closed").at_rule(RefusingRule { id, opens_at })
    };
    let rollout = nightly();
    let mut row = RolloutTarget::new(MachineId::trusted("m-1"), 0, at(0));
    for (now, opens_at, due) in [
        (0, Some(30), 30),
        (30, Some(DAY), 90),
        (90, None, 150),
        // Long after its deadline.
        (30 * DAY, Some(31 * DAY), 30 * DAY + 60),
    ] {
        let refusal = refusal(opens_at.map(at));
        let refused = row.refused(&rollout, TargetStage::Operation, &refusal, at(now));
        let RefusedStart::Target(after) = refused else { panic!("{refused:?}") };
        row = *after;
        assert_eq!((row.state, row.due_at), (TargetState::Waiting, Some(at(due))), "{now}");
        assert_eq!(row.reason, "closed (gate window:night)");
        assert_eq!((row.since, row.refused_since), (at(0), None));
    }
}
