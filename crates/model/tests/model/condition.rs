//! Conditions: transitions, derived health, stored bits.

mod hysteresis;
mod poll_state;

use model::condition::{ConditionObservation, ConditionType, Conditions, derive_degraded};
use model::time::Timestamp;

#[test]
fn the_last_transition_moves_with_the_status_only() {
    let mut known = Conditions::default();
    let at = Timestamp::from_millis;
    let observed =
        |status, reason: &str| ConditionObservation::new(ConditionType::Reachable, status, reason);
    assert!(known.observe(&observed(true, "PingOK"), at(1)));
    assert!(!known.observe(&observed(true, "PingOK"), at(2)));
    assert!(known.observe(&observed(true, "SshOK"), at(3)));
    assert_eq!(known.get(ConditionType::Reachable).unwrap().last_transition, at(1));
    assert!(known.observe(&observed(false, "Timeout"), at(4)));
    assert_eq!(known.get(ConditionType::Reachable).unwrap().last_transition, at(4));
    assert_eq!(known.bits(), 0);
}

#[test]
fn health_follows_from_what_can_be_reached_and_from_the_parts() {
    use ConditionType::{BmcReachable, Degraded, Drained, Reachable};
    let saw = |condition, status| ConditionObservation::new(condition, status, "why");
    let well = vec![saw(Reachable, true), saw(BmcReachable, true)];
    let lost = vec![saw(Reachable, true), saw(BmcReachable, false)];
    let (fan, fine) = (
        ConditionObservation::new(Degraded, true, "Fan 1"),
        ConditionObservation::new(Degraded, false, "fine"),
    );
    for (observed, parts, worked_on, expected) in [
        (vec![], None, false, None),
        (vec![saw(Drained, false)], None, false, None),
        (vec![], Some(&fine), false, Some((false, "Healthy"))),
        (vec![], Some(&fan), false, Some((true, "Fan 1"))),
        (well.clone(), None, false, Some((false, "Healthy"))),
        (well.clone(), None, true, Some((false, "Healthy"))),
        (well.clone(), Some(&fan), true, Some((true, "Fan 1"))),
        (lost.clone(), None, false, Some((true, "BMCReachable:why"))),
        (lost.clone(), Some(&fan), false, Some((true, "BMCReachable:why"))),
        (lost.clone(), None, true, None),
        (lost.clone(), Some(&fine), true, None),
        (lost, Some(&fan), true, Some((true, "Fan 1"))),
    ] {
        let found = derive_degraded(&observed, parts, worked_on);
        let found = found.as_ref().map(|one| (one.status, one.reason.as_str()));
        assert_eq!(found, expected, "{observed:?} {parts:?} {worked_on}");
    }
}

#[test]
fn bits_are_distinct_and_names_round_trip() {
    let all: i64 = ConditionType::ALL.iter().map(|condition| condition.bit()).sum();
    assert_eq!(all, (1 << ConditionType::ALL.len()) - 1);
    for condition in ConditionType::ALL {
        assert_eq!(ConditionType::parse(condition.as_str()), Some(*condition));
    }
}
