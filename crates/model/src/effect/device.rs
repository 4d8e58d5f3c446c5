//! What devices are asked in the course of their own and their rack's lifecycle: to be read, configured and checked, to take
//! firmware, to form a fabric. And [`Facts`]: what a device says of itself when it is read.

use super::PowerTo;
use crate::node::UpstreamSeen;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum DeviceWork {
    /// One component of the device has this version: installed when it has not, left alone when it has.
    Firmware {
        component: String,
        version: String,
        url: String,
        /// What the file hashes to, in hex.
        sha256: String,
    },
    /// Says what it is.
    Read,
    /// The credentials work and may administer, and the device can be watched.
    Configure,
    /// Reachable, with this firmware and this power. Everything that is wrong is said.
    Check {
        firmware: BTreeMap<String, String>,
        power: Option<PowerTo>,
    },
    Fabric {
        to: FabricTo,
    },
}

/// How far a switch is on its way into the scale-up fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FabricTo {
    /// The fabric is disabled on this switch.
    Off,
    /// The fabric manager is configured and enabled here: this is the primary.
    Manager,
    /// The switch reports the fabric configured.
    Configured,
}

impl FabricTo {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Manager => "MANAGER",
            Self::Configured => "CONFIGURED",
        }
    }
}

#[cfg(test)]
impl DeviceWork {
    pub(super) fn one_of_each() -> Vec<Self> {
        let text = String::new;
        vec![
            Self::Firmware { component: text(), version: text(), url: text(), sha256: text() },
            Self::Read,
            Self::Configure,
            Self::Check { firmware: BTreeMap::new(), power: None },
            Self::Fabric { to: FabricTo::Off },
        ]
    }
}

/// The longest text that is kept of what a device says.
pub const MAX_FACT: usize = 256;

/// What a device said of itself. Empty: it did not say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub manufacturer: String,
    pub model: String,
    pub serial: String,
    /// Versions by component.
    pub firmware: BTreeMap<String, String>,
    pub power: Option<PowerTo>,
    /// What a firmware order changed, if it did: the version before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// What MAAS calls the machine, and says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maas: Option<Box<MaasFacts>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaasFacts {
    pub system_id: String,
    pub upstream: UpstreamSeen,
}

impl Facts {
    /// Takes in what was read now. What was not said keeps what was said before.
    pub fn learn(&mut self, seen: &Self) {
        let take = |known: &mut String, new: &String| {
            if !new.is_empty() {
                known.clone_from(new);
            }
        };
        take(&mut self.manufacturer, &seen.manufacturer);
        take(&mut self.model, &seen.model);
        take(&mut self.serial, &seen.serial);
        self.firmware.extend(seen.firmware.clone());
        self.power = seen.power.or(self.power);
    }
}
