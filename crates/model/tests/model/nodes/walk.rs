//! Every reachable combination of a node and its run, under every event.
//!
//! Besides the answers, faults and actions of a run: agents send heartbeats and fall silent, MAAS
//! reports drift, and operators quarantine, release, reactivate and start over. After every commit
//! the documents' tables hold, no node is in an intermediate state without an active run, and
//! nothing is cleaned or removed on a node that came back into service after it was drained.

use super::node_runs::{check, followed};
use super::{Work, node, run_of};
use crate::support::{at, who};
use crate::walk::{Input, PAST_WAITS, inputs, skip_middle_status_calls};
use model::effect::CallVerb;
use model::fault::{FaultClass, FaultCode};
use model::gate::{Gate, Overrides};
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::node::drift::lets_serve;
use model::node::follow::leaves_disabled;
use model::node::requests::{
    NodeContext, NodeRequest, admit_decommission, admit_resume, apply_request, closing_workflow,
};
use model::node::{
    DecommissionMode, Node, NodeStage, NodeState, NodeTurnInput, Quarantine, TransitionOwner,
    is_consistent,
};
use model::run::actions::{ActionResult, RestartMode, apply_action, close, restart};
use model::run::{
    AfterCommit, CallResult, Decision, Policy, Run, StepPhase, StepState, StopKind, Workflow,
    decide,
};
use model::time::Timestamp;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// More combinations would mean that they are distinguished by what no decision depends on.
const MAX_COMBINATIONS: usize = 50_000;
/// The effect did not happen; it may have happened; an operator is needed.
const FAULTS: [FaultCode; 3] =
    [FaultCode::EffectFailed, FaultCode::AnswerLost, FaultCode::CapabilityMissing];

#[derive(Clone)]
struct Combination {
    node: Node,
    run: Run,
    now: Timestamp,
    epoch: i64,
    /// The node has been in service since the run drained it.
    served: bool,
}

/// Fields that distinguish two combinations.
#[derive(PartialEq, Eq, Hash)]
struct Shape {
    node: (NodeState, Option<Quarantine>, bool),
    workflow: Workflow,
    left: usize,
    halt: Option<(bool, bool)>,
    started: bool,
    failed: bool,
    steps: Vec<(usize, bool, StepPhase, bool)>,
    live: Option<LiveShape>,
}

#[derive(PartialEq, Eq, Hash)]
struct LiveShape {
    left: u32,
    open: bool,
    pursuit: CallVerb,
    open_verb: Option<CallVerb>,
    doubt: Option<bool>,
    status_calls: u32,
    waits: bool,
}

fn drained(run: &Run) -> bool {
    let mut steps = run.progress.steps.iter();
    steps.any(|step| step.state == StepPhase::Succeeded && run.step_name(step) == "drain_node")
}

/// The number of attempts moves no node: failed status calls skip to the last one, and an undo step
/// has one attempt.
fn skip_attempts(run: &mut Run) {
    skip_middle_status_calls(run);
    let waiting = |step: &&mut StepState| step.undo && step.state == StepPhase::Waiting;
    run.progress
        .steps
        .iter_mut()
        .filter(waiting)
        .for_each(|step| step.max_attempt = step.attempt + 1);
}

/// The events of its run without timeouts: one fault of each class, and every answer.
fn timely_inputs(run: &Run) -> Vec<(Input, Duration)> {
    let reported = |input: &Input| match input {
        Input::Answered(Err(fault)) => FAULTS.contains(&fault.code),
        Input::Answered(Ok(_))
        | Input::Interrupted
        | Input::TakenOver
        | Input::Due
        | Input::Acted(_) => true,
    };
    inputs(run).into_iter().filter(|(input, wait)| *wait <= PAST_WAITS && reported(input)).collect()
}

impl Combination {
    fn shape(&self) -> Shape {
        let progress = &self.run.progress;
        let over = self.run.ended() && !progress.workflow.failed();
        let live = |step: &StepState| LiveShape {
            left: step.max_attempt.saturating_sub(step.attempt),
            open: step.attempt_open,
            pursuit: step.next_verb,
            open_verb: step.intent.as_ref().map(|requested| requested.verb),
            doubt: step
                .uncertain_fault
                .as_ref()
                .map(|fault| fault.class() == FaultClass::Retryable),
            status_calls: step.failed_status_calls,
            waits: step.not_before.is_some(),
        };
        // Undo steps of a clean restart no longer matter once they are complete.
        let undone = progress.steps.iter().take_while(|step| step.undo).count();
        let behind = if undone <= progress.step_index { undone } else { 0 };
        let step = |step: &StepState| (step.plan_step, step.undo, step.state, step.attempt > 0);
        Shape {
            node: (self.node.state, self.node.quarantine, self.served && drained(&self.run)),
            workflow: progress.workflow,
            left: progress.steps.len() - progress.step_index,
            halt: progress
                .stop_request
                .as_ref()
                .map(|one| (one.kind == StopKind::Cancel, one.undoing)),
            started: progress.started_at.is_some(),
            failed: progress.failure.is_some(),
            steps: progress.steps[behind..].iter().map(step).collect(),
            live: progress.current().filter(|_| !over).map(live),
        }
    }

    /// The node moves, whoever the owner is.
    fn moved(mut self, node: Node) -> Self {
        self.served |= node.state.in_service();
        self.node = node;
        self
    }

    /// Writes the run and its node as one commit.
    fn commit(&self, run: Run) -> Self {
        let emptied = drained(&run) && !drained(&self.run);
        let mut after = Self { run, ..self.clone() };
        skip_attempts(&mut after.run);
        for node in followed(&self.node, &after.run) {
            after = after.moved(node);
        }
        // Whatever it did before, it was drained in this commit.
        after.served &= !emptied || after.node.state.in_service();
        check(&after.node, &after.run);
        after.check_outside();
        after
    }

    fn decided(&self, given: Option<&CallResult>, epoch: i64) -> Self {
        let Decision { run, then, .. } =
            decide(&self.run, epoch, given, Policy::default(), self.now);
        if let AfterCommit::CallProvider(call, _) = &then
            && call.verb == CallVerb::Perform
            && run.progress.current().is_some_and(|step| !step.undo)
            && drained(&run)
        {
            let what = call.effect.name();
            assert!(!self.served || !drained(&self.run), "{what} on a node that serves");
        }
        Self { epoch, ..self.commit(run) }
    }

    /// The state after an event; none when the event changes nothing.
    fn after(&self, input: &Input, wait: Duration) -> Option<Self> {
        let here = Self { now: self.now + wait, ..self.clone() };
        match input {
            Input::Acted(action) => {
                match apply_action(&here.run, *action, &who(), here.now).ok()? {
                    ActionResult::Unchanged => None,
                    ActionResult::Recorded(progress, _) | ActionResult::Changed(progress, _) => {
                        Some(here.commit(Run { progress, ..here.run.clone() }))
                    }
                    ActionResult::Reopened(progress, _) => {
                        let run = Run { progress, ..here.run.clone() };
                        admit_resume(&here.node, &run).ok()?;
                        Some(here.commit(run))
                    }
                }
            }
            Input::Answered(result) => {
                let (_, verb) = here.run.open_call()?;
                Some(here.decided(Some(&CallResult::Answered(verb, result.clone())), here.epoch))
            }
            Input::Interrupted => Some(here.decided(Some(&CallResult::Abandoned), here.epoch)),
            Input::TakenOver => Some(here.decided(None, here.epoch + 1)),
            Input::Due => Some(here.decided(None, here.epoch)),
        }
    }

    /// A new run in place of the ended one.
    fn restarted(&self, how: RestartMode) -> Option<Self> {
        let progress = restart(&self.run, how, false).ok()?;
        let mut run = Run { progress, ..self.run.clone() };
        run.spec.rerun_of = Some(run.spec.id.clone());
        admit_resume(&self.node, &run).ok()?;
        check(&self.node, &run);
        Some(Self { run, now: at(0), epoch: 1, ..self.clone() })
    }

    /// The same work, requested again.
    fn requested(&self, mode: DecommissionMode) -> Option<Self> {
        let known = NodeContext { run: Some(&self.run), healthy: true };
        let moves = admit_decommission(&self.node, mode, known).ok()?;
        let node = moves.into_iter().last().unwrap_or_else(|| self.node.clone());
        let run = Run::new(self.run.spec.clone());
        check(&node, &run);
        Some(Self { node, run, now: at(0), epoch: 1, ..self.clone() })
    }

    /// Transitions of the node that heartbeats, the reconciler and operators make independently of
    /// its run.
    fn outside_transitions(&self) -> Vec<(&'static str, Self)> {
        let idle = self.run.ended();
        let node = &self.node;
        let mut all: Vec<(&'static str, Vec<Node>, Option<Workflow>)> = Vec::new();
        let beats = !leaves_disabled(&self.run);
        for (what, to, moves) in
            [("silent", NodeState::Offline, true), ("heard", NodeState::Active, beats)]
        {
            let moved = node.become_(to, TransitionOwner::Heartbeat, what).into_iter();
            all.push((what, moved.filter(|_| moves).collect(), None));
        }
        if idle {
            let drift = node.quarantined(Quarantine::Drift, TransitionOwner::Reconciler, "drift");
            let drift = drift.into_iter().filter(|_| node.state.in_service()).collect();
            all.push(("drift", drift, None));
        }
        if idle && node.quarantine == Some(Quarantine::Drift) && lets_serve(&self.run) {
            let healed = node.become_(NodeState::Active, TransitionOwner::Reconciler, "well");
            all.push(("heal", healed.into_iter().collect(), None));
        }
        let why = || "because".to_string();
        for (what, requested) in [
            ("quarantine", NodeRequest::Quarantine { why: why() }),
            (
                "release",
                NodeRequest::Release { why: why(), overrides: Overrides::of(&Gate::ALL, "sure") },
            ),
            (
                "reactivate",
                NodeRequest::Reactivate {
                    why: why(),
                    overrides: Overrides::of(&Gate::ALL, "sure"),
                },
            ),
        ] {
            let known = NodeContext { run: Some(&self.run), healthy: false };
            let end = closing_workflow(node, &requested, &self.run);
            all.push((what, apply_request(node, &requested, known).unwrap_or_default(), end));
        }
        let moved = |(what, moves, end): (&'static str, Vec<Node>, Option<Workflow>)| {
            let node = moves.into_iter().last()?;
            assert_ne!(self.node.state, NodeState::Deleted, "{what} brings it back");
            let mut after = self.clone().moved(node);
            // A request on the node also ends its failed run.
            if let Some((progress, _)) = end.and_then(|end| close(&self.run, end, &who())) {
                after.run.progress = progress;
            }
            after.check_outside();
            Some((what, after))
        };
        all.into_iter().filter_map(moved).collect()
    }

    fn check_outside(&self) {
        let (state, workflow) = (self.node.state, self.run.progress.workflow);
        assert!(is_consistent(state, &self.run), "{state} beside {workflow:?}");
        assert!(!state.in_progress() || !self.run.ended(), "{state}, and nobody is at work on it");
    }
}

struct Walk {
    places: Vec<Combination>,
    from: Vec<Option<(usize, String)>>,
    known: HashMap<Shape, usize>,
    queue: VecDeque<usize>,
}

impl Walk {
    fn add(&mut self, position: Combination, from: Option<(usize, String)>) {
        let index = self.places.len();
        assert!(index < MAX_COMBINATIONS, "it does not end");
        if *self.known.entry(position.shape()).or_insert(index) == index {
            self.places.push(position);
            self.from.push(from);
            self.queue.push_back(index);
        }
    }

    fn explore(&mut self, work: Work) {
        while let Some(index) = self.queue.pop_front() {
            let position = self.places[index].clone();
            let driver = PathPrinter(self, index);
            let guard = position
                .node
                .next(&NodeTurnInput { run: Some(position.run.clone()) }, position.now);
            assert!(matches!(guard, LifecycleDecision::Idle(_)), "somebody is at work: {guard:?}");
            let mut next: Vec<(String, Combination)> = Vec::new();
            for (input, wait) in timely_inputs(&position.run) {
                let after = position.after(&input, wait);
                next.extend(after.map(|after| (format!("{input:?} after {wait:?}"), after)));
            }
            for how in [RestartMode::Rerun, RestartMode::RestartClean] {
                next.extend(position.restarted(how).map(|after| (format!("{how:?}"), after)));
            }
            if let Work::Take(mode) = work {
                next.extend(
                    position.requested(mode).map(|after| ("asked anew".to_string(), after)),
                );
            }
            next.extend(
                position.outside_transitions().into_iter().map(|(what, to)| (what.to_string(), to)),
            );
            drop(driver);
            for (label, after) in next {
                self.add(after, Some((index, label)));
            }
        }
    }
}

/// Prints the path to a combination when a check fails there.
struct PathPrinter<'a>(&'a Walk, usize);

impl Drop for PathPrinter<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Self(walk, mut at) = *self;
        let position = &walk.places[at];
        let mut lines = vec![format!("{} and {:#?}", position.node.state, position.run.progress)];
        while let Some((parent, label)) = &walk.from[at] {
            lines.push(format!("  {label}"));
            at = *parent;
        }
        lines.reverse();
        println!("{}", lines.join("\n"));
    }
}

/// Walks the few stages that matter for the node, and asserts that the walk was not cut short.
fn walks(work: Work, stages: &[NodeStage], cluster: &str, at_least: usize) -> Vec<Combination> {
    let all = work.stages();
    assert!(stages.iter().all(|stage| all.contains(stage)), "{work:?} has other stages");
    let mut spec = run_of(work, stages, cluster).spec;
    for step in &mut spec.steps {
        // One attempt is enough: the number of attempts moves no node.
        step.max_retries = 0;
    }
    let starts = match work {
        Work::Onboard => vec![NodeState::Enrolling],
        Work::Take(_) => vec![NodeState::Active, NodeState::Retired],
    };
    let mut walk = Walk {
        places: Vec::new(),
        from: Vec::new(),
        known: HashMap::new(),
        queue: VecDeque::new(),
    };
    for from in starts {
        let (node, run) = (node(from), Run::new(spec.clone()));
        check(&node, &run);
        walk.add(Combination { node, run, now: at(0), epoch: 1, served: true }, None);
    }
    walk.explore(work);
    println!("{work:?}: {} places", walk.places.len());
    assert!(walk.places.len() >= at_least, "{work:?}: only {} places", walk.places.len());
    let flows: Vec<_> = walk.places.iter().map(|position| position.run.progress.workflow).collect();
    let undone = spec.steps.iter().any(|step| step.effect.undo().is_some());
    for flow in Workflow::ALL {
        let expected = undone || flow != Workflow::Compensating;
        assert_eq!(flows.contains(&flow), expected, "{work:?}: {flow:?}");
    }
    walk.places
}

fn reached(places: &[Combination]) -> BTreeSet<&'static str> {
    places.iter().map(|position| position.node.state.as_str()).collect()
}

use NodeStage::{
    CleanupStorage, DeployViaMaas, DisableNode, DrainNode, RemoveGpuaasNodeRecord,
    RetireGpuaasNode, ValidateCleanNode, WaitForAgentEnrollment,
};

const STATES_OF_A_KEPT_NODE: [&str; 5] =
    ["active", "offline", "quarantined", "draining", "retired"];

#[test]
fn onboarding() {
    let stages = [DeployViaMaas, WaitForAgentEnrollment];
    let places = walks(Work::Onboard, &stages, "", 7_000);
    assert_eq!(reached(&places), BTreeSet::from(["active", "enrolling", "offline", "quarantined"]));
}

#[test]
fn soft_reset() {
    let stages = [DisableNode, DrainNode, CleanupStorage];
    let places = walks(Work::Take(DecommissionMode::SoftReset), &stages, "", 7_000);
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into());
}

#[test]
fn reimage() {
    let stages = [DisableNode, DrainNode, DeployViaMaas];
    let places = walks(Work::Take(DecommissionMode::Reimage), &stages, "", 7_000);
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into());
}

#[test]
fn full_decommission() {
    let stages = [DisableNode, DrainNode, RemoveGpuaasNodeRecord];
    let places = walks(Work::Take(DecommissionMode::FullDecommission), &stages, "", 7_000);
    let more = ["removing", "deleted"];
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into_iter().chain(more).collect());
    // A deleted node was removed completely, and stays deleted.
    for position in places.iter().filter(|position| position.node.state == NodeState::Deleted) {
        let workflow = position.run.progress.workflow;
        assert!(matches!(workflow, Workflow::Completed | Workflow::Reconciled), "{workflow:?}");
    }
}

#[test]
fn storage_cleanup() {
    let stages = [DisableNode, DrainNode, ValidateCleanNode];
    let places = walks(Work::Take(DecommissionMode::StorageCleanup), &stages, "", 7_000);
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into());
}

#[test]
fn a_drain_by_the_cluster() {
    let stages = [DisableNode, DrainNode];
    let places = walks(Work::Take(DecommissionMode::Drain), &stages, "cluster-a", 7_000);
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into());
}

#[test]
fn retirement() {
    let stages = [DisableNode, DrainNode, RetireGpuaasNode];
    let places = walks(Work::Take(DecommissionMode::Retire), &stages, "", 7_000);
    assert_eq!(reached(&places), STATES_OF_A_KEPT_NODE.into());
}
