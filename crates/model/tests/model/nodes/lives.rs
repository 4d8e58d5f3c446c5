//! A node and its run, commit by commit: what every mode does to its node, and what follows when
//! the run stops half-way.

use super::{Work, node, run_of};
use crate::support::{at, done, fault, who};
use model::effect::Answer;
use model::fault::{Code, Fault};
use model::node::door::may_go_on;
use model::node::{Mode, Node, NodeState, Owner, Quarantine, Stage, fits, follow};
use model::run::act::{Acted, Action, act};
use model::run::{Decision, Given, Policy, Run, Then, Workflow, decide};
use model::time::Timestamp;

/// The limit of transitions in one commit; more would be a loop in the rules.
pub const MAX_MOVES: usize = 8;

/// The node after a commit of its run, transition by transition, as the engine writes it. Every
/// transition must be legal for its owner.
pub fn followed(node: &Node, run: &Run) -> Vec<Node> {
    let mut moves: Vec<Node> = Vec::new();
    loop {
        let from = moves.last().unwrap_or(node);
        let Some(step) = follow(from, run) else { return moves };
        let owners = from.state.owners(step.to);
        assert!(owners.contains(&step.owner), "{} to {} by {}", from.state, step.to, step.owner);
        assert_ne!(from.state, NodeState::Deleted, "deleted is left");
        let moved = step.apply(from).expect("what is decided may be done");
        assert_eq!((moved.state, moved.moved_by), (step.to, step.owner));
        moves.push(moved);
        assert!(moves.len() < MAX_MOVES, "{} goes round and round", run.spec.id);
    }
}

/// What holds of a node and its newest run after every commit.
#[track_caller]
pub fn check(node: &Node, run: &Run) {
    let (state, workflow) = (node.state, run.progress.workflow);
    assert!(fits(state, run), "{state} beside {workflow:?} of {:#?}", run.progress);
    assert!(!state.in_progress() || !run.ended(), "{state}, and nobody is at work on it");
}

pub struct Life {
    pub node: Node,
    pub run: Run,
    pub then: Then,
    now: Timestamp,
    /// The transitions so far.
    pub path: Vec<(NodeState, Owner)>,
}

impl Life {
    pub fn begin(work: Work, stages: &[Stage], from: NodeState, cluster: &str) -> Self {
        let (node, run) = (node(from), run_of(work, stages, cluster));
        check(&node, &run);
        let mut life = Self { node, run, then: Then::Rest, now: at(1), path: Vec::new() };
        life.turn(None);
        life
    }

    pub fn of(work: Work, from: NodeState) -> Self {
        Self::begin(work, &work.stages(), from, "")
    }

    fn commit(&mut self, run: Run) {
        self.run = run;
        for moved in followed(&self.node, &self.run) {
            self.path.push((moved.state, moved.moved_by));
            self.node = moved;
        }
        check(&self.node, &self.run);
    }

    fn turn(&mut self, given: Option<&Given>) {
        let Decision { run, then, .. } = decide(&self.run, 1, given, Policy::default(), self.now);
        self.then = then;
        self.commit(run);
    }

    pub fn answer(&mut self, result: Result<Answer, Fault>) -> &mut Self {
        let (_, verb) = self.run.open_order().expect("an order is in hand");
        self.turn(Some(&Given::Answered(verb, result)));
        while let Then::Until(then) = self.then {
            self.now = then;
            self.turn(None);
        }
        self
    }

    /// All stages succeed until this one is current.
    pub fn until(&mut self, stage: Stage) -> &mut Self {
        while self.run.current_step() != stage.as_str() {
            self.answer(done());
        }
        self
    }

    /// The current stage fails until its attempts are used up.
    pub fn fail(&mut self, code: Code) -> &mut Self {
        while !self.run.ended() {
            self.answer(fault(code));
        }
        self
    }

    pub fn finish(&mut self) -> &mut Self {
        while !self.run.ended() {
            self.answer(done());
        }
        self
    }

    pub fn act(&mut self, action: Action) -> &mut Self {
        match act(&self.run, action, &who(), self.now) {
            Ok(Acted::Told(progress, _) | Acted::Changed(progress, _)) => {
                self.commit(Run { progress, ..self.run.clone() });
            }
            Ok(Acted::Reopened(progress, _)) => {
                let run = Run { progress, ..self.run.clone() };
                may_go_on(&self.node, &run).expect("its node is where the run left it");
                self.commit(run);
            }
            other => panic!("{action:?}: {other:?}"),
        }
        if !self.run.ended() {
            match self.run.open_order() {
                Some(_) => self.turn(Some(&Given::Interrupted)),
                None => self.turn(None),
            }
        }
        self
    }

    /// The stop succeeded.
    pub fn stopped(&mut self) -> &mut Self {
        self.answer(Ok(Answer::Stopped))
    }
}

use NodeState::{Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired};
use Owner::{Admin, Decommission, Onboarding};

#[test]
fn everything_goes_well() {
    let drained = [(Draining, Admin), (Retired, Decommission)];
    let back = [&drained[..], &[(Offline, Decommission)]].concat();
    let removed = [&drained[..], &[(Removing, Decommission), (Deleted, Decommission)]].concat();
    let table = [
        (Work::Onboard, vec![(NodeState::Active, Onboarding)]),
        (Work::Take(Mode::SoftReset), back.clone()),
        (Work::Take(Mode::Reimage), back.clone()),
        (Work::Take(Mode::StorageCleanup), back),
        (Work::Take(Mode::FullDecommission), removed),
        (Work::Take(Mode::Drain), drained.to_vec()),
        (Work::Take(Mode::Retire), drained.to_vec()),
    ];
    assert_eq!(table.len(), Work::ALL.len());
    for (work, path) in table {
        let starts = match work {
            Work::Onboard => vec![Enrolling],
            Work::Take(_) => vec![Active, Offline, Quarantined],
        };
        for from in starts {
            let mut life = Life::of(work, from);
            life.finish();
            assert_eq!(life.run.progress.workflow, Workflow::Completed);
            assert_eq!(life.path, path, "{work:?} from {from}");
        }
    }
}

#[test]
fn what_is_retired_is_not_drained_again() {
    for (mode, path) in [
        (Mode::SoftReset, vec![(Offline, Decommission)]),
        (Mode::FullDecommission, vec![(Removing, Decommission), (Deleted, Decommission)]),
    ] {
        let mut life = Life::of(Work::Take(mode), Retired);
        life.finish();
        assert_eq!(life.path, path, "{mode}");
    }
}

/// A node that was issued manually enrolls with its run.
#[test]
fn what_was_issued_enrolls() {
    let before = node(NodeState::BootstrapIssued);
    let run = run_of(Work::Onboard, &[Stage::WaitForAgentEnrollment], "");
    let moves = followed(&before, &run);
    let path: Vec<_> = moves.iter().map(|one| (one.state, one.moved_by)).collect();
    assert_eq!(path, [(Enrolling, Onboarding)]);
}

/// The state of a node after its run ended at a stage. Columns: failed and retryable, needs an
/// operator, canceled.
#[test]
fn where_a_stopped_run_leaves_its_node() {
    use Stage::{CleanupStorage, DisableNode, DrainNode, RemoveGpuaasNodeRecord, RemoveMaasRecord};
    let table = [
        (DisableNode, [Active, Quarantined, Active]),
        (DrainNode, [Offline, Quarantined, Offline]),
        (CleanupStorage, [Retired, Retired, Retired]),
        (RemoveGpuaasNodeRecord, [Retired, Retired, Retired]),
        (RemoveMaasRecord, [Retired, Retired, Retired]),
    ];
    let full = Work::Take(Mode::FullDecommission);
    for (stage, ends) in table {
        let [failed, manual, canceled] = ends;
        let mut life = Life::of(full, Active);
        life.until(stage).fail(Code::EffectFailed);
        assert_eq!(life.run.progress.workflow, Workflow::FailedRetryable);
        assert_eq!(life.node.state, failed, "{stage} fails");
        let mut life = Life::of(full, Active);
        life.until(stage).fail(Code::CapabilityMissing);
        assert_eq!(life.run.progress.workflow, Workflow::FailedManualIntervention);
        assert_eq!(life.node.state, manual, "{stage} stops for a person");
        let mut life = Life::of(full, Active);
        life.until(stage).act(Action::Cancel).stopped();
        assert_eq!(life.run.progress.workflow, Workflow::Cancelled);
        assert_eq!(life.node.state, canceled, "{stage} is canceled");
    }
}

#[test]
fn what_failed_goes_on_where_it_stood() {
    let full = Work::Take(Mode::FullDecommission);
    let seen = [Stage::ReleaseMaasNode, Stage::RemoveMaasRecord];
    let unseen = [Stage::DrainNode, Stage::ScrubGpu, Stage::RemoveGpuaasNodeRecord];
    for stage in seen.into_iter().chain(unseen) {
        for action in [Action::RetryStep, Action::Resume, Action::Adopt] {
            if action == Action::Adopt && unseen.contains(&stage) {
                continue;
            }
            for code in [Code::EffectFailed, Code::CapabilityMissing] {
                let mut life = Life::of(full, Active);
                life.until(stage).fail(code).act(action).finish();
                assert_eq!(life.node.state, Deleted, "{stage}, {action:?}");
            }
        }
    }
}

#[test]
fn a_frozen_node_does_not_serve() {
    let mut life = Life::of(Work::Take(Mode::Drain), Active);
    life.until(Stage::DrainNode).act(Action::MarkManual).stopped();
    assert_eq!(life.run.progress.workflow, Workflow::FailedManualIntervention);
    assert_eq!(life.node.state, Quarantined);
    assert_eq!(life.node.quarantine, Some(Quarantine::Cleanup));
    let ends = [(Draining, Admin), (Offline, Decommission), (Quarantined, Decommission)];
    assert_eq!(life.path, ends);
    life.act(Action::Resume).finish();
    assert_eq!((life.node.state, life.node.quarantine), (Retired, None));
}

/// The run is frozen after it failed; the node may be in service again by then.
#[test]
fn what_is_marked_afterwards_is_taken_out_of_service() {
    let mut life = Life::of(Work::Take(Mode::SoftReset), Active);
    life.until(Stage::DrainNode).fail(Code::EffectFailed);
    life.node = life.node.become_(Active, Owner::Heartbeat, "it is heard of").unwrap();
    life.act(Action::MarkManual);
    assert_eq!((life.node.state, life.node.moved_by), (Quarantined, Decommission));
}

#[test]
fn a_canceled_onboarding_is_taken_back_or_looked_into() {
    let mut life = Life::of(Work::Onboard, Enrolling);
    life.until(Stage::WaitForDeployed).act(Action::Cancel).stopped();
    assert_eq!(life.run.progress.workflow, Workflow::Compensating);
    assert_eq!(life.node.state, Enrolling);
    life.finish();
    assert_eq!((life.run.progress.workflow, life.node.state), (Workflow::Cancelled, Enrolling));
    let mut life = Life::of(Work::Onboard, Enrolling);
    life.until(Stage::WaitForDeployed).act(Action::Cancel).stopped().fail(Code::CapabilityMissing);
    assert_eq!((life.run.progress.workflow, life.node.state), (Workflow::Cancelled, Quarantined));
    assert_eq!(life.node.quarantine, Some(Quarantine::Onboarding));
}

#[test]
fn an_older_run_moves_nobody() {
    let mut life = Life::of(Work::Take(Mode::Drain), Active);
    life.node.workflow = None;
    life.run.progress.workflow = Workflow::Completed;
    assert_eq!(follow(&life.node, &life.run), None);
    life.node.workflow = Some(model::id::RunId::trusted("op-2"));
    assert_eq!(follow(&life.node, &life.run), None);
}

/// Without the id, the next stage would have to guess which machine it is.
#[test]
fn a_node_keeps_what_maas_called_its_machine() {
    use super::seen;
    use model::effect::{Facts, MaasFacts};
    use model::lifecycle::Lifecycle;
    use model::node::Upstream;
    let mut node = node(NodeState::Retired);
    for (told, state, known) in [
        ("abc", Upstream::Deployed, "abc"),
        ("", Upstream::Absent, "abc"),
        ("def", Upstream::New, "def"),
    ] {
        let maas = MaasFacts { system_id: told.into(), upstream: seen(state) };
        node.learn(&Facts { maas: Some(Box::new(maas)), ..Facts::default() });
        assert_eq!(node.system_id, known);
        assert_eq!(node.upstream.as_ref().map(|seen| seen.state), Some(state));
    }
}
