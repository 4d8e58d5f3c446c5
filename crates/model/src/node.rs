//! Nodes: one identity in service on a machine, from its onboarding to its deletion.
//!
//! Three layers are kept apart: the coarse state of the node is here, the progress of the work on
//! it is that of its run, and the MAAS state of the machine is only observed ([`MaasState`]). A
//! node changes by requests, heartbeats, the reconciler, and every commit of a run on it
//! ([`follow`]). Each of them owns some transitions and may make no others.
//!
//! - `state`: the states and their transitions
//! - `adopt`: stages that have nothing to do
//! - `stage`: the stages of onboarding and decommissioning
//! - `follow`: what a commit of a run means for its node
//! - `upstream`: what MAAS reports
//! - `drift`: the reconciler's decisions
//! - `heartbeat`: missing heartbeats
//! - `task`: tasks of the agent
//! - `enroll`: enrollment of agents
//! - `requests`: requests on nodes

mod adopt;
pub mod drift;
pub mod enroll;
pub mod follow;
pub mod heartbeat;
pub mod requests;
mod stage;
mod state;
pub mod task;
mod upstream;
mod why;

pub use adopt::{AgentTaskContext, adoption_reason};
pub use follow::{NodeTransition, is_consistent, next_transition};
pub use stage::{
    DecommissionMode, NodeStage, RecordStage, StageExecutor, StageTarget, steps, uncordon,
};
pub use state::{NodeState, TRANSITIONS, TransitionOwner};
pub use upstream::{MaasObservation, MaasState, is_expected_maas_state};
pub use why::{NodeContext, NodeWork};
pub use wire::node::TaskKind;

use crate::budget::NodeService;
use crate::effect::DeviceFacts;
use crate::filter::FilterField;
use crate::here;
use crate::id::{MachineId, NodeId, RunId, SiteId};
use crate::lifecycle::{Lifecycle, LifecycleDecision, RecordHeader, SubjectKind, head_in_field};
use crate::machine::{Labels, Machine};
use crate::plan::RunType;
use crate::refusal::{Reason, Refusal};
use crate::run::{HistoryNote, Run, Workflow};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The parameters of a run on a node: the node's id, and the decommission mode.
pub const NODE: &str = "node";
pub const MODE: &str = "mode";
/// The parameter of a run that names the request which started it: release or reactivate.
pub const NODE_REQUEST: &str = "node_request";
/// The normal time for which a node is enrolling, draining or being removed.
const PROGRESS_NORMAL: Duration = Duration::from_secs(6 * 3_600);

/// The reason why a node is in quarantine. The reconciler only ends a quarantine for drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quarantine {
    /// MAAS reports a state other than the expected one.
    Drift,
    /// Its onboarding could neither be completed nor undone.
    Onboarding,
    /// It was not clean, or could not be cleaned.
    Cleanup,
    /// An operator requested it.
    Operator,
}

impl Quarantine {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drift => "drift",
            Self::Onboarding => "onboarding",
            Self::Cleanup => "cleanup",
            Self::Operator => "operator",
        }
    }
}

/// The agent's report at its enrollment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    pub hostname: String,
    pub version: String,
    pub serial: String,
    pub enrolled_at: Timestamp,
    /// When its session was revoked; it has not enrolled again since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_revoked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub head: RecordHeader,
    pub state: NodeState,
    /// The component that made the last transition.
    pub moved_by: TransitionOwner,
    /// The reason why the node is in its state, if the operator needs to know.
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    pub machine: MachineId,
    /// None: no MAAS manages it.
    #[serde(default)]
    pub site: Option<SiteId>,
    /// The newest operation on it.
    #[serde(default)]
    pub workflow: Option<RunId>,
    /// The machine's id in MAAS; empty until it was found there.
    #[serde(default)]
    pub system_id: String,
    /// The last report of MAAS.
    #[serde(default)]
    #[serde(rename = "upstream")]
    pub maas: Option<MaasObservation>,
    /// The number of consecutive reconciler passes that saw it drift, or saw it healthy again.
    #[serde(default)]
    #[serde(rename = "passes")]
    pub drift_passes: u32,
    #[serde(default)]
    pub agent: Option<Agent>,
    /// The node has been in service. A node that never was can only be removed.
    #[serde(default)]
    pub served: bool,
    /// The operation that took its machine down while it was in service. Only a heartbeat after the
    /// end of that operation makes the node active again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_by: Option<RunId>,
    /// The last request with a request id that brought it back into service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_request: Option<AppliedRequest>,
}

/// A request that was applied to a node. It recognises a repetition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedRequest {
    pub request_id: String,
    /// The word of the request, such as `release`.
    pub kind: String,
}

impl Node {
    /// The states that have a normal duration.
    pub const WAITING: &'static [&'static str] = &[
        NodeState::Enrolling.as_str(),
        NodeState::Draining.as_str(),
        NodeState::Removing.as_str(),
    ];

    pub fn new(id: &NodeId, machine: &MachineId, state: NodeState, now: Timestamp) -> Self {
        Self {
            head: RecordHeader::new(id.as_str(), Labels::new(), now),
            state,
            moved_by: TransitionOwner::Admin,
            reason: String::new(),
            quarantine: None,
            machine: machine.clone(),
            site: None,
            workflow: None,
            system_id: String::new(),
            maas: None,
            drift_passes: 0,
            agent: None,
            served: false,
            down_by: None,
            last_request: None,
        }
    }

    pub fn id(&self) -> NodeId {
        NodeId::trusted(&self.head.id)
    }

    /// The node after the session of its agent was revoked. True if it had one until now.
    pub fn revoke_session(&mut self, now: Timestamp) -> bool {
        let Some(agent) = self.agent.as_mut() else { return false };
        let had_session = agent.session_revoked_at.is_none();
        agent.session_revoked_at.get_or_insert(now);
        had_session
    }

    /// A transition by `owner`. Refused if the transition does not exist or belongs to another
    /// owner.
    pub fn become_(
        &self,
        to: NodeState,
        owner: TransitionOwner,
        why: &str,
    ) -> Result<Self, Refusal> {
        let owners = self.state.owners(to);
        if !owners.contains(&owner) {
            return Err(self.refuse_transition(to, owner, owners));
        }
        // A node that is drained out of quarantine returns there when the drain fails, not into
        // service.
        let stored = matches!(
            (self.state, to),
            (_, NodeState::Quarantined)
                | (NodeState::Quarantined, NodeState::Draining)
                | (NodeState::Draining, NodeState::Offline)
        );
        let quarantine = self.quarantine.filter(|_| stored);
        let (reason, passes) = (why.to_string(), 0);
        let active = to == NodeState::Active;
        Ok(Self {
            state: to,
            moved_by: owner,
            reason,
            quarantine,
            drift_passes: passes,
            served: self.served || active,
            down_by: self.down_by.clone().filter(|_| !active),
            ..self.clone()
        })
    }

    /// The node after an operation on another object has taken its machine down; none if it changes
    /// nothing for the node. `active -> offline` is the pair of the document for a node that does
    /// not respond, and it belongs to reconciliation: Farrier knows from its own order what the
    /// missing heartbeats would tell minutes later. `draining` and `quarantined` would need a
    /// decision of an operator, and heartbeats do not end them.
    pub fn taken_down(&self, by: &RunId) -> Option<Self> {
        let down_by = Some(by.clone());
        match self.state {
            NodeState::Active => {
                let (to, owner) = (NodeState::Offline, TransitionOwner::Reconciler);
                let why = format!("{by} takes its machine down");
                Some(Self { down_by, ..self.become_(to, owner, &why).ok()? })
            }
            // It stays offline, and only a heartbeat after the end of this operation counts.
            NodeState::Offline if self.down_by != down_by => Some(Self { down_by, ..self.clone() }),
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => None,
        }
    }

    /// The operation that holds the machine of the node, and is not the node's own: the node
    /// returns to service after it.
    pub fn other_holder<'a>(&self, machine: &'a Machine) -> Option<&'a RunId> {
        machine.active_run.as_ref().filter(|run| self.workflow.as_ref() != Some(*run))
    }

    /// A transition into quarantine, with its cause.
    pub fn quarantined(
        &self,
        cause: Quarantine,
        owner: TransitionOwner,
        why: &str,
    ) -> Result<Self, Refusal> {
        let node = self.become_(NodeState::Quarantined, owner, why)?;
        Ok(Self { quarantine: Some(cause), ..node })
    }

    fn refuse_transition(
        &self,
        to: NodeState,
        owner: TransitionOwner,
        owners: &[TransitionOwner],
    ) -> Refusal {
        let (id, from) = (&self.head.id, self.state);
        let words: Vec<_> = owners.iter().map(|one| one.as_str()).collect();
        let message = match words.is_empty() {
            true => format!("{id} is {from}, and no way leads from there to {to}"),
            false => format!(
                "{id} is {from}: the way to {to} belongs to {}, not to {owner}",
                words.join(" and ")
            ),
        };
        Refusal::new(Reason::NodeTransition, message).next(format!("farrier why {id}"))
    }
}

/// The input of a turn: the operation that works on the node, if there is one.
#[derive(Debug, Clone, Default)]
pub struct NodeTurnInput {
    pub run: Option<Run>,
}

impl Lifecycle for Node {
    const KIND: SubjectKind = SubjectKind::Node;
    const STATES: &'static [&'static str] = &NodeState::NAMES;
    type TurnInput = NodeTurnInput;

    head_in_field!();

    fn filter_value(&self, field: &FilterField) -> Option<String> {
        if *field == FilterField::MachineId {
            return Some(self.machine.to_string());
        }
        if *field == FilterField::Site {
            return self.site.as_ref().map(ToString::to_string);
        }
        field.of_record(self)
    }

    /// The labels of a node are made by Farrier.
    fn seen_by_machine(&self) -> Option<&MachineId> {
        Some(&self.machine)
    }

    fn node_service(&self) -> Option<NodeService> {
        Some(NodeService::of(self))
    }

    fn state_name(&self) -> &'static str {
        self.state.as_str()
    }

    /// A node changes with the commits of its runs and by requests. Its own turn is only a guard: a
    /// node in an intermediate state without an active run returns to a state from which it can be
    /// continued.
    fn next(&self, observed: &NodeTurnInput, _now: Timestamp) -> LifecycleDecision<Self> {
        let at_work = observed.run.as_ref().is_some_and(|run| !run.ended());
        let canceled = observed.run.as_ref().is_some_and(|run| {
            let onboards = run.spec.run_type == RunType::Onboard;
            onboards && run.progress.workflow == Workflow::Cancelled
        });
        let why = "nothing works on it any more";
        let back = |to| self.become_(to, TransitionOwner::Decommission, why);
        let moved = match (self.state, self.quarantine) {
            // Its canceled onboarding was stored by an older version, which left it here.
            (NodeState::Enrolling, _) if canceled => {
                self.quarantined(Quarantine::Onboarding, TransitionOwner::Onboarding, why)
            }
            (NodeState::Draining, _) if !at_work => back(NodeState::Offline),
            (NodeState::Removing, _) if !at_work => back(NodeState::Retired),
            // It was drained out of quarantine, so it returns there and not into service.
            (NodeState::Offline, Some(cause)) if !at_work => {
                self.quarantined(cause, TransitionOwner::Decommission, why)
            }
            (
                NodeState::BootstrapIssued
                | NodeState::Enrolling
                | NodeState::Active
                | NodeState::Offline
                | NodeState::Quarantined
                | NodeState::Draining
                | NodeState::Retired
                | NodeState::Removing
                | NodeState::Deleted,
                _,
            ) => return LifecycleDecision::idle(self.rests()),
        };
        match moved {
            Ok(node) => LifecycleDecision::change(node, HistoryNote::new(why, here!())),
            Err(refusal) => LifecycleDecision::idle(refusal.message),
        }
    }

    fn normal_duration(&self) -> Option<Duration> {
        match self.state {
            NodeState::Enrolling | NodeState::Draining | NodeState::Removing => {
                Some(PROGRESS_NORMAL)
            }
            NodeState::BootstrapIssued
            | NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Retired
            | NodeState::Deleted => None,
        }
    }

    /// The legal sources of the last transition, and the current state itself.
    fn legal_source_states(&self) -> Option<Vec<&'static str>> {
        let mut from = self.state.sources(self.moved_by);
        from.push(self.state);
        Some(from.into_iter().map(NodeState::as_str).collect())
    }

    fn merge_facts(&mut self, facts: &DeviceFacts) {
        if let Some(observed) = &facts.maas {
            // A machine that is gone from MAAS reports no id; the node keeps the last one.
            if !observed.system_id.is_empty() {
                self.system_id.clone_from(&observed.system_id);
            }
            self.maas = Some(observed.upstream.clone());
        }
    }
}
