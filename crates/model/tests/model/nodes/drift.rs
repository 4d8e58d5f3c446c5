//! The reconciler's decisions about drift: quarantine, heal, adopt, mark; and none when many nodes
//! drift at once.

use super::{Work, node, run, state, upstream_observation};
use model::fault::{Fault, FaultCode};
use model::id::RunId;
use model::node::drift::{CONFIRMATIONS, DriftAction, DriftCase, detect_mass_outage};
use model::node::heartbeat::{HeartbeatLimits, MassOutage};
use model::node::{
    DecommissionMode, MaasObservation, MaasState, Node, NodeStage, NodeState, Quarantine,
};
use model::run::{Failure, Run, Workflow};

fn decide(node: &Node, upstream: MaasState, run: Option<&Run>, healthy: bool) -> DriftAction {
    let observed = upstream_observation(upstream);
    DriftCase { node, observed: &observed, run, healthy, first_seen_recently: false }.decide(false)
}

fn in_workflow(work: Work, workflow: Workflow) -> Run {
    let mut run = run(work);
    run.progress.workflow = workflow;
    run
}

/// The decision in one word.
fn action_name(act: &DriftAction) -> &'static str {
    match act {
        DriftAction::Nothing => "nothing",
        DriftAction::Count(0) => "forget",
        DriftAction::Count(_) => "count",
        DriftAction::Quarantine(_) => "quarantine",
        DriftAction::Heal => "heal",
        DriftAction::Adopt(_) => "adopt",
        DriftAction::MarkManual(..) => "mark",
    }
}

#[test]
fn what_serves_and_is_not_deployed_is_quarantined_when_it_is_seen_again() {
    assert_eq!(CONFIRMATIONS, 2);
    for serving in [NodeState::Active, NodeState::Offline] {
        for upstream in MaasState::ALL {
            for (passes, drifts, fits) in [(0, "count", "nothing"), (1, "quarantine", "forget")] {
                let node = Node { drift_passes: passes, ..node(serving) };
                // An unknown MAAS state is not drift.
                let well = matches!(upstream, MaasState::Deployed | MaasState::Unknown);
                let expected = if well { fits } else { drifts };
                let act = decide(&node, upstream, None, true);
                assert_eq!(action_name(&act), expected, "{serving}, {upstream}, {passes}");
                if let DriftAction::Quarantine(why) = act {
                    let absent = upstream == MaasState::Absent;
                    assert!(why.contains(upstream.as_str()) || absent, "{why}");
                }
            }
        }
    }
}

/// Two replicas that poll one after the other count as one pass.
#[test]
fn what_was_first_seen_a_moment_ago_is_not_seen_again() {
    let absent = upstream_observation(MaasState::Absent);
    for (passes, expected) in [(0, DriftAction::Count(1)), (1, DriftAction::Nothing)] {
        let node = Node { drift_passes: passes, ..node(NodeState::Active) };
        let case = DriftCase {
            node: &node,
            observed: &absent,
            run: None,
            healthy: true,
            first_seen_recently: true,
        };
        assert_eq!(case.decide(false), expected, "{passes}");
    }
}

#[test]
fn what_maas_says_beside_it_is_told() {
    let node = Node { drift_passes: 1, ..node(NodeState::Active) };
    let observed = MaasObservation {
        message: "disk on fire".into(),
        ..upstream_observation(MaasState::Broken)
    };
    let act = DriftCase {
        node: &node,
        observed: &observed,
        run: None,
        healthy: true,
        first_seen_recently: false,
    }
    .decide(false);
    let why = "MAAS has its machine as Broken (disk on fire), not as Deployed";
    assert_eq!(act, DriftAction::Quarantine(why.into()));
}

#[test]
fn only_drift_is_taken_back_and_only_by_proof() {
    let causes = [
        (None, false),
        (Some(Quarantine::Drift), true),
        (Some(Quarantine::Onboarding), false),
        (Some(Quarantine::Cleanup), false),
        (Some(Quarantine::Operator), false),
    ];
    for (cause, drifted) in causes {
        for upstream in MaasState::ALL {
            for healthy in [true, false] {
                for (passes, well, ill) in [(0, "count", "nothing"), (1, "heal", "forget")] {
                    let before = node(NodeState::Quarantined);
                    let node = Node { quarantine: cause, drift_passes: passes, ..before };
                    let proven = upstream == MaasState::Deployed && healthy;
                    let expected = match (drifted, proven) {
                        (true, true) => well,
                        (true, false) => ill,
                        (false, _) => "nothing",
                    };
                    let act = decide(&node, upstream, None, healthy);
                    assert_eq!(
                        action_name(&act),
                        expected,
                        "{cause:?}, {upstream}, {healthy}, {passes}"
                    );
                }
            }
        }
    }
}

/// An active operation takes care of its node; and nothing is expected here of nodes that are not
/// in service.
#[test]
fn nothing_is_done_where_it_is_not_the_reconcilers() {
    for state in NodeState::ALL {
        let before = node(state);
        let node = Node { drift_passes: 1, quarantine: Some(Quarantine::Drift), ..before };
        for workflow in [Workflow::Pending, Workflow::Running, Workflow::Compensating] {
            for work in [Work::Onboard, Work::Take(DecommissionMode::Drain)] {
                let run = in_workflow(work, workflow);
                for upstream in MaasState::ALL {
                    let act = decide(&node, upstream, Some(&run), true);
                    assert_eq!(act, DriftAction::Nothing, "{state}, {workflow:?}, {upstream}");
                }
            }
        }
    }
    for name in ["bootstrap_issued", "draining", "retired", "removing", "deleted"] {
        let node = Node { drift_passes: 1, ..node(state(name)) };
        for upstream in MaasState::ALL {
            assert_eq!(
                decide(&node, upstream, None, true),
                DriftAction::Nothing,
                "{name}, {upstream}"
            );
        }
    }
}

fn failed_at(work: Work, workflow: Workflow, step: &str) -> Run {
    let mut run = in_workflow(work, workflow);
    let fault = Fault::new(FaultCode::StepTimeout, "too late");
    run.progress.failure = Some(Failure { fault, step: step.into(), attempts: 1 });
    run
}

/// MAAS may reach the goal of a failed stage without Farrier. A machine that is gone from MAAS
/// needs an operator.
#[test]
fn a_failed_onboarding_goes_by_what_maas_says() {
    let onboarding = NodeStage::ONBOARDING.map(NodeStage::as_str);
    for workflow in Workflow::ALL {
        for step in onboarding {
            let run = failed_at(Work::Onboard, workflow, step);
            for upstream in MaasState::ALL {
                let mut node = node(NodeState::Enrolling);
                node.system_id = "abc".into();
                let retryable = workflow == Workflow::FailedRetryable;
                let expected = match (upstream.as_str(), step) {
                    _ if !retryable => "nothing",
                    ("absent", _) => "mark",
                    ("Ready" | "Deployed", "wait_for_ready") => "adopt",
                    ("Deployed", "wait_for_deployed") => "adopt",
                    _ => "nothing",
                };
                // A single pass is not acted on.
                if expected != "nothing" {
                    let first = decide(&node, upstream, Some(&run), false);
                    assert_eq!(action_name(&first), "count", "{workflow:?} at {step}, {upstream}");
                    node.drift_passes = 1;
                }
                let act = decide(&node, upstream, Some(&run), false);
                assert_eq!(action_name(&act), expected, "{workflow:?} at {step}, {upstream}");
                match act {
                    DriftAction::Adopt(id) => assert_eq!(id, RunId::trusted("op-1")),
                    DriftAction::MarkManual(id, why) => {
                        assert_eq!(id, RunId::trusted("op-1"));
                        assert!(!why.is_empty());
                    }
                    DriftAction::Nothing
                    | DriftAction::Count(_)
                    | DriftAction::Quarantine(_)
                    | DriftAction::Heal => {}
                }
                // It was never found in MAAS, so it cannot be gone.
                node.system_id.clear();
                let act = decide(&node, upstream, Some(&run), false);
                let expected = if expected == "mark" { "forget" } else { expected };
                assert_eq!(action_name(&act), expected, "{workflow:?} at {step}, {upstream}");
            }
        }
    }
    let other =
        failed_at(Work::Take(DecommissionMode::Drain), Workflow::FailedRetryable, "wait_for_ready");
    let enrolling = node(NodeState::Enrolling);
    assert_eq!(decide(&enrolling, MaasState::Ready, Some(&other), false), DriftAction::Nothing);
    assert_eq!(decide(&enrolling, MaasState::Ready, None, false), DriftAction::Nothing);
}

/// A mass outage: MAAS or the connection to it is at fault. No node is moved, and no pass is
/// counted.
#[test]
fn mass_drift_quarantines_no_node() {
    let limits =
        HeartbeatLimits { outage_percent: 20, outage_least: 5, ..HeartbeatLimits::default() };
    let (absent, deployed) =
        (upstream_observation(MaasState::Absent), upstream_observation(MaasState::Deployed));
    let running = in_workflow(Work::Take(DecommissionMode::Drain), Workflow::Running);
    let serving = Node { drift_passes: 1, ..node(NodeState::Active) };
    let retired = node(NodeState::Retired);
    let case = |observed, run| DriftCase {
        node: &serving,
        observed,
        run,
        healthy: true,
        first_seen_recently: false,
    };
    for (drifting, well, in_outage) in
        [(5, 20, true), (5, 21, false), (4, 1, false), (4, 0, true), (5, 0, true)]
    {
        let mut cases = vec![case(&absent, None); drifting];
        cases.extend(vec![case(&deployed, None); well]);
        // Nodes that are not in service do not count.
        cases.push(DriftCase {
            node: &retired,
            observed: &absent,
            run: None,
            healthy: true,
            first_seen_recently: false,
        });
        let expected = in_outage.then_some(MassOutage { count: drifting, of: drifting + well });
        assert_eq!(detect_mass_outage(&cases, &limits), expected, "{drifting} and {well}");
    }
    // A node with an active operation does not drift.
    assert_eq!(detect_mass_outage(&vec![case(&absent, Some(&running)); 9], &limits), None);
    assert_eq!(case(&absent, None).decide(true), DriftAction::Nothing);
    assert_eq!(action_name(&case(&absent, None).decide(false)), "quarantine");
    assert_eq!(case(&deployed, None).decide(true), DriftAction::Count(0), "who is well is well");
}
