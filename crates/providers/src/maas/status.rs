//! The status of a machine in MAAS: numbers and MAAS's names for them. Unknown numbers of a newer
//! MAAS are kept.

use serde::{Deserialize, Deserializer};
use std::fmt;

macro_rules! statuses {
    ($($variant:ident = $number:literal, $words:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Status {
            $($variant,)*
            /// A number that is unknown to Farrier.
            Unknown(i64),
        }

        impl Status {
            /// Every known status, by number.
            pub const ALL: &'static [Status] = &[$(Status::$variant,)*];

            pub const fn from_number(number: i64) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            pub const fn number(self) -> i64 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// MAAS's own name.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$variant => $words,)*
                    Self::Unknown(_) => "unknown",
                }
            }
        }
    };
}

statuses! {
    New = 0, "New";
    Commissioning = 1, "Commissioning";
    FailedCommissioning = 2, "Failed commissioning";
    Missing = 3, "Missing";
    Ready = 4, "Ready";
    Reserved = 5, "Reserved";
    Deployed = 6, "Deployed";
    Retired = 7, "Retired";
    Broken = 8, "Broken";
    Deploying = 9, "Deploying";
    Allocated = 10, "Allocated";
    FailedDeployment = 11, "Failed deployment";
    Releasing = 12, "Releasing";
    FailedReleasing = 13, "Releasing failed";
    DiskErasing = 14, "Disk erasing";
    FailedDiskErasing = 15, "Failed disk erasing";
    RescueMode = 16, "Rescue mode";
    EnteringRescueMode = 17, "Entering rescue mode";
    FailedEnteringRescueMode = 18, "Failed to enter rescue mode";
    ExitingRescueMode = 19, "Exiting rescue mode";
    FailedExitingRescueMode = 20, "Failed to exit rescue mode";
    Testing = 21, "Testing";
    FailedTesting = 22, "Failed testing";
}

impl Status {
    /// True while MAAS is working and the status will change by itself.
    pub const fn in_progress(self) -> bool {
        matches!(
            self,
            Self::Commissioning
                | Self::Deploying
                | Self::Releasing
                | Self::DiskErasing
                | Self::EnteringRescueMode
                | Self::ExitingRescueMode
                | Self::Testing
        )
    }

    /// True if MAAS reports a failure.
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

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unknown(number) = self {
            return write!(f, "unknown status {number}");
        }
        f.write_str(self.words())
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self::from_number)
    }
}
