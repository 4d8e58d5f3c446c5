//! Derives the state of a node from each commit of its run, in the same commit.
//!
//! So the documented pairs of node state and workflow state hold at every commit.

use super::{DecommissionMode, MODE, Node, NodeStage, NodeState, Quarantine, TransitionOwner};
use crate::plan::RunType;
use crate::run::{Run, StepPhase, StopKind, Workflow};

/// One transition that a run causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTransition {
    pub to: NodeState,
    pub owner: TransitionOwner,
    pub why: String,
    pub cause: Option<Quarantine>,
}

impl NodeTransition {
    fn new(to: NodeState, owner: TransitionOwner, why: impl Into<String>) -> Self {
        Self { to, owner, why: why.into(), cause: None }
    }

    fn quarantine(owner: TransitionOwner, cause: Quarantine, why: impl Into<String>) -> Self {
        Self { cause: Some(cause), ..Self::new(NodeState::Quarantined, owner, why) }
    }

    /// The node after the transition. None if the transition is not legal.
    pub fn apply(&self, node: &Node) -> Option<Node> {
        let moved = match self.cause {
            Some(cause) => node.quarantined(cause, self.owner, &self.why),
            None => node.become_(self.to, self.owner, &self.why),
        };
        moved.ok()
    }
}

/// The next transition that a run causes; none when the node's state fits. Called again until there
/// is none.
pub fn next_transition(node: &Node, run: &Run) -> Option<NodeTransition> {
    let owner = node.workflow.as_ref() == Some(&run.spec.id);
    match run.spec.run_type {
        _ if !owner => None,
        RunType::Onboard => onboarding(node, run),
        RunType::Decommission | RunType::NodeDrain => decommission(node, run),
        RunType::Reboot
        | RunType::Reimage
        | RunType::EnterMaintenance
        | RunType::ExitMaintenance
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma
        | RunType::Power
        | RunType::ExitRma
        | RunType::Join
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check => None,
    }
}

fn onboarding(node: &Node, run: &Run) -> Option<NodeTransition> {
    let (id, owner) = (&run.spec.id, TransitionOwner::Onboarding);
    match (node.state, run.progress.workflow) {
        (NodeState::BootstrapIssued, _) => {
            Some(NodeTransition::new(NodeState::Enrolling, owner, format!("{id} onboards it")))
        }
        (NodeState::Enrolling, Workflow::Completed | Workflow::Reconciled) => {
            Some(NodeTransition::new(NodeState::Active, owner, format!("{id} has onboarded it")))
        }
        (NodeState::Enrolling, Workflow::Cancelled) => {
            let why = match run.progress.failure {
                Some(_) => format!("{id} was canceled, and could not be undone completely"),
                None => format!("{id} was canceled before it had onboarded it"),
            };
            Some(NodeTransition::quarantine(owner, Quarantine::Onboarding, why))
        }
        // The rerun of a canceled onboarding, which an operator requested.
        (NodeState::Quarantined, Workflow::Completed | Workflow::Reconciled)
            if node.quarantine == Some(Quarantine::Onboarding) =>
        {
            let (to, owner) = (NodeState::Active, TransitionOwner::Operator);
            Some(NodeTransition::new(to, owner, format!("{id} has onboarded it")))
        }
        (
            NodeState::Enrolling,
            Workflow::Pending
            | Workflow::Running
            | Workflow::Compensating
            | Workflow::FailedRetryable
            | Workflow::FailedManualIntervention,
        )
        | (
            NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted,
            _,
        ) => None,
    }
}

/// True if the run takes the node out of service: it must not return before the end of the run.
pub fn empties(run: &Run) -> bool {
    matches!(run.spec.run_type, RunType::Decommission | RunType::NodeDrain)
        && mode(run) != Some(DecommissionMode::Reactivate)
}

/// True if the run has disabled the node and failed before the node was empty: the node takes no
/// new work until the run continues, or a cancel or a request on the node undoes that.
pub fn leaves_disabled(run: &Run) -> bool {
    empties(run)
        && run.progress.workflow.failed()
        && has_done(run, NodeStage::DisableNode)
        && !has_done(run, NodeStage::DrainNode)
}

/// The decommission mode of a run.
pub fn mode(run: &Run) -> Option<DecommissionMode> {
    run.spec.params.get(MODE).and_then(|name| DecommissionMode::parse(name))
}

/// True if a stage of a run has succeeded.
pub fn has_done(run: &Run, stage: NodeStage) -> bool {
    let mut steps = run.progress.steps.iter().filter(|step| !step.undo);
    steps.any(|step| {
        step.state == StepPhase::Succeeded
            && run.plan_step(step).is_some_and(|plan| plan.name == stage.as_str())
    })
}

/// True if a stage was started, or found to hold already.
fn begun(run: &Run, stage: NodeStage) -> bool {
    let mut steps = run.progress.steps.iter().filter(|step| !step.undo);
    let tried = steps.any(|step| {
        step.attempt > 0 && run.plan_step(step).is_some_and(|plan| plan.name == stage.as_str())
    });
    tried || has_done(run, stage)
}

fn decommission(node: &Node, run: &Run) -> Option<NodeTransition> {
    match run.progress.workflow {
        Workflow::Pending => None,
        Workflow::Running | Workflow::Compensating => under_way(node, run),
        Workflow::Completed | Workflow::Reconciled => completed(node, run),
        Workflow::FailedRetryable | Workflow::Cancelled => {
            stopped(node, run).or_else(|| back_to_quarantine(node, run))
        }
        Workflow::FailedManualIntervention => {
            let back = stopped(node, run).or_else(|| back_to_quarantine(node, run));
            back.or_else(|| quarantine_unsafe(node, run))
        }
    }
}

fn under_way(node: &Node, run: &Run) -> Option<NodeTransition> {
    let id = &run.spec.id;
    // A canceled run only undoes its work and causes no further transitions.
    let canceled =
        run.progress.stop_request.as_ref().is_some_and(|halt| halt.kind == StopKind::Cancel);
    match node.state {
        NodeState::Active | NodeState::Offline | NodeState::Quarantined
            if has_done(run, NodeStage::DisableNode) && !canceled =>
        {
            Some(NodeTransition::new(
                NodeState::Draining,
                TransitionOwner::Admin,
                format!("{id} empties it"),
            ))
        }
        NodeState::Draining if has_done(run, NodeStage::DrainNode) => Some(NodeTransition::new(
            NodeState::Retired,
            TransitionOwner::Decommission,
            format!("{id} has emptied it"),
        )),
        NodeState::Retired if begun(run, NodeStage::RemoveGpuaasNodeRecord) && !canceled => {
            Some(NodeTransition::new(
                NodeState::Removing,
                TransitionOwner::Decommission,
                format!("{id} removes it"),
            ))
        }
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Active
        | NodeState::Offline
        | NodeState::Quarantined
        | NodeState::Draining
        | NodeState::Retired
        | NodeState::Removing
        | NodeState::Deleted => None,
    }
}

fn completed(node: &Node, run: &Run) -> Option<NodeTransition> {
    let id = &run.spec.id;
    let ends_in = mode(run)?.ends_in();
    match node.state {
        NodeState::Removing if ends_in == NodeState::Deleted => {
            let why = format!("{id} has removed it");
            Some(NodeTransition::new(NodeState::Deleted, TransitionOwner::Decommission, why))
        }
        NodeState::Retired if ends_in == NodeState::Offline => {
            let why = format!("{id} gives it back; its health must prove it active");
            Some(NodeTransition::new(NodeState::Offline, TransitionOwner::Decommission, why))
        }
        // Transitions that this same commit causes. A node that was released has left this run
        // behind.
        NodeState::Draining | NodeState::Retired => under_way(node, run),
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Active
        | NodeState::Offline
        | NodeState::Quarantined
        | NodeState::Removing
        | NodeState::Deleted => None,
    }
}

/// The run ended: the node must not stay in an intermediate state.
fn stopped(node: &Node, run: &Run) -> Option<NodeTransition> {
    let id = &run.spec.id;
    let how = run.phase().as_str().to_lowercase();
    match node.state {
        // The drain succeeded although a stop was requested.
        NodeState::Draining if has_done(run, NodeStage::DrainNode) => under_way(node, run),
        NodeState::Draining => {
            let why = match run.progress.workflow.failed() {
                true => format!("operation {id} failed to drain it"),
                false => format!("{id} {how} before it was empty"),
            };
            Some(NodeTransition::new(NodeState::Offline, TransitionOwner::Decommission, why))
        }
        NodeState::Removing => {
            let why = format!("{id} {how} before it was removed");
            Some(NodeTransition::new(NodeState::Retired, TransitionOwner::Decommission, why))
        }
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Active
        | NodeState::Offline
        | NodeState::Quarantined
        | NodeState::Retired
        | NodeState::Deleted => None,
    }
}

/// The node was in quarantine when the run began, and the run did not succeed.
fn back_to_quarantine(node: &Node, run: &Run) -> Option<NodeTransition> {
    let cause = node.quarantine.filter(|_| node.state == NodeState::Offline)?;
    let why = format!("{} has not brought it out of quarantine", run.spec.id);
    Some(NodeTransition::quarantine(TransitionOwner::Decommission, cause, why))
}

/// A node must not serve while its run waits for an operator.
fn quarantine_unsafe(node: &Node, run: &Run) -> Option<NodeTransition> {
    if !node.state.in_service() {
        return None;
    }
    let failure = run.progress.failure.as_ref();
    let message = failure.map_or_else(String::new, |one| format!(": {}", one.fault.message));
    let why = format!("{} stopped for a person{message}", run.spec.id);
    Some(NodeTransition::quarantine(TransitionOwner::Decommission, Quarantine::Cleanup, why))
}

/// True if a node in this state fits its newest run: the documents' tables, and the cases that they
/// leave open.
pub fn is_consistent(state: NodeState, run: &Run) -> bool {
    use NodeState::{
        Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired,
    };
    let workflow = run.progress.workflow;
    if run.spec.run_type == RunType::Onboard {
        // The rerun of a canceled onboarding works on a node that stays in quarantine.
        let is_rerun = run.spec.rerun_of.is_some();
        return match workflow {
            Workflow::Pending
            | Workflow::Running
            | Workflow::Compensating
            | Workflow::FailedRetryable => state == Enrolling || (is_rerun && state == Quarantined),
            Workflow::FailedManualIntervention => matches!(state, Enrolling | Quarantined),
            Workflow::Cancelled => state == Quarantined,
            // From here on heartbeats decide.
            Workflow::Completed | Workflow::Reconciled => {
                matches!(state, Active | Offline | Quarantined)
            }
        };
    }
    match workflow {
        // Left open by the documents: nothing has happened to the node yet.
        Workflow::Pending => matches!(state, Active | Offline | Quarantined | Retired),
        Workflow::Running | Workflow::Compensating => {
            matches!(state, Active | Offline | Quarantined | Draining | Retired | Removing)
        }
        // An active node is schedulable, and this one is disabled.
        Workflow::FailedRetryable if leaves_disabled(run) => {
            matches!(state, Retired | Offline | Quarantined)
        }
        // Left open by the documents: a run that failed or was canceled before the drain leaves the
        // node in a state from which it can be continued.
        Workflow::FailedRetryable | Workflow::Cancelled => {
            matches!(state, Retired | Offline | Active | Quarantined)
        }
        Workflow::FailedManualIntervention => matches!(state, Retired | Quarantined),
        Workflow::Completed | Workflow::Reconciled => {
            match mode(run).map(DecommissionMode::ends_in) {
                Some(Deleted) => state == Deleted,
                Some(Retired) => matches!(state, Retired | Offline | Active | Quarantined),
                Some(_) | None => matches!(state, Offline | Active | Quarantined | Retired),
            }
        }
    }
}

/// True if the node's sessions are revoked: its machine was released or its secrets were cleaned
/// up, and no new installation has begun.
pub fn revokes_sessions(run: &Run) -> bool {
    let gone =
        has_done(run, NodeStage::ReleaseMaasNode) || has_done(run, NodeStage::CleanupSecrets);
    gone && !begun(run, NodeStage::RenderCloudInit)
}

/// True if a node came back into service after this run had drained it: then the run's results no
/// longer apply. Such a node reaches quarantine only through service.
pub(super) fn served_since(node: &Node, run: &Run) -> bool {
    let emptied = run.spec.run_type != RunType::Onboard && has_done(run, NodeStage::DrainNode);
    emptied && (node.state.in_service() || node.state == NodeState::Quarantined)
}
