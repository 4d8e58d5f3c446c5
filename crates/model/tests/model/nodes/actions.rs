//! Every workflow state of an onboarding and of a decommission with each of the seven operator
//! actions.

use super::node_runs::NodeRunDriver;
use super::{Work, node, run, state};
use crate::support::{at, done, who};
use model::fault::FaultCode;
use model::id::RunId;
use model::node::requests::admit_resume;
use model::node::{DecommissionMode, NodeStage, NodeState};
use model::run::actions::{Action, ActionResult, RestartMode, apply_action, restart};
use model::run::{Run, StepPhase, Workflow};

/// A run in that state, reached as real runs reach it, with its node. The decommission drains
/// through a cluster, which can be undone.
fn driver_in(work: Work, workflow: Workflow) -> NodeRunDriver {
    let (from, middle) = match work {
        Work::Onboard => (NodeState::Enrolling, NodeStage::ConfigureStorage),
        Work::Take(_) => (NodeState::Active, NodeStage::ReleaseMaasNode),
    };
    let mut scenario = NodeRunDriver::begin(work, &work.stages(), from, "cluster-a");
    match workflow {
        Workflow::Pending => {
            scenario.run = super::run_of(work, &work.stages(), "cluster-a");
            return scenario;
        }
        Workflow::Running => {
            scenario.until(middle);
        }
        Workflow::Completed => {
            scenario.finish();
        }
        Workflow::FailedRetryable => {
            scenario.until(middle).fail(FaultCode::EffectFailed);
        }
        Workflow::FailedManualIntervention => {
            scenario.until(middle).fail(FaultCode::CapabilityMissing);
        }
        Workflow::Compensating => {
            // A completed drain is not undone; an incomplete one is.
            let begun = if work == Work::Onboard { middle } else { NodeStage::DrainNode };
            scenario.until(begun).act(Action::Cancel).stopped();
        }
        Workflow::Cancelled => {
            scenario.until(middle).act(Action::Cancel).stopped().finish();
        }
        Workflow::Reconciled => {
            scenario
                .until(middle)
                .fail(FaultCode::EffectFailed)
                .act(Action::Adopt)
                .answer(done())
                .finish();
        }
    }
    assert_eq!(scenario.run.progress.workflow, workflow, "{work:?}");
    scenario
}

/// The result of an action in one word.
fn outcome(scenario: &NodeRunDriver, action: Action) -> &'static str {
    match apply_action(&scenario.run, action, &who(), at(9)) {
        Ok(ActionResult::Unchanged) => "already",
        Ok(ActionResult::Recorded(..)) => "told",
        Ok(ActionResult::Changed(..)) => "changed",
        Ok(ActionResult::Reopened(progress, _)) => {
            match admit_resume(&scenario.node, &Run { progress, ..scenario.run.clone() }) {
                Ok(()) => "reopened",
                Err(refusal) => refusal.reason.as_str(),
            }
        }
        Err(refusal) => {
            assert!(refusal.next_command.is_some_and(|next| next.starts_with("farrier ")));
            refusal.reason.as_str()
        }
    }
}

fn restart_outcome(scenario: &NodeRunDriver, how: RestartMode) -> &'static str {
    let progress = match restart(&scenario.run, how, false) {
        Ok(progress) => progress,
        Err(refusal) => return refusal.reason.as_str(),
    };
    assert_eq!(progress.workflow, Workflow::Pending);
    assert_eq!(progress.scan_index, None, "its stages adopt one by one");
    let (mut run, mut node) = (scenario.run.clone(), scenario.node.clone());
    run.progress = progress;
    run.spec.rerun_of = Some(run.spec.id.clone());
    run.spec.id = RunId::trusted("op-2");
    node.workflow = Some(run.spec.id.clone());
    match admit_resume(&node, &run) {
        Ok(()) => "anew",
        Err(refusal) => refusal.reason.as_str(),
    }
}

const ACTIVE: &str = "RUN_ACTIVE";
const ENDED: &str = "ALREADY_FINISHED";
const MOVED: &str = "NODE_MOVED_ON";

/// Columns: cancel, retry_stage, resume, adopt_observed_state, mark_manual_intervention_required,
/// rerun, restart_clean.
type Row = (Workflow, [&'static str; 7]);

/// The rows that both have in common.
const COMMON: [Row; 6] = [
    (Workflow::Pending, ["told", ACTIVE, ACTIVE, ACTIVE, "told", ACTIVE, ACTIVE]),
    (Workflow::Running, ["told", ACTIVE, ACTIVE, ACTIVE, "told", ACTIVE, ACTIVE]),
    (Workflow::Compensating, ["already", ACTIVE, ACTIVE, ACTIVE, "told", ACTIVE, ACTIVE]),
    (
        Workflow::FailedRetryable,
        ["reopened", "reopened", "reopened", "reopened", "changed", "anew", "anew"],
    ),
    (
        Workflow::FailedManualIntervention,
        ["reopened", "reopened", "reopened", "reopened", "already", "anew", "anew"],
    ),
    (Workflow::Cancelled, ["already", ENDED, ENDED, ENDED, ENDED, "anew", "anew"]),
];

#[test]
fn every_state_and_every_action() {
    // Completed work is not repeated: a node in service is not onboarded, and a deleted one does
    // not come back.
    let over = [ENDED, ENDED, ENDED, ENDED, ENDED, MOVED, MOVED];
    let ends = [(Workflow::Completed, over), (Workflow::Reconciled, over)];
    for work in [Work::Onboard, Work::Take(DecommissionMode::FullDecommission)] {
        let mut observed = 0;
        for (workflow, row) in COMMON.into_iter().chain(ends) {
            let scenario = driver_in(work, workflow);
            for (action, expected) in Action::ALL.into_iter().zip(row) {
                let message = format!("{} of {work:?} in {workflow:?}", action.as_str());
                assert_eq!(outcome(&scenario, action), expected, "{message}");
            }
            for (how, expected) in
                [(RestartMode::Rerun, row[5]), (RestartMode::RestartClean, row[6])]
            {
                assert_eq!(
                    restart_outcome(&scenario, how),
                    expected,
                    "{how:?} of {work:?} in {workflow:?}"
                );
            }
            observed += 1;
        }
        assert_eq!(observed, Workflow::ALL.len());
    }
}

/// A stage that only its execution can verify is not adopted: the run and its node stay as they
/// are.
#[test]
fn what_nobody_can_see_is_not_adopted() {
    let work = Work::Take(DecommissionMode::FullDecommission);
    for stage in work.stages() {
        let mut scenario = NodeRunDriver::of(work, NodeState::Active);
        scenario.until(stage).fail(FaultCode::EffectFailed);
        let expected = if stage.task().is_some() { "NOT_OBSERVABLE" } else { "reopened" };
        assert_eq!(outcome(&scenario, Action::Adopt), expected, "{stage}");
        assert_eq!(outcome(&scenario, Action::RetryStep), "reopened", "{stage}");
    }
}

/// A run that returns or keeps the node can be repeated.
#[test]
fn what_leaves_the_node_there_may_be_done_again() {
    // A reactivation has no stages, only the uncordon in its cluster.
    let stored = |mode: &DecommissionMode| {
        !matches!(mode, DecommissionMode::FullDecommission | DecommissionMode::Reactivate)
    };
    for mode in DecommissionMode::ALL.into_iter().filter(stored) {
        let mut scenario = NodeRunDriver::of(Work::Take(mode), NodeState::Active);
        scenario.finish();
        for how in [RestartMode::Rerun, RestartMode::RestartClean] {
            assert_eq!(restart_outcome(&scenario, how), "anew", "{mode}");
        }
    }
}

/// The node states in which a run may continue. Columns: an onboarding, a decommission before its
/// drain, and one after it.
const GOES_ON: [(&str, [bool; 3]); 9] = [
    ("bootstrap_issued", [false, false, false]),
    ("enrolling", [true, false, false]),
    ("active", [false, true, false]),
    ("offline", [false, true, false]),
    // The node has served since it was drained: only a new decommission applies to it.
    ("quarantined", [false, true, false]),
    ("draining", [false, true, true]),
    ("retired", [false, true, true]),
    ("removing", [false, true, true]),
    ("deleted", [false, false, false]),
];

fn emptied(mut run: Run) -> Run {
    for step in &mut run.progress.steps[..3] {
        step.state = StepPhase::Succeeded;
        step.attempt = 1;
    }
    run
}

#[test]
fn a_run_goes_on_where_its_node_is_as_it_left_it() {
    let full = || run(Work::Take(DecommissionMode::FullDecommission));
    let runs = [run(Work::Onboard), full(), emptied(full())];
    for (name, row) in GOES_ON {
        for (run, expected) in runs.iter().zip(row) {
            let message = format!("{name}: {:?}", run.spec.run_type);
            match admit_resume(&node(state(name)), run) {
                Ok(()) => assert!(expected, "{message}"),
                Err(refusal) => {
                    assert!(!expected, "{message}");
                    assert_eq!(refusal.reason.as_str(), MOVED, "{message}");
                    assert!(refusal.message.contains("op-1"), "{refusal}");
                    assert_eq!(refusal.next_command.as_deref(), Some("farrier why node-1"));
                }
            }
            // A newer operation exists.
            let mut newer = node(state(name));
            newer.workflow = Some(RunId::trusted("op-2"));
            assert_eq!(admit_resume(&newer, run).unwrap_err().reason.as_str(), MOVED, "{message}");
        }
    }
}
