//! Heartbeats: which nodes go offline and which become active again; and mass outages.

use super::state;
use crate::support::at;
use model::id::NodeId;
use model::node::NodeState;
use model::node::silence::{self, Flood, Heard, Limits, Verdict, When, judge};
use std::time::Duration;

const NOW: i64 = 100_000;

/// Offline after 100 seconds; a mass outage is five nodes and a fifth of them, and keeps nodes in
/// their state for 1,000 seconds.
fn limits() -> Limits {
    Limits {
        silence: Duration::from_secs(100),
        flood_percent: 20,
        flood_least: 5,
        flood_hold: Duration::from_secs(1_000),
    }
}

fn when() -> When {
    When { now: at(NOW), listening_since: at(0), flooded_since: None }
}

/// A node whose last heartbeat was `ago` seconds ago, or never.
fn heard(name: usize, state: NodeState, ago: Option<i64>, problems: &str) -> Heard {
    let (at, changed_at) = (ago.map(|ago| at(NOW - ago)), at(0));
    let node = NodeId::trusted(format!("node-{name}"));
    Heard { node, state, at, problems: problems.into(), lost_at: None, changed_at }
}

fn moved(verdict: &Verdict) -> Vec<(&str, &str)> {
    verdict.moves.iter().map(|one| (one.node.as_str(), one.to.as_str())).collect()
}

/// The transition of one node among many healthy ones.
fn one(state: NodeState, ago: Option<i64>, problems: &str, when: When) -> Option<String> {
    let mut all: Vec<Heard> = (1..100).map(|n| heard(n, NodeState::Active, Some(1), "")).collect();
    all.push(heard(100, state, ago, problems));
    if when.listening_since == at(0) {
        let nothing = Verdict { expects: true, ..Verdict::default() };
        assert_eq!(judge(&all[..99], &limits(), when), nothing);
    }
    let verdict = judge(&all, &limits(), when);
    assert_eq!(verdict.flood, None);
    assert!(verdict.moves.len() <= 1, "{verdict:?}");
    verdict.moves.first().map(|one| {
        assert_eq!(one.node.as_str(), "node-100");
        assert!(!one.why.is_empty());
        one.to.to_string()
    })
}

#[test]
fn every_state_by_what_is_heard() {
    // Columns: healthy heartbeat just now; a while ago; at the limit; beyond it; never; a heartbeat
    // with a problem.
    let table = [
        ("active", [None, None, None, Some("offline"), Some("offline"), Some("offline")]),
        ("offline", [Some("active"), None, None, None, None, None]),
        ("bootstrap_issued", [None; 6]),
        ("enrolling", [None; 6]),
        ("quarantined", [None; 6]),
        ("draining", [None; 6]),
        ("retired", [None; 6]),
        ("removing", [None; 6]),
        ("deleted", [None; 6]),
    ];
    assert_eq!(table.len(), NodeState::ALL.len());
    let columns = [
        (Some(50), ""),
        (Some(51), ""),
        (Some(100), ""),
        (Some(101), ""),
        (None, ""),
        (Some(1), "a GPU is lost"),
    ];
    for (word, row) in table {
        for ((ago, problems), expected) in columns.into_iter().zip(row) {
            let found = one(state(word), ago, problems, when());
            assert_eq!(found.as_deref(), expected, "{word}: {ago:?} {problems}");
        }
    }
}

#[test]
fn a_move_says_why() {
    let all = [
        heard(1, NodeState::Active, Some(101), ""),
        heard(2, NodeState::Active, Some(1), "a GPU is lost"),
        heard(3, NodeState::Offline, Some(1), ""),
    ];
    let verdict = judge(&all, &limits(), when());
    assert_eq!(
        moved(&verdict),
        [("node-1", "offline"), ("node-2", "offline"), ("node-3", "active")]
    );
    assert!(verdict.moves[0].why.starts_with("not heard of for "), "{verdict:?}");
    assert!(verdict.moves[1].why.contains("a GPU is lost"));
    assert_eq!([0, 1, 2].map(|n: usize| verdict.moves[n].lost), [true, false, false]);
}

/// A controller that just started has received no heartbeats yet: that is not silence.
#[test]
fn a_controller_that_has_just_come_waits() {
    for (since, expected) in [(50, None), (100, None), (101, Some("offline"))] {
        let when = When { listening_since: at(NOW - since), ..when() };
        for ago in [Some(5_000), None] {
            let found = one(NodeState::Active, ago, "", when);
            assert_eq!(found.as_deref(), expected, "listening for {since}, {ago:?}");
        }
    }
    // It takes no node for active without a heartbeat.
    let when = When { listening_since: at(NOW - 1), ..when() };
    assert_eq!(one(NodeState::Offline, None, "", when), None);
}

/// A node that just came into service could not send heartbeats before; its silence counts from
/// then on.
#[test]
fn a_node_that_has_just_come_is_waited_for() {
    for (ago, silent) in [(1, false), (100, false), (101, true)] {
        for state in [NodeState::Active, NodeState::Offline] {
            let new = Heard { changed_at: at(NOW - ago), ..heard(1, state, None, "") };
            let moves = judge(&[new], &limits(), when()).moves.len();
            assert_eq!(moves, usize::from(silent && state == NodeState::Active), "{ago}");
        }
        // The time of the last heartbeat counts, if there is one.
        let old = Heard { changed_at: at(NOW), ..heard(1, NodeState::Active, Some(ago), "") };
        assert_eq!(judge(&[old], &limits(), when()).moves.len(), usize::from(silent), "{ago}");
    }
}

/// Heartbeats from before the controller started prove nothing.
#[test]
fn what_was_heard_long_ago_makes_nobody_active() {
    let when = When { listening_since: at(NOW - 1), ..when() };
    assert_eq!(one(NodeState::Offline, Some(5_000), "", when), None);
}

fn fleet(silent: usize, well: usize, ago: i64) -> Vec<Heard> {
    let silent = (0..silent).map(|n| heard(n, NodeState::Active, Some(ago), ""));
    let well = (1_000..1_000 + well).map(|n| heard(n, NodeState::Active, Some(1), ""));
    silent.chain(well).collect()
}

#[test]
fn too_many_at_once_are_a_flood() {
    for (silent, well, flood, held) in [
        // A fifth of the nodes, and at least five.
        (5, 20, true, true),
        (5, 21, false, false),
        (5, 0, true, true),
        (20, 80, true, true),
        (19, 81, false, false),
        // If all of a few nodes are silent, an alert is raised, but they go offline.
        (4, 0, true, false),
        (2, 0, true, false),
        (4, 1, false, false),
        (1, 0, false, false),
    ] {
        let verdict = judge(&fleet(silent, well, 101), &limits(), when());
        let of = silent + well;
        assert_eq!(verdict.flood, flood.then_some(Flood { count: silent, of }), "{silent} of {of}");
        let moves = if held { 0 } else { silent };
        assert_eq!(verdict.moves.len(), moves, "{silent} of {of}");
        assert!(verdict.moves.iter().all(|one| one.lost));
    }
}

/// Nodes at half of the limit reveal a mass outage before the first node is moved.
#[test]
fn a_flood_is_seen_before_it_is_there() {
    let mut all = fleet(5, 5, 51);
    all[0].at = Some(at(NOW - 101));
    let verdict = judge(&all, &limits(), when());
    assert_eq!(verdict.flood, Some(Flood { count: 5, of: 10 }));
    assert_eq!(verdict.moves, []);
    // Nodes that were not in service do not count.
    let mut all = fleet(5, 5, 101);
    all[0].state = NodeState::Offline;
    let verdict = judge(&all, &limits(), when());
    assert_eq!((verdict.flood, verdict.moves.len()), (None, 4));
    assert!(verdict.moves.iter().all(|one| one.lost));
}

#[test]
fn a_flood_holds_for_a_while_and_then_they_are_offline() {
    let all = fleet(10, 10, 101);
    for (since, moves) in [(0, 0), (999, 0), (1_000, 10), (5_000, 10)] {
        let when = When { flooded_since: Some(at(NOW - since)), ..when() };
        let verdict = judge(&all, &limits(), when);
        assert_eq!(verdict.flood, Some(Flood { count: 10, of: 20 }));
        assert_eq!(verdict.moves.len(), moves, "since {since}");
    }
    // The mass outage is over, so it has no effect.
    let when = When { flooded_since: Some(at(NOW - 5)), ..when() };
    let verdict = judge(&fleet(1, 19, 101), &limits(), when);
    assert_eq!((verdict.flood, verdict.moves.len()), (None, 1));
}

/// Nodes that went offline in a mass outage still belong to it. It ends when enough of them send
/// heartbeats.
#[test]
fn a_flood_lasts_until_enough_are_heard() {
    let lost = |mut all: Vec<Heard>, count: usize, lost_at: i64| {
        for one in &mut all[..count] {
            (one.state, one.lost_at) = (NodeState::Offline, Some(at(lost_at)));
        }
        all
    };
    let when = When { flooded_since: Some(at(NOW - 2_000)), ..when() };
    let flood = |all: &[Heard]| judge(all, &limits(), when).flood;
    let all = lost(fleet(10, 10, 1_900), 10, NOW - 1_000);
    assert_eq!(flood(&all), Some(Flood { count: 10, of: 20 }));
    assert_eq!(judge(&all, &limits(), when).moves, []);
    for (heard, still) in [(4, true), (5, true), (6, false), (10, false)] {
        let mut all = all.clone();
        for one in &mut all[..heard] {
            (one.at, one.lost_at) = (Some(at(NOW)), None);
        }
        let verdict = judge(&all, &limits(), when);
        assert_eq!(verdict.flood.is_some(), still, "{heard} are heard");
        assert_eq!(verdict.moves.len(), heard);
    }
    // A controller that just started still counts them.
    let fresh = When { listening_since: at(NOW - 1), ..when };
    assert_eq!(judge(&all, &limits(), fresh).flood, Some(Flood { count: 10, of: 20 }));
    // Nodes that were lost earlier, or are out of service now, do not belong to it.
    assert_eq!(flood(&lost(fleet(10, 10, 9_000), 10, NOW - 2_001)), None);
    let mut all = all;
    all[..6].iter_mut().for_each(|one| one.state = NodeState::Retired);
    assert_eq!(flood(&all), None);
    // Without a mass outage, lost nodes do not belong to one.
    assert_eq!(judge(&lost(fleet(10, 10, 101), 10, NOW), &limits(), self::when()).flood, None);
    // If all of a few nodes are lost, the alert stays as well.
    assert_eq!(flood(&lost(fleet(2, 0, 1_900), 2, NOW - 5)), Some(Flood { count: 2, of: 2 }));
}

/// If no site is heard, Farrier itself is cut off.
#[test]
fn silence_everywhere_is_not_the_sites() {
    let judged = |silent, well| judge(&fleet(silent, well, 101), &limits(), when());
    for (places, everywhere) in [
        (vec![], false),
        (vec![(9, 0)], false),
        (vec![(9, 0), (9, 0)], true),
        // A site without nodes in service does not count.
        (vec![(9, 0), (9, 0), (0, 0)], true),
        (vec![(9, 0), (0, 0)], false),
        (vec![(9, 0), (0, 9)], false),
        (vec![(9, 0), (9, 1), (2, 0)], true),
    ] {
        let verdicts: Vec<Verdict> = places.iter().map(|(s, w)| judged(*s, *w)).collect();
        assert_eq!(silence::everywhere(verdicts.iter()), everywhere, "{places:?}");
    }
}

/// A mass outage prevents neither a return to active nor a reported problem.
#[test]
fn a_flood_does_not_hide_what_is_said() {
    let mut all = fleet(10, 10, 101);
    all.push(heard(500, NodeState::Offline, Some(1), ""));
    all.push(heard(501, NodeState::Active, Some(1), "a GPU is lost"));
    let verdict = judge(&all, &limits(), when());
    assert!(verdict.flood.is_some());
    assert_eq!(moved(&verdict), [("node-500", "active"), ("node-501", "offline")]);
}

#[test]
fn nobody_is_no_flood() {
    assert_eq!(judge(&[], &limits(), when()), Verdict::default());
    assert_eq!(Limits::default().flood(0, 0), None);
}
