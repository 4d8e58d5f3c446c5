//! Nodes as tables, taken from the documents: states and owners, workflow states beside them,
//! stages, requests, tasks, heartbeats, drift, sites.
//!
//! The tables are written out here, and never derived from the code under test.

mod actions;
mod drift;
mod enroll;
mod fits;
mod heartbeat;
pub mod node_runs;
mod requests;
mod sites;
mod stages;
mod tasks;
mod transitions;
mod walk;

use crate::support::{at, spec};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::lifecycle::Lifecycle;
use model::node::{
    DecommissionMode, MODE, MaasObservation, MaasState, NODE, Node, NodeStage, NodeState,
    StageTarget, steps,
};
use model::plan::{Params, RunType};
use model::run::{Run, RunSpec};

/// The work on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Onboard,
    Take(DecommissionMode),
}

impl Work {
    pub const ALL: [Self; 7] = [
        Self::Onboard,
        Self::Take(DecommissionMode::SoftReset),
        Self::Take(DecommissionMode::Reimage),
        Self::Take(DecommissionMode::FullDecommission),
        Self::Take(DecommissionMode::StorageCleanup),
        Self::Take(DecommissionMode::Drain),
        Self::Take(DecommissionMode::Retire),
    ];

    fn run_type(self) -> RunType {
        match self {
            Self::Onboard => RunType::Onboard,
            Self::Take(
                DecommissionMode::Drain | DecommissionMode::Retire | DecommissionMode::Reactivate,
            ) => RunType::NodeDrain,
            Self::Take(
                DecommissionMode::SoftReset
                | DecommissionMode::Reimage
                | DecommissionMode::FullDecommission
                | DecommissionMode::StorageCleanup,
            ) => RunType::Decommission,
        }
    }

    pub fn stages(self) -> Vec<NodeStage> {
        match self {
            Self::Onboard => NodeStage::ONBOARDING.to_vec(),
            Self::Take(mode) => mode.stages(true),
        }
    }
}

pub fn state(name: &str) -> NodeState {
    NodeState::parse(name).unwrap_or_else(|| panic!("{name} is no state"))
}

pub fn node(state: NodeState) -> Node {
    let mut node = Node::new(&NodeId::trusted("node-1"), &MachineId::trusted("m-1"), state, at(0));
    node.site = Some(SiteId::trusted("site-1"));
    node.workflow = Some(RunId::trusted("op-1"));
    node.served = !matches!(state, NodeState::BootstrapIssued | NodeState::Enrolling);
    node
}

pub fn upstream_observation(state: MaasState) -> MaasObservation {
    MaasObservation { state, message: String::new(), powered_on: None, at: at(0) }
}

pub fn stage_context(cluster: &str) -> StageTarget {
    StageTarget {
        node: NodeId::trusted("node-1"),
        site: Some(SiteId::trusted("site-1")),
        provider: "maas".into(),
        cluster: cluster.into(),
    }
}

/// A run on a node with these stages, as a request creates it.
pub fn run_of(work: Work, stages: &[NodeStage], cluster: &str) -> Run {
    let mut params = Params::from([(NODE.to_string(), "node-1".to_string())]);
    if let Work::Take(mode) = work {
        params.insert(MODE.into(), mode.as_str().into());
    }
    let reports_to = Some(node(NodeState::Active).subject());
    let steps = steps(stages, &stage_context(cluster));
    Run::new(RunSpec { run_type: work.run_type(), params, reports_to, ..spec(steps) })
}

/// A run with all stages of its kind.
pub fn run(work: Work) -> Run {
    run_of(work, &work.stages(), "")
}
