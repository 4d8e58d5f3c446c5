//! The steps of a rack maintenance. Each step starts child runs on some of the devices and ends
//! when all of them have ended.

use super::super::{MaintenanceActivity, RackDevice};
use super::PowerSequence;
use crate::effect::{
    ChildRunGroup, ChildRunSpec, DesiredPower, DeviceWork, Effect, FabricGoal, PowerOffPolicy,
};
use crate::firmware::Firmware;
use crate::lifecycle::run_step;
use crate::plan::{RunStep, RunType};
use crate::run::Run;
use crate::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// The timeouts of a rack's steps, and how many devices are worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RackLimits {
    /// The time for which a rack waits for its devices.
    pub discovery_seconds: u32,
    pub firmware_seconds: u32,
    pub fabric_seconds: u32,
    pub power_seconds: u32,
    pub check_seconds: u32,
    pub at_once: u32,
}

impl Default for RackLimits {
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

impl RackLimits {
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
pub enum RackStep {
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

impl RackStep {
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

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rack_step| rack_step.as_str() == name)
    }

    /// The activity it belongs to; `Validate` belongs to none.
    pub const fn activity(self) -> Option<MaintenanceActivity> {
        match self {
            Self::Firmware(_) => Some(MaintenanceActivity::FirmwareUpgrade),
            Self::FabricOff | Self::FabricManager | Self::FabricConfigured => {
                Some(MaintenanceActivity::ConfigureNmxCluster)
            }
            Self::PowerOff(_) | Self::PowerOn(_) => Some(MaintenanceActivity::PowerSequence),
            Self::Validate => None,
        }
    }
}

/// True if a run on a rack has begun to switch devices.
pub fn switched_power(run: &Run) -> bool {
    let begun = run.progress.steps.iter().filter(|step| step.started_at.is_some());
    let mut begun = begun.filter_map(|step| RackStep::parse(&run.plan_step(step)?.name));
    begun.any(|step| step.activity() == Some(MaintenanceActivity::PowerSequence))
}

/// The actions of a maintenance and the devices in its scope.
pub(super) struct DeviceWorkPlan {
    /// Ordered by kind and slot.
    pub devices: Vec<RackDevice>,
    pub firmware: Option<Firmware>,
    /// The primary switch, if the fabric is configured.
    pub fabric: Option<TargetId>,
    pub power: Option<PowerSequence>,
}

impl DeviceWorkPlan {
    pub fn steps(&self, limits: &RackLimits) -> Vec<RunStep> {
        let rack_steps =
            RackStep::ALL.into_iter().map(|rack_step| (rack_step, self.parts(rack_step)));
        rack_steps
            .filter(|(_, parts)| !parts.is_empty())
            .map(|(rack_step, parts)| {
                let seconds = match rack_step.activity() {
                    Some(MaintenanceActivity::FirmwareUpgrade) => limits.firmware_seconds,
                    Some(MaintenanceActivity::ConfigureNmxCluster) => limits.fabric_seconds,
                    Some(MaintenanceActivity::PowerSequence) => limits.power_seconds,
                    None => limits.check_seconds,
                };
                let unless = self.unless(rack_step);
                let group = ChildRunGroup {
                    child_runs: parts,
                    max_concurrent: limits.at_once,
                    skip_if_all_hold: unless,
                };
                run_step(rack_step.as_str(), seconds, 0, Effect::ChildRuns { group })
            })
            .collect()
    }

    fn of_kind(&self, kind: TargetKind) -> impl Iterator<Item = &TargetId> {
        self.devices.iter().map(|device| &device.target).filter(move |target| target.kind == kind)
    }

    fn parts(&self, rack_step: RackStep) -> Vec<ChildRunSpec> {
        let off = self.power.is_some_and(PowerSequence::goes_off);
        let on = self.power.is_some_and(|power| power != PowerSequence::Off);
        match rack_step {
            RackStep::Firmware(kind) => self.flashed(kind),
            RackStep::FabricOff => self.switches(FabricGoal::Off),
            RackStep::FabricManager => self.manager(),
            RackStep::FabricConfigured => self.switches(FabricGoal::Configured),
            RackStep::PowerOff(kind) if off => self.powered(kind, DesiredPower::Off),
            RackStep::PowerOn(kind) if on => self.powered(kind, DesiredPower::On),
            RackStep::PowerOff(_) | RackStep::PowerOn(_) => Vec::new(),
            RackStep::Validate => self.checked(),
        }
    }

    fn flashed(&self, kind: TargetKind) -> Vec<ChildRunSpec> {
        let Some(firmware) = &self.firmware else { return Vec::new() };
        let steps = firmware.steps(kind);
        if steps.is_empty() {
            return Vec::new();
        }
        let part = |target: &TargetId| part(target, RunType::Firmware, steps.clone());
        self.of_kind(kind).map(part).collect()
    }

    fn switches(&self, to: FabricGoal) -> Vec<ChildRunSpec> {
        match &self.fabric {
            Some(_) => self.of_kind(Switch).map(|target| fabric_part(target, to)).collect(),
            None => Vec::new(),
        }
    }

    fn manager(&self) -> Vec<ChildRunSpec> {
        let primary = self.fabric.iter();
        primary.map(|target| fabric_part(target, FabricGoal::Manager)).collect()
    }

    /// A fabric that is already configured is not disabled and configured again.
    fn unless(&self, rack_step: RackStep) -> Vec<ChildRunSpec> {
        match rack_step {
            RackStep::FabricOff => {
                let others =
                    self.of_kind(Switch).filter(|target| Some(*target) != self.fabric.as_ref());
                let others = others.map(|target| fabric_part(target, FabricGoal::Configured));
                self.manager().into_iter().chain(others).collect()
            }
            RackStep::Firmware(_)
            | RackStep::FabricManager
            | RackStep::FabricConfigured
            | RackStep::PowerOff(_)
            | RackStep::PowerOn(_)
            | RackStep::Validate => Vec::new(),
        }
    }

    fn powered(&self, kind: TargetKind, to: DesiredPower) -> Vec<ChildRunSpec> {
        let name = match to {
            DesiredPower::On => "power-on",
            DesiredPower::Off => "power-off",
        };
        let effect = Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
        let step = run_step(name, POWER.0, POWER.1, effect);
        let part = |target: &TargetId| part(target, RunType::Power, vec![step.clone()]);
        self.of_kind(kind).map(part).collect()
    }

    /// Checks that every device is reachable with the desired firmware and power. If the shelves
    /// were switched off, machines and switches cannot answer and are left out.
    fn checked(&self) -> Vec<ChildRunSpec> {
        let power = self.power.map(|power| match power {
            PowerSequence::On | PowerSequence::Reset => DesiredPower::On,
            PowerSequence::Off => DesiredPower::Off,
        });
        let unfed = self.is_unfed();
        let requested = self.devices.iter().map(|device| &device.target);
        let requested = requested.filter(|target| !unfed || target.kind == PowerShelf);
        let part = |target: &TargetId| {
            let firmware = self.firmware.as_ref();
            let firmware =
                firmware.map_or_else(BTreeMap::new, |firmware| firmware.versions(target.kind));
            let work = DeviceWork::Check { firmware, power };
            let step = run_step("check", CHECK.0, CHECK.1, Effect::Device { work });
            part(target, RunType::Check, vec![step])
        };
        requested.map(part).collect()
    }

    fn is_unfed(&self) -> bool {
        self.power == Some(PowerSequence::Off) && self.of_kind(PowerShelf).next().is_some()
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let off = self.power.is_some_and(PowerSequence::goes_off);
        let shelves = self.of_kind(PowerShelf).count();
        let switches = self.of_kind(Switch).count();
        let mut message = Vec::new();
        if off && shelves > 0 {
            message.push(
                "a power shelf's own controller, and the BMCs that it feeds, may lose power and not answer until it is on again"
                    .to_string(),
            );
        }
        if off && shelves == 0 && switches > 0 {
            message.push("a switch's own controller may lose power with it".into());
        }
        if self.is_unfed() {
            message.push("machines and switches are not validated: nothing feeds them".into());
        }
        if self.fabric.is_some() {
            message.push(
                "the scale-up fabric is taken down and formed anew, unless every switch reports it configured"
                    .into(),
            );
        }
        message
    }
}

fn part(target: &TargetId, run_type: RunType, steps: Vec<RunStep>) -> ChildRunSpec {
    ChildRunSpec { target: target.clone(), run_type, steps }
}

fn fabric_part(target: &TargetId, to: FabricGoal) -> ChildRunSpec {
    let name = match to {
        FabricGoal::Off => "fabric-off",
        FabricGoal::Manager => "fabric-manager",
        FabricGoal::Configured => "fabric-configured",
    };
    let effect = Effect::Device { work: DeviceWork::Fabric { to } };
    part(target, RunType::Fabric, vec![run_step(name, FABRIC.0, FABRIC.1, effect)])
}
