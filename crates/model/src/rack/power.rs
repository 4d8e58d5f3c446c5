//! Formats the power states of devices.

use crate::device::power_word;
use crate::effect::DesiredPower;
use crate::id::{RackId, SwitchId};
use crate::list_format::join_limited;
use crate::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use crate::target::TargetId;
use std::fmt;

/// The number of devices named per power state; a rack has fewer.
const MAX_NAMED: usize = 64;

/// A device and its known power state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePower {
    pub device: TargetId,
    pub power: Option<DesiredPower>,
}

/// Lists what is on, off and unknown, so that an operator can continue a stopped power sequence.
pub fn format_power(devices: &[DevicePower]) -> String {
    let lists =
        [Some(DesiredPower::On), Some(DesiredPower::Off), None].into_iter().filter_map(|power| {
            let name = power.map_or("not known", power_word);
            let fitting = devices.iter().filter(|one| one.power == power);
            let named: Vec<&str> = fitting.map(|one| one.device.as_str()).collect();
            (!named.is_empty())
                .then(|| format!("{name}: {}", join_limited(&named, ", ", MAX_NAMED)))
        });
    lists.collect::<Vec<_>>().join("; ")
}

/// The devices that a stopped operation leaves off; none if all are on or not known.
pub fn describe_left_off(devices: &[DevicePower]) -> Option<String> {
    let off = devices.iter().filter(|one| one.power == Some(DesiredPower::Off));
    let named: Vec<&str> = off.map(|one| one.device.as_str()).collect();
    let listed = join_limited(&named, ", ", MAX_NAMED);
    (!named.is_empty()).then(|| format!("off now, and would stay off: {listed}"))
}

/// The maintenance of a rack that only switches its devices on, or one of its switches: the command
/// after a power sequence that stopped. It takes nothing from a machine in service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackPowerOn {
    pub rack: RackId,
    /// None: all devices of the rack.
    pub switch: Option<SwitchId>,
}

impl RackPowerOn {
    pub const fn of_rack(rack: RackId) -> Self {
        Self { rack, switch: None }
    }

    /// Reads its command back.
    pub fn parse(command: &str) -> Option<Self> {
        let words: Vec<&str> = command.split(' ').collect();
        let (rack, switch) = match words.as_slice() {
            ["farrier", "rack", "maintenance", "start", rack, "--power", "on"] => (rack, None),
            [
                "farrier",
                "rack",
                "maintenance",
                "start",
                rack,
                "--switch",
                switch,
                "--power",
                "on",
            ] => (rack, Some(SwitchId::trusted(*switch))),
            _ => return None,
        };
        Some(Self { rack: RackId::trusted(*rack), switch })
    }

    pub fn request(&self) -> RackMaintenanceRequest {
        RackMaintenanceRequest {
            scope: MaintenanceScope {
                switches: self.switch.iter().cloned().collect(),
                ..MaintenanceScope::default()
            },
            activities: vec![RequestedActivity::PowerSequence(PowerSequence::On)],
        }
    }
}

impl fmt::Display for RackPowerOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "farrier rack maintenance start {}", self.rack)?;
        if let Some(switch) = &self.switch {
            write!(f, " --switch {switch}")?;
        }
        f.write_str(" --power on")
    }
}
