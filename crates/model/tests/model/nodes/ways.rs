//! Every pair of node states and every owner: sections 3.2 and 3.3.

use super::{Work, node, run, state};
use crate::support::at;
use model::lifecycle::{Lifecycle, Next};
use model::node::{Node, NodeState, Owner, Quarantine, Seen};
use model::refusal::RefusalKind;
use model::run::{Run, Workflow};

/// Section 3.3, row by row, with the operator of "operator recovery" and "operator rollback" in
/// 3.2. The validation of a cleanup is a stage of a decommission, and so is the reset that returns
/// an identity to service.
const DOCUMENT: [(&str, &str, &[&str]); 17] = [
    ("bootstrap_issued", "enrolling", &["admin", "onboarding"]),
    ("enrolling", "active", &["onboarding"]),
    ("enrolling", "quarantined", &["onboarding", "operator"]),
    ("active", "offline", &["heartbeat", "reconciler"]),
    ("offline", "active", &["heartbeat", "reconciler"]),
    ("active", "quarantined", &["reconciler", "decommission"]),
    ("offline", "quarantined", &["reconciler", "decommission"]),
    ("quarantined", "active", &["operator", "reconciler"]),
    ("active", "draining", &["admin"]),
    ("offline", "draining", &["admin"]),
    ("quarantined", "draining", &["admin"]),
    ("draining", "retired", &["decommission"]),
    ("draining", "offline", &["decommission", "operator"]),
    ("retired", "offline", &["admin", "decommission"]),
    ("retired", "removing", &["decommission"]),
    ("removing", "retired", &["decommission", "operator"]),
    ("removing", "deleted", &["decommission"]),
];

const STATES: [&str; 9] = [
    "bootstrap_issued",
    "enrolling",
    "active",
    "offline",
    "quarantined",
    "draining",
    "retired",
    "removing",
    "deleted",
];

fn may(from: &str, to: &str, owner: &str) -> bool {
    let way = DOCUMENT.iter().find(|way| (way.0, way.1) == (from, to));
    way.is_some_and(|way| way.2.contains(&owner))
}

#[test]
fn the_states_are_the_nine_of_the_document() {
    assert_eq!(NodeState::ALL.map(NodeState::as_str), STATES);
    assert_eq!(Node::STATES, STATES);
    for word in STATES {
        assert_eq!(state(word).to_string(), word);
        assert_eq!(serde_json::to_value(state(word)).unwrap(), word);
    }
    assert_eq!(NodeState::parse("deploying"), None, "stages are no states");
}

#[test]
fn every_pair_of_states_and_every_owner() {
    let owners = ["admin", "onboarding", "decommission", "heartbeat", "reconciler", "operator"];
    assert_eq!(Owner::ALL.map(Owner::as_str), owners);
    let mut allowed = 0;
    for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
        for owner in Owner::ALL {
            let (before, word) = (node(state(from)), owner.as_str());
            let said = format!("{from} to {to} by {word}");
            match before.become_(state(to), owner, "because") {
                Ok(after) => {
                    assert!(may(from, to, word), "{said}");
                    assert_eq!((after.state, after.moved_by), (state(to), owner), "{said}");
                    assert_eq!(after.reason, "because");
                    // The store checks the same on its row.
                    let sources = after.sources().expect("somebody owns every way");
                    assert!(sources.contains(&from) && sources.contains(&to), "{said}");
                    allowed += 1;
                }
                Err(refusal) => {
                    assert!(!may(from, to, word), "{said}");
                    assert_eq!(refusal.kind, RefusalKind::Precondition);
                    assert_eq!(refusal.reason, "NODE_TRANSITION", "{said}");
                    let known = [from, to, "node-1"].iter().all(|one| refusal.said.contains(one));
                    assert!(known, "{refusal}");
                    assert_eq!(refusal.next.as_deref(), Some("farrier why node-1"));
                    let forced = Node { state: state(to), moved_by: owner, ..before };
                    let stays = from == to;
                    let sources = forced.sources().expect("somebody owns every way");
                    assert_eq!(sources.contains(&from), stays, "{said}");
                }
            }
        }
    }
    assert_eq!(allowed, 27);
}

#[test]
fn who_may_is_named_to_who_may_not() {
    let refused = node(NodeState::Active).become_(NodeState::Draining, Owner::Heartbeat, "");
    let said = refused.unwrap_err().said;
    assert_eq!(said, "node-1 is active: the way to draining belongs to admin, not to heartbeat");
    let refused = node(NodeState::Deleted).become_(NodeState::Active, Owner::Operator, "");
    let said = refused.unwrap_err().said;
    assert_eq!(said, "node-1 is deleted, and no way leads from there to active");
}

#[test]
fn a_quarantine_has_a_cause_as_long_as_it_lasts() {
    let mut before = node(NodeState::Active);
    before.passes = 2;
    let held = before.quarantined(Quarantine::Drift, Owner::Reconciler, "drifts").unwrap();
    assert_eq!((held.quarantine, held.passes), (Some(Quarantine::Drift), 0));
    let free = held.become_(NodeState::Active, Owner::Operator, "looked at").unwrap();
    assert_eq!(free.quarantine, None);
    let refused = node(NodeState::Retired).quarantined(Quarantine::Drift, Owner::Reconciler, "");
    assert_eq!(refused.unwrap_err().reason, "NODE_TRANSITION");
}

/// The guard: no node stays in an intermediate state because its operation was lost.
#[test]
fn without_work_nobody_stays_on_the_way() {
    let with = |workflow| {
        let mut run: Run = run(Work::Take(model::node::Mode::FullDecommission));
        run.progress.workflow = workflow;
        Some(run)
    };
    let lost = [None, with(Workflow::Cancelled), with(Workflow::FailedRetryable)];
    let at_work = [Workflow::Pending, Workflow::Running, Workflow::Compensating].map(with);
    for word in STATES {
        let back = match word {
            "draining" => Some("offline"),
            "removing" => Some("retired"),
            _ => None,
        };
        for run in &lost {
            match node(state(word)).next(&Seen { run: run.clone() }, at(1)) {
                Next::Become(change) => {
                    assert_eq!(Some(change.record.state.as_str()), back, "{word}");
                    assert_eq!(change.record.moved_by, Owner::Decommission);
                }
                Next::Rest(why) => assert!(back.is_none() && !why.0.is_empty(), "{word}"),
                other => panic!("{word}: {other:?}"),
            }
        }
        for run in &at_work {
            let next = node(state(word)).next(&Seen { run: run.clone() }, at(1));
            assert!(matches!(next, Next::Rest(_)), "{word}: {next:?}");
        }
        let patient = matches!(word, "enrolling" | "draining" | "removing");
        assert_eq!(node(state(word)).patience().is_some(), patient, "{word}");
    }
}

/// The guard also returns a node to quarantine that was drained out of it, and not into service.
#[test]
fn the_guard_leads_back_into_quarantine() {
    let cause = Some(Quarantine::Operator);
    let mut lost = Node { quarantine: cause, ..node(NodeState::Draining) };
    for expected in [NodeState::Offline, NodeState::Quarantined] {
        match lost.next(&Seen::default(), at(1)) {
            Next::Become(change) => lost = change.record,
            other => panic!("{other:?}"),
        }
        assert_eq!((lost.state, lost.quarantine), (expected, cause));
    }
    assert!(matches!(lost.next(&Seen::default(), at(1)), Next::Rest(_)));
}
