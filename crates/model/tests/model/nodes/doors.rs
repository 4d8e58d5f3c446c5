//! Requests on nodes in every state: quarantine, release, reactivate, and every mode of
//! decommissioning.

use super::{Work, node, run, seen, state};
use model::node::door::{Ask, Known, ask, decommission, spare, without_agent};
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
        Ask::Reactivate { why: String::new(), unproven: false },
    ]
}

/// The final state, or the reason of the refusal; "stays" if nothing changes.
fn told(node: &Node, outcome: Result<Vec<Node>, Refusal>) -> String {
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
            let next = refusal.next.as_deref().unwrap_or_default();
            assert!(next.starts_with("farrier "), "{refusal:?}");
            refusal.reason.into()
        }
    }
}

/// Columns: quarantine; release of a healthy node, of an unhealthy one, and of an unhealthy one
/// with an override; reactivate.
const ASKED: [(&str, [&str; 5]); 9] = [
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

/// The reconciler owns the transition from service to quarantine; the operator owns the one from
/// enrolling.
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

/// Any MAAS state other than Deployed proves nothing, and a machine that is not installed cannot
/// serve again.
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
        // For a node that no MAAS manages, the MAAS state does not count.
        let unmanaged = Node { site: None, ..kept };
        assert_eq!(told(&unmanaged, ask(&unmanaged, &reactivate, well)), "offline");
    }
}

/// Columns: full_decommission; drain, retire and reactivate; the other three.
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
                Mode::Drain | Mode::Retire | Mode::Reactivate => 1,
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

/// The reconciler does not end a quarantine by an operator, whatever its earlier cause.
#[test]
fn a_person_takes_a_quarantine_over() {
    use model::node::Quarantine;
    let [quarantine, ..] = asks();
    for cause in [Quarantine::Drift, Quarantine::Cleanup, Quarantine::Onboarding] {
        let held = Node { quarantine: Some(cause), ..node(NodeState::Quarantined) };
        let moves = ask(&held, &quarantine, Known::default()).unwrap();
        let [after] = moves.as_slice() else { panic!("{moves:?}") };
        assert_eq!(after.quarantine, Some(Quarantine::Operator), "{cause:?}");
        assert_eq!(after.reason, "because");
        assert_eq!(ask(after, &quarantine, Known::default()).unwrap(), [], "it is so already");
    }
}

/// A node that never served can only be removed, or released while its failed onboarding can still
/// be completed.
#[test]
fn what_never_served_does_not_serve_by_a_way_around() {
    let never = Node { served: false, ..node(NodeState::Quarantined) };
    let [_, release, unproven, _] = asks();
    for workflow in Workflow::ALL.into_iter().filter(|one| one.phase().ended()) {
        let mut onboarding = run(Work::Onboard);
        onboarding.progress.workflow = workflow;
        let known = |healthy| Known { run: Some(&onboarding), healthy };
        let expected = if workflow.failed() { "active" } else { WRONG };
        for what in [&release, &unproven] {
            assert_eq!(told(&never, ask(&never, what, known(true))), expected, "{workflow:?}");
            // An override does not replace the proof.
            assert_eq!(told(&never, ask(&never, what, known(false))), WRONG, "{workflow:?}");
        }
        let known = known(true);
        for mode in Mode::ALL {
            let expected = if mode == Mode::FullDecommission { "stays" } else { WRONG };
            assert_eq!(told(&never, decommission(&never, mode, known)), expected, "{mode}");
        }
    }
    assert_eq!(told(&never, ask(&never, &unproven, Known::default())), WRONG, "nobody enrolled");
}

/// A node whose cleanup was not completed serves again only with an override.
#[test]
fn what_is_not_clean_is_reactivated_by_name_only() {
    let kept = node(NodeState::Retired);
    let [.., reactivate] = asks();
    let all_the_same = Ask::Reactivate { why: "empty disks".into(), unproven: true };
    for mode in Mode::ALL {
        for (workflow, stopped) in [
            (Workflow::FailedRetryable, true),
            (Workflow::FailedManualIntervention, true),
            (Workflow::Cancelled, true),
            (Workflow::Completed, false),
        ] {
            let mut run = run(Work::Take(mode));
            run.progress.workflow = workflow;
            let known = Known { run: Some(&run), healthy: true };
            let cleans = !matches!(mode, Mode::Drain | Mode::Retire | Mode::Reactivate);
            let expected = if cleans && stopped { UNPROVEN } else { "offline" };
            assert_eq!(
                told(&kept, ask(&kept, &reactivate, known)),
                expected,
                "{mode} {workflow:?}"
            );
            assert_eq!(told(&kept, ask(&kept, &all_the_same, known)), "offline", "{mode}");
        }
    }
}

/// Its onboarding had failed: there is nothing that could serve again.
#[test]
fn what_never_served_is_not_reactivated() {
    let never = Node { served: false, ..node(NodeState::Retired) };
    let [.., reactivate] = asks();
    let sure = Ask::Reactivate { why: "sure".into(), unproven: true };
    for what in [&reactivate, &sure] {
        assert_eq!(told(&never, ask(&never, what, Known::default())), WRONG);
    }
}

/// Requests are idempotent.
#[test]
fn a_node_that_is_being_let_back_is_reactivated_already() {
    let [quarantine, .., reactivate] = asks();
    let mut run = run(Work::Take(Mode::Reactivate));
    run.progress.workflow = Workflow::Running;
    let known = Known { run: Some(&run), healthy: true };
    for state in [NodeState::Offline, NodeState::Active] {
        let back = node(state);
        assert_eq!(told(&back, ask(&back, &reactivate, known)), "stays");
        assert!(!model::node::door::may_be_cordoned(&back, known), "it is being told");
        assert_eq!(told(&back, ask(&back, &quarantine, known)), BUSY);
    }
}

/// Only a full decommission can do without MAAS, for a MAAS that is gone for good.
#[test]
fn maas_is_left_out_only_where_the_node_goes() {
    for mode in Mode::ALL {
        let refused = model::node::door::without_maas(mode).is_err();
        assert_eq!(refused, mode != Mode::FullDecommission, "{mode}");
    }
}

/// Only the agent can clean a system that stays installed.
#[test]
fn the_agent_is_left_out_only_where_the_system_goes() {
    for mode in Mode::ALL {
        let refused = without_agent(mode).is_err();
        assert_eq!(refused, matches!(mode, Mode::SoftReset | Mode::StorageCleanup), "{mode}");
    }
}

/// While a node is in service, only runs that phase READY allows are admitted, and ExitMaintenance.
#[test]
fn a_node_in_service_is_spared() {
    use model::plan::{RunType, default_plan};
    let id = node(NodeState::Active).id();
    for run_type in RunType::PLANNED {
        let open = matches!(
            run_type,
            RunType::Reboot
                | RunType::Power
                | RunType::EnterMaintenance
                | RunType::ExitMaintenance
                | RunType::ExitRma
        );
        let spared = spare(&id, run_type, &[]);
        assert_eq!(spared.is_ok(), open, "{run_type:?}");
        if let Err(refusal) = spared {
            assert_eq!(refusal.reason, "NODE_IN_SERVICE");
            assert_eq!(refusal.next.as_deref(), Some("farrier node drain node-1"));
        }
        assert!(default_plan(run_type).is_some());
    }
    // The gate depends on the effects, not only on the run type.
    let wipe = model::effect::Effect::Repave { image: "i".into() };
    let steps = [model::lifecycle::run_step("wipe", 1, 0, wipe)];
    assert!(spare(&id, RunType::Reboot, &steps).unwrap_err().said.contains("step wipe"));
}
