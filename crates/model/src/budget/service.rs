//! Whether a machine counts in budgets, and whether it serves.
//!
//! A machine joins the total when it first serves: in phase READY, or with its node active. To join
//! is no admission, so a machine on its way into service uses no budget up, however many come.

use crate::condition::ConditionType;
use crate::machine::{Machine, Phase};
use crate::node::{Node, NodeState};
use std::fmt;

/// What budgets know of the node on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeService {
    pub state: NodeState,
    /// It has been active.
    pub served: bool,
}

impl NodeService {
    /// A node whose row cannot be read: it counts, and whether it serves is unknown.
    pub const UNREADABLE: Self = Self { state: NodeState::Offline, served: true };

    pub fn of(node: &Node) -> Self {
        Self { state: node.state, served: node.served || node.state == NodeState::Active }
    }

    /// The node if it serves, or has and is still there.
    fn in_total(self) -> bool {
        self.served && self.state != NodeState::Deleted
    }
}

/// Why a machine does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailability {
    /// This operation, or this power shelf, takes it away.
    TakenBy(String),
    Phase(Phase),
    Unreachable,
    Node(NodeState),
}

impl fmt::Display for Unavailability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenBy(taker) => f.write_str(taker),
            Self::Phase(phase) => write!(f, "phase {}", phase.as_str()),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Node(state) => write!(f, "node {state}"),
        }
    }
}

/// Whether a machine is in the total of the budgets that select it. A machine that has not served
/// yet is outside. So is one that is flagged RMA or Retired, unless a node still needs it.
pub fn counts(machine: &Machine, node: Option<NodeService>) -> bool {
    let node = node.filter(|node| node.in_total());
    let flagged = machine.is(ConditionType::Rma) || machine.is(ConditionType::Retired);
    match machine.phase {
        _ if flagged => node.is_some_and(|node| node.state.uses_machine()),
        Phase::Ready => true,
        // The onboarding of a node leaves the phase as it is.
        Phase::FactoryReady => node.is_some(),
        Phase::Maintenance => !machine.never_served || node.is_some(),
    }
}

/// Why a machine does not serve; none if it does. `taker` is an operation that takes it away. A
/// machine that was never probed counts as reachable.
pub fn unavailability(
    machine: &Machine,
    node: Option<NodeService>,
    taker: Option<&str>,
) -> Option<Unavailability> {
    if let Some(taker) = taker {
        return Some(Unavailability::TakenBy(taker.to_string()));
    }
    let node = node.filter(|node| node.state != NodeState::Deleted);
    // A machine that never was READY serves through its node.
    let by_node = machine.phase == Phase::FactoryReady || machine.never_served;
    if machine.phase != Phase::Ready && !(by_node && node.is_some()) {
        return Some(Unavailability::Phase(machine.phase));
    }
    let reachable = machine.conditions.get(ConditionType::Reachable);
    if reachable.is_some_and(|known| !known.status) {
        return Some(Unavailability::Unreachable);
    }
    let state = node.map(|node| node.state);
    state.filter(|state| *state != NodeState::Active).map(Unavailability::Node)
}

/// True if nothing that decides about budgets differs between two states of a machine: neither its
/// membership nor whether it serves.
pub fn same_for_budgets(before: &Machine, after: &Machine) -> bool {
    let unreachable = |one: &Machine| {
        one.conditions.get(ConditionType::Reachable).is_some_and(|known| !known.status)
    };
    same_membership(before, after)
        && before.phase == after.phase
        && unreachable(before) == unreachable(after)
}

/// True if a machine is a member of the same budgets in both states.
pub fn same_membership(before: &Machine, after: &Machine) -> bool {
    let outside = |one: &Machine| {
        (
            one.phase == Phase::FactoryReady,
            one.never_served,
            one.is(ConditionType::Rma),
            one.is(ConditionType::Retired),
        )
    };
    let (a, b) = (&before.spec, &after.spec);
    before.labels == after.labels
        && (&a.rack, &a.feeds, &a.provider) == (&b.rack, &b.feeds, &b.provider)
        && outside(before) == outside(after)
}
