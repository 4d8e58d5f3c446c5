//! Formats the power states of devices.

use crate::device::power_word;
use crate::effect::DesiredPower;
use crate::list_format::join_limited;
use crate::target::TargetId;

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
