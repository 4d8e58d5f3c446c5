//! Every pair of node states and every owner: sections 3.2 and 3.3.

use super::{Work, node, run, state};
use crate::support::at;
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::node::{Node, NodeState, NodeTurnInput, Quarantine, TransitionOwner};
use model::refusal::RefusalKind;
use model::run::{Run, Workflow};

/// Section 3.3 of maas-node-states.md, row by row, with the operator of "operator recovery" and
/// "operator rollback" in 3.2. The validation of a cleanup is a stage of a decommission, and so is
/// the reset that returns an identity to service.
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
    for name in STATES {
        assert_eq!(state(name).to_string(), name);
        assert_eq!(serde_json::to_value(state(name)).unwrap(), name);
    }
    assert_eq!(NodeState::parse("deploying"), None, "stages are no states");
}

#[test]
fn every_pair_of_states_and_every_owner() {
    let owners = ["admin", "onboarding", "decommission", "heartbeat", "reconciler", "operator"];
    assert_eq!(TransitionOwner::ALL.map(TransitionOwner::as_str), owners);
    let mut allowed = 0;
    for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
        for owner in TransitionOwner::ALL {
            let (before, name) = (node(state(from)), owner.as_str());
            let message = format!("{from} to {to} by {name}");
            match before.become_(state(to), owner, "because") {
                Ok(after) => {
                    assert!(may(from, to, name), "{message}");
                    assert_eq!((after.state, after.moved_by), (state(to), owner), "{message}");
                    assert_eq!(after.reason.as_str(), "because");
                    // The store checks the same on its row.
                    let sources = after.legal_source_states().expect("somebody owns every way");
                    assert!(sources.contains(&from) && sources.contains(&to), "{message}");
                    allowed += 1;
                }
                Err(refusal) => {
                    assert!(!may(from, to, name), "{message}");
                    assert_eq!(refusal.kind(), RefusalKind::Precondition);
                    assert_eq!(refusal.reason.as_str(), "NODE_TRANSITION", "{message}");
                    let known =
                        [from, to, "node-1"].iter().all(|one| refusal.message.contains(one));
                    assert!(known, "{refusal}");
                    assert_eq!(refusal.next_command.as_deref(), Some("farrier why node-1"));
                    let forced = Node { state: state(to), moved_by: owner, ..before };
                    let stays = from == to;
                    let sources = forced.legal_source_states().expect("somebody owns every way");
                    assert_eq!(sources.contains(&from), stays, "{message}");
                }
            }
        }
    }
    assert_eq!(allowed, 27);
}

#[test]
fn a_refused_transition_names_its_owners() {
    let refused =
        node(NodeState::Active).become_(NodeState::Draining, TransitionOwner::Heartbeat, "");
    let message = refused.unwrap_err().message;
    assert_eq!(message, "node-1 is active: the way to draining belongs to admin, not to heartbeat");
    let refused =
        node(NodeState::Deleted).become_(NodeState::Active, TransitionOwner::Operator, "");
    let message = refused.unwrap_err().message;
    assert_eq!(message, "node-1 is deleted, and no way leads from there to active");
}

#[test]
fn a_quarantine_has_a_cause_as_long_as_it_lasts() {
    let mut before = node(NodeState::Active);
    before.drift_passes = 2;
    let claimed =
        before.quarantined(Quarantine::Drift, TransitionOwner::Reconciler, "drifts").unwrap();
    assert_eq!((claimed.quarantine, claimed.drift_passes), (Some(Quarantine::Drift), 0));
    let free = claimed.become_(NodeState::Active, TransitionOwner::Operator, "looked at").unwrap();
    assert_eq!(free.quarantine, None);
    let refused =
        node(NodeState::Retired).quarantined(Quarantine::Drift, TransitionOwner::Reconciler, "");
    assert_eq!(refused.unwrap_err().reason.as_str(), "NODE_TRANSITION");
}

/// The guard: no node stays in an intermediate state because its operation was lost.
#[test]
fn a_transitional_state_without_a_run_ends() {
    let with = |workflow| {
        let mut run: Run = run(Work::Take(model::node::DecommissionMode::FullDecommission));
        run.progress.workflow = workflow;
        Some(run)
    };
    let lost = [None, with(Workflow::Cancelled), with(Workflow::FailedRetryable)];
    let at_work = [Workflow::Pending, Workflow::Running, Workflow::Compensating].map(with);
    for name in STATES {
        let back = match name {
            "draining" => Some("offline"),
            "removing" => Some("retired"),
            _ => None,
        };
        for run in &lost {
            match node(state(name)).next(&NodeTurnInput { run: run.clone() }, at(1)) {
                LifecycleDecision::Transition(change) => {
                    assert_eq!(Some(change.record.state.as_str()), back, "{name}");
                    assert_eq!(change.record.moved_by, TransitionOwner::Decommission);
                }
                LifecycleDecision::Idle(why) => {
                    assert!(back.is_none() && !why.0.is_empty(), "{name}")
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        for run in &at_work {
            let next = node(state(name)).next(&NodeTurnInput { run: run.clone() }, at(1));
            assert!(matches!(next, LifecycleDecision::Idle(_)), "{name}: {next:?}");
        }
        let patient = matches!(name, "enrolling" | "draining" | "removing");
        assert_eq!(node(state(name)).normal_duration().is_some(), patient, "{name}");
    }
}

/// A node that an older version left behind when its onboarding was canceled.
#[test]
fn the_guard_quarantines_the_node_of_a_canceled_onboarding() {
    let mut run = run(Work::Onboard);
    run.progress.workflow = Workflow::Cancelled;
    match node(NodeState::Enrolling).next(&NodeTurnInput { run: Some(run) }, at(1)) {
        LifecycleDecision::Transition(change) => {
            assert_eq!(change.record.state, NodeState::Quarantined);
            assert_eq!(change.record.quarantine, Some(Quarantine::Onboarding));
        }
        other => panic!("{other:?}"),
    }
}

/// The guard also returns a node to quarantine that was drained out of it, and not into service.
#[test]
fn the_guard_leads_back_into_quarantine() {
    let cause = Some(Quarantine::Operator);
    let mut lost = Node { quarantine: cause, ..node(NodeState::Draining) };
    for expected in [NodeState::Offline, NodeState::Quarantined] {
        match lost.next(&NodeTurnInput::default(), at(1)) {
            LifecycleDecision::Transition(change) => lost = change.record,
            other => panic!("{other:?}"),
        }
        assert_eq!((lost.state, lost.quarantine), (expected, cause));
    }
    assert!(matches!(lost.next(&NodeTurnInput::default(), at(1)), LifecycleDecision::Idle(_)));
}
