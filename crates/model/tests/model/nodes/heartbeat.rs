//! Heartbeats: which nodes go offline and which become active again; and mass outages.

use super::state;
use crate::support::at;
use model::id::NodeId;
use model::node::NodeState;
use model::node::heartbeat::{
    self, AgentHeartbeat, HeartbeatClassification, HeartbeatLimits, HeartbeatTimes, MassOutage,
    classify_heartbeats,
};
use std::time::Duration;

const NOW: i64 = 100_000;

/// Offline after 100 seconds; a mass outage is five nodes and a fifth of them, and keeps nodes in
/// their state for 1,000 seconds.
fn limits() -> HeartbeatLimits {
    HeartbeatLimits {
        silence: Duration::from_secs(100),
        outage_percent: 20,
        outage_least: 5,
        outage_hold: Duration::from_secs(1_000),
    }
}

fn when() -> HeartbeatTimes {
    HeartbeatTimes { now: at(NOW), listening_since: at(0), outage_since: None }
}

/// A node whose last heartbeat was `ago` seconds ago, or never.
fn heartbeat(name: usize, state: NodeState, ago: Option<i64>, problems: &str) -> AgentHeartbeat {
    let (at, changed_at) = (ago.map(|ago| at(NOW - ago)), at(0));
    let node = NodeId::trusted(format!("node-{name}"));
    AgentHeartbeat { node, state, at, problems: problems.into(), lost_at: None, changed_at }
}

fn moved(classification: &HeartbeatClassification) -> Vec<(&str, &str)> {
    classification.transitions.iter().map(|one| (one.node.as_str(), one.to.as_str())).collect()
}

/// The transition of one node among many healthy ones.
fn one(state: NodeState, ago: Option<i64>, problems: &str, when: HeartbeatTimes) -> Option<String> {
    let mut all: Vec<AgentHeartbeat> =
        (1..100).map(|n| heartbeat(n, NodeState::Active, Some(1), "")).collect();
    all.push(heartbeat(100, state, ago, problems));
    if when.listening_since == at(0) {
        let nothing =
            HeartbeatClassification { expects: true, ..HeartbeatClassification::default() };
        assert_eq!(classify_heartbeats(&all[..99], &limits(), when), nothing);
    }
    let classification = classify_heartbeats(&all, &limits(), when);
    assert_eq!(classification.outage, None);
    assert!(classification.transitions.len() <= 1, "{classification:?}");
    classification.transitions.first().map(|one| {
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
    for (name, row) in table {
        for ((ago, problems), expected) in columns.into_iter().zip(row) {
            let found = one(state(name), ago, problems, when());
            assert_eq!(found.as_deref(), expected, "{name}: {ago:?} {problems}");
        }
    }
}

#[test]
fn a_move_says_why() {
    let all = [
        heartbeat(1, NodeState::Active, Some(101), ""),
        heartbeat(2, NodeState::Active, Some(1), "a GPU is lost"),
        heartbeat(3, NodeState::Offline, Some(1), ""),
    ];
    let classification = classify_heartbeats(&all, &limits(), when());
    assert_eq!(
        moved(&classification),
        [("node-1", "offline"), ("node-2", "offline"), ("node-3", "active")]
    );
    assert!(
        classification.transitions[0].why.starts_with("no heartbeat for "),
        "{classification:?}"
    );
    assert!(classification.transitions[1].why.contains("a GPU is lost"));
    assert_eq!([0, 1, 2].map(|n: usize| classification.transitions[n].lost), [true, false, false]);
}

/// A controller that just started has received no heartbeats yet: that is not silence.
#[test]
fn a_controller_that_has_just_come_waits() {
    for (since, expected) in [(50, None), (100, None), (101, Some("offline"))] {
        let when = HeartbeatTimes { listening_since: at(NOW - since), ..when() };
        for ago in [Some(5_000), None] {
            let found = one(NodeState::Active, ago, "", when);
            assert_eq!(found.as_deref(), expected, "listening for {since}, {ago:?}");
        }
    }
    // It takes no node for active without a heartbeat.
    let when = HeartbeatTimes { listening_since: at(NOW - 1), ..when() };
    assert_eq!(one(NodeState::Offline, None, "", when), None);
}

/// A node that just came into service could not send heartbeats before; its silence counts from
/// then on.
#[test]
fn a_node_that_has_just_come_is_waited_for() {
    for (ago, silent) in [(1, false), (100, false), (101, true)] {
        for state in [NodeState::Active, NodeState::Offline] {
            let new = AgentHeartbeat { changed_at: at(NOW - ago), ..heartbeat(1, state, None, "") };
            let moves = classify_heartbeats(&[new], &limits(), when()).transitions.len();
            assert_eq!(moves, usize::from(silent && state == NodeState::Active), "{ago}");
        }
        // The time of the last heartbeat counts, if there is one.
        let old = AgentHeartbeat {
            changed_at: at(NOW),
            ..heartbeat(1, NodeState::Active, Some(ago), "")
        };
        assert_eq!(
            classify_heartbeats(&[old], &limits(), when()).transitions.len(),
            usize::from(silent),
            "{ago}"
        );
    }
}

/// Heartbeats from before the controller started prove nothing.
#[test]
fn what_was_heard_long_ago_makes_nobody_active() {
    let when = HeartbeatTimes { listening_since: at(NOW - 1), ..when() };
    assert_eq!(one(NodeState::Offline, Some(5_000), "", when), None);
}

fn fleet(silent: usize, well: usize, ago: i64) -> Vec<AgentHeartbeat> {
    let silent = (0..silent).map(|n| heartbeat(n, NodeState::Active, Some(ago), ""));
    let well = (1_000..1_000 + well).map(|n| heartbeat(n, NodeState::Active, Some(1), ""));
    silent.chain(well).collect()
}

#[test]
fn too_many_silent_nodes_are_a_mass_outage() {
    for (silent, well, outage, claimed) in [
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
        let classification = classify_heartbeats(&fleet(silent, well, 101), &limits(), when());
        let of = silent + well;
        assert_eq!(
            classification.outage,
            outage.then_some(MassOutage { count: silent, of }),
            "{silent} of {of}"
        );
        let moves = if claimed { 0 } else { silent };
        assert_eq!(classification.transitions.len(), moves, "{silent} of {of}");
        assert!(classification.transitions.iter().all(|one| one.lost));
    }
}

/// Nodes at half of the limit reveal a mass outage before the first node is moved.
#[test]
fn a_mass_outage_is_detected_early() {
    let mut all = fleet(5, 5, 51);
    all[0].at = Some(at(NOW - 101));
    let classification = classify_heartbeats(&all, &limits(), when());
    assert_eq!(classification.outage, Some(MassOutage { count: 5, of: 10 }));
    assert_eq!(classification.transitions, []);
    // Nodes that were not in service do not count.
    let mut all = fleet(5, 5, 101);
    all[0].state = NodeState::Offline;
    let classification = classify_heartbeats(&all, &limits(), when());
    assert_eq!((classification.outage, classification.transitions.len()), (None, 4));
    assert!(classification.transitions.iter().all(|one| one.lost));
}

#[test]
fn a_mass_outage_delays_offline() {
    let all = fleet(10, 10, 101);
    for (since, moves) in [(0, 0), (999, 0), (1_000, 10), (5_000, 10)] {
        let when = HeartbeatTimes { outage_since: Some(at(NOW - since)), ..when() };
        let classification = classify_heartbeats(&all, &limits(), when);
        assert_eq!(classification.outage, Some(MassOutage { count: 10, of: 20 }));
        assert_eq!(classification.transitions.len(), moves, "since {since}");
    }
    // The mass outage is over, so it has no effect.
    let when = HeartbeatTimes { outage_since: Some(at(NOW - 5)), ..when() };
    let classification = classify_heartbeats(&fleet(1, 19, 101), &limits(), when);
    assert_eq!((classification.outage, classification.transitions.len()), (None, 1));
}

/// Nodes that went offline in a mass outage still belong to it. It ends when enough of them send
/// heartbeats.
#[test]
fn a_mass_outage_ends_after_enough_heartbeats() {
    let lost = |mut all: Vec<AgentHeartbeat>, count: usize, lost_at: i64| {
        for one in &mut all[..count] {
            (one.state, one.lost_at) = (NodeState::Offline, Some(at(lost_at)));
        }
        all
    };
    let when = HeartbeatTimes { outage_since: Some(at(NOW - 2_000)), ..when() };
    let outage = |all: &[AgentHeartbeat]| classify_heartbeats(all, &limits(), when).outage;
    let all = lost(fleet(10, 10, 1_900), 10, NOW - 1_000);
    assert_eq!(outage(&all), Some(MassOutage { count: 10, of: 20 }));
    assert_eq!(classify_heartbeats(&all, &limits(), when).transitions, []);
    for (heartbeat, still) in [(4, true), (5, true), (6, false), (10, false)] {
        let mut all = all.clone();
        for one in &mut all[..heartbeat] {
            (one.at, one.lost_at) = (Some(at(NOW)), None);
        }
        let classification = classify_heartbeats(&all, &limits(), when);
        assert_eq!(classification.outage.is_some(), still, "{heartbeat} are heard");
        assert_eq!(classification.transitions.len(), heartbeat);
    }
    // A controller that just started still counts them.
    let fresh = HeartbeatTimes { listening_since: at(NOW - 1), ..when };
    assert_eq!(
        classify_heartbeats(&all, &limits(), fresh).outage,
        Some(MassOutage { count: 10, of: 20 })
    );
    // Nodes that were lost earlier, or are out of service now, do not belong to it.
    assert_eq!(outage(&lost(fleet(10, 10, 9_000), 10, NOW - 2_001)), None);
    let mut all = all;
    all[..6].iter_mut().for_each(|one| one.state = NodeState::Retired);
    assert_eq!(outage(&all), None);
    // Without a mass outage, lost nodes do not belong to one.
    assert_eq!(
        classify_heartbeats(&lost(fleet(10, 10, 101), 10, NOW), &limits(), self::when()).outage,
        None
    );
    // If all of a few nodes are lost, the alert stays as well.
    assert_eq!(outage(&lost(fleet(2, 0, 1_900), 2, NOW - 5)), Some(MassOutage { count: 2, of: 2 }));
}

/// If no site is heard, Farrier itself is cut off.
#[test]
fn silence_everywhere_is_not_the_sites() {
    let judged = |silent, well| classify_heartbeats(&fleet(silent, well, 101), &limits(), when());
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
        let verdicts: Vec<HeartbeatClassification> =
            places.iter().map(|(s, w)| judged(*s, *w)).collect();
        assert_eq!(heartbeat::all_sites_silent(verdicts.iter()), everywhere, "{places:?}");
    }
}

/// A mass outage prevents neither a return to active nor a reported problem.
#[test]
fn a_mass_outage_does_not_hide_heartbeats() {
    let mut all = fleet(10, 10, 101);
    all.push(heartbeat(500, NodeState::Offline, Some(1), ""));
    all.push(heartbeat(501, NodeState::Active, Some(1), "a GPU is lost"));
    let classification = classify_heartbeats(&all, &limits(), when());
    assert!(classification.outage.is_some());
    assert_eq!(moved(&classification), [("node-500", "active"), ("node-501", "offline")]);
}

#[test]
fn a_site_without_nodes_is_no_mass_outage() {
    assert_eq!(classify_heartbeats(&[], &limits(), when()), HeartbeatClassification::default());
    assert_eq!(HeartbeatLimits::default().mass_outage(0, 0), None);
}

/// A system that is shutting down sends heartbeats too: only one after the end of the operation
/// brings the node back.
#[test]
fn a_heartbeat_before_the_end_of_the_order_proves_nothing() {
    use model::run::{Run, Workflow};
    let run = |workflow: Workflow, finished_at: Option<i64>| {
        let mut run = Run::new(crate::support::spec(vec![crate::support::power_off(0)]));
        (run.progress.workflow, run.progress.finished_at) = (workflow, finished_at.map(at));
        run
    };
    let proves =
        |heard: Option<i64>, run: Option<&Run>| heartbeat::proves_return(heard.map(at), run);
    // No operation took it down, or the operation was deleted by retention.
    assert!(proves(Some(1), None));
    let going = run(Workflow::Running, None);
    for (run, heard, expected) in [
        (&going, Some(50), false),
        // A failed operation that was resumed.
        (&run(Workflow::Running, Some(10)), Some(50), false),
        (&run(Workflow::Completed, Some(10)), Some(9), false),
        (&run(Workflow::Completed, Some(10)), Some(10), false),
        (&run(Workflow::Completed, Some(10)), Some(11), true),
        (&run(Workflow::FailedRetryable, Some(10)), Some(11), true),
        (&run(Workflow::Cancelled, Some(10)), None, false),
    ] {
        assert_eq!(proves(heard, Some(run)), expected, "{:?} {heard:?}", run.progress.workflow);
    }
}

/// Only an active node moves when its machine is taken down, along a listed pair of its owner. One
/// that is offline already waits for the end of the operation too.
#[test]
fn an_active_node_goes_offline_with_its_machine() {
    use model::id::RunId;
    use model::node::TransitionOwner;
    let by = RunId::trusted("op-1");
    for state in NodeState::ALL {
        let node = super::node(state);
        let Some(down) = node.taken_down(&by) else {
            assert!(!state.in_service(), "{state}");
            continue;
        };
        let was_active = state == NodeState::Active;
        let moved_by = if was_active { TransitionOwner::Reconciler } else { node.moved_by };
        assert_eq!((down.state, down.moved_by), (NodeState::Offline, moved_by), "{state}");
        assert_eq!(down.taken_down(&by), None, "{state}");
        assert_eq!(down.down_by, Some(by.clone()));
        let back = down.become_(NodeState::Active, TransitionOwner::Heartbeat, "heard").unwrap();
        assert_eq!(back.down_by, None);
    }
}
