//! The states of a rack, and the description of its errors.

use super::maintenance::RackStep;
use crate::lifecycle::DeviceFailure;
use crate::target::TargetId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaintenanceActivity {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
}

impl MaintenanceActivity {
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
pub enum MaintenanceStage {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
    Completed,
}

impl MaintenanceStage {
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
    Maintenance { stage: MaintenanceStage },
    Validating,
    Ready,
    Error { cause: RackFailure },
    Deleting,
}

/// The activity during which a rack failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RackFailurePhase {
    Discovery,
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
    Validation,
}

impl RackFailurePhase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Discovery => "Discovery",
            Self::FirmwareUpgrade => "FirmwareUpgrade",
            Self::ConfigureNmxCluster => "ConfigureNmxCluster",
            Self::PowerSequence => "PowerSequence",
            Self::Validation => "Validation",
        }
    }

    pub(crate) fn of(rack_step: Option<RackStep>) -> Self {
        match rack_step.map(RackStep::activity) {
            // Before its first step an operation counts as the firmware upgrade, as documented.
            None | Some(Some(MaintenanceActivity::FirmwareUpgrade)) => Self::FirmwareUpgrade,
            Some(Some(MaintenanceActivity::ConfigureNmxCluster)) => Self::ConfigureNmxCluster,
            Some(Some(MaintenanceActivity::PowerSequence)) => Self::PowerSequence,
            Some(None) => Self::Validation,
        }
    }
}

/// The cause of a rack's error state: the device, the activity, the message, and the next command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackFailure {
    #[serde(rename = "during")]
    pub phase: RackFailurePhase,
    pub device: Option<TargetId>,
    #[serde(rename = "trouble")]
    pub failure: DeviceFailure,
    #[serde(rename = "next")]
    pub next_command: String,
    /// An operator canceled the operation: nothing has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub canceled: bool,
}
