//! What may be asked of a node, state by state: quarantine, release, reactivate, and every way of taking it out of service.

use super::{Work, node, run, seen, state};
use model::node::door::{Ask, Known, ask, decommission};
use model::node::{Mode, Node, NodeState, Owner, Upstream};
use model::refusal::Refusal;
use model::run::{Run, Workflow};

const BUSY: &str = "NODE_BUSY";
const WRONG: &str = "NODE_STATE";
const GONE: &str = "NODE_DELETED";
const UNPROVEN: &str = "NODE_UNPROVEN";

fn in_workflow(workflow: Workflow) -> Run {
    let mut run = run(Work::Take(Mode::Drain));
    run.progress.workflow = workflow;
    run
}

fn asks() -> [Ask; 4] {
    let why = || "because".to_string();
    [
        Ask::Quarantine { why: why() },
        Ask::Release { why: why(), unproven: false },
        Ask::Release { why: why(), unproven: true },
        Ask::Reactivate,
    ]
}

/// Where it ends, or why it does not begin; "stays" where it is so already.
fn told(node: &Node, outcome: Result<Vec<Node>, Refusal>) -> String {
    match outcome {
        Ok(moves) => {
            let mut from = node.state;
            for moved in &moves {
                assert!(from.owners(moved.state).contains(&moved.moved_by), "{moved:?}");
                from = moved.state;
            }
            moves.last().map_or("stays".into(), |last| last.state.to_string())
        }
        Err(refusal) => {
            let next = refusal.next.as_deref().unwrap_or_default();
            assert!(next.starts_with("farrier "), "{refusal:?}");
            refusal.reason.into()
        }
    }
}

/// Columns: quarantine; release of one that is well, of one that is not, and of one that is not although nothing shows it; reactivate.
const ASKED: [(&str, [&str; 5]); 9] = [
    ("bootstrap_issued", ["quarantined", WRONG, WRONG, WRONG, WRONG]),
    ("enrolling", ["quarantined", WRONG, WRONG, WRONG, WRONG]),
    ("active", ["quarantined", "stays", "stays", "stays", "stays"]),
    ("offline", ["quarantined", WRONG, WRONG, WRONG, "stays"]),
    ("quarantined", ["stays", "active", UNPROVEN, "active", WRONG]),
    ("draining", [WRONG, WRONG, WRONG, WRONG, WRONG]),
    ("retired", [WRONG, WRONG, WRONG, WRONG, "offline"]),
    ("removing", [WRONG, WRONG, WRONG, WRONG, WRONG]),
    ("deleted", [GONE, GONE, GONE, GONE, GONE]),
];

#[test]
fn every_state_and_every_request() {
    let [quarantine, release, unproven, reactivate] = asks();
    for (word, row) in ASKED {
        let node = node(state(word));
        let over = in_workflow(Workflow::Completed);
        for run in [None, Some(&over)] {
            let known = |healthy| Known { run, healthy };
            let tries = [
                (&quarantine, known(false)),
                (&release, known(true)),
                (&release, known(false)),
                (&unproven, known(false)),
                (&reactivate, known(false)),
            ];
            for ((what, known), expected) in tries.into_iter().zip(row) {
                let found = told(&node, ask(&node, what, known));
                assert_eq!(found, expected, "{word}: {what:?}, {}", known.healthy);
            }
        }
    }
}

#[test]
fn whoever_is_at_work_is_waited_for() {
    for workflow in [Workflow::Pending, Workflow::Running, Workflow::Compensating] {
        let run = in_workflow(workflow);
        let known = Known { run: Some(&run), healthy: true };
        for state in NodeState::ALL {
            let node = node(state);
            for what in asks() {
                let refusal = ask(&node, &what, known).unwrap_err();
                assert_eq!(refusal.reason, BUSY, "{state}: {what:?}");
                assert!(refusal.said.contains("op-1"), "who holds it is named: {refusal}");
            }
            for mode in Mode::ALL {
                let refusal = decommission(&node, mode, known).unwrap_err();
                assert_eq!(refusal.reason, BUSY, "{state}: {mode}");
            }
        }
    }
}

/// The way from service to quarantine is the reconciler's; from enrolling it is the operator's.
#[test]
fn a_quarantine_is_made_by_who_may() {
    let [quarantine, ..] = asks();
    for (from, path) in [
        (NodeState::Active, vec![Owner::Reconciler]),
        (NodeState::Offline, vec![Owner::Reconciler]),
        (NodeState::Enrolling, vec![Owner::Operator]),
        (NodeState::BootstrapIssued, vec![Owner::Admin, Owner::Operator]),
    ] {
        let moves = ask(&node(from), &quarantine, Known::default()).unwrap();
        let owners: Vec<_> = moves.iter().map(|one| one.moved_by).collect();
        assert_eq!(owners, path, "{from}");
        let last = moves.last().expect("it moves");
        assert_eq!((last.reason.as_str(), last.quarantine.is_some()), ("because", true));
    }
}

/// What MAAS has otherwise than installed is proof of nothing, and what is not installed cannot serve again.
#[test]
fn what_maas_says_counts() {
    let [_, release, unproven, reactivate] = asks();
    let well = Known { run: None, healthy: true };
    for upstream in Upstream::ALL {
        let with = |state| Node { upstream: Some(seen(upstream)), ..node(state) };
        let deployed = upstream == Upstream::Deployed;
        let held = with(NodeState::Quarantined);
        let expected = if deployed { "active" } else { UNPROVEN };
        assert_eq!(told(&held, ask(&held, &release, well)), expected, "{upstream}");
        assert_eq!(told(&held, ask(&held, &unproven, well)), "active", "{upstream}");
        let kept = with(NodeState::Retired);
        let expected = if deployed { "offline" } else { "NODE_NOT_INSTALLED" };
        assert_eq!(told(&kept, ask(&kept, &reactivate, well)), expected, "{upstream}");
        // Of a node that no MAAS manages it says nothing.
        let unmanaged = Node { site: None, ..kept };
        assert_eq!(told(&unmanaged, ask(&unmanaged, &reactivate, well)), "offline");
    }
}

/// Columns: full_decommission; drain and retire; the other three.
const TAKEN: [(&str, [&str; 3]); 9] = [
    ("bootstrap_issued", [WRONG, WRONG, WRONG]),
    ("enrolling", ["quarantined", WRONG, WRONG]),
    ("active", ["stays", "stays", "stays"]),
    ("offline", ["stays", "stays", "stays"]),
    ("quarantined", ["stays", "stays", "stays"]),
    ("draining", [BUSY, BUSY, BUSY]),
    ("retired", ["stays", WRONG, "stays"]),
    ("removing", [BUSY, BUSY, BUSY]),
    ("deleted", [GONE, GONE, GONE]),
];

#[test]
fn every_state_and_every_mode() {
    let over = in_workflow(Workflow::FailedRetryable);
    for (word, row) in TAKEN {
        let node = node(state(word));
        for mode in Mode::ALL {
            let column = match mode {
                Mode::FullDecommission => 0,
                Mode::Drain | Mode::Retire => 1,
                Mode::SoftReset | Mode::Reimage | Mode::StorageCleanup => 2,
            };
            for run in [None, Some(&over)] {
                for healthy in [true, false] {
                    let found = told(&node, decommission(&node, mode, Known { run, healthy }));
                    assert_eq!(found, row[column], "{word}: {mode}");
                }
            }
        }
    }
}

#[test]
fn what_is_deleted_is_onboarded_as_another() {
    let gone = node(NodeState::Deleted);
    let refusal = decommission(&gone, Mode::Drain, Known::default()).unwrap_err();
    let next = refusal.next.unwrap_or_default();
    assert!(next.starts_with("farrier node onboard m-1"), "{next}");
}
