//! A machine as MAAS reports it. Fields that Farrier does not use are ignored.

use super::hardware::{BlockDevice, Interface, NamedResource, nullable};
use super::status::Status;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::time::Duration;

/// MAAS's placeholder for a missing hardware detail.
const UNKNOWN: &str = "Unknown";

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Machine {
    pub system_id: String,
    pub status: Status,
    /// MAAS's name of the status, also when the number is unknown to Farrier.
    #[serde(default, deserialize_with = "nullable")]
    pub status_name: String,
    /// MAAS's message about the last status change.
    #[serde(default, deserialize_with = "nullable")]
    pub status_message: String,
    #[serde(default, deserialize_with = "nullable")]
    pub hostname: String,
    #[serde(default, deserialize_with = "nullable")]
    pub fqdn: String,
    #[serde(default, deserialize_with = "nullable")]
    pub description: String,
    #[serde(default, deserialize_with = "nullable")]
    pub architecture: String,
    #[serde(default)]
    pub power_state: MaasPowerState,
    #[serde(default, deserialize_with = "nullable")]
    pub power_type: String,
    /// The MAAS user who owns it. Commissioning makes the requesting user the owner.
    pub owner: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub osystem: String,
    #[serde(default, deserialize_with = "nullable")]
    pub distro_series: String,
    #[serde(default, deserialize_with = "nullable")]
    pub locked: bool,
    #[serde(default, deserialize_with = "nullable")]
    pub ip_addresses: Vec<String>,
    #[serde(rename = "interface_set", default, deserialize_with = "nullable")]
    pub interfaces: Vec<Interface>,
    pub boot_interface: Option<Interface>,
    #[serde(rename = "blockdevice_set", default, deserialize_with = "nullable")]
    pub disks: Vec<BlockDevice>,
    pub boot_disk: Option<BlockDevice>,
    #[serde(rename = "tag_names", default, deserialize_with = "nullable")]
    pub tags: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub pool: NamedResource,
    #[serde(default, deserialize_with = "nullable")]
    pub zone: NamedResource,
    /// The processor cores, as the commissioning counted them; zero when unknown.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_count: u64,
    /// In MiB; zero when unknown.
    #[serde(rename = "memory", default, deserialize_with = "nullable")]
    pub memory_mib: u64,
    pub hardware_uuid: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub hardware_info: HardwareInfo,
    #[serde(default, deserialize_with = "nullable")]
    pub enable_hw_sync: bool,
    /// As MAAS writes it: up to 3.5 in its local time, without the offset. It is compared with
    /// nothing but itself.
    pub last_sync: Option<String>,
    #[serde(default, deserialize_with = "seconds")]
    pub sync_interval: Option<Duration>,
    /// Set by the owner. MAAS removes them when the machine is released.
    #[serde(default, deserialize_with = "nullable")]
    pub workload_annotations: BTreeMap<String, String>,
}

impl Machine {
    /// Owned or installed, whatever its status: tests may fail on a machine in service.
    pub fn is_taken(&self) -> bool {
        self.owner.as_deref().is_some_and(|owner| !owner.is_empty()) || !self.osystem.is_empty()
    }

    /// The serial number of the system, if its board reports one.
    pub fn serial(&self) -> Option<&str> {
        known(&self.hardware_info.system_serial)
    }

    /// Compares hexadecimal digits only, so the notation does not matter.
    pub fn has_mac(&self, mac: &str) -> bool {
        let digits = |text: &str| -> String {
            let hex = text.chars().filter(char::is_ascii_hexdigit);
            hex.map(|c| c.to_ascii_lowercase()).collect()
        };
        let desired = digits(mac);
        self.interfaces.iter().any(|interface| digits(&interface.mac_address) == desired)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct HardwareInfo {
    #[serde(deserialize_with = "nullable")]
    pub system_vendor: String,
    #[serde(deserialize_with = "nullable")]
    pub system_product: String,
    #[serde(deserialize_with = "nullable")]
    pub system_serial: String,
    #[serde(deserialize_with = "nullable")]
    pub chassis_serial: String,
    #[serde(deserialize_with = "nullable")]
    pub cpu_model: String,
    /// The firmware that boots the system: BIOS or UEFI.
    #[serde(deserialize_with = "nullable")]
    pub mainboard_firmware_version: String,
}

/// A detail of the hardware, unless MAAS does not know it.
pub(super) fn known(detail: &str) -> Option<&str> {
    let detail = detail.trim();
    (!detail.is_empty() && detail != UNKNOWN).then_some(detail)
}

/// The power state that MAAS read last, possibly a while ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaasPowerState {
    On,
    Off,
    /// Never read, or not readable.
    #[default]
    Unknown,
    /// The last read failed.
    Error,
}

impl MaasPowerState {
    pub fn parse(name: &str) -> Self {
        match name {
            "on" => Self::On,
            "off" => Self::Off,
            "error" => Self::Error,
            _ => Self::Unknown,
        }
    }
}

impl<'de> Deserialize<'de> for MaasPowerState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        Ok(name.as_deref().map_or(Self::Unknown, Self::parse))
    }
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
}
