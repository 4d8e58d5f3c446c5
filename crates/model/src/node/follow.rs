//! What a run means for its node: the state that follows from how far the run is, in the very commit that takes it there.
//!
//! So the documents' two tables, of node states beside workflow states, hold at every commit: there is no moment between the two.

use super::{MODE, Mode, Node, NodeState, Owner, Quarantine, Stage};
use crate::plan::RunType;
use crate::run::{HaltKind, Run, StepPhase, Workflow};

/// One transition that a run makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub to: NodeState,
    pub owner: Owner,
    pub why: String,
    pub cause: Option<Quarantine>,
}

impl Step {
    fn new(to: NodeState, owner: Owner, why: impl Into<String>) -> Self {
        Self { to, owner, why: why.into(), cause: None }
    }

    fn quarantine(owner: Owner, cause: Quarantine, why: impl Into<String>) -> Self {
        Self { cause: Some(cause), ..Self::new(NodeState::Quarantined, owner, why) }
    }

    /// The node after it. None: it may not go this way.
    pub fn apply(&self, node: &Node) -> Option<Node> {
        let moved = match self.cause {
            Some(cause) => node.quarantined(cause, self.owner, &self.why),
            None => node.become_(self.to, self.owner, &self.why),
        };
        moved.ok()
    }
}

/// The transition that a run makes next; none when the node is where it belongs. Asked again until there is none.
pub fn follow(node: &Node, run: &Run) -> Option<Step> {
    let whose = node.workflow.as_ref() == Some(&run.spec.id);
    match run.spec.run_type {
        _ if !whose => None,
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
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check => None,
    }
}

fn onboarding(node: &Node, run: &Run) -> Option<Step> {
    let id = &run.spec.id;
    match (node.state, run.progress.workflow) {
        (NodeState::BootstrapIssued, _) => {
            Some(Step::new(NodeState::Enrolling, Owner::Onboarding, format!("{id} onboards it")))
        }
        (NodeState::Enrolling, Workflow::Completed | Workflow::Reconciled) => {
            Some(Step::new(NodeState::Active, Owner::Onboarding, format!("{id} has onboarded it")))
        }
        // What could not be taken back is not to be built upon.
        (NodeState::Enrolling, Workflow::Cancelled) if run.progress.failure.is_some() => {
            let why = format!("{id} was canceled, and could not be taken back as a whole");
            Some(Step::quarantine(Owner::Onboarding, Quarantine::Onboarding, why))
        }
        (
            NodeState::Enrolling,
            Workflow::Pending
            | Workflow::Running
            | Workflow::Compensating
            | Workflow::FailedRetryable
            | Workflow::FailedManualIntervention
            | Workflow::Cancelled,
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

/// The way a decommission is set to go.
pub fn mode(run: &Run) -> Option<Mode> {
    run.spec.params.get(MODE).and_then(|word| Mode::parse(word))
}

/// Whether a stage of a run has come to its end.
pub fn has_done(run: &Run, stage: Stage) -> bool {
    let mut steps = run.progress.steps.iter().filter(|step| !step.undo);
    steps.any(|step| {
        step.state == StepPhase::Succeeded
            && run.plan_step(step).is_some_and(|plan| plan.name == stage.as_str())
    })
}

/// Begun, or found to be done already.
fn begun(run: &Run, stage: Stage) -> bool {
    let mut steps = run.progress.steps.iter().filter(|step| !step.undo);
    let tried = steps.any(|step| {
        step.attempt > 0 && run.plan_step(step).is_some_and(|plan| plan.name == stage.as_str())
    });
    tried || has_done(run, stage)
}

fn decommission(node: &Node, run: &Run) -> Option<Step> {
    match run.progress.workflow {
        Workflow::Pending => None,
        Workflow::Running | Workflow::Compensating => under_way(node, run),
        Workflow::Completed | Workflow::Reconciled => completed(node, run),
        Workflow::FailedRetryable | Workflow::Cancelled => {
            stopped(node, run).or_else(|| back_to_quarantine(node, run))
        }
        Workflow::FailedManualIntervention => {
            let back = stopped(node, run).or_else(|| back_to_quarantine(node, run));
            back.or_else(|| unsafe_(node, run))
        }
    }
}

fn under_way(node: &Node, run: &Run) -> Option<Step> {
    let id = &run.spec.id;
    // What is only taken back sets out for nowhere.
    let canceled = run.progress.halt.as_ref().is_some_and(|halt| halt.kind == HaltKind::Cancel);
    match node.state {
        NodeState::Active | NodeState::Offline | NodeState::Quarantined
            if has_done(run, Stage::DisableNode) && !canceled =>
        {
            Some(Step::new(NodeState::Draining, Owner::Admin, format!("{id} empties it")))
        }
        NodeState::Draining if has_done(run, Stage::DrainNode) => {
            Some(Step::new(NodeState::Retired, Owner::Decommission, format!("{id} has emptied it")))
        }
        NodeState::Retired if begun(run, Stage::RemoveGpuaasNodeRecord) && !canceled => {
            Some(Step::new(NodeState::Removing, Owner::Decommission, format!("{id} removes it")))
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

fn completed(node: &Node, run: &Run) -> Option<Step> {
    let id = &run.spec.id;
    let ends_in = mode(run)?.ends_in();
    match node.state {
        NodeState::Removing if ends_in == NodeState::Deleted => {
            let why = format!("{id} has removed it");
            Some(Step::new(NodeState::Deleted, Owner::Decommission, why))
        }
        NodeState::Retired if ends_in == NodeState::Offline => {
            let why = format!("{id} gives it back; its health must prove it active");
            Some(Step::new(NodeState::Offline, Owner::Decommission, why))
        }
        // What this very commit has brought it to. One that is given back has nothing more to do with what was done.
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

/// Nobody is at work on it any more: it must not stay on its way.
fn stopped(node: &Node, run: &Run) -> Option<Step> {
    let id = &run.spec.id;
    let how = run.phase().as_str().to_lowercase();
    match node.state {
        // It was asked to stop, and heard of the end of the drain all the same.
        NodeState::Draining if has_done(run, Stage::DrainNode) => under_way(node, run),
        NodeState::Draining => {
            let why = format!("{id} {how} before it was empty");
            Some(Step::new(NodeState::Offline, Owner::Decommission, why))
        }
        NodeState::Removing => {
            let why = format!("{id} {how} before it was removed");
            Some(Step::new(NodeState::Retired, Owner::Decommission, why))
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

/// It was in quarantine when the work on it began, and nothing has come of that.
fn back_to_quarantine(node: &Node, run: &Run) -> Option<Step> {
    let cause = node.quarantine.filter(|_| node.state == NodeState::Offline)?;
    let why = format!("{} has not brought it out of quarantine", run.spec.id);
    Some(Step::quarantine(Owner::Decommission, cause, why))
}

/// What stops for a person must not serve meanwhile.
fn unsafe_(node: &Node, run: &Run) -> Option<Step> {
    if !node.state.in_service() {
        return None;
    }
    let failure = run.progress.failure.as_ref();
    let said = failure.map_or_else(String::new, |one| format!(": {}", one.fault.said));
    let why = format!("{} stopped for a person{said}", run.spec.id);
    Some(Step::quarantine(Owner::Decommission, Quarantine::Cleanup, why))
}

/// Whether a node in this state may stand beside its newest run in that one: the documents' tables, with what they leave open.
pub fn fits(state: NodeState, run: &Run) -> bool {
    use NodeState::{
        Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired,
    };
    let workflow = run.progress.workflow;
    if run.spec.run_type == RunType::Onboard {
        return match workflow {
            Workflow::Pending | Workflow::Running | Workflow::Compensating => state == Enrolling,
            Workflow::FailedRetryable => state == Enrolling,
            Workflow::FailedManualIntervention => matches!(state, Enrolling | Quarantined),
            // Left open: nothing has been left behind, or it is looked into.
            Workflow::Cancelled => matches!(state, Enrolling | Quarantined),
            // From here on it lives by its heartbeats.
            Workflow::Completed | Workflow::Reconciled => {
                matches!(state, Active | Offline | Quarantined)
            }
        };
    }
    match workflow {
        // Left open: nothing has happened to it yet.
        Workflow::Pending => matches!(state, Active | Offline | Quarantined | Retired),
        Workflow::Running | Workflow::Compensating => {
            matches!(state, Active | Offline | Quarantined | Draining | Retired | Removing)
        }
        // Left open: what failed or was canceled before it was emptied leaves it where it can be taken up again.
        Workflow::FailedRetryable | Workflow::Cancelled => {
            matches!(state, Retired | Offline | Active | Quarantined)
        }
        Workflow::FailedManualIntervention => matches!(state, Retired | Quarantined),
        Workflow::Completed | Workflow::Reconciled => match mode(run).map(Mode::ends_in) {
            Some(Deleted) => state == Deleted,
            Some(Retired) => matches!(state, Retired | Offline | Active | Quarantined),
            Some(_) | None => matches!(state, Offline | Active | Quarantined | Retired),
        },
    }
}

/// Whether nobody may speak for a node any more: its disk was given back, or its secrets were cleaned up, and nothing is installed anew
/// yet.
pub fn revokes(run: &Run) -> bool {
    let gone = has_done(run, Stage::ReleaseMaasNode) || has_done(run, Stage::CleanupSecrets);
    gone && !begun(run, Stage::RenderCloudInit)
}

/// Whether a node has come back into service after this run had emptied it: what was done then says nothing of it now. Nothing but
/// service leads from there to quarantine.
pub(super) fn served_since(node: &Node, run: &Run) -> bool {
    let emptied = run.spec.run_type != RunType::Onboard && has_done(run, Stage::DrainNode);
    emptied && (node.state.in_service() || node.state == NodeState::Quarantined)
}
