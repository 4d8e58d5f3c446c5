//! The states of a rack, and the description of its errors.

use super::maintenance::Leg;
use crate::lifecycle::Trouble;
use crate::target::TargetId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
}

impl Activity {
    pub const ALL: [Self; 3] =
        [Self::FirmwareUpgrade, Self::ConfigureNmxCluster, Self::PowerSequence];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FirmwareUpgrade => "FirmwareUpgrade",
            Self::ConfigureNmxCluster => "ConfigureNmxCluster",
            Self::PowerSequence => "PowerSequence",
        }
    }
}

/// The progress of a maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
    Completed,
}

impl Stage {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FirmwareUpgrade => "FirmwareUpgrade",
            Self::ConfigureNmxCluster => "ConfigureNmxCluster",
            Self::PowerSequence => "PowerSequence",
            Self::Completed => "Completed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RackState {
    Created,
    Discovering,
    Maintenance { stage: Stage },
    Validating,
    Ready,
    Error { cause: RackTrouble },
    Deleting,
}

/// The activity during which a rack failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum During {
    Discovery,
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
    Validation,
}

impl During {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Discovery => "Discovery",
            Self::FirmwareUpgrade => "FirmwareUpgrade",
            Self::ConfigureNmxCluster => "ConfigureNmxCluster",
            Self::PowerSequence => "PowerSequence",
            Self::Validation => "Validation",
        }
    }

    pub(crate) fn of(leg: Option<Leg>) -> Self {
        match leg.map(Leg::activity) {
            // Before its first step an operation counts as the firmware upgrade, as documented.
            None | Some(Some(Activity::FirmwareUpgrade)) => Self::FirmwareUpgrade,
            Some(Some(Activity::ConfigureNmxCluster)) => Self::ConfigureNmxCluster,
            Some(Some(Activity::PowerSequence)) => Self::PowerSequence,
            Some(None) => Self::Validation,
        }
    }
}

/// The cause of a rack's error state: the device, the activity, the message, and the next command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackTrouble {
    pub during: During,
    pub device: Option<TargetId>,
    pub trouble: Trouble,
    pub next: String,
}
