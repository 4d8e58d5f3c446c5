//! Requests on nodes: which request is admitted in which state.

use super::follow::{has_done, mode};
use super::{Mode, Node, NodeState, Owner, Quarantine, Stage, Upstream};
use crate::id::NodeId;
use crate::machine::Phase;
use crate::machine::admit::{allowed, allowed_for};
use crate::plan::{RunStep, RunType};
use crate::refusal::Refusal;
use crate::run::{Run, Workflow};

/// A request that moves a node directly, without an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Keeps it from scheduling until an operator has checked it.
    Quarantine { why: String },
    /// Out of quarantine. `unproven`: although it is not proven healthy.
    Release { why: String, unproven: bool },
    /// A retired node serves again under the same identity. `unproven`: although its cleanup was
    /// not completed.
    Reactivate { why: String, unproven: bool },
}

impl Ask {
    /// The name of the request, if it brings a node back into service: operations on its machine
    /// must end first.
    pub const fn brings_back(&self) -> Option<&'static str> {
        match self {
            Self::Release { .. } => Some("release"),
            Self::Reactivate { .. } => Some("reactivate"),
            Self::Quarantine { .. } => None,
        }
    }
}

/// The facts about a node outside its record.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// It sends heartbeats and reports that it is healthy.
    pub healthy: bool,
}

impl Known<'_> {
    fn at_work(&self) -> Option<&Run> {
        self.run.filter(|run| !run.ended())
    }
}

/// The transitions that the request makes, one record each; empty if the node is in that state
/// already.
pub fn ask(node: &Node, ask: &Ask, known: Known<'_>) -> Result<Vec<Node>, Refusal> {
    match ask {
        Ask::Quarantine { why } => quarantine(node, why, known),
        Ask::Release { why, unproven } => release(node, why, *unproven, known),
        Ask::Reactivate { why, unproven } => reactivate(node, why, *unproven, known),
    }
}

/// The end state of the node's failed operation after a request: the operation must not contradict
/// the node's new state.
pub fn closes(node: &Node, ask: &Ask, run: &Run) -> Option<Workflow> {
    match (ask, run.spec.run_type) {
        // The node serves, although its onboarding failed.
        (Ask::Release { .. }, RunType::Onboard) => Some(Workflow::Reconciled),
        (Ask::Release { .. } | Ask::Reactivate { .. }, _) => Some(Workflow::Cancelled),
        // There is no transition back to its onboarding.
        (Ask::Quarantine { .. }, RunType::Onboard) if node.state == NodeState::Enrolling => {
            Some(Workflow::FailedManualIntervention)
        }
        (Ask::Quarantine { .. }, _) => None,
    }
}

fn quarantine(node: &Node, why: &str, known: Known<'_>) -> Result<Vec<Node>, Refusal> {
    idle(node, "quarantine", known)?;
    let by = Quarantine::Operator;
    match node.state {
        NodeState::Quarantined if node.quarantine == Some(by) => Ok(Vec::new()),
        // A quarantine by an operator replaces any other cause: only an operator ends it.
        NodeState::Quarantined => {
            Ok(vec![Node { quarantine: Some(by), reason: why.into(), passes: 0, ..node.clone() }])
        }
        // The reconciler owns the transition from service to quarantine; the operator requests it.
        NodeState::Active | NodeState::Offline => {
            Ok(vec![node.quarantined(by, Owner::Reconciler, why)?])
        }
        NodeState::Enrolling => Ok(vec![node.quarantined(by, Owner::Operator, why)?]),
        NodeState::BootstrapIssued => {
            let enrolling = node.become_(NodeState::Enrolling, Owner::Admin, "given up")?;
            let ended = enrolling.quarantined(by, Owner::Operator, why)?;
            Ok(vec![enrolling, ended])
        }
        NodeState::Draining | NodeState::Retired | NodeState::Removing | NodeState::Deleted => {
            Err(wrong_state(node, "quarantine", "active, offline or enrolling"))
        }
    }
}

fn release(node: &Node, why: &str, unproven: bool, known: Known<'_>) -> Result<Vec<Node>, Refusal> {
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
            if !unproven && let Some(doubt) = doubt {
                let id = &node.head.id;
                let said = format!("{id} is not proven healthy: {doubt}");
                return Err(Refusal::precondition("NODE_UNPROVEN", said)
                    .next(format!("farrier node release {id} --unproven --reason …")));
            }
            Ok(vec![node.become_(NodeState::Active, Owner::Operator, why)?])
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
fn given_up(node: &Node, known: Known<'_>) -> bool {
    !node.served && known.run.is_none_or(|run| !run.progress.workflow.failed())
}

/// Why the node is not proven healthy.
fn doubts(node: &Node, known: Known<'_>) -> Option<String> {
    let upstream = node.upstream.as_ref().filter(|_| node.site.is_some()).map(|seen| seen.state);
    match upstream {
        Some(Upstream::Deployed) | None if known.healthy => None,
        Some(Upstream::Deployed) | None => Some("its agent is not heard of, or not well".into()),
        Some(state) => Some(format!("MAAS has its machine as {state}, not as Deployed")),
    }
}

fn reactivate(
    node: &Node,
    why: &str,
    unproven: bool,
    known: Known<'_>,
) -> Result<Vec<Node>, Refusal> {
    let back = matches!(node.state, NodeState::Offline | NodeState::Active);
    // The request was repeated: an operation is already uncordoning the node.
    if back && is_reactivated(known) {
        return Ok(Vec::new());
    }
    idle(node, "reactivate", known)?;
    let id = &node.head.id;
    match node.state {
        // It is reactivated already: its heartbeats decide.
        NodeState::Offline | NodeState::Active => Ok(Vec::new()),
        NodeState::Retired if !node.served => Err(never_served(node)),
        NodeState::Retired => {
            if let Some(run) = known.run.filter(|run| !unproven && is_unclean(run)) {
                return Err(unclean(node, run));
            }
            let upstream = node.upstream.as_ref().filter(|_| node.site.is_some());
            match upstream.map(|seen| seen.state) {
                Some(Upstream::Deployed) | None => {
                    let said = match why {
                        "" => "reactivated; its health must prove it active".to_string(),
                        why => format!("reactivated: {why}; its health must prove it active"),
                    };
                    Ok(vec![node.become_(NodeState::Offline, Owner::Admin, &said)?])
                }
                Some(state) => {
                    let said = format!(
                        "MAAS has the machine of {id} as {state}: nothing is installed there that could serve again"
                    );
                    Err(Refusal::precondition("NODE_NOT_INSTALLED", said)
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
fn is_reactivated(known: Known<'_>) -> bool {
    known.at_work().and_then(mode) == Some(Mode::Reactivate)
}

/// True if the cluster may still have the node cordoned, although it serves or is to serve again.
pub fn may_be_cordoned(node: &Node, known: Known<'_>) -> bool {
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
        mode(run).is_some_and(|mode| mode.stages(false).contains(&Stage::ValidateCleanNode));
    let workflow = run.progress.workflow;
    let stopped = workflow.failed() || workflow == Workflow::Cancelled;
    cleans && stopped && !has_done(run, Stage::ValidateCleanNode)
}

fn unclean(node: &Node, run: &Run) -> Refusal {
    let (id, op) = (&node.head.id, &run.spec.id);
    let said = format!("{id} is not proven clean: {op} did not get so far");
    let clean = match mode(run) {
        Some(mode) if run.progress.workflow == Workflow::Cancelled => {
            format!("farrier node decommission {id} --mode {mode}")
        }
        Some(_) | None => format!("farrier workflow retry-stage {op}"),
    };
    Refusal::precondition("NODE_UNPROVEN", said).next(format!(
        "{clean}   # or, all the same: farrier node reactivate {id} --unproven --reason …"
    ))
}

/// Admits a decommission and returns the transitions before it: a node that never served is
/// quarantined first.
pub fn decommission(node: &Node, mode: Mode, known: Known<'_>) -> Result<Vec<Node>, Refusal> {
    idle(node, mode.as_str(), known)?;
    let away = mode == Mode::FullDecommission;
    match node.state {
        NodeState::Quarantined if !node.served && !away => Err(never_served(node)),
        NodeState::Active | NodeState::Offline | NodeState::Quarantined => Ok(Vec::new()),
        NodeState::Retired => match mode {
            Mode::Drain | Mode::Retire | Mode::Reactivate => {
                let id = &node.head.id;
                let said = format!("{id} is retired: there is nothing left to drain");
                Err(Refusal::precondition("NODE_STATE", said)
                    .next(format!("farrier node reactivate {id}")))
            }
            Mode::SoftReset | Mode::Reimage | Mode::FullDecommission | Mode::StorageCleanup => {
                Ok(Vec::new())
            }
        },
        NodeState::Enrolling if away => {
            let why = "its onboarding was given up";
            Ok(vec![node.quarantined(Quarantine::Onboarding, Owner::Operator, why)?])
        }
        NodeState::Enrolling => Err(never_served(node)),
        NodeState::BootstrapIssued => {
            let id = &node.head.id;
            let said = format!("nobody has enrolled as {id} yet");
            Err(Refusal::precondition("NODE_STATE", said)
                .next(format!("farrier node quarantine {id} --reason …")))
        }
        NodeState::Draining | NodeState::Removing => {
            let id = &node.head.id;
            let said = format!("{id} is {}: its operation sees to it", node.state);
            Err(Refusal::precondition("NODE_BUSY", said).next(format!("farrier node resume {id}")))
        }
        NodeState::Deleted => Err(deleted(node)),
    }
}

/// Checks whether MAAS may be left out: only for a full decommission, because otherwise MAAS must
/// install or release the machine.
pub fn without_maas(mode: Mode) -> Result<(), Refusal> {
    match mode == Mode::FullDecommission {
        true => Ok(()),
        false => {
            let problem = format!("is given for {mode}, where the machine stays with its MAAS");
            let instead = "leave it out, or use --mode full_decommission";
            Err(Refusal::invalid("without_maas", problem, instead))
        }
    }
}

/// Checks whether the agent may be left out: not if the installed system serves again, because only
/// the agent can clean it.
pub fn without_agent(mode: Mode) -> Result<(), Refusal> {
    match mode.keeps_system() {
        false => Ok(()),
        true => {
            let problem = format!("is given for {mode}, where only the agent can clean what stays");
            Err(Refusal::invalid("without_agent", problem, "leave it out, or use --mode reimage"))
        }
    }
}

/// Refuses operations that take a machine down or change its content while its node is in service.
/// The node must be drained first.
pub fn spare(node: &NodeId, run_type: RunType, steps: &[RunStep]) -> Result<(), Refusal> {
    let meant = [(run_type.as_str().to_string(), allowed(run_type))].into_iter();
    let asked = steps
        .iter()
        .map(|step| (format!("step {} of this plan", step.name), allowed_for(&step.effect)));
    // While a node is in service, the gates of phase READY apply, whatever the machine's phase.
    // Leaving maintenance takes nothing away.
    let back = run_type == RunType::ExitMaintenance;
    let mut shut =
        meant.filter(|_| !back).chain(asked).filter(|(_, open)| !open.contains(&Phase::Ready));
    match shut.next() {
        None => Ok(()),
        Some((what, _)) => {
            let said =
                format!("the machine serves as {node}: {what} must wait until that is retired");
            Err(Refusal::precondition("NODE_IN_SERVICE", said)
                .next(format!("farrier node drain {node}")))
        }
    }
}

/// Refuses while an operation on the node is active.
fn idle(node: &Node, what: &str, known: Known<'_>) -> Result<(), Refusal> {
    let Some(run) = known.at_work() else { return Ok(()) };
    let (id, run) = (&node.head.id, &run.spec.id);
    let said =
        format!("{id} is in the hands of {run}: {what} must wait until it ends or is canceled");
    Err(Refusal::precondition("NODE_BUSY", said).next(format!("farrier why {run}")))
}

fn wrong_state(node: &Node, what: &str, needed: &str) -> Refusal {
    if node.state == NodeState::Deleted {
        return deleted(node);
    }
    let id = &node.head.id;
    let said = format!("{what} needs a node that is {needed}, and {id} is {}", node.state);
    Refusal::precondition("NODE_STATE", said).next(format!("farrier why {id}"))
}

fn never_served(node: &Node) -> Refusal {
    let id = &node.head.id;
    let said = format!("{id} has never served: only full_decommission takes it away");
    Refusal::precondition("NODE_STATE", said)
        .next(format!("farrier node decommission {id} --mode full_decommission"))
}

fn deleted(node: &Node) -> Refusal {
    let said = format!("{} is deleted, and never comes back", node.head.id);
    let next = format!("{}   # makes a new node", node.onboard_again());
    Refusal::precondition("NODE_DELETED", said).next(next)
}

/// Checks whether a failed run may continue: its node must still be where the run left it.
pub fn may_go_on(node: &Node, run: &Run) -> Result<(), Refusal> {
    let mut after = node.clone();
    after.workflow = Some(run.spec.id.clone());
    let newest = node.workflow.as_ref().is_none_or(|newest| *newest == run.spec.id);
    let served = super::follow::served_since(node, run);
    if newest && node.state != NodeState::Deleted && !served && goes_on(&after, run) {
        return Ok(());
    }
    let (id, state) = (&node.head.id, node.state);
    let said = format!("{id} is {state} by now: {} no longer fits it", run.spec.id);
    Err(Refusal::precondition("NODE_MOVED_ON", said).next(format!("farrier why {id}")))
}

/// True if the node's state fits the run once it is active again.
fn goes_on(node: &Node, run: &Run) -> bool {
    let mut running = run.clone();
    running.progress.workflow = Workflow::Running;
    super::fits(node.state, &running)
}
