//! Requests on nodes: which request is admitted in which state.

use super::follow::{has_done, leaves_disabled, mode};
use super::{DecommissionMode, MaasState, Node, NodeStage, NodeState, Quarantine, TransitionOwner};
use crate::gate::{Gate, Overrides};
use crate::plan::RunType;
use crate::refusal::{Reason, Refusal};
use crate::run::{Run, Workflow};

/// A request that moves a node directly, without an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRequest {
    /// Keeps it from scheduling until an operator has checked it.
    Quarantine { why: String },
    /// Out of quarantine, if it is proven healthy or the gate is overridden.
    Release { why: String, overrides: Overrides },
    /// A retired node serves again under the same identity, if its cleanup was completed or the
    /// gate is overridden.
    Reactivate { why: String, overrides: Overrides },
}

impl NodeRequest {
    /// The name of the request, if it brings a node back into service: operations on its machine
    /// must end first.
    pub const fn brings_back(&self) -> Option<&'static str> {
        match self {
            Self::Release { .. } => Some("release"),
            Self::Reactivate { .. } => Some("reactivate"),
            Self::Quarantine { .. } => None,
        }
    }

    pub fn overrides(&self) -> Overrides {
        match self {
            Self::Release { overrides, .. } | Self::Reactivate { overrides, .. } => {
                overrides.clone()
            }
            Self::Quarantine { .. } => Overrides::default(),
        }
    }

    /// The same request without its override.
    pub fn without_overrides(&self) -> Self {
        let overrides = Overrides::default();
        match self {
            Self::Release { why, .. } => Self::Release { why: why.clone(), overrides },
            Self::Reactivate { why, .. } => Self::Reactivate { why: why.clone(), overrides },
            Self::Quarantine { why } => Self::Quarantine { why: why.clone() },
        }
    }
}

/// The facts about a node outside its record.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeContext<'a> {
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// It sends heartbeats and reports that it is healthy.
    pub healthy: bool,
}

impl NodeContext<'_> {
    fn at_work(&self) -> Option<&Run> {
        self.run.filter(|run| !run.ended())
    }
}

/// The transitions that the request makes, one record each; empty if the node is in that state
/// already.
pub fn apply_request(
    node: &Node,
    request: &NodeRequest,
    known: NodeContext<'_>,
) -> Result<Vec<Node>, Refusal> {
    match request {
        NodeRequest::Quarantine { why } => quarantine(node, why, known),
        NodeRequest::Release { why, overrides } => release(node, why, overrides, known),
        NodeRequest::Reactivate { why, overrides } => reactivate(node, why, overrides, known),
    }
}

/// The end state of the node's failed operation after a request: the operation must not contradict
/// the node's new state.
pub fn closing_workflow(node: &Node, request: &NodeRequest, run: &Run) -> Option<Workflow> {
    match (request, run.spec.run_type) {
        // The node serves, although its onboarding failed.
        (NodeRequest::Release { .. }, RunType::Onboard) => Some(Workflow::Reconciled),
        (NodeRequest::Release { .. } | NodeRequest::Reactivate { .. }, _) => {
            Some(Workflow::Cancelled)
        }
        // There is no transition back to its onboarding.
        (NodeRequest::Quarantine { .. }, RunType::Onboard)
            if node.state == NodeState::Enrolling =>
        {
            Some(Workflow::FailedManualIntervention)
        }
        (NodeRequest::Quarantine { .. }, _) => None,
    }
}

fn quarantine(node: &Node, why: &str, known: NodeContext<'_>) -> Result<Vec<Node>, Refusal> {
    idle(node, "quarantine", known)?;
    let by = Quarantine::Operator;
    match node.state {
        NodeState::Quarantined if node.quarantine == Some(by) => Ok(Vec::new()),
        // A quarantine by an operator replaces any other cause: only an operator ends it.
        NodeState::Quarantined => Ok(vec![Node {
            quarantine: Some(by),
            reason: why.into(),
            drift_passes: 0,
            ..node.clone()
        }]),
        // The reconciler owns the transition from service to quarantine; the operator requests it.
        NodeState::Active | NodeState::Offline => {
            Ok(vec![node.quarantined(by, TransitionOwner::Reconciler, why)?])
        }
        NodeState::Enrolling => Ok(vec![node.quarantined(by, TransitionOwner::Operator, why)?]),
        NodeState::BootstrapIssued => {
            let enrolling =
                node.become_(NodeState::Enrolling, TransitionOwner::Admin, "given up")?;
            let ended = enrolling.quarantined(by, TransitionOwner::Operator, why)?;
            Ok(vec![enrolling, ended])
        }
        NodeState::Draining | NodeState::Retired | NodeState::Removing | NodeState::Deleted => {
            Err(wrong_state(node, "quarantine", "active, offline or enrolling"))
        }
    }
}

fn release(
    node: &Node,
    why: &str,
    overrides: &Overrides,
    known: NodeContext<'_>,
) -> Result<Vec<Node>, Refusal> {
    // The request was repeated: an operation is already uncordoning the node.
    if node.state == NodeState::Active && is_reactivated(known) {
        return Ok(Vec::new());
    }
    idle(node, "release", known)?;
    match node.state {
        NodeState::Active => Ok(Vec::new()),
        NodeState::Quarantined if given_up(node, known) => Err(never_served(node)),
        NodeState::Quarantined => {
            let doubt = doubts(node, known);
            // An override cannot replace an incomplete onboarding.
            if !node.served && doubt.is_some() {
                return Err(never_served(node));
            }
            if let Some(doubt) = doubt.filter(|_| !overrides.passes(Gate::NodeHealth)) {
                let (id, flags) = (&node.head.id, overrides.flags_with(Gate::NodeHealth));
                let message = format!("{id} is not proven healthy: {doubt}");
                return Err(Refusal::new(Reason::NodeUnproven, message)
                    .at_gate(Gate::NodeHealth)
                    .next(format!("farrier node release {id} {flags}")));
            }
            Ok(vec![node.become_(NodeState::Active, TransitionOwner::Operator, why)?])
        }
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Offline
        | NodeState::Draining
        | NodeState::Retired
        | NodeState::Removing
        | NodeState::Deleted => Err(wrong_state(node, "release", "quarantined")),
    }
}

/// True if the node never served and cannot any more: its onboarding was canceled, or never began.
fn given_up(node: &Node, known: NodeContext<'_>) -> bool {
    !node.served && known.run.is_none_or(|run| !run.progress.workflow.failed())
}

/// The reason why the node is not proven healthy.
fn doubts(node: &Node, known: NodeContext<'_>) -> Option<String> {
    let observed = node.maas.as_ref().filter(|_| node.site.is_some());
    // A heartbeat from before the machine was switched off proves nothing.
    let off = observed.is_some_and(|observed| observed.powered_on == Some(false));
    match observed.map(|observed| observed.state) {
        Some(MaasState::Deployed) | None if off => Some("MAAS has its machine switched off".into()),
        Some(MaasState::Deployed) | None if known.healthy => None,
        Some(MaasState::Deployed) | None => {
            Some("its agent sends no heartbeat, or reports problems".into())
        }
        Some(state) => Some(format!("MAAS has its machine as {state}, not as Deployed")),
    }
}

fn reactivate(
    node: &Node,
    why: &str,
    overrides: &Overrides,
    known: NodeContext<'_>,
) -> Result<Vec<Node>, Refusal> {
    let back = matches!(node.state, NodeState::Offline | NodeState::Active);
    // The request was repeated: an operation is already uncordoning the node.
    if back && is_reactivated(known) {
        return Ok(Vec::new());
    }
    idle(node, "reactivate", known)?;
    let id = &node.head.id;
    let message = match why {
        "" => "reactivated; its health must prove it active".to_string(),
        why => format!("reactivated: {why}; its health must prove it active"),
    };
    match node.state {
        // The request closes the operation that keeps it from new work.
        NodeState::Offline if known.run.is_some_and(leaves_disabled) => {
            Ok(vec![Node { reason: message, ..node.clone() }])
        }
        // It is reactivated already: its heartbeats decide.
        NodeState::Offline | NodeState::Active => Ok(Vec::new()),
        NodeState::Retired if !node.served => Err(never_served(node)),
        NodeState::Retired => {
            let clean = overrides.passes(Gate::Cleanup) || !known.run.is_some_and(is_unclean);
            if let Some(run) = known.run.filter(|_| !clean) {
                return Err(unclean(node, run, overrides));
            }
            let upstream = node.maas.as_ref().filter(|_| node.site.is_some());
            match upstream.map(|observed| observed.state) {
                Some(MaasState::Deployed) | None => {
                    Ok(vec![node.become_(NodeState::Offline, TransitionOwner::Admin, &message)?])
                }
                Some(state) => {
                    let message = format!(
                        "MAAS has the machine of {id} as {state}: nothing is installed there that could serve again"
                    );
                    Err(Refusal::new(Reason::NodeNotInstalled, message)
                        .next(format!("farrier node decommission {id} --mode reimage")))
                }
            }
        }
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Quarantined
        | NodeState::Draining
        | NodeState::Removing
        | NodeState::Deleted => Err(wrong_state(node, "reactivate", "retired")),
    }
}

/// True if an active operation is uncordoning the node in its cluster.
fn is_reactivated(known: NodeContext<'_>) -> bool {
    known.at_work().and_then(mode) == Some(DecommissionMode::Reactivate)
}

/// True if the cluster may still have the node cordoned, although it serves or is to serve again.
pub fn may_be_cordoned(node: &Node, known: NodeContext<'_>) -> bool {
    let stopped = |run: &Run| {
        matches!(run.spec.run_type, RunType::Decommission | RunType::NodeDrain)
            && run.ended()
            && !matches!(run.progress.workflow, Workflow::Completed | Workflow::Reconciled)
    };
    node.state == NodeState::Retired || known.run.is_some_and(stopped)
}

/// True if a cleanup failed or was canceled before the node was proven clean: data of its last user
/// may remain.
fn is_unclean(run: &Run) -> bool {
    let cleans =
        mode(run).is_some_and(|mode| mode.stages(false).contains(&NodeStage::ValidateCleanNode));
    let workflow = run.progress.workflow;
    let stopped = workflow.failed() || workflow == Workflow::Cancelled;
    cleans && stopped && !has_done(run, NodeStage::ValidateCleanNode)
}

fn unclean(node: &Node, run: &Run, overrides: &Overrides) -> Refusal {
    let (id, op) = (&node.head.id, &run.spec.id);
    let message = format!("{id} is not proven clean: {op} did not get so far");
    let clean = match mode(run) {
        Some(mode) if run.progress.workflow == Workflow::Cancelled => {
            format!("farrier node decommission {id} --mode {mode}")
        }
        Some(_) | None => format!("farrier operation retry-step {op}"),
    };
    let flags = overrides.flags_with(Gate::Cleanup);
    Refusal::new(Reason::NodeUnproven, message)
        .at_gate(Gate::Cleanup)
        .next(format!("{clean}   # or: farrier node reactivate {id} {flags}"))
}

/// Admits a decommission and returns the transitions before it: a node that never served is
/// quarantined first.
pub fn admit_decommission(
    node: &Node,
    mode: DecommissionMode,
    known: NodeContext<'_>,
) -> Result<Vec<Node>, Refusal> {
    idle(node, mode.as_str(), known)?;
    let away = mode == DecommissionMode::FullDecommission;
    match node.state {
        NodeState::Quarantined if !node.served && !away => Err(never_served(node)),
        NodeState::Active | NodeState::Offline | NodeState::Quarantined => Ok(Vec::new()),
        NodeState::Retired => match mode {
            DecommissionMode::Drain | DecommissionMode::Retire | DecommissionMode::Reactivate => {
                let id = &node.head.id;
                let message = format!("{id} is retired: there is nothing left to drain");
                Err(Refusal::new(Reason::NodeState, message)
                    .next(format!("farrier node reactivate {id}")))
            }
            DecommissionMode::SoftReset
            | DecommissionMode::Reimage
            | DecommissionMode::FullDecommission
            | DecommissionMode::StorageCleanup => Ok(Vec::new()),
        },
        NodeState::Enrolling if away => {
            let why = "its onboarding was given up";
            Ok(vec![node.quarantined(Quarantine::Onboarding, TransitionOwner::Operator, why)?])
        }
        NodeState::Enrolling => Err(never_served(node)),
        NodeState::BootstrapIssued => {
            let id = &node.head.id;
            let message = format!("no agent has enrolled as {id} yet");
            Err(Refusal::new(Reason::NodeState, message)
                .next(format!("farrier node quarantine {id} --reason …")))
        }
        // The row of its operation could not be read and was set aside.
        NodeState::Draining | NodeState::Removing if away && known.run.is_none() => Ok(Vec::new()),
        NodeState::Draining | NodeState::Removing => {
            let id = &node.head.id;
            let message = format!("{id} is {}: its operation sees to it", node.state);
            let next = match known.run {
                Some(_) => format!("farrier node resume {id}"),
                None => format!("farrier node decommission {id} --mode full_decommission"),
            };
            Err(Refusal::new(Reason::NodeBusy, message).next(next))
        }
        NodeState::Deleted => Err(deleted(node)),
    }
}

/// Refuses while an operation on the node is active.
fn idle(node: &Node, what: &str, known: NodeContext<'_>) -> Result<(), Refusal> {
    let Some(run) = known.at_work() else { return Ok(()) };
    let (id, run) = (&node.head.id, &run.spec.id);
    let message = format!("{id} is held by {run}: {what} must wait until it ends or is canceled");
    Err(Refusal::new(Reason::NodeBusy, message).next(format!("farrier why {run}")))
}

fn wrong_state(node: &Node, what: &str, needed: &str) -> Refusal {
    if node.state == NodeState::Deleted {
        return deleted(node);
    }
    let id = &node.head.id;
    let message = format!("{what} needs a node that is {needed}, and {id} is {}", node.state);
    Refusal::new(Reason::NodeState, message).next(format!("farrier why {id}"))
}

fn never_served(node: &Node) -> Refusal {
    let id = &node.head.id;
    let message = match node.quarantine {
        Some(Quarantine::Onboarding) => format!(
            "{id} has never served: rerun its onboarding, or remove it with full_decommission"
        ),
        Some(_) | None => format!("{id} has never served: only full_decommission removes it"),
    };
    Refusal::new(Reason::NodeState, message)
        .next(format!("farrier node decommission {id} --mode full_decommission"))
}

fn deleted(node: &Node) -> Refusal {
    let message = format!("{} is deleted, and never comes back", node.head.id);
    let next = format!("{}   # makes a new node", node.onboard_again());
    Refusal::new(Reason::NodeDeleted, message).next(next)
}

/// Checks whether a failed run may continue: its node must still be where the run left it.
pub fn admit_resume(node: &Node, run: &Run) -> Result<(), Refusal> {
    let mut after = node.clone();
    after.workflow = Some(run.spec.id.clone());
    let newest = node.workflow.as_ref().is_none_or(|newest| *newest == run.spec.id);
    let served = super::follow::served_since(node, run);
    if newest && node.state != NodeState::Deleted && !served && goes_on(&after, run) {
        return Ok(());
    }
    let (id, state) = (&node.head.id, node.state);
    let message = match node.workflow.as_ref().filter(|_| !newest) {
        Some(newest) => format!("{} has been followed by {newest} on {id}", run.spec.id),
        None => format!("{id} is {state} by now: {} no longer fits it", run.spec.id),
    };
    Err(Refusal::new(Reason::NodeMovedOn, message).next(format!("farrier why {id}")))
}

/// True if the node's state fits the run once it is active again.
fn goes_on(node: &Node, run: &Run) -> bool {
    let quarantined = node.state == NodeState::Quarantined;
    // Only a quarantine by a canceled onboarding ends with another onboarding.
    if run.spec.run_type == RunType::Onboard
        && quarantined
        && node.quarantine != Some(Quarantine::Onboarding)
    {
        return false;
    }
    let mut running = run.clone();
    running.progress.workflow = Workflow::Running;
    super::is_consistent(node.state, &running)
}
