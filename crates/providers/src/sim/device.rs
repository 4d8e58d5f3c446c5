//! What simulated hardware has beyond a computer: firmware by component, and a place in a fabric. Machines, switches and power
//! shelves have the same here; who asks a shelf for a fabric gets what it asks for.

use super::hardware::{Hardware, Power, outcome};
use model::effect::{DeviceWork, FabricTo, Facts, Outcome, PowerTo};
use model::fault::{Code, Fault};
use model::id::MachineId;
use model::retry::hash;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What every component has before anybody has installed another one.
pub const FACTORY_VERSION: &str = "1.0";
/// The components that are named by who asks for nothing special.
const COMPONENTS: [&str; 2] = ["BIOS", "BMC"];

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Versions that were installed.
    pub firmware: BTreeMap<String, String>,
    pub fabric: Option<FabricTo>,
    /// What the last firmware order replaced.
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
            // The primary reports the fabric configured without being told again.
            DeviceWork::Fabric { to } if !self.device.in_fabric(*to) => {
                self.device.fabric = Some(*to);
            }
            DeviceWork::Fabric { .. }
            | DeviceWork::Read
            | DeviceWork::Configure
            | DeviceWork::Check { .. } => {}
        }
    }

    /// What is seen after it acted.
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

    /// Whether what is wanted of the device holds now, or what is seen instead.
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

    /// What the device says of itself: invented, but always the same.
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

    /// What was seen, with its power as it is then.
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
