//! After how many probes a condition changes.

use ConditionType::{Degraded, Drained, Reachable};
use ProbeContext::{AfterChange, Routine, Settling};
use model::condition::hysteresis::{HysteresisLimits, PendingObservations, ProbeContext};
use model::condition::{ConditionObservation, ConditionType, Conditions};
use model::time::Timestamp;

const AT: Timestamp = Timestamp::from_millis(1);

/// Feeds probes one after the other; returns which of them changed the known condition.
fn story(
    condition: ConditionType,
    first: Option<(bool, &str)>,
    probes: &[(bool, &str, ProbeContext)],
) -> Vec<bool> {
    let mut known = Conditions::default();
    if let Some((status, reason)) = first {
        known.observe(&ConditionObservation::new(condition, status, reason), AT);
    }
    let mut doubts = PendingObservations::default();
    let mut changed = Vec::new();
    for (status, reason, time) in probes {
        let observed = vec![ConditionObservation::new(condition, *status, *reason)];
        let believed =
            doubts.accept_confirmed(&known, observed, *time, HysteresisLimits::default());
        changed.push(!believed.is_empty());
        for one in believed {
            assert!(known.observe(&one, AT), "what is believed is news");
            assert!(!doubts.is_pending(condition));
        }
    }
    changed
}

#[test]
fn bad_news_takes_three_looks_in_a_row_and_good_news_two() {
    let (up, down) = ((true, "ok", Routine), (false, "no", Routine));
    for (first, probes, expected) in [
        (None, vec![down], vec![true]),
        (None, vec![up, up], vec![true, false]),
        (Some((true, "ok")), vec![down, down, down, down], vec![false, false, true, false]),
        (Some((true, "ok")), vec![down, down, up, down, down], vec![false; 5]),
        (Some((false, "no")), vec![up, up, up], vec![false, true, false]),
        (Some((false, "no")), vec![up, down, up, down], vec![false; 4]),
        (Some((true, "ok")), vec![(false, "no", AfterChange)], vec![true]),
        (Some((false, "no")), vec![(true, "ok", AfterChange), down], vec![true, false]),
        (Some((false, "no")), vec![(true, "ok", Settling), down], vec![true, false]),
        (Some((true, "ok")), vec![(false, "no", Settling); 3], vec![false, false, true]),
    ] {
        assert_eq!(story(Reachable, first, &probes), expected, "{first:?} {probes:?}");
    }
}

#[test]
fn what_is_bad_differs() {
    let ill = (true, "Fan 1", Routine);
    let well = (false, "Healthy", Routine);
    assert_eq!(story(Degraded, Some((false, "Healthy")), &[ill; 3]), [false, false, true]);
    assert_eq!(story(Degraded, Some((true, "Fan 1")), &[well; 2]), [false, true]);
    // A cordon is never a probe error.
    let cordoned = (true, "Cordoned", Routine);
    assert_eq!(story(Drained, Some((false, "Schedulable")), &[cordoned]), [true]);
}

#[test]
fn a_reason_alone_is_not_news_each_time() {
    let (slow, gone) = ((false, "Silent", Routine), (false, "refused", Routine));
    let first = Some((false, "Silent"));
    assert_eq!(story(Reachable, first, &[gone, slow, gone, slow, gone]), [false; 5]);
    assert_eq!(story(Reachable, first, &[gone; 3]), [false, false, true]);
    // A reason that differs on every probe is still recorded after every third probe.
    let fresh: Vec<_> = ["a", "b", "c", "d"].map(|words| (false, words, Routine)).into();
    assert_eq!(story(Reachable, first, &fresh), [false, false, true, false]);
}
