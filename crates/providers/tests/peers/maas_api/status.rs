//! The status of a machine, by MAAS's own numbers and names (read in 3.4.8 to 3.7.3). The peer does
//! not use the client's enum: a wrong number there must not be right here.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStatus {
    New = 0,
    Commissioning = 1,
    FailedCommissioning = 2,
    Missing = 3,
    Ready = 4,
    Reserved = 5,
    Deployed = 6,
    Retired = 7,
    Broken = 8,
    Deploying = 9,
    Allocated = 10,
    FailedDeployment = 11,
    Releasing = 12,
    FailedReleasing = 13,
    DiskErasing = 14,
    FailedDiskErasing = 15,
    RescueMode = 16,
    EnteringRescueMode = 17,
    FailedEnteringRescueMode = 18,
    ExitingRescueMode = 19,
    FailedExitingRescueMode = 20,
    Testing = 21,
    FailedTesting = 22,
}

impl NodeStatus {
    pub const ALL: [Self; 23] = [
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
    ];

    pub fn number(self) -> i64 {
        self as i64
    }

    /// The name that MAAS shows.
    pub fn name(self) -> &'static str {
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
        }
    }

    /// True if it ends by itself.
    pub fn transient(self) -> bool {
        matches!(
            self,
            Self::Commissioning
                | Self::Testing
                | Self::Deploying
                | Self::Releasing
                | Self::DiskErasing
        )
    }
}
