//! Who is not heard of any more, and who is again.
//!
//! One node that falls silent goes offline. When many fade at once, a site or Farrier itself is cut off: then nobody is moved for a
//! while, and one alert is raised.

use super::NodeState;
use crate::id::NodeId;
use crate::time::Timestamp;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a node may be silent before it is offline.
    pub silence: Duration,
    /// So many of a hundred that serve make a flood, and never fewer than `flood_least`.
    pub flood_percent: u32,
    pub flood_least: usize,
    /// How long a flood keeps nodes where they are. Then they are offline, whatever it was.
    pub flood_hold: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(180),
            flood_percent: 20,
            flood_least: 5,
            flood_hold: Duration::from_secs(900),
        }
    }
}

/// Too many at once to be theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood {
    pub count: usize,
    pub of: usize,
}

impl Limits {
    pub fn flood(&self, count: usize, of: usize) -> Option<Flood> {
        let many = count.saturating_mul(100) >= of.saturating_mul(self.flood_percent as usize);
        (count >= self.flood_least && many).then_some(Flood { count, of })
    }
}

/// What is known of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub node: NodeId,
    pub state: NodeState,
    /// Never, where there is none.
    pub at: Option<Timestamp>,
    /// What it complained of when it was last heard; empty: it is well.
    pub problems: String,
}

/// A move that heartbeats make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    pub node: NodeId,
    pub to: NodeState,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    pub moves: Vec<Moved>,
    pub flood: Option<Flood>,
}

/// When a look is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    pub now: Timestamp,
    /// Since when anybody could have been heard: whoever was silent before that may have spoken to nobody.
    pub listening_since: Timestamp,
    /// Since when there has been a flood here, if there is one.
    pub flooded_since: Option<Timestamp>,
}

/// What follows for the nodes of one site.
pub fn judge(nodes: &[Heard], limits: &Limits, when: When) -> Verdict {
    let gap = |one: &Heard| {
        let last = one.at.map_or(when.listening_since, |at| at.max(when.listening_since));
        when.now.since(last)
    };
    let active = || nodes.iter().filter(|one| one.state == NodeState::Active);
    // Whoever is half way to being silent shows what is coming, before the first one is moved.
    let fading = active().filter(|one| gap(one) > limits.silence / 2).count();
    let flood = limits.flood(fading, active().count());
    let held = match (flood, when.flooded_since) {
        (Some(_), Some(since)) => when.now.since(since) < limits.flood_hold,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let mut moves = Vec::new();
    for one in nodes {
        let to = |state: NodeState, why: String| Moved { node: one.node.clone(), to: state, why };
        match one.state {
            NodeState::Active if gap(one) > limits.silence && !held => {
                let silent = crate::time::spoken(gap(one));
                moves.push(to(NodeState::Offline, format!("not heard of for {silent}")));
            }
            NodeState::Active if gap(one) <= limits.silence && !one.problems.is_empty() => {
                moves.push(to(NodeState::Offline, format!("it says of itself: {}", one.problems)));
            }
            NodeState::Offline if proven(one, limits, when.now) => {
                moves.push(to(NodeState::Active, "it is heard of, and well".into()));
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
    Verdict { moves, flood }
}

/// Heard of lately, and well. Since when anybody listens proves nothing: it must have spoken.
fn proven(one: &Heard, limits: &Limits, now: Timestamp) -> bool {
    let lately = one.at.is_some_and(|at| now.since(at) <= limits.silence / 2);
    lately && one.problems.is_empty()
}
