//! Firmware and fabric state of simulated hardware. Machines, switches and power shelves are the
//! same here, so even a shelf accepts a fabric state.

use super::hardware::{Hardware, Power, outcome};
use model::effect::{CallOutcome, DesiredPower, DeviceFacts, DeviceWork, FabricGoal};
use model::fault::{Fault, FaultCode, Result};
use model::id::MachineId;
use model::retry::fnv1a;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of every component before an update.
pub const FACTORY_VERSION: &str = "1.0";
/// The components that are always listed.
const COMPONENTS: [&str; 2] = ["BIOS", "BMC"];

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// The versions that were installed.
    pub firmware: BTreeMap<String, String>,
    pub fabric: Option<FabricGoal>,
    /// The version that the last firmware update replaced.
    pub replaced: Option<String>,
}

impl Device {
    pub fn version(&self, component: &str) -> &str {
        self.firmware.get(component).map_or(FACTORY_VERSION, String::as_str)
    }

    fn in_fabric(&self, to: FabricGoal) -> bool {
        match (to, self.fabric) {
            (FabricGoal::Off, None | Some(FabricGoal::Off))
            | (FabricGoal::Manager, Some(FabricGoal::Manager))
            | (FabricGoal::Configured, Some(FabricGoal::Configured | FabricGoal::Manager)) => true,
            (FabricGoal::Off, Some(FabricGoal::Manager | FabricGoal::Configured))
            | (FabricGoal::Manager, None | Some(FabricGoal::Off | FabricGoal::Configured))
            | (FabricGoal::Configured, None | Some(FabricGoal::Off)) => false,
        }
    }
}

impl Hardware {
    pub fn apply_device_work(&mut self, work: &DeviceWork) {
        match work {
            DeviceWork::Firmware { component, version, .. } => {
                let before = self.device.version(component).to_string();
                self.device.replaced = (before != *version).then_some(before);
                self.device.firmware.insert(component.clone(), version.clone());
            }
            // The primary switch reports the fabric as configured without another request.
            DeviceWork::Fabric { to } if !self.device.in_fabric(*to) => {
                self.device.fabric = Some(*to);
            }
            DeviceWork::Fabric { .. }
            | DeviceWork::Read
            | DeviceWork::Configure
            | DeviceWork::Check { .. } => {}
        }
    }

    /// Reads back the result of the work.
    pub fn read_back_device(
        &self,
        machine: &MachineId,
        work: &DeviceWork,
        already: bool,
    ) -> Result<CallOutcome> {
        let facts = self.facts(machine);
        let with =
            |message: String| CallOutcome { facts: Some(facts.clone()), ..outcome(message, None) };
        match work {
            DeviceWork::Read => Ok(with(format!("Read: {} {}", facts.model, facts.serial))),
            DeviceWork::Configure => Ok(with("The credentials work, and it is watched".into())),
            DeviceWork::Firmware { component, version, .. } if already => {
                Ok(with(format!("{component} is already at {version}")))
            }
            DeviceWork::Firmware { component, version, .. } => {
                let replaced = self.device.replaced.clone();
                let facts = Some(DeviceFacts { replaced, ..facts });
                let message = format!("{component} is at {version}");
                self.observe_device(work).map_err(differs)?;
                Ok(CallOutcome { facts, ..outcome(message, None) })
            }
            DeviceWork::Check { .. } | DeviceWork::Fabric { .. } => {
                self.observe_device(work).map(|observed| with(observed.message)).map_err(differs)
            }
        }
    }

    /// Checks that the goal of the work holds now; the error says what is observed.
    pub fn observe_device(&self, work: &DeviceWork) -> Result<CallOutcome, String> {
        match work {
            DeviceWork::Read => Err("a reading taken earlier cannot be observed".into()),
            DeviceWork::Configure => Ok(outcome("The credentials work, and it is watched", None)),
            DeviceWork::Firmware { component, version, .. } => {
                let has = self.device.version(component);
                let message = format!("{component} is at {has}");
                if has == version { Ok(outcome(message, None)) } else { Err(message) }
            }
            DeviceWork::Fabric { to } => {
                let message =
                    format!("fabric {}", self.device.fabric.unwrap_or(FabricGoal::Off).as_str());
                if self.device.in_fabric(*to) { Ok(outcome(message, None)) } else { Err(message) }
            }
            DeviceWork::Check { firmware, power } => {
                let wrong_version = firmware.iter().filter_map(|(component, desired)| {
                    let has = self.device.version(component);
                    (has != desired).then(|| format!("{component} is at {has}, not {desired}"))
                });
                let is = self.is_powered();
                let wrong_power = power.filter(|desired| *desired != is);
                let wrong_power = wrong_power.map(|desired| {
                    format!("power is {}, not {}", power_name(is), power_name(desired))
                });
                let wrong: Vec<String> = wrong_version.chain(wrong_power).collect();
                match wrong.is_empty() {
                    true => Ok(outcome("As it should be", None)),
                    false => Err(wrong.join("; ")),
                }
            }
        }
    }

    /// The device's inventory: invented, but constant for each machine.
    pub fn facts(&self, machine: &MachineId) -> DeviceFacts {
        let factory = COMPONENTS.map(|name| (name.to_string(), FACTORY_VERSION.to_string()));
        let mut firmware = BTreeMap::from(factory);
        firmware.extend(self.device.firmware.clone());
        DeviceFacts {
            manufacturer: "Farrier".into(),
            model: "Simulated".into(),
            serial: format!("SIM{:06}", fnv1a(machine.as_str(), 0) % 1_000_000),
            firmware,
            power: Some(self.is_powered()),
            replaced: None,
            maas: None,
        }
    }

    /// Adds the current power state to an outcome.
    pub fn with_power(&self, observed: CallOutcome) -> CallOutcome {
        let facts = DeviceFacts { power: Some(self.is_powered()), ..DeviceFacts::default() };
        CallOutcome { facts: Some(facts), ..observed }
    }

    fn is_powered(&self) -> DesiredPower {
        match self.power {
            Power::On => DesiredPower::On,
            Power::Off => DesiredPower::Off,
        }
    }
}

fn differs(observed: String) -> Fault {
    Fault::new(FaultCode::ReadBackDiffers, observed)
}

const fn power_name(power: DesiredPower) -> &'static str {
    match power {
        DesiredPower::On => "on",
        DesiredPower::Off => "off",
    }
}
