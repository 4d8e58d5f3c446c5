//! A node and its run, commit by commit: what every mode does to its node, and what follows when
//! the run stops half-way.

use super::{Work, node, run_of};
use crate::support::{at, done, fault, who};
use model::effect::ProviderAnswer;
use model::fault::{Fault, FaultCode};
use model::node::requests::admit_resume;
use model::node::{
    DecommissionMode, Node, NodeStage, NodeState, Quarantine, TransitionOwner, is_consistent,
    next_transition,
};
use model::run::actions::{Action, ActionResult, apply_action};
use model::run::{AfterCommit, CallResult, Decision, Policy, Run, Workflow, decide};
use model::time::Timestamp;

/// The limit of transitions in one commit; more would be a loop in the rules.
pub const MAX_NODE_TRANSITIONS: usize = 8;

/// The node after a commit of its run, transition by transition, as the engine writes it. Every
/// transition must be legal for its owner.
pub fn followed(node: &Node, run: &Run) -> Vec<Node> {
    let mut moves: Vec<Node> = Vec::new();
    loop {
        let from = moves.last().unwrap_or(node);
        let Some(step) = next_transition(from, run) else { return moves };
        let owners = from.state.owners(step.to);
        assert!(owners.contains(&step.owner), "{} to {} by {}", from.state, step.to, step.owner);
        assert_ne!(from.state, NodeState::Deleted, "deleted is left");
        let moved = step.apply(from).expect("what is decided may be done");
        assert_eq!((moved.state, moved.moved_by), (step.to, step.owner));
        moves.push(moved);
        assert!(moves.len() < MAX_NODE_TRANSITIONS, "{} goes round and round", run.spec.id);
    }
}

/// Checks the invariants of a node and its newest run; they hold after every commit.
#[track_caller]
pub fn check(node: &Node, run: &Run) {
    let (state, workflow) = (node.state, run.progress.workflow);
    assert!(is_consistent(state, run), "{state} beside {workflow:?} of {:#?}", run.progress);
    assert!(!state.in_progress() || !run.ended(), "{state}, and nobody is at work on it");
}

pub struct NodeRunDriver {
    pub node: Node,
    pub run: Run,
    pub then: AfterCommit,
    now: Timestamp,
    /// The transitions so far.
    pub path: Vec<(NodeState, TransitionOwner)>,
}

impl NodeRunDriver {
    pub fn begin(work: Work, stages: &[NodeStage], from: NodeState, cluster: &str) -> Self {
        let (node, run) = (node(from), run_of(work, stages, cluster));
        check(&node, &run);
        let mut scenario =
            Self { node, run, then: AfterCommit::Idle, now: at(1), path: Vec::new() };
        scenario.turn(None);
        scenario
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

    fn turn(&mut self, given: Option<&CallResult>) {
        let Decision { run, then, .. } = decide(&self.run, 1, given, Policy::default(), self.now);
        self.then = then;
        self.commit(run);
    }

    pub fn answer(&mut self, result: Result<ProviderAnswer, Fault>) -> &mut Self {
        let (_, verb) = self.run.open_call().expect("a call is open");
        self.turn(Some(&CallResult::Answered(verb, result)));
        while let AfterCommit::IdleUntil(then) = self.then {
            self.now = then;
            self.turn(None);
        }
        self
    }

    /// All stages succeed until this one is current.
    pub fn until(&mut self, stage: NodeStage) -> &mut Self {
        while self.run.current_step() != stage.as_str() {
            self.answer(done());
        }
        self
    }

    /// The current stage fails until its attempts are used up.
    pub fn fail(&mut self, code: FaultCode) -> &mut Self {
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
        match apply_action(&self.run, action, &who(), self.now) {
            Ok(ActionResult::Recorded(progress, _) | ActionResult::Changed(progress, _)) => {
                self.commit(Run { progress, ..self.run.clone() });
            }
            Ok(ActionResult::Reopened(progress, _)) => {
                let run = Run { progress, ..self.run.clone() };
                admit_resume(&self.node, &run).expect("its node is where the run left it");
                self.commit(run);
            }
            other => panic!("{action:?}: {other:?}"),
        }
        if !self.run.ended() {
            match self.run.open_call() {
                Some(_) => self.turn(Some(&CallResult::Abandoned)),
                None => self.turn(None),
            }
        }
        self
    }

    /// The stop succeeded.
    pub fn stopped(&mut self) -> &mut Self {
        self.answer(Ok(ProviderAnswer::Stopped))
    }
}

use NodeState::{Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired};
use TransitionOwner::{Admin, Decommission, Onboarding};

#[test]
fn everything_goes_well() {
    let drained = [(Draining, Admin), (Retired, Decommission)];
    let back = [&drained[..], &[(Offline, Decommission)]].concat();
    let removed = [&drained[..], &[(Removing, Decommission), (Deleted, Decommission)]].concat();
    let table = [
        (Work::Onboard, vec![(NodeState::Active, Onboarding)]),
        (Work::Take(DecommissionMode::SoftReset), back.clone()),
        (Work::Take(DecommissionMode::Reimage), back.clone()),
        (Work::Take(DecommissionMode::StorageCleanup), back),
        (Work::Take(DecommissionMode::FullDecommission), removed),
        (Work::Take(DecommissionMode::Drain), drained.to_vec()),
        (Work::Take(DecommissionMode::Retire), drained.to_vec()),
    ];
    assert_eq!(table.len(), Work::ALL.len());
    for (work, path) in table {
        let starts = match work {
            Work::Onboard => vec![Enrolling],
            Work::Take(_) => vec![Active, Offline, Quarantined],
        };
        for from in starts {
            let mut scenario = NodeRunDriver::of(work, from);
            scenario.finish();
            assert_eq!(scenario.run.progress.workflow, Workflow::Completed);
            assert_eq!(scenario.path, path, "{work:?} from {from}");
        }
    }
}

#[test]
fn what_is_retired_is_not_drained_again() {
    for (mode, path) in [
        (DecommissionMode::SoftReset, vec![(Offline, Decommission)]),
        (
            DecommissionMode::FullDecommission,
            vec![(Removing, Decommission), (Deleted, Decommission)],
        ),
    ] {
        let mut scenario = NodeRunDriver::of(Work::Take(mode), Retired);
        scenario.finish();
        assert_eq!(scenario.path, path, "{mode}");
    }
}

/// A node that was issued manually enrolls with its run.
#[test]
fn what_was_issued_enrolls() {
    let before = node(NodeState::BootstrapIssued);
    let run = run_of(Work::Onboard, &[NodeStage::WaitForAgentEnrollment], "");
    let moves = followed(&before, &run);
    let path: Vec<_> = moves.iter().map(|one| (one.state, one.moved_by)).collect();
    assert_eq!(path, [(Enrolling, Onboarding)]);
}

/// The state of a node after its run ended at a stage. Columns: failed and retryable, needs an
/// operator, canceled.
#[test]
fn where_a_stopped_run_leaves_its_node() {
    use NodeStage::{
        CleanupStorage, DisableNode, DrainNode, RemoveGpuaasNodeRecord, RemoveMaasRecord,
    };
    let table = [
        (DisableNode, [Active, Quarantined, Active]),
        (DrainNode, [Offline, Quarantined, Offline]),
        (CleanupStorage, [Retired, Retired, Retired]),
        (RemoveGpuaasNodeRecord, [Retired, Retired, Retired]),
        (RemoveMaasRecord, [Retired, Retired, Retired]),
    ];
    let full = Work::Take(DecommissionMode::FullDecommission);
    for (stage, ends) in table {
        let [failed, manual, canceled] = ends;
        let mut scenario = NodeRunDriver::of(full, Active);
        scenario.until(stage).fail(FaultCode::EffectFailed);
        assert_eq!(scenario.run.progress.workflow, Workflow::FailedRetryable);
        assert_eq!(scenario.node.state, failed, "{stage} fails");
        let mut scenario = NodeRunDriver::of(full, Active);
        scenario.until(stage).fail(FaultCode::CapabilityMissing);
        assert_eq!(scenario.run.progress.workflow, Workflow::FailedManualIntervention);
        assert_eq!(scenario.node.state, manual, "{stage} stops for a person");
        let mut scenario = NodeRunDriver::of(full, Active);
        scenario.until(stage).act(Action::Cancel).stopped();
        assert_eq!(scenario.run.progress.workflow, Workflow::Cancelled);
        assert_eq!(scenario.node.state, canceled, "{stage} is canceled");
    }
}

#[test]
fn a_failed_run_resumes_at_its_step() {
    let full = Work::Take(DecommissionMode::FullDecommission);
    let observed = [NodeStage::ReleaseMaasNode, NodeStage::RemoveMaasRecord];
    let unseen = [NodeStage::DrainNode, NodeStage::ScrubGpu, NodeStage::RemoveGpuaasNodeRecord];
    for stage in observed.into_iter().chain(unseen) {
        for action in [Action::RetryStep, Action::Resume, Action::Adopt] {
            if action == Action::Adopt && unseen.contains(&stage) {
                continue;
            }
            for code in [FaultCode::EffectFailed, FaultCode::CapabilityMissing] {
                let mut scenario = NodeRunDriver::of(full, Active);
                scenario.until(stage).fail(code).act(action).finish();
                assert_eq!(scenario.node.state, Deleted, "{stage}, {action:?}");
            }
        }
    }
}

#[test]
fn a_frozen_node_does_not_serve() {
    let mut scenario = NodeRunDriver::of(Work::Take(DecommissionMode::Drain), Active);
    scenario.until(NodeStage::DrainNode).act(Action::MarkManual).stopped();
    assert_eq!(scenario.run.progress.workflow, Workflow::FailedManualIntervention);
    assert_eq!(scenario.node.state, Quarantined);
    assert_eq!(scenario.node.quarantine, Some(Quarantine::Cleanup));
    let ends = [(Draining, Admin), (Offline, Decommission), (Quarantined, Decommission)];
    assert_eq!(scenario.path, ends);
    scenario.act(Action::Resume).finish();
    assert_eq!((scenario.node.state, scenario.node.quarantine), (Retired, None));
}

/// The run is frozen after it failed; the node may be in service again by then.
#[test]
fn marking_a_run_manual_takes_its_node_out_of_service() {
    let mut scenario = NodeRunDriver::of(Work::Take(DecommissionMode::SoftReset), Active);
    scenario.until(NodeStage::DrainNode).fail(FaultCode::EffectFailed);
    scenario.node =
        scenario.node.become_(Active, TransitionOwner::Heartbeat, "it sends heartbeats").unwrap();
    scenario.act(Action::MarkManual);
    assert_eq!((scenario.node.state, scenario.node.moved_by), (Quarantined, Decommission));
}

#[test]
fn a_canceled_onboarding_leaves_its_node_in_quarantine() {
    let mut scenario = NodeRunDriver::of(Work::Onboard, Enrolling);
    scenario.until(NodeStage::WaitForDeployed).act(Action::Cancel).stopped();
    assert_eq!(scenario.run.progress.workflow, Workflow::Compensating);
    assert_eq!(scenario.node.state, Enrolling);
    scenario.finish();
    assert_eq!(
        (scenario.run.progress.workflow, scenario.node.state),
        (Workflow::Cancelled, Quarantined)
    );
    assert_eq!(scenario.node.quarantine, Some(Quarantine::Onboarding));
    let next = scenario.node.recommended(Some(&scenario.run));
    assert_eq!(next[0], "farrier operation rerun op-1");
    assert!(next[1].ends_with("--mode full_decommission"), "{next:?}");
    // The rerun ends in service.
    let mut rerun = scenario.run.clone();
    rerun.spec.rerun_of = Some(rerun.spec.id.clone());
    rerun.progress = model::run::Progress::fresh(&rerun.spec.steps);
    assert!(admit_resume(&scenario.node, &rerun).is_ok());
    let other = scenario.node.clone();
    let other = Node { quarantine: Some(Quarantine::Operator), ..other };
    assert!(admit_resume(&other, &rerun).is_err());
    rerun.progress.workflow = Workflow::Completed;
    let moved = next_transition(&scenario.node, &rerun).unwrap();
    assert_eq!((moved.to, moved.owner), (Active, TransitionOwner::Operator));
    assert_eq!(next_transition(&other, &rerun), None);
    let mut scenario = NodeRunDriver::of(Work::Onboard, Enrolling);
    scenario
        .until(NodeStage::WaitForDeployed)
        .act(Action::Cancel)
        .stopped()
        .fail(FaultCode::CapabilityMissing);
    assert_eq!(
        (scenario.run.progress.workflow, scenario.node.state),
        (Workflow::Cancelled, Quarantined)
    );
    assert_eq!(scenario.node.quarantine, Some(Quarantine::Onboarding));
}

#[test]
fn an_older_run_moves_no_node() {
    let mut scenario = NodeRunDriver::of(Work::Take(DecommissionMode::Drain), Active);
    scenario.node.workflow = None;
    scenario.run.progress.workflow = Workflow::Completed;
    assert_eq!(next_transition(&scenario.node, &scenario.run), None);
    scenario.node.workflow = Some(model::id::RunId::trusted("op-2"));
    assert_eq!(next_transition(&scenario.node, &scenario.run), None);
}

/// Without the id, the next stage would have to guess which machine it is.
#[test]
fn a_node_keeps_what_maas_called_its_machine() {
    use super::upstream_observation;
    use model::effect::{DeviceFacts, MaasFacts};
    use model::lifecycle::Lifecycle;
    use model::node::MaasState;
    let mut node = node(NodeState::Retired);
    for (reported, state, known) in [
        ("abc", MaasState::Deployed, "abc"),
        ("", MaasState::Absent, "abc"),
        ("def", MaasState::New, "def"),
    ] {
        let maas = MaasFacts { system_id: reported.into(), upstream: upstream_observation(state) };
        node.merge_facts(&DeviceFacts { maas: Some(Box::new(maas)), ..DeviceFacts::default() });
        assert_eq!(node.system_id, known);
        assert_eq!(node.maas.as_ref().map(|observed| observed.state), Some(state));
    }
}
