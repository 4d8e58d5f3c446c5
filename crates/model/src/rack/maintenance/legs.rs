//! The steps of a rack maintenance. Each step starts child runs on some of the devices and ends
//! when all of them have ended.

use super::super::{Activity, Device};
use super::PowerSequence;
use crate::effect::{DeviceWork, Effect, FabricTo, Group, Part, PowerOffPolicy, PowerTo};
use crate::firmware::Firmware;
use crate::lifecycle::run_step;
use crate::plan::{RunStep, RunType};
use crate::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// The timeouts of a rack's steps, and how many devices are worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time for which a rack waits for its devices.
    pub discovery_seconds: u32,
    pub firmware_seconds: u32,
    pub fabric_seconds: u32,
    pub power_seconds: u32,
    pub check_seconds: u32,
    pub at_once: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            discovery_seconds: 24 * 3_600,
            firmware_seconds: 4 * 3_600,
            fabric_seconds: 1_800,
            power_seconds: 1_800,
            check_seconds: 900,
            at_once: 16,
        }
    }
}

impl Limits {
    pub(crate) fn discovery(&self) -> Duration {
        Duration::from_secs(u64::from(self.discovery_seconds))
    }
}

/// Timeout in seconds and number of retries of one step on one device.
const FABRIC: (u32, u32) = (900, 2);
const POWER: (u32, u32) = (600, 2);
const CHECK: (u32, u32) = (120, 2);

/// A step of a rack maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    Firmware(TargetKind),
    /// Disables the scale-up fabric.
    FabricOff,
    /// Configures the fabric manager on the primary switch.
    FabricManager,
    /// Waits until every switch reports that the fabric is configured.
    FabricConfigured,
    PowerOff(TargetKind),
    PowerOn(TargetKind),
    Validate,
}

use TargetKind::{Machine, PowerShelf, Switch};

impl Leg {
    /// In order of execution.
    pub const ALL: [Self; 13] = [
        Self::Firmware(Machine),
        Self::Firmware(Switch),
        Self::Firmware(PowerShelf),
        Self::FabricOff,
        Self::FabricManager,
        Self::FabricConfigured,
        Self::PowerOff(Machine),
        Self::PowerOff(Switch),
        Self::PowerOff(PowerShelf),
        Self::PowerOn(PowerShelf),
        Self::PowerOn(Switch),
        Self::PowerOn(Machine),
        Self::Validate,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firmware(Machine) => "firmware-machines",
            Self::Firmware(Switch) => "firmware-switches",
            Self::Firmware(PowerShelf) => "firmware-power-shelves",
            Self::FabricOff => "fabric-off",
            Self::FabricManager => "fabric-manager",
            Self::FabricConfigured => "fabric-configured",
            Self::PowerOff(Machine) => "power-off-machines",
            Self::PowerOff(Switch) => "power-off-switches",
            Self::PowerOff(PowerShelf) => "power-off-shelves",
            Self::PowerOn(PowerShelf) => "power-on-shelves",
            Self::PowerOn(Switch) => "power-on-switches",
            Self::PowerOn(Machine) => "power-on-machines",
            Self::Validate => "validate",
            // A rack has no power and no firmware of its own.
            Self::Firmware(TargetKind::Rack)
            | Self::PowerOff(TargetKind::Rack)
            | Self::PowerOn(TargetKind::Rack) => "nothing",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|leg| leg.as_str() == word)
    }

    /// The activity it belongs to; `Validate` belongs to none.
    pub const fn activity(self) -> Option<Activity> {
        match self {
            Self::Firmware(_) => Some(Activity::FirmwareUpgrade),
            Self::FabricOff | Self::FabricManager | Self::FabricConfigured => {
                Some(Activity::ConfigureNmxCluster)
            }
            Self::PowerOff(_) | Self::PowerOn(_) => Some(Activity::PowerSequence),
            Self::Validate => None,
        }
    }
}

/// The actions of a maintenance and the devices in its scope.
pub(super) struct Course {
    /// Ordered by kind and slot.
    pub devices: Vec<Device>,
    pub firmware: Option<Firmware>,
    /// The primary switch, if the fabric is configured.
    pub fabric: Option<TargetId>,
    pub power: Option<PowerSequence>,
}

impl Course {
    pub fn steps(&self, limits: &Limits) -> Vec<RunStep> {
        let legs = Leg::ALL.into_iter().map(|leg| (leg, self.parts(leg)));
        legs.filter(|(_, parts)| !parts.is_empty())
            .map(|(leg, parts)| {
                let seconds = match leg.activity() {
                    Some(Activity::FirmwareUpgrade) => limits.firmware_seconds,
                    Some(Activity::ConfigureNmxCluster) => limits.fabric_seconds,
                    Some(Activity::PowerSequence) => limits.power_seconds,
                    None => limits.check_seconds,
                };
                let unless = self.unless(leg);
                let group = Group { parts, at_once: limits.at_once, unless };
                run_step(leg.as_str(), seconds, 0, Effect::Parts { group })
            })
            .collect()
    }

    fn of_kind(&self, kind: TargetKind) -> impl Iterator<Item = &TargetId> {
        self.devices.iter().map(|device| &device.target).filter(move |target| target.kind == kind)
    }

    fn parts(&self, leg: Leg) -> Vec<Part> {
        let off = self.power.is_some_and(PowerSequence::goes_off);
        let on = self.power.is_some_and(|power| power != PowerSequence::Off);
        match leg {
            Leg::Firmware(kind) => self.flashed(kind),
            Leg::FabricOff => self.switches(FabricTo::Off),
            Leg::FabricManager => self.manager(),
            Leg::FabricConfigured => self.switches(FabricTo::Configured),
            Leg::PowerOff(kind) if off => self.powered(kind, PowerTo::Off),
            Leg::PowerOn(kind) if on => self.powered(kind, PowerTo::On),
            Leg::PowerOff(_) | Leg::PowerOn(_) => Vec::new(),
            Leg::Validate => self.checked(),
        }
    }

    fn flashed(&self, kind: TargetKind) -> Vec<Part> {
        let Some(firmware) = &self.firmware else { return Vec::new() };
        let steps = firmware.steps(kind);
        if steps.is_empty() {
            return Vec::new();
        }
        let part = |target: &TargetId| part(target, RunType::Firmware, steps.clone());
        self.of_kind(kind).map(part).collect()
    }

    fn switches(&self, to: FabricTo) -> Vec<Part> {
        match &self.fabric {
            Some(_) => self.of_kind(Switch).map(|target| fabric_part(target, to)).collect(),
            None => Vec::new(),
        }
    }

    fn manager(&self) -> Vec<Part> {
        let primary = self.fabric.iter();
        primary.map(|target| fabric_part(target, FabricTo::Manager)).collect()
    }

    /// A fabric that is already configured is not disabled and configured again.
    fn unless(&self, leg: Leg) -> Vec<Part> {
        match leg {
            Leg::FabricOff => {
                let others =
                    self.of_kind(Switch).filter(|target| Some(*target) != self.fabric.as_ref());
                let others = others.map(|target| fabric_part(target, FabricTo::Configured));
                self.manager().into_iter().chain(others).collect()
            }
            Leg::Firmware(_)
            | Leg::FabricManager
            | Leg::FabricConfigured
            | Leg::PowerOff(_)
            | Leg::PowerOn(_)
            | Leg::Validate => Vec::new(),
        }
    }

    fn powered(&self, kind: TargetKind, to: PowerTo) -> Vec<Part> {
        let name = match to {
            PowerTo::On => "power-on",
            PowerTo::Off => "power-off",
        };
        let effect = Effect::Power { to, power_off: PowerOffPolicy::CONFIGURED };
        let step = run_step(name, POWER.0, POWER.1, effect);
        let part = |target: &TargetId| part(target, RunType::Power, vec![step.clone()]);
        self.of_kind(kind).map(part).collect()
    }

    /// Checks that every device is reachable with the desired firmware and power. If the shelves
    /// were switched off, machines and switches cannot answer and are left out.
    fn checked(&self) -> Vec<Part> {
        let power = self.power.map(|power| match power {
            PowerSequence::On | PowerSequence::Reset => PowerTo::On,
            PowerSequence::Off => PowerTo::Off,
        });
        let unfed = self.is_unfed();
        let asked = self.devices.iter().map(|device| &device.target);
        let asked = asked.filter(|target| !unfed || target.kind == PowerShelf);
        let part = |target: &TargetId| {
            let firmware = self.firmware.as_ref();
            let firmware =
                firmware.map_or_else(BTreeMap::new, |firmware| firmware.versions(target.kind));
            let work = DeviceWork::Check { firmware, power };
            let step = run_step("check", CHECK.0, CHECK.1, Effect::Device { work });
            part(target, RunType::Check, vec![step])
        };
        asked.map(part).collect()
    }

    fn is_unfed(&self) -> bool {
        self.power == Some(PowerSequence::Off) && self.of_kind(PowerShelf).next().is_some()
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let off = self.power.is_some_and(PowerSequence::goes_off);
        let shelves = self.of_kind(PowerShelf).count();
        let switches = self.of_kind(Switch).count();
        let mut said = Vec::new();
        if off && shelves > 0 {
            said.push(
                "a power shelf's own controller, and the BMCs that it feeds, may lose power and not answer until it is on again"
                    .to_string(),
            );
        }
        if off && shelves == 0 && switches > 0 {
            said.push("a switch's own controller may lose power with it".into());
        }
        if self.is_unfed() {
            said.push("machines and switches are not validated: nothing feeds them".into());
        }
        if self.fabric.is_some() {
            said.push(
                "the scale-up fabric is taken down and formed anew, unless every switch reports it configured"
                    .into(),
            );
        }
        said
    }
}

fn part(target: &TargetId, run_type: RunType, steps: Vec<RunStep>) -> Part {
    Part { target: target.clone(), run_type, steps }
}

fn fabric_part(target: &TargetId, to: FabricTo) -> Part {
    let name = match to {
        FabricTo::Off => "fabric-off",
        FabricTo::Manager => "fabric-manager",
        FabricTo::Configured => "fabric-configured",
    };
    let effect = Effect::Device { work: DeviceWork::Fabric { to } };
    part(target, RunType::Fabric, vec![run_step(name, FABRIC.0, FABRIC.1, effect)])
}
