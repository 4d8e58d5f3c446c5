//! Nodes: one identity in service on a machine, from its onboarding to its deletion.
//!
//! Three layers, never collapsed: the coarse state of the node is here, the state of the work on it is that of its run, and what MAAS
//! says of the machine is only observed ([`Upstream`]). A node moves by requests, by heartbeats, by the reconciler, and with every
//! commit of a run that works on it ([`follow`]); each of them owns some of the ways between the states and no others.
//!
//! `state` is the states and their ways, `adopt` what need not be done, `stage` what onboarding and decommission are made of, `follow` what a run means for its node,
//! `upstream` what MAAS may say, `drift` what is done about it, `silence` who is not heard of, `task` what the agent is asked,
//! `enroll` how it becomes one of ours, `door` what may be asked of a node.

mod adopt;
pub mod door;
pub mod drift;
pub mod enroll;
pub mod follow;
pub mod silence;
mod stage;
mod state;
pub mod task;
mod upstream;
mod why;

pub use adopt::{AgentAsked, adopts};
pub use follow::{Step, fits, follow};
pub use stage::{Mode, Room, Stage, TaskKind, Whose, steps, uncordon};
pub use state::{NodeState, Owner, WAYS};
pub use upstream::{Seen as UpstreamSeen, Upstream, expected};

use crate::effect::Facts;
use crate::here;
use crate::id::{MachineId, NodeId, RunId, SiteId};
use crate::lifecycle::{Change, Head, Lifecycle, Next, SubjectKind, Why};
use crate::machine::Labels;
use crate::refusal::Refusal;
use crate::run::{Note, Run};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The parameters of a run on a node: which node, and how it is decommissioned.
pub const NODE: &str = "node";
pub const MODE: &str = "mode";
/// Why the agent is not waited for.
pub const WITHOUT_AGENT: &str = "without_agent";
/// Why its MAAS is not asked.
pub const WITHOUT_MAAS: &str = "without_maas";
/// How long a node is normally on its way.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(6 * 3_600);

/// Why a node is in quarantine. Only drift is taken back by the reconciler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quarantine {
    /// MAAS says something else than is expected.
    Drift,
    /// Its onboarding could not be brought to an end, or not be taken back.
    Onboarding,
    /// It was not clean, or could not be cleaned.
    Cleanup,
    /// Somebody wanted it.
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

/// What the agent said of itself when it enrolled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    pub hostname: String,
    pub version: String,
    pub serial: String,
    pub enrolled_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub head: Head,
    pub state: NodeState,
    /// Who made the last transition.
    pub moved_by: Owner,
    /// Why it is in its state, where somebody has to know.
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
    /// What MAAS calls its machine; empty until it is found there.
    #[serde(default)]
    pub system_id: String,
    /// What MAAS last said of it.
    #[serde(default)]
    pub upstream: Option<UpstreamSeen>,
    /// How many passes in a row have seen it drift, or seen it well again.
    #[serde(default)]
    pub passes: u32,
    #[serde(default)]
    pub agent: Option<Agent>,
    /// It has come into service once. One that never has is only taken away.
    #[serde(default)]
    pub served: bool,
}

impl Node {
    pub fn new(id: &NodeId, machine: &MachineId, state: NodeState, now: Timestamp) -> Self {
        Self {
            head: Head::new(id.as_str(), Labels::new(), now),
            state,
            moved_by: Owner::Admin,
            reason: String::new(),
            quarantine: None,
            machine: machine.clone(),
            site: None,
            workflow: None,
            system_id: String::new(),
            upstream: None,
            passes: 0,
            agent: None,
            served: false,
        }
    }

    pub fn id(&self) -> NodeId {
        NodeId::trusted(&self.head.id)
    }

    /// The node as an owner moves it. Refused where the way does not exist or is somebody else's.
    pub fn become_(&self, to: NodeState, owner: Owner, why: &str) -> Result<Self, Refusal> {
        let owners = self.state.owners(to);
        if !owners.contains(&owner) {
            return Err(self.no_way(to, owner, owners));
        }
        // Whoever is emptied out of quarantine goes back there when that fails, and not into service.
        let kept = matches!(
            (self.state, to),
            (_, NodeState::Quarantined)
                | (NodeState::Quarantined, NodeState::Draining)
                | (NodeState::Draining, NodeState::Offline)
        );
        let quarantine = self.quarantine.filter(|_| kept);
        let (reason, passes) = (why.to_string(), 0);
        let served = self.served || to == NodeState::Active;
        Ok(Self { state: to, moved_by: owner, reason, quarantine, passes, served, ..self.clone() })
    }

    /// The same into quarantine, with its cause.
    pub fn quarantined(&self, cause: Quarantine, owner: Owner, why: &str) -> Result<Self, Refusal> {
        let node = self.become_(NodeState::Quarantined, owner, why)?;
        Ok(Self { quarantine: Some(cause), ..node })
    }

    fn no_way(&self, to: NodeState, owner: Owner, owners: &[Owner]) -> Refusal {
        let (id, from) = (&self.head.id, self.state);
        let words: Vec<_> = owners.iter().map(|one| one.as_str()).collect();
        let said = match words.is_empty() {
            true => format!("{id} is {from}, and no way leads from there to {to}"),
            false => format!(
                "{id} is {from}: the way to {to} belongs to {}, not to {owner}",
                words.join(" and ")
            ),
        };
        Refusal::precondition("NODE_TRANSITION", said).next(format!("farrier why {id}"))
    }
}

/// What a turn sees beside the node: the operation that works on it, where there is one.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub run: Option<Run>,
}

impl Lifecycle for Node {
    const KIND: SubjectKind = SubjectKind::Node;
    const STATES: &'static [&'static str] = &NodeState::WORDS;
    type Seen = Seen;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        self.state.as_str()
    }

    /// A node moves with the commits of its runs and by its doors. What is left for its own turn is the guard: one that is on its way
    /// without anybody at work on it goes back to where it can be taken up again.
    fn next(&self, seen: &Seen, _now: Timestamp) -> Next<Self> {
        let at_work = seen.run.as_ref().is_some_and(|run| !run.ended());
        let why = "nothing works on it any more";
        let back = |to| self.become_(to, Owner::Decommission, why);
        let moved = match (self.state, self.quarantine) {
            (NodeState::Draining, _) if !at_work => back(NodeState::Offline),
            (NodeState::Removing, _) if !at_work => back(NodeState::Retired),
            // It was emptied out of quarantine, and goes back there and not into service.
            (NodeState::Offline, Some(cause)) if !at_work => {
                self.quarantined(cause, Owner::Decommission, why)
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
            ) => return Next::Rest(Why::new(self.rests())),
        };
        match moved {
            Ok(node) => Next::Become(Box::new(Change::new(node, Note::new(why, here!())))),
            Err(refusal) => Next::Rest(Why::new(refusal.said)),
        }
    }

    fn patience(&self) -> Option<Duration> {
        match self.state {
            NodeState::Enrolling | NodeState::Draining | NodeState::Removing => {
                Some(PROGRESS_PATIENCE)
            }
            NodeState::BootstrapIssued
            | NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Retired
            | NodeState::Deleted => None,
        }
    }

    /// Who made the last transition may have come from these states only, or from this one.
    fn sources(&self) -> Option<Vec<&'static str>> {
        let mut from = self.state.sources(self.moved_by);
        from.push(self.state);
        Some(from.into_iter().map(NodeState::as_str).collect())
    }

    fn learn(&mut self, facts: &Facts) {
        if let Some(seen) = &facts.maas {
            // A machine that is gone has no name to tell; the node still knows which one it was.
            if !seen.system_id.is_empty() {
                self.system_id.clone_from(&seen.system_id);
            }
            self.upstream = Some(seen.upstream.clone());
        }
    }
}
