//! The events of a node: requests, heartbeats, the reconciler, and every commit of its runs.
//!
//! A node rarely moves in its own turn, so an event is a changed record, and the turn has nothing
//! to do. Its runs are represented by their progress: each stage of each mode as the current one,
//! and each end that the run may have there.

use super::{AT_ONCE, Explore, LifecycleEvent, OWN, run_in};
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::node::drift::{DriftAction, DriftCase};
use model::node::heartbeat::{
    AgentHeartbeat, HeartbeatLimits, HeartbeatTimes, classify_heartbeats,
};
use model::node::requests::{NodeContext, NodeRequest, admit_decommission, apply_request};
use model::node::{
    DecommissionMode, MODE, MaasObservation, MaasState, Node, NodeStage, NodeState, NodeTurnInput,
    Quarantine, StageTarget, TransitionOwner, is_consistent, next_transition, steps,
};
use model::plan::RunType;
use model::run::{Progress, Run, StepPhase, Workflow};
use model::time::Timestamp;

/// The commits of a run, and their descriptions.
const COMMITS: [(&str, Workflow); 5] = [
    ("its operation goes on", Workflow::Running),
    ("its operation succeeds", Workflow::Completed),
    ("its operation fails, and trying again is safe", Workflow::FailedRetryable),
    ("its operation stops for a person", Workflow::FailedManualIntervention),
    ("its operation is canceled", Workflow::Cancelled),
];

/// A run with `done` stages completed and the next one started.
fn run(run_type: RunType, mode: Option<DecommissionMode>, done: usize, workflow: Workflow) -> Run {
    let stages = mode.map_or(NodeStage::ONBOARDING.to_vec(), |mode| mode.stages(true));
    let owner = StageTarget {
        node: NodeId::trusted("node-1"),
        site: Some(SiteId::trusted("site-1")),
        provider: "maas".into(),
        cluster: String::new(),
    };
    let mut run = run_in(&RunId::trusted(OWN), run_type, workflow);
    run.spec.steps = steps(&stages, &owner);
    run.spec.params.extend(mode.map(|mode| (MODE.into(), mode.as_str().into())));
    run.progress = Progress { steps: Progress::fresh(&run.spec.steps).steps, ..run.progress };
    for step in run.progress.steps.iter_mut().take(done) {
        step.state = StepPhase::Succeeded;
        step.attempt = 1;
    }
    if let Some(step) = run.progress.steps.get_mut(done) {
        step.attempt = 1;
    }
    run.progress.step_index = done;
    run
}

/// Every commit of every operation on a node.
fn commits() -> Vec<(&'static str, Run)> {
    let modes = DecommissionMode::ALL.map(|mode| match mode {
        DecommissionMode::Drain | DecommissionMode::Retire | DecommissionMode::Reactivate => {
            (RunType::NodeDrain, Some(mode))
        }
        DecommissionMode::SoftReset
        | DecommissionMode::Reimage
        | DecommissionMode::FullDecommission
        | DecommissionMode::StorageCleanup => (RunType::Decommission, Some(mode)),
    });
    let mut all = Vec::new();
    for (run_type, mode) in std::iter::once((RunType::Onboard, None)).chain(modes) {
        let stages = mode.map_or(NodeStage::ONBOARDING.len(), |mode| mode.stages(true).len());
        for (what, workflow) in COMMITS {
            let succeeds = workflow == Workflow::Completed;
            let places = if succeeds { stages..=stages } else { 0..=stages.saturating_sub(1) };
            all.extend(places.map(|done| (what, run(run_type, mode, done, workflow))));
        }
    }
    let mut half = run(RunType::Onboard, None, 1, Workflow::FailedRetryable);
    half.progress.workflow = Workflow::Cancelled;
    all.push(("its operation is canceled, and cannot be undone completely", half));
    all
}

/// Functions of a node that the exploration needs beside its lifecycle.
trait NodeWalk: Sized {
    fn current_context(&self) -> NodeTurnInput;
    fn run_events(&self) -> Vec<(&'static str, Self)>;
    fn supervision_events(&self) -> Vec<(&'static str, Self)>;
    fn request_events(&self) -> Vec<(&'static str, Self)>;
}

impl NodeWalk for Node {
    /// A run is active while the state requires one; other turns do not depend on a run.
    fn current_context(&self) -> NodeTurnInput {
        let mode = Some(DecommissionMode::FullDecommission);
        let at_work = self.state.in_progress();
        NodeTurnInput {
            run: at_work.then(|| run(RunType::Decommission, mode, 0, Workflow::Running)),
        }
    }

    fn run_events(&self) -> Vec<(&'static str, Self)> {
        let one = |(what, run): (&'static str, Run)| {
            let mut before = run.clone();
            before.progress.workflow = Workflow::Running;
            // A new run finds the node in `BootstrapIssued`; any other commit finds it in a state
            // that fits an active run.
            let issued = self.state == NodeState::BootstrapIssued;
            let begins = issued && run.progress.workflow == Workflow::Running;
            let there = begins || is_consistent(self.state, &before);
            let step = next_transition(self, &run).filter(|_| there)?;
            Some((what, step.apply(self)?))
        };
        commits().into_iter().filter_map(one).collect()
    }

    /// Changes by heartbeats and by the reconciler.
    fn supervision_events(&self) -> Vec<(&'static str, Self)> {
        let now = Timestamp::default() + HeartbeatLimits::default().silence * 2;
        let when =
            HeartbeatTimes { now, listening_since: Timestamp::default(), outage_since: None };
        let mut all = Vec::new();
        for (what, at) in [
            ("its agent sends heartbeats without problems", Some(now)),
            ("its agent falls silent", Some(Timestamp::default())),
        ] {
            let received = AgentHeartbeat {
                node: self.id(),
                state: self.state,
                at,
                problems: String::new(),
                lost_at: None,
                changed_at: Timestamp::default(),
            };
            let moves =
                classify_heartbeats(&[received], &HeartbeatLimits::default(), when).transitions;
            let moved = |one: &model::node::heartbeat::HeartbeatTransition| {
                self.become_(one.to, TransitionOwner::Heartbeat, &one.why).ok()
            };
            all.extend(moves.iter().filter_map(moved).map(|node| (what, node)));
        }
        for (what, state) in [
            ("MAAS says again that it is deployed, and it is well", MaasState::Deployed),
            ("MAAS says again that it is not deployed", MaasState::Ready),
        ] {
            let observed =
                MaasObservation { state, message: String::new(), powered_on: None, at: now };
            let seen_before = Self { drift_passes: 1, ..self.clone() };
            let (node, observed) = (&seen_before, &observed);
            let case =
                DriftCase { node, observed, run: None, healthy: true, first_seen_recently: false };
            let by = TransitionOwner::Reconciler;
            let moved = match case.decide(false) {
                DriftAction::Quarantine(why) => self.quarantined(Quarantine::Drift, by, &why).ok(),
                DriftAction::Heal => {
                    self.become_(NodeState::Active, by, "proven healthy again").ok()
                }
                DriftAction::Nothing
                | DriftAction::Count(_)
                | DriftAction::Adopt(_)
                | DriftAction::MarkManual(..) => None,
            };
            all.extend(moved.map(|node| (what, node)));
        }
        all
    }

    /// The requests that the API admits.
    fn request_events(&self) -> Vec<(&'static str, Self)> {
        let why = || "what they said".to_string();
        let known = NodeContext { run: None, healthy: true };
        let mut all = Vec::new();
        for (what, requested) in [
            ("somebody quarantines it", NodeRequest::Quarantine { why: why() }),
            (
                "somebody releases it",
                NodeRequest::Release { why: why(), overrides: Overrides::default() },
            ),
            (
                "somebody reactivates it",
                NodeRequest::Reactivate {
                    why: String::new(),
                    overrides: Overrides::of(&[Gate::Cleanup], "sure"),
                },
            ),
        ] {
            // Only the first transition: each one is an edge of its own.
            let first =
                apply_request(self, &requested, known).unwrap_or_default().into_iter().next();
            all.extend(first.map(|node| (what, node)));
        }
        let given_up =
            admit_decommission(self, DecommissionMode::FullDecommission, known).unwrap_or_default();
        all.extend(given_up.into_iter().map(|node| ("somebody gives it up", node)));
        if self.state == NodeState::BootstrapIssued {
            let enrolled =
                self.become_(NodeState::Enrolling, TransitionOwner::Admin, "an agent has enrolled");
            all.extend(enrolled.ok().map(|node| ("an agent enrolls with its token", node)));
        }
        all
    }
}

impl Explore for Node {
    const TITLE: &'static str = "The states of a node";
    const ABOUT: &'static str = "A node is one identity in service on a machine. How far the work on it is, is the state of its operation ([run.md](run.md)); what MAAS says of its \
         machine is only observed. Each way between two states belongs to somebody, and the store refuses it to anybody else. A node that is \
         deleted never comes back: its machine gets another one.";
    const FINAL: &'static [&'static str] = &["deleted"];

    fn fresh() -> Self {
        let (id, machine) = (NodeId::trusted("node-1"), MachineId::trusted("m-1"));
        let mut node = Self::new(&id, &machine, NodeState::BootstrapIssued, Timestamp::default());
        node.workflow = Some(RunId::trusted(OWN));
        node
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let mut all = vec![LifecycleEvent {
            name: AT_ONCE,
            record: self.clone(),
            context: self.current_context(),
        }];
        if self.state.in_progress() {
            let (record, observed) = (self.clone(), NodeTurnInput { run: None });
            all.push(LifecycleEvent { name: "its operation is lost", record, context: observed });
        }
        let moved = [self.run_events(), self.supervision_events(), self.request_events()].concat();
        all.extend(moved.into_iter().map(|(what, record)| {
            let observed = record.current_context();
            LifecycleEvent { name: what, record, context: observed }
        }));
        all
    }

    fn advice(&self) -> &'static str {
        match self.state {
            NodeState::BootstrapIssued => {
                "install the bundle, or issue another token: `farrier node bootstrap --reissue <node>`"
            }
            NodeState::Enrolling => "wait; `farrier why <node>` says how far its onboarding is",
            NodeState::Active => "empty it: `farrier node drain <node>`",
            NodeState::Offline => {
                "look at its machine: `farrier machine inspect <machine>`; after a failed drain, `farrier node resume <node>`"
            }
            NodeState::Quarantined => {
                "look into it, then `farrier node release <node>`, or take it out of service"
            }
            NodeState::Draining | NodeState::Removing => {
                "wait, or have it taken up again: `farrier node resume <node>`"
            }
            NodeState::Retired => {
                "`farrier node reactivate <node>`, or `farrier node decommission <node>`"
            }
            NodeState::Deleted => {
                "onboard its machine as another node: `farrier node onboard <machine>`"
            }
        }
    }

    fn last_message(&self) -> String {
        self.reason.clone()
    }
}
