//! The reconciler's decisions about drift: quarantine, heal, adopt, mark; and none when many nodes
//! drift at once.

use super::{Work, node, run, seen, state};
use model::fault::{Code, Fault};
use model::id::RunId;
use model::node::drift::{Act, CONFIRMATIONS, Case, flood};
use model::node::silence::{Flood, Limits};
use model::node::{Mode, Node, NodeState, Quarantine, Stage, Upstream, UpstreamSeen};
use model::run::{Failure, Run, Workflow};

fn decide(node: &Node, upstream: Upstream, run: Option<&Run>, healthy: bool) -> Act {
    let seen = seen(upstream);
    Case { node, seen: &seen, run, healthy, lately: false }.decide(false)
}

fn in_workflow(work: Work, workflow: Workflow) -> Run {
    let mut run = run(work);
    run.progress.workflow = workflow;
    run
}

/// The decision in one word.
fn word(act: &Act) -> &'static str {
    match act {
        Act::Nothing => "nothing",
        Act::Count(0) => "forget",
        Act::Count(_) => "count",
        Act::Quarantine(_) => "quarantine",
        Act::Heal => "heal",
        Act::Adopt(_) => "adopt",
        Act::MarkManual(..) => "mark",
    }
}

#[test]
fn what_serves_and_is_not_deployed_is_quarantined_when_it_is_seen_again() {
    assert_eq!(CONFIRMATIONS, 2);
    for serving in [NodeState::Active, NodeState::Offline] {
        for upstream in Upstream::ALL {
            for (passes, drifts, fits) in [(0, "count", "nothing"), (1, "quarantine", "forget")] {
                let node = Node { passes, ..node(serving) };
                // An unknown MAAS state is not drift.
                let well = matches!(upstream, Upstream::Deployed | Upstream::Unknown);
                let expected = if well { fits } else { drifts };
                let act = decide(&node, upstream, None, true);
                assert_eq!(word(&act), expected, "{serving}, {upstream}, {passes}");
                if let Act::Quarantine(why) = act {
                    let absent = upstream == Upstream::Absent;
                    assert!(why.contains(upstream.as_str()) || absent, "{why}");
                }
            }
        }
    }
}

/// Two replicas that poll one after the other count as one pass.
#[test]
fn what_was_first_seen_a_moment_ago_is_not_seen_again() {
    let absent = seen(Upstream::Absent);
    for (passes, expected) in [(0, Act::Count(1)), (1, Act::Nothing)] {
        let node = Node { passes, ..node(NodeState::Active) };
        let case = Case { node: &node, seen: &absent, run: None, healthy: true, lately: true };
        assert_eq!(case.decide(false), expected, "{passes}");
    }
}

#[test]
fn what_maas_says_beside_it_is_told() {
    let node = Node { passes: 1, ..node(NodeState::Active) };
    let seen = UpstreamSeen { said: "disk on fire".into(), ..seen(Upstream::Broken) };
    let act =
        Case { node: &node, seen: &seen, run: None, healthy: true, lately: false }.decide(false);
    let why = "MAAS has its machine as Broken (disk on fire), not as Deployed";
    assert_eq!(act, Act::Quarantine(why.into()));
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
        for upstream in Upstream::ALL {
            for healthy in [true, false] {
                for (passes, well, ill) in [(0, "count", "nothing"), (1, "heal", "forget")] {
                    let before = node(NodeState::Quarantined);
                    let node = Node { quarantine: cause, passes, ..before };
                    let proven = upstream == Upstream::Deployed && healthy;
                    let expected = match (drifted, proven) {
                        (true, true) => well,
                        (true, false) => ill,
                        (false, _) => "nothing",
                    };
                    let act = decide(&node, upstream, None, healthy);
                    assert_eq!(word(&act), expected, "{cause:?}, {upstream}, {healthy}, {passes}");
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
        let node = Node { passes: 1, quarantine: Some(Quarantine::Drift), ..before };
        for workflow in [Workflow::Pending, Workflow::Running, Workflow::Compensating] {
            for work in [Work::Onboard, Work::Take(Mode::Drain)] {
                let run = in_workflow(work, workflow);
                for upstream in Upstream::ALL {
                    let act = decide(&node, upstream, Some(&run), true);
                    assert_eq!(act, Act::Nothing, "{state}, {workflow:?}, {upstream}");
                }
            }
        }
    }
    for word in ["bootstrap_issued", "draining", "retired", "removing", "deleted"] {
        let node = Node { passes: 1, ..node(state(word)) };
        for upstream in Upstream::ALL {
            assert_eq!(decide(&node, upstream, None, true), Act::Nothing, "{word}, {upstream}");
        }
    }
}

fn failed_at(work: Work, workflow: Workflow, step: &str) -> Run {
    let mut run = in_workflow(work, workflow);
    let fault = Fault::new(Code::StepTimeout, "too late");
    run.progress.failure = Some(Failure { fault, step: step.into(), attempts: 1 });
    run
}

/// What a failed stage waited for may happen without Farrier. A machine that is gone from MAAS
/// needs an operator.
#[test]
fn a_failed_onboarding_goes_by_what_maas_says() {
    let onboarding = Stage::ONBOARDING.map(Stage::as_str);
    for workflow in Workflow::ALL {
        for step in onboarding {
            let run = failed_at(Work::Onboard, workflow, step);
            for upstream in Upstream::ALL {
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
                    assert_eq!(word(&first), "count", "{workflow:?} at {step}, {upstream}");
                    node.passes = 1;
                }
                let act = decide(&node, upstream, Some(&run), false);
                assert_eq!(word(&act), expected, "{workflow:?} at {step}, {upstream}");
                match act {
                    Act::Adopt(id) => assert_eq!(id, RunId::trusted("op-1")),
                    Act::MarkManual(id, why) => {
                        assert_eq!(id, RunId::trusted("op-1"));
                        assert!(!why.is_empty());
                    }
                    Act::Nothing | Act::Count(_) | Act::Quarantine(_) | Act::Heal => {}
                }
                // It was never found in MAAS, so it cannot be gone.
                node.system_id.clear();
                let act = decide(&node, upstream, Some(&run), false);
                let expected = if expected == "mark" { "forget" } else { expected };
                assert_eq!(word(&act), expected, "{workflow:?} at {step}, {upstream}");
            }
        }
    }
    let other = failed_at(Work::Take(Mode::Drain), Workflow::FailedRetryable, "wait_for_ready");
    let enrolling = node(NodeState::Enrolling);
    assert_eq!(decide(&enrolling, Upstream::Ready, Some(&other), false), Act::Nothing);
    assert_eq!(decide(&enrolling, Upstream::Ready, None, false), Act::Nothing);
}

/// A mass outage: MAAS or the connection to it is at fault. No node is moved, and no pass is
/// counted.
#[test]
fn when_many_drift_nobody_is_to_blame() {
    let limits = Limits { flood_percent: 20, flood_least: 5, ..Limits::default() };
    let (absent, deployed) = (seen(Upstream::Absent), seen(Upstream::Deployed));
    let running = in_workflow(Work::Take(Mode::Drain), Workflow::Running);
    let serving = Node { passes: 1, ..node(NodeState::Active) };
    let retired = node(NodeState::Retired);
    let case = |seen, run| Case { node: &serving, seen, run, healthy: true, lately: false };
    for (drifting, well, flooded) in
        [(5, 20, true), (5, 21, false), (4, 1, false), (4, 0, true), (5, 0, true)]
    {
        let mut cases = vec![case(&absent, None); drifting];
        cases.extend(vec![case(&deployed, None); well]);
        // Nodes that are not in service do not count.
        cases.push(Case { node: &retired, seen: &absent, run: None, healthy: true, lately: false });
        let expected = flooded.then_some(Flood { count: drifting, of: drifting + well });
        assert_eq!(flood(&cases, &limits), expected, "{drifting} and {well}");
    }
    // A node with an active operation does not drift.
    assert_eq!(flood(&vec![case(&absent, Some(&running)); 9], &limits), None);
    assert_eq!(case(&absent, None).decide(true), Act::Nothing);
    assert_eq!(word(&case(&absent, None).decide(false)), "quarantine");
    assert_eq!(case(&deployed, None).decide(true), Act::Count(0), "who is well is well");
}
