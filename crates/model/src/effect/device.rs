//! Device work of the device and rack lifecycles: read, configure and check a device, install
//! firmware, set up the fabric. And [`Facts`]: what a device reports about itself.

use super::DesiredPower;
use crate::node::MaasObservation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum DeviceWork {
    /// Brings one component to this version; does nothing when the component has it already.
    Firmware {
        component: String,
        version: String,
        url: String,
        /// The SHA-256 of the file, in hex.
        sha256: String,
    },
    /// Reads the device's identity, firmware versions and power state.
    Read,
    /// Checks that the credentials work with administrator rights and that the device can be
    /// monitored.
    Configure,
    /// Checks that the device is reachable and has this firmware and power state. The fault lists
    /// all deviations.
    Check {
        firmware: BTreeMap<String, String>,
        power: Option<DesiredPower>,
    },
    Fabric {
        to: FabricGoal,
    },
}

/// The state of a switch in the scale-up fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FabricGoal {
    /// The fabric is disabled on this switch.
    Off,
    /// The fabric manager is configured and enabled on this switch: it is the primary.
    Manager,
    /// The switch reports that the fabric is configured.
    Configured,
}

impl FabricGoal {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Manager => "MANAGER",
            Self::Configured => "CONFIGURED",
        }
    }
}

/// Longer texts from a device are cut to this length.
pub const MAX_FACT: usize = 256;

/// The report of a device about itself. An empty field was not reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    pub manufacturer: String,
    pub model: String,
    pub serial: String,
    /// Versions by component.
    pub firmware: BTreeMap<String, String>,
    pub power: Option<DesiredPower>,
    /// The version that a firmware installation replaced; none when nothing was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// The machine's id in MAAS, and what MAAS reports about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maas: Option<Box<MaasFacts>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaasFacts {
    pub system_id: String,
    pub upstream: MaasObservation,
}

impl DeviceFacts {
    /// Merges a new reading; a value that was not reported keeps its old value.
    pub fn merge(&mut self, observed: &Self) {
        let take = |known: &mut String, new: &String| {
            if !new.is_empty() {
                known.clone_from(new);
            }
        };
        take(&mut self.manufacturer, &observed.manufacturer);
        take(&mut self.model, &observed.model);
        take(&mut self.serial, &observed.serial);
        self.firmware.extend(observed.firmware.clone());
        self.power = observed.power.or(self.power);
    }
}
