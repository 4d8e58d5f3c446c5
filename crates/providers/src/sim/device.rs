//! Firmware and fabric state of simulated hardware. Machines, switches and power shelves are the
//! same here, so even a shelf accepts a fabric state.

use super::hardware::{Hardware, Power, outcome};
use model::effect::{DeviceWork, FabricTo, Facts, Outcome, PowerTo};
use model::fault::{Code, Fault};
use model::id::MachineId;
use model::retry::hash;
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
    pub fabric: Option<FabricTo>,
    /// The version that the last firmware update replaced.
    pub replaced: Option<String>,
}

impl Device {
    pub fn version(&self, component: &str) -> &str {
        self.firmware.get(component).map_or(FACTORY_VERSION, String::as_str)
    }

    fn in_fabric(&self, to: FabricTo) -> bool {
        match (to, self.fabric) {
            (FabricTo::Off, None | Some(FabricTo::Off))
            | (FabricTo::Manager, Some(FabricTo::Manager))
            | (FabricTo::Configured, Some(FabricTo::Configured | FabricTo::Manager)) => true,
            (FabricTo::Off, Some(FabricTo::Manager | FabricTo::Configured))
            | (FabricTo::Manager, None | Some(FabricTo::Off | FabricTo::Configured))
            | (FabricTo::Configured, None | Some(FabricTo::Off)) => false,
        }
    }
}

impl Hardware {
    pub fn act_as_device(&mut self, work: &DeviceWork) {
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
    ) -> Result<Outcome, Fault> {
        let facts = self.facts(machine);
        let with = |said: String| Outcome { facts: Some(facts.clone()), ..outcome(said, None) };
        match work {
            DeviceWork::Read => Ok(with(format!("Read: {} {}", facts.model, facts.serial))),
            DeviceWork::Configure => Ok(with("The credentials work, and it is watched".into())),
            DeviceWork::Firmware { component, version, .. } if already => {
                Ok(with(format!("{component} is already at {version}")))
            }
            DeviceWork::Firmware { component, version, .. } => {
                let replaced = self.device.replaced.clone();
                let facts = Some(Facts { replaced, ..facts });
                let said = format!("{component} is at {version}");
                self.look_device(work).map_err(differs)?;
                Ok(Outcome { facts, ..outcome(said, None) })
            }
            DeviceWork::Check { .. } | DeviceWork::Fabric { .. } => {
                self.look_device(work).map(|seen| with(seen.said)).map_err(differs)
            }
        }
    }

    /// Whether the goal of the work holds now; otherwise what is observed.
    pub fn look_device(&self, work: &DeviceWork) -> Result<Outcome, String> {
        match work {
            DeviceWork::Read => Err("a reading taken earlier cannot be observed".into()),
            DeviceWork::Configure => Ok(outcome("The credentials work, and it is watched", None)),
            DeviceWork::Firmware { component, version, .. } => {
                let has = self.device.version(component);
                let said = format!("{component} is at {has}");
                if has == version { Ok(outcome(said, None)) } else { Err(said) }
            }
            DeviceWork::Fabric { to } => {
                let said =
                    format!("fabric {}", self.device.fabric.unwrap_or(FabricTo::Off).as_str());
                if self.device.in_fabric(*to) { Ok(outcome(said, None)) } else { Err(said) }
            }
            DeviceWork::Check { firmware, power } => {
                let wrong_version = firmware.iter().filter_map(|(component, wanted)| {
                    let has = self.device.version(component);
                    (has != wanted).then(|| format!("{component} is at {has}, not {wanted}"))
                });
                let is = self.is_powered();
                let wrong_power = power.filter(|wanted| *wanted != is);
                let wrong_power = wrong_power.map(|wanted| {
                    format!("power is {}, not {}", wanted_word(is), wanted_word(wanted))
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
    pub fn facts(&self, machine: &MachineId) -> Facts {
        let factory = COMPONENTS.map(|name| (name.to_string(), FACTORY_VERSION.to_string()));
        let mut firmware = BTreeMap::from(factory);
        firmware.extend(self.device.firmware.clone());
        Facts {
            manufacturer: "Farrier".into(),
            model: "Simulated".into(),
            serial: format!("SIM{:06}", hash(machine.as_str(), 0) % 1_000_000),
            firmware,
            power: Some(self.is_powered()),
            replaced: None,
            maas: None,
        }
    }

    /// Adds the current power state to an outcome.
    pub fn with_power(&self, seen: Outcome) -> Outcome {
        let facts = Facts { power: Some(self.is_powered()), ..Facts::default() };
        Outcome { facts: Some(facts), ..seen }
    }

    fn is_powered(&self) -> PowerTo {
        match self.power {
            Power::On => PowerTo::On,
            Power::Off => PowerTo::Off,
        }
    }
}

fn differs(seen: String) -> Fault {
    Fault::new(Code::ReadBackDiffers, seen)
}

const fn wanted_word(power: PowerTo) -> &'static str {
    match power {
        PowerTo::On => "on",
        PowerTo::Off => "off",
    }
}
