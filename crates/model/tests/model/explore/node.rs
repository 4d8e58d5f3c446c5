//! The events of a node: requests, heartbeats, the reconciler, and every commit of its runs.
//!
//! A node rarely moves in its own turn, so an event is a changed record, and the turn has nothing
//! to do. Its runs are represented by their progress: each stage of each mode as the current one,
//! and each end that the run may have there.

use super::{AT_ONCE, Explore, Happening, OWN, run_in};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::node::door::{Ask, Known, ask, decommission};
use model::node::drift::{Act, Case};
use model::node::silence::{Heard, Limits, When, judge};
use model::node::{
    MODE, Mode, Node, NodeState, Owner, Quarantine, Seen, Stage, Upstream, UpstreamSeen, Whose,
    fits, follow, steps,
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
fn run(run_type: RunType, mode: Option<Mode>, done: usize, workflow: Workflow) -> Run {
    let stages = mode.map_or(Stage::ONBOARDING.to_vec(), |mode| mode.stages(true));
    let whose = Whose {
        node: NodeId::trusted("node-1"),
        site: Some(SiteId::trusted("site-1")),
        by: "maas".into(),
        cluster: String::new(),
    };
    let mut run = run_in(&RunId::trusted(OWN), run_type, workflow);
    run.spec.steps = steps(&stages, &whose);
    run.spec.params.extend(mode.map(|mode| (MODE.into(), mode.as_str().into())));
    run.progress = Progress { steps: Progress::fresh(&run.spec.steps).steps, ..run.progress };
    for step in run.progress.steps.iter_mut().take(done) {
        step.state = StepPhase::Succeeded;
        step.attempt = 1;
    }
    if let Some(step) = run.progress.steps.get_mut(done) {
        step.attempt = 1;
    }
    run.progress.at = done;
    run
}

/// Every commit of every operation on a node.
fn commits() -> Vec<(&'static str, Run)> {
    let modes = Mode::ALL.map(|mode| match mode {
        Mode::Drain | Mode::Retire | Mode::Reactivate => (RunType::NodeDrain, Some(mode)),
        Mode::SoftReset | Mode::Reimage | Mode::FullDecommission | Mode::StorageCleanup => {
            (RunType::Decommission, Some(mode))
        }
    });
    let mut all = Vec::new();
    for (run_type, mode) in std::iter::once((RunType::Onboard, None)).chain(modes) {
        let stages = mode.map_or(Stage::ONBOARDING.len(), |mode| mode.stages(true).len());
        for (what, workflow) in COMMITS {
            let succeeds = workflow == Workflow::Completed;
            let places = if succeeds { stages..=stages } else { 0..=stages.saturating_sub(1) };
            all.extend(places.map(|done| (what, run(run_type, mode, done, workflow))));
        }
    }
    let mut half = run(RunType::Onboard, None, 1, Workflow::FailedRetryable);
    half.progress.workflow = Workflow::Cancelled;
    all.push(("its operation is canceled, and cannot be taken back as a whole", half));
    all
}

/// What the exploration needs of a node beside its lifecycle.
trait NodeWalk: Sized {
    fn as_it_stands(&self) -> Seen;
    fn of_its_runs(&self) -> Vec<(&'static str, Self)>;
    fn of_watching(&self) -> Vec<(&'static str, Self)>;
    fn of_requests(&self) -> Vec<(&'static str, Self)>;
}

impl NodeWalk for Node {
    /// A run is active while the state requires one; other turns do not depend on a run.
    fn as_it_stands(&self) -> Seen {
        let mode = Some(Mode::FullDecommission);
        let at_work = self.state.in_progress();
        Seen { run: at_work.then(|| run(RunType::Decommission, mode, 0, Workflow::Running)) }
    }

    fn of_its_runs(&self) -> Vec<(&'static str, Self)> {
        let one = |(what, run): (&'static str, Run)| {
            let mut before = run.clone();
            before.progress.workflow = Workflow::Running;
            // A new run finds the node in `BootstrapIssued`; any other commit finds it in a state
            // that fits an active run.
            let issued = self.state == NodeState::BootstrapIssued;
            let begins = issued && run.progress.workflow == Workflow::Running;
            let there = begins || fits(self.state, &before);
            let step = follow(self, &run).filter(|_| there)?;
            Some((what, step.apply(self)?))
        };
        commits().into_iter().filter_map(one).collect()
    }

    /// What heartbeats and the reconciler change.
    fn of_watching(&self) -> Vec<(&'static str, Self)> {
        let now = Timestamp::default() + Limits::default().silence * 2;
        let when = When { now, listening_since: Timestamp::default(), flooded_since: None };
        let mut all = Vec::new();
        for (what, at) in [
            ("its agent is heard of, and well", Some(now)),
            ("its agent falls silent", Some(Timestamp::default())),
        ] {
            let heard = Heard {
                node: self.id(),
                state: self.state,
                at,
                problems: String::new(),
                lost_at: None,
                changed_at: Timestamp::default(),
            };
            let moves = judge(&[heard], &Limits::default(), when).moves;
            let moved = |one: &model::node::silence::Moved| {
                self.become_(one.to, Owner::Heartbeat, &one.why).ok()
            };
            all.extend(moves.iter().filter_map(moved).map(|node| (what, node)));
        }
        for (what, state) in [
            ("MAAS says again that it is deployed, and it is well", Upstream::Deployed),
            ("MAAS says again that it is not deployed", Upstream::Ready),
        ] {
            let seen = UpstreamSeen { state, said: String::new(), on: None, at: now };
            let seen_before = Self { passes: 1, ..self.clone() };
            let (node, seen) = (&seen_before, &seen);
            let case = Case { node, seen, run: None, healthy: true, lately: false };
            let by = Owner::Reconciler;
            let moved = match case.decide(false) {
                Act::Quarantine(why) => self.quarantined(Quarantine::Drift, by, &why).ok(),
                Act::Heal => self.become_(NodeState::Active, by, "proven healthy again").ok(),
                Act::Nothing | Act::Count(_) | Act::Adopt(_) | Act::MarkManual(..) => None,
            };
            all.extend(moved.map(|node| (what, node)));
        }
        all
    }

    /// The requests that the API admits.
    fn of_requests(&self) -> Vec<(&'static str, Self)> {
        let why = || "what they said".to_string();
        let known = Known { run: None, healthy: true };
        let mut all = Vec::new();
        for (what, asked) in [
            ("somebody quarantines it", Ask::Quarantine { why: why() }),
            ("somebody releases it", Ask::Release { why: why(), unproven: false }),
            ("somebody reactivates it", Ask::Reactivate { why: String::new(), unproven: true }),
        ] {
            // Only the first transition: each one is an edge of its own.
            let first = ask(self, &asked, known).unwrap_or_default().into_iter().next();
            all.extend(first.map(|node| (what, node)));
        }
        let given_up = decommission(self, Mode::FullDecommission, known).unwrap_or_default();
        all.extend(given_up.into_iter().map(|node| ("somebody gives it up", node)));
        if self.state == NodeState::BootstrapIssued {
            let enrolled =
                self.become_(NodeState::Enrolling, Owner::Admin, "an agent has enrolled");
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

    fn happens(&self) -> Vec<Happening<Self>> {
        let mut all =
            vec![Happening { what: AT_ONCE, record: self.clone(), seen: self.as_it_stands() }];
        if self.state.in_progress() {
            let (record, seen) = (self.clone(), Seen { run: None });
            all.push(Happening { what: "its operation is lost", record, seen });
        }
        let moved = [self.of_its_runs(), self.of_watching(), self.of_requests()].concat();
        all.extend(moved.into_iter().map(|(what, record)| {
            let seen = record.as_it_stands();
            Happening { what, record, seen }
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
            NodeState::Offline => "look at its machine: `farrier machine inspect <machine>`",
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

    fn said(&self) -> String {
        self.reason.clone()
    }
}
