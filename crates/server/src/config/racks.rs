//! `[racks]`: timeouts of the steps of a rack's maintenance, and its concurrency.

use model::host::RETRY_INTERVAL;
use model::plan::MAX_TIMEOUT_SECONDS;
use model::rack::maintenance::RackLimits;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Racks {
    /// How long a rack waits for its expected devices.
    pub discovery_seconds: u32,
    /// The timeout of the firmware step of all devices of one kind.
    pub firmware_seconds: u32,
    /// The timeout of a fabric step, for all switches.
    pub fabric_seconds: u32,
    /// The timeout of switching all devices of one kind on or off.
    pub power_seconds: u32,
    /// The timeout of the final check of all devices.
    pub check_seconds: u32,
    /// How many devices of one rack's operation are worked on concurrently.
    pub at_once: u32,
    /// How long to wait before a failed firmware upgrade of a host is retried automatically.
    pub host_firmware_upgrade_retry_interval_seconds: u32,
}

impl Default for Racks {
    fn default() -> Self {
        let RackLimits {
            discovery_seconds,
            firmware_seconds,
            fabric_seconds,
            power_seconds,
            check_seconds,
            at_once,
        } = RackLimits::default();
        Self {
            discovery_seconds,
            firmware_seconds,
            fabric_seconds,
            power_seconds,
            check_seconds,
            at_once,
            host_firmware_upgrade_retry_interval_seconds: RETRY_INTERVAL.as_secs() as u32,
        }
    }
}

impl Racks {
    pub fn check(&self) -> Result<(), String> {
        let all = [
            ("discovery_seconds", self.discovery_seconds),
            ("firmware_seconds", self.firmware_seconds),
            ("fabric_seconds", self.fabric_seconds),
            ("power_seconds", self.power_seconds),
            ("check_seconds", self.check_seconds),
            ("at_once", self.at_once),
            (
                "host_firmware_upgrade_retry_interval_seconds",
                self.host_firmware_upgrade_retry_interval_seconds,
            ),
        ];
        let sound = 1..=MAX_TIMEOUT_SECONDS;
        match all.into_iter().find(|(_, value)| !sound.contains(value)) {
            None => Ok(()),
            Some((field, value)) => {
                Err(format!("racks.{field} is {value}; use 1 to {MAX_TIMEOUT_SECONDS}"))
            }
        }
    }

    pub fn host_retry_interval(&self) -> Duration {
        Duration::from_secs(self.host_firmware_upgrade_retry_interval_seconds.into())
    }

    pub fn limits(&self) -> RackLimits {
        RackLimits {
            discovery_seconds: self.discovery_seconds,
            firmware_seconds: self.firmware_seconds,
            fabric_seconds: self.fabric_seconds,
            power_seconds: self.power_seconds,
            check_seconds: self.check_seconds,
            at_once: self.at_once,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_applied_and_zero_is_refused() {
        assert_eq!(Racks::default().limits(), RackLimits::default());
        assert_eq!(Racks::default().host_retry_interval(), RETRY_INTERVAL);
        let none = Racks { at_once: 0, ..Racks::default() };
        assert!(none.check().unwrap_err().contains("racks.at_once is 0"));
        assert!(Racks::default().check().is_ok());
        let text = "[racks]\ndiscovery_seconds = 1\nfirmware_seconds = 2\nfabric_seconds = 3\n\
                    power_seconds = 4\ncheck_seconds = 5\nat_once = 6\n\
                    host_firmware_upgrade_retry_interval_seconds = 7\n";
        let settings = toml::from_str::<crate::config::Config>(text).unwrap().settings();
        let limits = RackLimits {
            discovery_seconds: 1,
            firmware_seconds: 2,
            fabric_seconds: 3,
            power_seconds: 4,
            check_seconds: 5,
            at_once: 6,
        };
        assert_eq!(settings.rack_limits, limits);
        assert_eq!(settings.host_firmware_upgrade_retry_interval, Duration::from_secs(7));
    }
}
