//! The MAAS states of a machine, and which are expected in each state of its node. They are
//! observed, never set.

use super::NodeState;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The states of MAAS, and the absence of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaasState {
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

impl MaasState {
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

    /// The state with MAAS' status number.
    pub fn of_number(number: i64) -> Self {
        let known = usize::try_from(number).ok().and_then(|at| Self::ALL[..23].get(at));
        known.copied().unwrap_or(Self::Unknown)
    }

    /// The name in MAAS.
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

    /// MAAS gave up its work on the machine, or an operator marked the machine broken.
    pub const fn failed(self) -> bool {
        matches!(
            self,
            Self::FailedCommissioning
                | Self::Missing
                | Self::Broken
                | Self::FailedDeployment
                | Self::FailedReleasing
                | Self::FailedDiskErasing
                | Self::FailedEnteringRescueMode
                | Self::FailedExitingRescueMode
                | Self::FailedTesting
        )
    }
}

impl fmt::Display for MaasState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An observation of a machine in MAAS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaasObservation {
    pub state: MaasState,
    /// The status message of MAAS.
    #[serde(default)]
    #[serde(rename = "said")]
    pub message: String,
    /// The power state, if MAAS knows it.
    #[serde(default)]
    #[serde(rename = "on")]
    pub powered_on: Option<bool>,
    pub at: Timestamp,
}

impl MaasObservation {
    /// True if both observations are equal, apart from their time.
    pub fn same(&self, other: &Self) -> bool {
        (self.state, &self.message, self.powered_on)
            == (other.state, &other.message, other.powered_on)
    }
}

/// True if the MAAS state is the one that the document expects in this node state.
pub const fn is_expected_maas_state(state: NodeState, upstream: MaasState) -> bool {
    use MaasState::{
        Absent, Allocated, Commissioning, Deployed, Deploying, DiskErasing, New, Ready, Releasing,
        Testing,
    };
    match state {
        // MAAS has nothing to do yet, or any more.
        NodeState::BootstrapIssued | NodeState::Deleted => true,
        NodeState::Enrolling => {
            matches!(
                upstream,
                New | Commissioning | Testing | Ready | Allocated | Deploying | Deployed
            )
        }
        NodeState::Active | NodeState::Offline => matches!(upstream, Deployed),
        NodeState::Quarantined => {
            // New: its onboarding was canceled and undone.
            matches!(upstream, New | Ready | Deployed | Absent) || upstream.failed()
        }
        NodeState::Draining => matches!(upstream, Deployed | Ready),
        // States on the way to Ready or to a new installation are fine: the operation takes care of
        // them.
        NodeState::Retired => {
            matches!(
                upstream,
                Deployed | Ready | New | Releasing | DiskErasing | Allocated | Deploying
            )
        }
        // Deployed: its agent uninstalls itself before the machine is released.
        NodeState::Removing => {
            matches!(upstream, Deployed | Ready | New | Releasing | DiskErasing | Absent)
        }
    }
}
