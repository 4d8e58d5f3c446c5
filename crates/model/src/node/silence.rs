//! Who is not heard of any more, and who is again.
//!
//! One node that falls silent goes offline. When many fade at once, a site or Farrier itself is cut off: then nobody is moved for a
//! while, and one alert is raised. It stays until enough of them are heard again, wherever they have gone meanwhile.

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
    /// When it went offline for its silence, if it was not heard since.
    pub lost_at: Option<Timestamp>,
    /// When anything about it was last written down: one that has just come into service could not be heard before.
    pub changed_at: Timestamp,
}

/// A move that heartbeats make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    pub node: NodeId,
    pub to: NodeState,
    pub why: String,
    /// It goes for its silence, not for what it says of itself.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    pub moves: Vec<Moved>,
    pub flood: Option<Flood>,
    /// There are nodes that should be heard.
    pub expects: bool,
}

/// Whether nobody is heard of anywhere: then it is not the sites that are cut off, but who listens.
pub fn everywhere<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> bool {
    let (mut places, mut flooded) = (0, 0);
    for verdict in verdicts.filter(|verdict| verdict.expects) {
        places += 1;
        flooded += usize::from(verdict.flood.is_some());
    }
    places > 1 && flooded == places
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
        let last = one.at.unwrap_or(one.changed_at);
        when.now.since(last.max(when.listening_since))
    };
    let lost = |one: &Heard| {
        let in_it = one.lost_at.zip(when.flooded_since).is_some_and(|(at, since)| at >= since);
        in_it && one.state == NodeState::Offline
    };
    // Whoever went offline in this very flood still belongs to it.
    let concerned = || nodes.iter().filter(|one| one.state == NodeState::Active || lost(one));
    // Whoever is half way to being silent shows what is coming, before the first one is moved.
    let silent = concerned().filter(|one| lost(one) || gap(one) > limits.silence / 2).count();
    let of = concerned().count();
    let flood = limits.flood(silent, of);
    let held = match (flood, when.flooded_since) {
        (Some(_), Some(since)) => when.now.since(since) < limits.flood_hold,
        (Some(_), None) => true,
        (None, _) => false,
    };
    // All of a few are worth an alert too, but not that a scheduler goes on placing work on them.
    let all = (of > 1 && silent == of).then_some(Flood { count: silent, of });
    let flood = flood.or(all);
    let mut moves = Vec::new();
    for one in nodes {
        let to = |state: NodeState, why: String| {
            let lost = state == NodeState::Offline && gap(one) > limits.silence;
            Moved { node: one.node.clone(), to: state, why, lost }
        };
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
    Verdict { moves, flood, expects: of > 0 }
}

/// Heard of lately, and well. Since when anybody listens proves nothing: it must have spoken.
fn proven(one: &Heard, limits: &Limits, now: Timestamp) -> bool {
    let lately = one.at.is_some_and(|at| now.since(at) <= limits.silence / 2);
    lately && one.problems.is_empty()
}
