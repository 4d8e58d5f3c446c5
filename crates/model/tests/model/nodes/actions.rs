//! Every workflow state of an onboarding and of a decommission with each of the seven operator
//! actions.

use super::lives::Life;
use super::{Work, node, run, state};
use crate::support::{at, done, who};
use model::fault::Code;
use model::id::RunId;
use model::node::door::may_go_on;
use model::node::{Mode, NodeState, Stage};
use model::run::act::{Acted, Action, RestartMode, act, restart};
use model::run::{Run, StepPhase, Workflow};

/// A run in that state, reached as real runs reach it, with its node. The decommission drains
/// through a cluster, which can be undone.
fn life_in(work: Work, workflow: Workflow) -> Life {
    let (from, middle) = match work {
        Work::Onboard => (NodeState::Enrolling, Stage::ConfigureStorage),
        Work::Take(_) => (NodeState::Active, Stage::ReleaseMaasNode),
    };
    let mut life = Life::begin(work, &work.stages(), from, "cluster-a");
    match workflow {
        Workflow::Pending => {
            life.run = super::run_of(work, &work.stages(), "cluster-a");
            return life;
        }
        Workflow::Running => {
            life.until(middle);
        }
        Workflow::Completed => {
            life.finish();
        }
        Workflow::FailedRetryable => {
            life.until(middle).fail(Code::EffectFailed);
        }
        Workflow::FailedManualIntervention => {
            life.until(middle).fail(Code::CapabilityMissing);
        }
        Workflow::Compensating => {
            // A completed drain is not undone; an incomplete one is.
            let begun = if work == Work::Onboard { middle } else { Stage::DrainNode };
            life.until(begun).act(Action::Cancel).stopped();
        }
        Workflow::Cancelled => {
            life.until(middle).act(Action::Cancel).stopped().finish();
        }
        Workflow::Reconciled => {
            life.until(middle).fail(Code::EffectFailed).act(Action::Adopt).answer(done()).finish();
        }
    }
    assert_eq!(life.run.progress.workflow, workflow, "{work:?}");
    life
}

/// The result of an action in one word.
fn outcome(life: &Life, action: Action) -> &'static str {
    match act(&life.run, action, &who(), at(9)) {
        Ok(Acted::Already) => "already",
        Ok(Acted::Told(..)) => "told",
        Ok(Acted::Changed(..)) => "changed",
        Ok(Acted::Reopened(progress, _)) => {
            match may_go_on(&life.node, &Run { progress, ..life.run.clone() }) {
                Ok(()) => "reopened",
                Err(refusal) => refusal.reason,
            }
        }
        Err(refusal) => {
            assert!(refusal.next.is_some_and(|next| next.starts_with("farrier ")));
            refusal.reason
        }
    }
}

fn anew(life: &Life, how: RestartMode) -> &'static str {
    let progress = match restart(&life.run, how) {
        Ok(progress) => progress,
        Err(refusal) => return refusal.reason,
    };
    assert_eq!(progress.workflow, Workflow::Pending);
    assert_eq!(progress.scan, None, "its stages adopt one by one");
    let (mut run, mut node) = (life.run.clone(), life.node.clone());
    run.progress = progress;
    run.spec.id = RunId::trusted("op-2");
    node.workflow = Some(run.spec.id.clone());
    match may_go_on(&node, &run) {
        Ok(()) => "anew",
        Err(refusal) => refusal.reason,
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
    (Workflow::Pending, ["told", "already", "already", ACTIVE, "told", ACTIVE, ACTIVE]),
    (Workflow::Running, ["told", "already", "already", ACTIVE, "told", ACTIVE, ACTIVE]),
    (Workflow::Compensating, ["already", "already", "already", ACTIVE, "told", ACTIVE, ACTIVE]),
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
    for work in [Work::Onboard, Work::Take(Mode::FullDecommission)] {
        let mut seen = 0;
        for (workflow, row) in COMMON.into_iter().chain(ends) {
            let life = life_in(work, workflow);
            for (action, expected) in Action::ALL.into_iter().zip(row) {
                let said = format!("{} of {work:?} in {workflow:?}", action.as_str());
                assert_eq!(outcome(&life, action), expected, "{said}");
            }
            for (how, expected) in
                [(RestartMode::Rerun, row[5]), (RestartMode::RestartClean, row[6])]
            {
                assert_eq!(anew(&life, how), expected, "{how:?} of {work:?} in {workflow:?}");
            }
            seen += 1;
        }
        assert_eq!(seen, Workflow::ALL.len());
    }
}

/// A stage that only its execution can verify is not adopted: the run and its node stay as they
/// are.
#[test]
fn what_nobody_can_see_is_not_adopted() {
    let work = Work::Take(Mode::FullDecommission);
    for stage in work.stages() {
        let mut life = Life::of(work, NodeState::Active);
        life.until(stage).fail(Code::EffectFailed);
        let expected = if stage.task().is_some() { "NOT_OBSERVABLE" } else { "reopened" };
        assert_eq!(outcome(&life, Action::Adopt), expected, "{stage}");
        assert_eq!(outcome(&life, Action::RetryStep), "reopened", "{stage}");
    }
}

/// A run that returns or keeps the node can be repeated.
#[test]
fn what_leaves_the_node_there_may_be_done_again() {
    // A reactivation has no stages, only the uncordon in its cluster.
    let kept = |mode: &Mode| !matches!(mode, Mode::FullDecommission | Mode::Reactivate);
    for mode in Mode::ALL.into_iter().filter(kept) {
        let mut life = Life::of(Work::Take(mode), NodeState::Active);
        life.finish();
        for how in [RestartMode::Rerun, RestartMode::RestartClean] {
            assert_eq!(anew(&life, how), "anew", "{mode}");
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
    let full = || run(Work::Take(Mode::FullDecommission));
    let runs = [run(Work::Onboard), full(), emptied(full())];
    for (word, row) in GOES_ON {
        for (run, expected) in runs.iter().zip(row) {
            let said = format!("{word}: {:?}", run.spec.run_type);
            match may_go_on(&node(state(word)), run) {
                Ok(()) => assert!(expected, "{said}"),
                Err(refusal) => {
                    assert!(!expected, "{said}");
                    assert_eq!(refusal.reason, MOVED, "{said}");
                    assert!(refusal.said.contains("op-1"), "{refusal}");
                    assert_eq!(refusal.next.as_deref(), Some("farrier why node-1"));
                }
            }
            // A newer operation exists.
            let mut newer = node(state(word));
            newer.workflow = Some(RunId::trusted("op-2"));
            assert_eq!(may_go_on(&newer, run).unwrap_err().reason, MOVED, "{said}");
        }
    }
}
