//! What the reconciler does about a node whose machine MAAS sees otherwise than is expected.
//!
//! It may change the state of the work on a node, and quarantine a node that serves; it invents no states. What one pass sees is not
//! believed at once, and when many drift together it is MAAS or the way to it that is wrong, not the nodes.

use super::silence::Flood;
use super::{Node, NodeState, Quarantine, Stage, Upstream, UpstreamSeen, expected, fits};
use crate::id::RunId;
use crate::plan::RunType;
use crate::run::{Run, Workflow};

/// How many passes in a row must see the same before anything is done.
pub const CONFIRMATIONS: u32 = 2;

/// What is to be done about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// All is as it should be, or somebody else sees to it.
    Nothing,
    /// It has been seen so often now.
    Count(u32),
    Quarantine(String),
    /// It was quarantined for drift, and is proven healthy again.
    Heal,
    /// What the failed stage waited for has come about: the run may go on from what is seen.
    Adopt(RunId),
    /// The run cannot go on from what is seen.
    MarkManual(RunId, String),
}

/// A node as a pass finds it.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    pub node: &'a Node,
    pub seen: &'a UpstreamSeen,
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// It is heard of, and says that it is well.
    pub healthy: bool,
    /// What is seen was first seen only a moment ago, by a pass of another replica or of one that was restarted since: that it is seen
    /// once more says nothing yet.
    pub lately: bool,
}

impl Case<'_> {
    /// Whether it serves and MAAS says that it cannot. A state that is new to us says neither.
    pub fn drifts(&self) -> bool {
        let (node, seen) = (self.node, self.seen.state);
        let wrong = seen != Upstream::Unknown && !expected(node.state, seen);
        node.state.in_service() && !self.at_work() && wrong
    }

    fn at_work(&self) -> bool {
        self.run.is_some_and(|run| !run.ended())
    }

    /// `flooded`: so many drift at once that none of them is to blame.
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

    /// A failed onboarding whose machine has gone on without us, or has gone.
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

/// Whether the newest operation of a node lets it serve: one that stopped for a person in the middle of its work does not.
pub fn lets_serve(run: &Run) -> bool {
    fits(NodeState::Active, run)
}

fn forget(node: &Node) -> Act {
    if node.passes == 0 { Act::Nothing } else { Act::Count(0) }
}

/// Whether so many drift at once that it is not theirs.
pub fn flood(cases: &[Case<'_>], limits: &super::silence::Limits) -> Option<Flood> {
    let serving = cases.iter().filter(|case| case.node.state.in_service()).count();
    let drifting = cases.iter().filter(|case| case.drifts()).count();
    // A MAAS that knows none of them is another one, or has lost its memory, however few they are.
    let unknown = |case: &Case<'_>| case.seen.state == Upstream::Absent;
    match cases.len() > 1 && drifting > 0 && cases.iter().all(unknown) {
        true => Some(Flood { count: drifting, of: serving }),
        false => limits.flood(drifting, serving),
    }
}
