//! Requests on nodes in every state: quarantine, release, reactivate, and every mode of
//! decommissioning.

use super::{Work, node, run, state, upstream_observation};
use model::gate::{Gate, Overrides, decommission};
use model::node::requests::{NodeContext, NodeRequest, admit_decommission, apply_request};
use model::node::{DecommissionMode, MaasObservation, MaasState, Node, NodeState, TransitionOwner};
use model::refusal::Refusal;
use model::run::{Run, Workflow};

const BUSY: &str = "NODE_BUSY";
const WRONG: &str = "NODE_STATE";
const GONE: &str = "NODE_DELETED";
const UNPROVEN: &str = "NODE_UNPROVEN";

fn in_workflow(workflow: Workflow) -> Run {
    let mut run = run(Work::Take(DecommissionMode::Drain));
    run.progress.workflow = workflow;
    run
}

fn all_requests() -> [NodeRequest; 4] {
    let why = || "because".to_string();
    [
        NodeRequest::Quarantine { why: why() },
        NodeRequest::Release { why: why(), overrides: Overrides::default() },
        NodeRequest::Release {
            why: why(),
            overrides: Overrides::of(&[Gate::NodeHealth], "because"),
        },
        NodeRequest::Reactivate { why: String::new(), overrides: Overrides::default() },
    ]
}

/// The final state, or the reason of the refusal; "stays" if nothing changes.
fn describe_outcome(node: &Node, outcome: Result<Vec<Node>, Refusal>) -> String {
    match outcome {
        Ok(moves) => {
            let mut from = node.state;
            for moved in &moves {
                let may = from.owners(moved.state).contains(&moved.moved_by);
                assert!(may || from == moved.state, "{moved:?}");
                from = moved.state;
            }
            moves.last().map_or("stays".into(), |last| last.state.to_string())
        }
        Err(refusal) => {
            let next = refusal.next_command.as_deref().unwrap_or_default();
            assert!(next.starts_with("farrier "), "{refusal:?}");
            refusal.reason.as_str().into()
        }
    }
}

/// Columns: quarantine; release of a healthy node, of an unhealthy one, and of an unhealthy one
/// with an override; reactivate.
const EXPECTED_REQUESTS: [(&str, [&str; 5]); 9] = [
    ("bootstrap_issued", ["quarantined", WRONG, WRONG, WRONG, WRONG]),
    ("enrolling", ["quarantined", WRONG, WRONG, WRONG, WRONG]),
    ("active", ["quarantined", "stays", "stays", "stays", "stays"]),
    ("offline", ["quarantined", WRONG, WRONG, WRONG, "stays"]),
    ("quarantined", ["quarantined", "active", UNPROVEN, "active", WRONG]),
    ("draining", [WRONG, WRONG, WRONG, WRONG, WRONG]),
    ("retired", [WRONG, WRONG, WRONG, WRONG, "offline"]),
    ("removing", [WRONG, WRONG, WRONG, WRONG, WRONG]),
    ("deleted", [GONE, GONE, GONE, GONE, GONE]),
];

#[test]
fn every_state_and_every_request() {
    let [quarantine, release, unproven, reactivate] = all_requests();
    for (name, row) in EXPECTED_REQUESTS {
        let node = node(state(name));
        let over = in_workflow(Workflow::Completed);
        for run in [None, Some(&over)] {
            let known = |healthy| NodeContext { run, healthy };
            let tries = [
                (&quarantine, known(false)),
                (&release, known(true)),
                (&release, known(false)),
                (&unproven, known(false)),
                (&reactivate, known(false)),
            ];
            for ((what, known), expected) in tries.into_iter().zip(row) {
                let found = describe_outcome(&node, apply_request(&node, what, known));
                assert_eq!(found, expected, "{name}: {what:?}, {}", known.healthy);
            }
        }
    }
}

#[test]
fn a_request_is_refused_while_a_run_is_active() {
    for workflow in [Workflow::Pending, Workflow::Running, Workflow::Compensating] {
        let run = in_workflow(workflow);
        let known = NodeContext { run: Some(&run), healthy: true };
        for state in NodeState::ALL {
            let node = node(state);
            for what in all_requests() {
                let refusal = apply_request(&node, &what, known).unwrap_err();
                assert_eq!(refusal.reason.as_str(), BUSY, "{state}: {what:?}");
                assert!(refusal.message.contains("op-1"), "who holds it is named: {refusal}");
            }
            for mode in DecommissionMode::ALL {
                let refusal = admit_decommission(&node, mode, known).unwrap_err();
                assert_eq!(refusal.reason.as_str(), BUSY, "{state}: {mode}");
            }
        }
    }
}

/// The reconciler owns the transition from service to quarantine; the operator owns the one from
/// enrolling.
#[test]
fn a_quarantine_is_made_by_who_may() {
    let [quarantine, ..] = all_requests();
    for (from, path) in [
        (NodeState::Active, vec![TransitionOwner::Reconciler]),
        (NodeState::Offline, vec![TransitionOwner::Reconciler]),
        (NodeState::Enrolling, vec![TransitionOwner::Operator]),
        (NodeState::BootstrapIssued, vec![TransitionOwner::Admin, TransitionOwner::Operator]),
    ] {
        let moves = apply_request(&node(from), &quarantine, NodeContext::default()).unwrap();
        let owners: Vec<_> = moves.iter().map(|one| one.moved_by).collect();
        assert_eq!(owners, path, "{from}");
        let last = moves.last().expect("it moves");
        assert_eq!((last.reason.as_str(), last.quarantine.is_some()), ("because", true));
    }
}

/// Any MAAS state other than Deployed proves nothing, and a machine that is not installed cannot
/// serve again.
#[test]
fn what_maas_says_counts() {
    let [_, release, unproven, reactivate] = all_requests();
    let well = NodeContext { run: None, healthy: true };
    for upstream in MaasState::ALL {
        let with = |state| Node { maas: Some(upstream_observation(upstream)), ..node(state) };
        let deployed = upstream == MaasState::Deployed;
        let claimed = with(NodeState::Quarantined);
        let expected = if deployed { "active" } else { UNPROVEN };
        assert_eq!(
            describe_outcome(&claimed, apply_request(&claimed, &release, well)),
            expected,
            "{upstream}"
        );
        assert_eq!(
            describe_outcome(&claimed, apply_request(&claimed, &unproven, well)),
            "active",
            "{upstream}"
        );
        let stored = with(NodeState::Retired);
        let expected = if deployed { "offline" } else { "NODE_NOT_INSTALLED" };
        assert_eq!(
            describe_outcome(&stored, apply_request(&stored, &reactivate, well)),
            expected,
            "{upstream}"
        );
        // For a node that no MAAS manages, the MAAS state does not count.
        let unmanaged = Node { site: None, ..stored };
        assert_eq!(
            describe_outcome(&unmanaged, apply_request(&unmanaged, &reactivate, well)),
            "offline"
        );
    }
}

/// Columns: full_decommission; drain, retire and reactivate; the other three.
const EXPECTED_DECOMMISSIONS: [(&str, [&str; 3]); 9] = [
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
    for (name, row) in EXPECTED_DECOMMISSIONS {
        let node = node(state(name));
        for mode in DecommissionMode::ALL {
            let column = match mode {
                DecommissionMode::FullDecommission => 0,
                DecommissionMode::Drain
                | DecommissionMode::Retire
                | DecommissionMode::Reactivate => 1,
                DecommissionMode::SoftReset
                | DecommissionMode::Reimage
                | DecommissionMode::StorageCleanup => 2,
            };
            for run in [None, Some(&over)] {
                for healthy in [true, false] {
                    let found = describe_outcome(
                        &node,
                        admit_decommission(&node, mode, NodeContext { run, healthy }),
                    );
                    // The row of its operation could not be read and was set aside.
                    let lost = run.is_none() && ["draining", "removing"].contains(&name);
                    let expected = if lost && column == 0 { "stays" } else { row[column] };
                    assert_eq!(found, expected, "{name}: {mode}");
                }
            }
        }
    }
}

#[test]
fn what_is_deleted_is_onboarded_as_another() {
    let gone = node(NodeState::Deleted);
    let refusal =
        admit_decommission(&gone, DecommissionMode::Drain, NodeContext::default()).unwrap_err();
    let next = refusal.next_command.unwrap_or_default();
    assert!(next.starts_with("farrier node onboard m-1"), "{next}");
}

/// The reconciler does not end a quarantine by an operator, whatever its earlier cause.
#[test]
fn a_person_takes_a_quarantine_over() {
    use model::node::Quarantine;
    let [quarantine, ..] = all_requests();
    for cause in [Quarantine::Drift, Quarantine::Cleanup, Quarantine::Onboarding] {
        let claimed = Node { quarantine: Some(cause), ..node(NodeState::Quarantined) };
        let moves = apply_request(&claimed, &quarantine, NodeContext::default()).unwrap();
        let [after] = moves.as_slice() else { panic!("{moves:?}") };
        assert_eq!(after.quarantine, Some(Quarantine::Operator), "{cause:?}");
        assert_eq!(after.reason.as_str(), "because");
        assert_eq!(
            apply_request(after, &quarantine, NodeContext::default()).unwrap(),
            [],
            "it is so already"
        );
    }
}

/// A node that never served can only be removed, or released while its failed onboarding can still
/// be completed.
#[test]
fn a_node_that_never_served_cannot_be_made_active() {
    let never = Node { served: false, ..node(NodeState::Quarantined) };
    let [_, release, unproven, _] = all_requests();
    for workflow in Workflow::ALL.into_iter().filter(|one| one.phase().ended()) {
        let mut onboarding = run(Work::Onboard);
        onboarding.progress.workflow = workflow;
        let known = |healthy| NodeContext { run: Some(&onboarding), healthy };
        let expected = if workflow.failed() { "active" } else { WRONG };
        for what in [&release, &unproven] {
            assert_eq!(
                describe_outcome(&never, apply_request(&never, what, known(true))),
                expected,
                "{workflow:?}"
            );
            // An override does not replace the proof.
            assert_eq!(
                describe_outcome(&never, apply_request(&never, what, known(false))),
                WRONG,
                "{workflow:?}"
            );
        }
        let known = known(true);
        for mode in DecommissionMode::ALL {
            let expected = if mode == DecommissionMode::FullDecommission { "stays" } else { WRONG };
            assert_eq!(
                describe_outcome(&never, admit_decommission(&never, mode, known)),
                expected,
                "{mode}"
            );
        }
    }
    assert_eq!(
        describe_outcome(&never, apply_request(&never, &unproven, NodeContext::default())),
        WRONG,
        "nobody enrolled"
    );
}

/// A node whose cleanup was not completed serves again only with an override.
#[test]
fn what_is_not_clean_is_reactivated_by_name_only() {
    let stored = node(NodeState::Retired);
    let [.., reactivate] = all_requests();
    let with = |gate| NodeRequest::Reactivate {
        why: "empty disks".into(),
        overrides: Overrides::of(&[gate], "empty disks"),
    };
    for mode in DecommissionMode::ALL {
        for (workflow, stopped) in [
            (Workflow::FailedRetryable, true),
            (Workflow::FailedManualIntervention, true),
            (Workflow::Cancelled, true),
            (Workflow::Completed, false),
        ] {
            let mut run = run(Work::Take(mode));
            run.progress.workflow = workflow;
            let known = NodeContext { run: Some(&run), healthy: true };
            let cleans = !matches!(
                mode,
                DecommissionMode::Drain | DecommissionMode::Retire | DecommissionMode::Reactivate
            );
            let expected = if cleans && stopped { UNPROVEN } else { "offline" };
            assert_eq!(
                describe_outcome(&stored, apply_request(&stored, &reactivate, known)),
                expected,
                "{mode} {workflow:?}"
            );
            for (gate, expected) in [(Gate::Cleanup, "offline"), (Gate::Health, expected)] {
                let outcome = apply_request(&stored, &with(gate), known);
                assert_eq!(describe_outcome(&stored, outcome), expected, "{mode} {gate}");
            }
        }
    }
}

/// Its onboarding had failed: there is nothing that could serve again.
#[test]
fn what_never_served_is_not_reactivated() {
    let never = Node { served: false, ..node(NodeState::Retired) };
    let [.., reactivate] = all_requests();
    let overrides = Overrides::of(&[Gate::Cleanup], "sure");
    let sure = NodeRequest::Reactivate { why: "sure".into(), overrides };
    for what in [&reactivate, &sure] {
        assert_eq!(
            describe_outcome(&never, apply_request(&never, what, NodeContext::default())),
            WRONG
        );
    }
}

/// Requests are idempotent.
#[test]
fn a_node_that_is_being_let_back_is_reactivated_already() {
    let [quarantine, .., reactivate] = all_requests();
    let mut run = run(Work::Take(DecommissionMode::Reactivate));
    run.progress.workflow = Workflow::Running;
    let known = NodeContext { run: Some(&run), healthy: true };
    for state in [NodeState::Offline, NodeState::Active] {
        let back = node(state);
        assert_eq!(describe_outcome(&back, apply_request(&back, &reactivate, known)), "stays");
        assert!(!model::node::requests::may_be_cordoned(&back, known), "it is being told");
        assert_eq!(describe_outcome(&back, apply_request(&back, &quarantine, known)), BUSY);
    }
}

/// Only a full decommission can do without MAAS, for a MAAS that is gone for good.
#[test]
fn maas_is_left_out_only_where_the_node_goes() {
    for mode in DecommissionMode::ALL {
        let can = decommission(mode).contains(&Gate::Maas);
        assert_eq!(can, mode == DecommissionMode::FullDecommission, "{mode}");
    }
}

/// Only the agent can clean a system that stays installed.
#[test]
fn the_agent_is_left_out_only_where_the_system_goes() {
    for mode in DecommissionMode::ALL {
        let can = decommission(mode).contains(&Gate::Agent);
        // Reactivating a node asks its agent for nothing.
        let needless = mode == DecommissionMode::Reactivate;
        assert_eq!(can, !mode.keeps_system() && !needless, "{mode}");
    }
}

/// A heartbeat from before the machine was switched off proves nothing.
#[test]
fn a_node_on_a_machine_that_is_off_is_not_released() {
    let [_, release, unproven, _] = all_requests();
    for (powered_on, expected) in
        [(None, "active"), (Some(true), "active"), (Some(false), UNPROVEN)]
    {
        let observed = upstream_observation(MaasState::Deployed);
        let node = Node {
            maas: Some(MaasObservation { powered_on, ..observed }),
            ..node(NodeState::Quarantined)
        };
        let known = NodeContext { run: None, healthy: true };
        let found = describe_outcome(&node, apply_request(&node, &release, known));
        assert_eq!(found, expected, "{powered_on:?}");
        let found = describe_outcome(&node, apply_request(&node, &unproven, known));
        assert_eq!(found, "active", "{powered_on:?}");
    }
}
