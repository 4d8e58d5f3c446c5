//! The nine coarse states of a node, the ways between them, and who may take each.
//!
//! This is the document's own table. The store refuses a way that is not in it, and one that is taken by somebody else.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// A bundle was issued by hand; nobody has enrolled with it yet.
    BootstrapIssued,
    Enrolling,
    /// Healthy and schedulable.
    Active,
    /// Expected to be there, and not heard of.
    Offline,
    /// There, and kept from scheduling until somebody has looked.
    Quarantined,
    Draining,
    /// Out of scheduling on purpose, and kept.
    Retired,
    Removing,
    Deleted,
}

/// Who makes a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A request that starts something.
    Admin,
    Onboarding,
    Decommission,
    Heartbeat,
    Reconciler,
    /// A person who recovers something.
    Operator,
}

/// From, to, and who may.
type Way = (NodeState, NodeState, &'static [Owner]);

/// Every transition there is. Nothing leads out of Deleted: the same machine gets another node.
pub const WAYS: [Way; 17] = {
    use NodeState::{
        Active, BootstrapIssued, Deleted, Draining, Enrolling, Offline, Quarantined, Removing,
        Retired,
    };
    use Owner::{Admin, Decommission, Heartbeat, Onboarding, Operator, Reconciler};
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
        // A reset that gives the same identity back is a reuse too.
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

    /// The same by their words.
    pub const WORDS: [&'static str; 9] = [
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

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Who may move a node from here to there; nobody where there is no such way.
    pub fn owners(self, to: Self) -> &'static [Owner] {
        WAYS.iter().find(|way| (way.0, way.1) == (self, to)).map_or(&[], |way| way.2)
    }

    /// The states from which this one is reached by an owner.
    pub fn sources(self, owner: Owner) -> Vec<Self> {
        let leads = |from: &Self| from.owners(self).contains(&owner);
        Self::ALL.into_iter().filter(leads).collect()
    }

    /// It serves, or would if it were heard of.
    pub const fn in_service(self) -> bool {
        match self {
            Self::Active | Self::Offline => true,
            Self::BootstrapIssued
            | Self::Enrolling
            | Self::Quarantined
            | Self::Draining
            | Self::Retired
            | Self::Removing
            | Self::Deleted => false,
        }
    }

    /// It is in the hands of an operation that must be there while it lasts.
    pub const fn in_progress(self) -> bool {
        match self {
            Self::Draining | Self::Removing => true,
            Self::BootstrapIssued
            | Self::Enrolling
            | Self::Active
            | Self::Offline
            | Self::Quarantined
            | Self::Retired
            | Self::Deleted => false,
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Owner {
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

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
