//! What MAAS may say of a machine, and what is expected of it in each state of its node. It is observed, never owned.

use super::NodeState;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// MAAS's own states, and the machine's absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Upstream {
    New,
    Commissioning,
    FailedCommissioning,
    Missing,
    Ready,
    Reserved,
    Deployed,
    Retired,
    Broken,
    Deploying,
    Allocated,
    FailedDeployment,
    Releasing,
    FailedReleasing,
    DiskErasing,
    FailedDiskErasing,
    RescueMode,
    EnteringRescueMode,
    FailedEnteringRescueMode,
    ExitingRescueMode,
    FailedExitingRescueMode,
    Testing,
    FailedTesting,
    /// A state that this version does not know.
    Unknown,
    /// MAAS has no such machine.
    Absent,
}

impl Upstream {
    pub const ALL: [Self; 25] = [
        Self::New,
        Self::Commissioning,
        Self::FailedCommissioning,
        Self::Missing,
        Self::Ready,
        Self::Reserved,
        Self::Deployed,
        Self::Retired,
        Self::Broken,
        Self::Deploying,
        Self::Allocated,
        Self::FailedDeployment,
        Self::Releasing,
        Self::FailedReleasing,
        Self::DiskErasing,
        Self::FailedDiskErasing,
        Self::RescueMode,
        Self::EnteringRescueMode,
        Self::FailedEnteringRescueMode,
        Self::ExitingRescueMode,
        Self::FailedExitingRescueMode,
        Self::Testing,
        Self::FailedTesting,
        Self::Unknown,
        Self::Absent,
    ];

    /// By MAAS's number for it.
    pub fn of_number(number: i64) -> Self {
        let known = usize::try_from(number).ok().and_then(|at| Self::ALL[..23].get(at));
        known.copied().unwrap_or(Self::Unknown)
    }

    /// As MAAS says it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Commissioning => "Commissioning",
            Self::FailedCommissioning => "Failed commissioning",
            Self::Missing => "Missing",
            Self::Ready => "Ready",
            Self::Reserved => "Reserved",
            Self::Deployed => "Deployed",
            Self::Retired => "Retired",
            Self::Broken => "Broken",
            Self::Deploying => "Deploying",
            Self::Allocated => "Allocated",
            Self::FailedDeployment => "Failed deployment",
            Self::Releasing => "Releasing",
            Self::FailedReleasing => "Releasing failed",
            Self::DiskErasing => "Disk erasing",
            Self::FailedDiskErasing => "Failed disk erasing",
            Self::RescueMode => "Rescue mode",
            Self::EnteringRescueMode => "Entering rescue mode",
            Self::FailedEnteringRescueMode => "Failed to enter rescue mode",
            Self::ExitingRescueMode => "Exiting rescue mode",
            Self::FailedExitingRescueMode => "Failed to exit rescue mode",
            Self::Testing => "Testing",
            Self::FailedTesting => "Failed testing",
            Self::Unknown => "Unknown",
            Self::Absent => "absent",
        }
    }

    /// MAAS has given up on what it was doing, or somebody has given up on the machine.
    pub const fn failed(self) -> bool {
        match self {
            Self::FailedCommissioning
            | Self::Missing
            | Self::Broken
            | Self::FailedDeployment
            | Self::FailedReleasing
            | Self::FailedDiskErasing
            | Self::FailedEnteringRescueMode
            | Self::FailedExitingRescueMode
            | Self::FailedTesting => true,
            Self::New
            | Self::Commissioning
            | Self::Ready
            | Self::Reserved
            | Self::Deployed
            | Self::Retired
            | Self::Deploying
            | Self::Allocated
            | Self::Releasing
            | Self::DiskErasing
            | Self::RescueMode
            | Self::EnteringRescueMode
            | Self::ExitingRescueMode
            | Self::Testing
            | Self::Unknown
            | Self::Absent => false,
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was seen of a machine in MAAS, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub state: Upstream,
    /// What MAAS says beside it.
    #[serde(default)]
    pub said: String,
    /// Whether it is on, where MAAS knows.
    #[serde(default)]
    pub on: Option<bool>,
    pub at: Timestamp,
}

impl Seen {
    /// The same, whenever it was seen.
    pub fn same(&self, other: &Self) -> bool {
        (self.state, &self.said, self.on) == (other.state, &other.said, other.on)
    }
}

/// Whether what MAAS says is what the document expects of a machine whose node is in this state.
pub const fn expected(state: NodeState, upstream: Upstream) -> bool {
    use Upstream::{
        Absent, Allocated, Commissioning, Deployed, Deploying, DiskErasing, New, Ready, Releasing,
        Testing,
    };
    match state {
        // Nothing is asked of MAAS yet, or any more.
        NodeState::BootstrapIssued | NodeState::Deleted => true,
        NodeState::Enrolling => {
            matches!(
                upstream,
                New | Commissioning | Testing | Ready | Allocated | Deploying | Deployed
            )
        }
        NodeState::Active | NodeState::Offline => matches!(upstream, Deployed),
        NodeState::Quarantined => {
            matches!(upstream, Ready | Deployed | Absent) || upstream.failed()
        }
        NodeState::Draining => matches!(upstream, Deployed | Ready),
        // On its way to Ready, or to being installed anew, is as good as there: its operation sees to it.
        NodeState::Retired => {
            matches!(
                upstream,
                Deployed | Ready | New | Releasing | DiskErasing | Allocated | Deploying
            )
        }
        NodeState::Removing => matches!(upstream, Ready | New | Releasing | DiskErasing | Absent),
    }
}
