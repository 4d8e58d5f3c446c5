//! Heartbeats: which nodes have fallen silent, and which are heard again.
//!
//! A single silent node goes offline. When many fall silent at once (a mass outage), a site or
//! Farrier itself is cut off: then no node is moved for a while, and one alert is raised. The alert
//! stays until enough of them send heartbeats again, even if they have gone offline meanwhile.

use super::NodeState;
use super::follow::leaves_disabled;
use crate::id::NodeId;
use crate::run::Run;
use crate::time::Timestamp;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatLimits {
    /// The time without a heartbeat after which a node is offline.
    pub silence: Duration,
    /// A mass outage: at least this percentage of the nodes in service, and at least `outage_least`
    /// nodes.
    pub outage_percent: u32,
    pub outage_least: usize,
    /// The time for which a mass outage keeps nodes in their state. After that they go offline.
    pub outage_hold: Duration,
}

impl Default for HeartbeatLimits {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(180),
            outage_percent: 20,
            outage_least: 5,
            outage_hold: Duration::from_secs(900),
        }
    }
}

/// A mass outage: too many nodes at once for the nodes to be the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MassOutage {
    pub count: usize,
    pub of: usize,
}

impl HeartbeatLimits {
    pub fn mass_outage(&self, count: usize, of: usize) -> Option<MassOutage> {
        let many = count.saturating_mul(100) >= of.saturating_mul(self.outage_percent as usize);
        (count >= self.outage_least && many).then_some(MassOutage { count, of })
    }
}

/// The heartbeat of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentHeartbeat {
    pub node: NodeId,
    pub state: NodeState,
    /// The last heartbeat; none if there was never one.
    pub at: Option<Timestamp>,
    /// The problems in its last heartbeat; empty when healthy.
    pub problems: String,
    /// The time when it went offline for silence, if it sent no heartbeat since.
    pub lost_at: Option<Timestamp>,
    /// The time when its record last changed. A node that just came into service could not send
    /// heartbeats before.
    pub changed_at: Timestamp,
}

/// A transition caused by heartbeats or their absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatTransition {
    pub node: NodeId,
    pub to: NodeState,
    pub why: String,
    /// The cause is silence, not a reported problem.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeartbeatClassification {
    pub transitions: Vec<HeartbeatTransition>,
    pub outage: Option<MassOutage>,
    /// Heartbeats are expected from some nodes.
    pub expects: bool,
}

/// True if all sites have a mass outage: then Farrier is cut off, not the sites.
pub fn all_sites_silent<'a>(verdicts: impl Iterator<Item = &'a HeartbeatClassification>) -> bool {
    let (mut places, mut in_outage) = (0, 0);
    for classification in verdicts.filter(|classification| classification.expects) {
        places += 1;
        in_outage += usize::from(classification.outage.is_some());
    }
    places > 1 && in_outage == places
}

/// The times that a classification needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatTimes {
    pub now: Timestamp,
    /// The time from which heartbeats could arrive at all. Silence before it proves nothing.
    pub listening_since: Timestamp,
    /// The start of the current mass outage of this site, if there is one.
    pub outage_since: Option<Timestamp>,
}

/// Classifies the nodes of one site.
pub fn classify_heartbeats(
    nodes: &[AgentHeartbeat],
    limits: &HeartbeatLimits,
    when: HeartbeatTimes,
) -> HeartbeatClassification {
    let gap = |one: &AgentHeartbeat| {
        let last = one.at.unwrap_or(one.changed_at);
        when.now.since(last.max(when.listening_since))
    };
    let lost = |one: &AgentHeartbeat| {
        let in_it = one.lost_at.zip(when.outage_since).is_some_and(|(at, since)| at >= since);
        in_it && one.state == NodeState::Offline
    };
    // A node that went offline in the current mass outage still counts.
    let concerned = || nodes.iter().filter(|one| one.state == NodeState::Active || lost(one));
    // Nodes at half of the limit count as well, so a mass outage is detected before the first node
    // is moved.
    let silent = concerned().filter(|one| lost(one) || gap(one) > limits.silence / 2).count();
    let of = concerned().count();
    let outage = limits.mass_outage(silent, of);
    let kept_by_outage = match (outage, when.outage_since) {
        (Some(_), Some(since)) => when.now.since(since) < limits.outage_hold,
        (Some(_), None) => true,
        (None, _) => false,
    };
    // If all of a few nodes are silent, an alert is raised too, but they go offline, so that no
    // workloads are scheduled on them.
    let all = (of > 1 && silent == of).then_some(MassOutage { count: silent, of });
    let outage = outage.or(all);
    let mut moves = Vec::new();
    for one in nodes {
        let to = |state: NodeState, why: String| {
            let lost = state == NodeState::Offline && gap(one) > limits.silence;
            HeartbeatTransition { node: one.node.clone(), to: state, why, lost }
        };
        match one.state {
            NodeState::Active if gap(one) > limits.silence && !kept_by_outage => {
                let silent = crate::time::format_duration(gap(one));
                moves.push(to(NodeState::Offline, format!("no heartbeat for {silent}")));
            }
            NodeState::Active if gap(one) <= limits.silence && !one.problems.is_empty() => {
                moves.push(to(NodeState::Offline, format!("it says of itself: {}", one.problems)));
            }
            NodeState::Offline if proven(one, limits, when.now) => {
                moves.push(to(
                    NodeState::Active,
                    "its agent sends heartbeats without problems".into(),
                ));
            }
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => {}
        }
    }
    HeartbeatClassification { transitions: moves, outage, expects: of > 0 }
}

/// True if a heartbeat proves that a node is up again. `out_by` is an operation that took it out of
/// service, if that still exists: a system that is shutting down, or whose workloads are being
/// evicted, sends heartbeats too, so only one after the end of the operation counts. None counts
/// while the node is disabled.
pub fn proves_return(heard_at: Option<Timestamp>, out_by: Option<&Run>) -> bool {
    let Some(run) = out_by else { return true };
    if leaves_disabled(run) {
        return false;
    }
    let ended_at = run.progress.finished_at.filter(|_| run.ended());
    ended_at.zip(heard_at).is_some_and(|(ended_at, heard_at)| heard_at > ended_at)
}

/// True if a recent heartbeat reported no problem. The start of listening proves nothing: a
/// heartbeat must have arrived.
fn proven(one: &AgentHeartbeat, limits: &HeartbeatLimits, now: Timestamp) -> bool {
    let lately = one.at.is_some_and(|at| now.since(at) <= limits.silence / 2);
    lately && one.problems.is_empty()
}
