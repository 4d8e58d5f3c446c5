//! Nodes as tables, taken from the documents: states and owners, workflow states beside them,
//! stages, requests, tasks, heartbeats, drift, sites.
//!
//! The tables are written out here, and never derived from the code under test.

mod actions;
mod doors;
mod drift;
mod enroll;
mod fits;
mod lives;
mod silence;
mod sites;
mod stages;
mod tasks;
mod walk;
mod ways;

use crate::support::{at, spec};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::lifecycle::Lifecycle;
use model::node::{MODE, Mode, NODE, Node, NodeState, Stage, Upstream, UpstreamSeen, Whose, steps};
use model::plan::{Params, RunType};
use model::run::{Run, RunSpec};

/// The work on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Onboard,
    Take(Mode),
}

impl Work {
    pub const ALL: [Self; 7] = [
        Self::Onboard,
        Self::Take(Mode::SoftReset),
        Self::Take(Mode::Reimage),
        Self::Take(Mode::FullDecommission),
        Self::Take(Mode::StorageCleanup),
        Self::Take(Mode::Drain),
        Self::Take(Mode::Retire),
    ];

    fn run_type(self) -> RunType {
        match self {
            Self::Onboard => RunType::Onboard,
            Self::Take(Mode::Drain | Mode::Retire | Mode::Reactivate) => RunType::NodeDrain,
            Self::Take(
                Mode::SoftReset | Mode::Reimage | Mode::FullDecommission | Mode::StorageCleanup,
            ) => RunType::Decommission,
        }
    }

    pub fn stages(self) -> Vec<Stage> {
        match self {
            Self::Onboard => Stage::ONBOARDING.to_vec(),
            Self::Take(mode) => mode.stages(true),
        }
    }
}

pub fn state(word: &str) -> NodeState {
    NodeState::parse(word).unwrap_or_else(|| panic!("{word} is no state"))
}

pub fn node(state: NodeState) -> Node {
    let mut node = Node::new(&NodeId::trusted("node-1"), &MachineId::trusted("m-1"), state, at(0));
    node.site = Some(SiteId::trusted("site-1"));
    node.workflow = Some(RunId::trusted("op-1"));
    node.served = !matches!(state, NodeState::BootstrapIssued | NodeState::Enrolling);
    node
}

pub fn seen(state: Upstream) -> UpstreamSeen {
    UpstreamSeen { state, said: String::new(), on: None, at: at(0) }
}

pub fn whose(cluster: &str) -> Whose {
    Whose {
        node: NodeId::trusted("node-1"),
        site: Some(SiteId::trusted("site-1")),
        by: "maas".into(),
        cluster: cluster.into(),
    }
}

/// A run on a node with these stages, as a request creates it.
pub fn run_of(work: Work, stages: &[Stage], cluster: &str) -> Run {
    let mut params = Params::from([(NODE.to_string(), "node-1".to_string())]);
    if let Work::Take(mode) = work {
        params.insert(MODE.into(), mode.as_str().into());
    }
    let reports_to = Some(node(NodeState::Active).subject());
    let steps = steps(stages, &whose(cluster));
    Run::new(RunSpec { run_type: work.run_type(), params, reports_to, ..spec(steps) })
}

/// A run with all stages of its kind.
pub fn run(work: Work) -> Run {
    run_of(work, &work.stages(), "")
}
