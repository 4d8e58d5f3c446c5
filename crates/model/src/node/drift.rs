//! Drift: what the reconciler does when MAAS reports an unexpected state of a node's machine.
//!
//! The reconciler may change the state of the work on a node, and quarantine a node in service; it
//! sets no other state. It acts only after `CONFIRMATIONS` consecutive passes. When many nodes
//! drift at once, MAAS or the connection to it is at fault, not the nodes.

use super::silence::Flood;
use super::{Node, NodeState, Quarantine, Stage, Upstream, UpstreamSeen, expected, fits};
use crate::id::RunId;
use crate::plan::RunType;
use crate::run::{Run, Workflow};

/// The number of consecutive passes that must agree before the reconciler acts.
pub const CONFIRMATIONS: u32 = 2;

/// The reconciler's action on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// The state is as expected, or an operation takes care of it.
    Nothing,
    /// Store the number of consecutive passes.
    Count(u32),
    Quarantine(String),
    /// It was quarantined for drift, and is proven healthy again.
    Heal,
    /// The goal of the failed stage has been reached: the run may adopt the observed state.
    Adopt(RunId),
    /// The run cannot continue from the observed state.
    MarkManual(RunId, String),
}

/// A node as a pass observes it.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    pub node: &'a Node,
    pub seen: &'a UpstreamSeen,
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// It sends heartbeats and reports that it is healthy.
    pub healthy: bool,
    /// The state was first seen only a moment ago, by another replica or before a restart. Seeing
    /// it again so soon is no confirmation.
    pub lately: bool,
}

impl Case<'_> {
    /// True if a node is in service although MAAS reports that it cannot be. An unknown MAAS state
    /// is not drift.
    pub fn drifts(&self) -> bool {
        let (node, seen) = (self.node, self.seen.state);
        let wrong = seen != Upstream::Unknown && !expected(node.state, seen);
        node.state.in_service() && !self.at_work() && wrong
    }

    fn at_work(&self) -> bool {
        self.run.is_some_and(|run| !run.ended())
    }

    /// `flooded`: a mass outage, so no single node is to blame.
    pub fn decide(&self, flooded: bool) -> Act {
        let node = self.node;
        match node.state {
            _ if self.at_work() => Act::Nothing,
            NodeState::Active | NodeState::Offline if !self.drifts() => forget(node),
            NodeState::Active | NodeState::Offline if flooded => Act::Nothing,
            NodeState::Active | NodeState::Offline => {
                self.confirmed(|| Act::Quarantine(self.said()))
            }
            NodeState::Quarantined if node.quarantine == Some(Quarantine::Drift) => {
                let well = self.seen.state == Upstream::Deployed && self.healthy;
                match well && self.run.is_none_or(lets_serve) {
                    true => self.confirmed(|| Act::Heal),
                    false => forget(node),
                }
            }
            NodeState::Enrolling => match self.run.map_or(Act::Nothing, |run| self.workflow(run)) {
                Act::Nothing => forget(node),
                _ if flooded => Act::Nothing,
                act @ (Act::Count(_)
                | Act::Quarantine(_)
                | Act::Heal
                | Act::Adopt(_)
                | Act::MarkManual(..)) => self.confirmed(|| act),
            },
            NodeState::BootstrapIssued
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => Act::Nothing,
        }
    }

    fn confirmed(&self, act: impl FnOnce() -> Act) -> Act {
        let passes = self.node.passes + 1;
        match passes >= CONFIRMATIONS {
            false => Act::Count(passes),
            true if self.lately => Act::Nothing,
            true => act(),
        }
    }

    fn said(&self) -> String {
        let UpstreamSeen { state, said, .. } = self.seen;
        if *state == Upstream::Absent {
            return "MAAS has no such machine any more".into();
        }
        let because = if said.is_empty() { String::new() } else { format!(" ({said})") };
        format!("MAAS has its machine as {state}{because}, not as Deployed")
    }

    /// A failed onboarding whose machine has progressed without Farrier, or is gone from MAAS.
    fn workflow(&self, run: &Run) -> Act {
        let id = &run.spec.id;
        let failed = run.progress.workflow == Workflow::FailedRetryable;
        if run.spec.run_type != RunType::Onboard || !failed {
            return Act::Nothing;
        }
        let state = self.seen.state;
        if state == Upstream::Absent && !self.node.system_id.is_empty() {
            return Act::MarkManual(id.clone(), "MAAS has no such machine any more".into());
        }
        let stage = run.progress.failure.as_ref().and_then(|failure| Stage::parse(&failure.step));
        let deployed = state == Upstream::Deployed;
        let ready = deployed || state == Upstream::Ready;
        if (stage == Some(Stage::WaitForReady) && ready)
            || (stage == Some(Stage::WaitForDeployed) && deployed)
        {
            return Act::Adopt(id.clone());
        }
        Act::Nothing
    }
}

/// True if the newest operation lets the node serve: one that stopped for an operator in the middle
/// of its work does not.
pub fn lets_serve(run: &Run) -> bool {
    fits(NodeState::Active, run)
}

fn forget(node: &Node) -> Act {
    if node.passes == 0 { Act::Nothing } else { Act::Count(0) }
}

/// Detects a mass outage: too many nodes drift at once.
pub fn flood(cases: &[Case<'_>], limits: &super::silence::Limits) -> Option<Flood> {
    let serving = cases.iter().filter(|case| case.node.state.in_service()).count();
    let drifting = cases.iter().filter(|case| case.drifts()).count();
    // A MAAS that knows none of them is a different one or has lost its database, even if they are
    // few.
    let unknown = |case: &Case<'_>| case.seen.state == Upstream::Absent;
    match cases.len() > 1 && drifting > 0 && cases.iter().all(unknown) {
        true => Some(Flood { count: drifting, of: serving }),
        false => limits.flood(drifting, serving),
    }
}
