//! The nine coarse states of a node, the transitions between them, and who may make each.
//!
//! This is the document's table. The store refuses a transition that is not in it or that belongs
//! to another owner.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// A bundle was issued manually; no agent has enrolled with it yet.
    BootstrapIssued,
    Enrolling,
    /// Healthy and schedulable.
    Active,
    /// Expected, but sends no healthy heartbeats.
    Offline,
    /// Present, but kept from scheduling until an operator has checked it.
    Quarantined,
    Draining,
    /// Taken out of scheduling on purpose, and kept.
    Retired,
    Removing,
    Deleted,
}

/// The component that makes a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionOwner {
    /// A request that starts something.
    Admin,
    Onboarding,
    Decommission,
    Heartbeat,
    Reconciler,
    /// An operator who recovers something.
    Operator,
}

/// Source, destination, and the owners of a transition.
type Transition = (NodeState, NodeState, &'static [TransitionOwner]);

/// All transitions. None leads out of Deleted: the machine gets a new node.
pub const TRANSITIONS: [Transition; 17] = {
    use NodeState::{
        Active, BootstrapIssued, Deleted, Draining, Enrolling, Offline, Quarantined, Removing,
        Retired,
    };
    use TransitionOwner::{Admin, Decommission, Heartbeat, Onboarding, Operator, Reconciler};
    [
        (BootstrapIssued, Enrolling, &[Admin, Onboarding]),
        (Enrolling, Active, &[Onboarding]),
        (Enrolling, Quarantined, &[Onboarding, Operator]),
        (Active, Offline, &[Heartbeat, Reconciler]),
        (Offline, Active, &[Heartbeat, Reconciler]),
        // The validation of a cleanup is a stage of the decommission.
        (Active, Quarantined, &[Reconciler, Decommission]),
        (Offline, Quarantined, &[Reconciler, Decommission]),
        (Quarantined, Active, &[Operator, Reconciler]),
        (Quarantined, Draining, &[Admin]),
        (Active, Draining, &[Admin]),
        (Offline, Draining, &[Admin]),
        (Draining, Retired, &[Decommission]),
        (Draining, Offline, &[Decommission, Operator]),
        // A reset that returns the same identity to service is a reuse too.
        (Retired, Offline, &[Admin, Decommission]),
        (Retired, Removing, &[Decommission]),
        (Removing, Retired, &[Decommission, Operator]),
        (Removing, Deleted, &[Decommission]),
    ]
};

impl NodeState {
    pub const ALL: [Self; 9] = [
        Self::BootstrapIssued,
        Self::Enrolling,
        Self::Active,
        Self::Offline,
        Self::Quarantined,
        Self::Draining,
        Self::Retired,
        Self::Removing,
        Self::Deleted,
    ];

    /// The names of all states.
    pub const NAMES: [&'static str; 9] = [
        "bootstrap_issued",
        "enrolling",
        "active",
        "offline",
        "quarantined",
        "draining",
        "retired",
        "removing",
        "deleted",
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BootstrapIssued => "bootstrap_issued",
            Self::Enrolling => "enrolling",
            Self::Active => "active",
            Self::Offline => "offline",
            Self::Quarantined => "quarantined",
            Self::Draining => "draining",
            Self::Retired => "retired",
            Self::Removing => "removing",
            Self::Deleted => "deleted",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// The owners of this transition; empty if it does not exist.
    pub fn owners(self, to: Self) -> &'static [TransitionOwner] {
        TRANSITIONS.iter().find(|way| (way.0, way.1) == (self, to)).map_or(&[], |way| way.2)
    }

    /// The states from which this owner may reach this state.
    pub fn sources(self, owner: TransitionOwner) -> Vec<Self> {
        let leads = |from: &Self| from.owners(self).contains(&owner);
        Self::ALL.into_iter().filter(leads).collect()
    }

    /// True if the node serves, or would if it sent healthy heartbeats.
    pub const fn in_service(self) -> bool {
        matches!(self, Self::Active | Self::Offline)
    }

    /// True if the node needs its machine: nothing is taken from the machine without an override.
    pub const fn uses_machine(self) -> bool {
        matches!(self, Self::Active | Self::Offline | Self::Draining)
    }

    /// True if the state requires an active operation.
    pub const fn in_progress(self) -> bool {
        matches!(self, Self::Draining | Self::Removing)
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TransitionOwner {
    pub const ALL: [Self; 6] = [
        Self::Admin,
        Self::Onboarding,
        Self::Decommission,
        Self::Heartbeat,
        Self::Reconciler,
        Self::Operator,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Onboarding => "onboarding",
            Self::Decommission => "decommission",
            Self::Heartbeat => "heartbeat",
            Self::Reconciler => "reconciler",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for TransitionOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
