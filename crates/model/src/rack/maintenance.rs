//! A maintenance of a rack: the request, the devices in its scope, and the resulting steps.
//!
//! Everything here is a function of the request and the devices in the rack, so a dry run uses the
//! same code as the operation. The request is stored in the operation's parameters, and a rerun
//! reads it from there.

mod gate;
mod legs;
mod words;

pub(crate) use gate::ill;
pub use gate::{admit, gates, interlock, may_go_on};
pub use legs::{Leg, Limits};
pub use words::{
    FIRMWARE_SKIPPED, FIRMWARE_USED, FORCED, NOTES, REFERENCE, TRIGGER, accepted, initiator,
    notes_of, record, wanted_of,
};

use super::{Activity, Device, Rack, Seen, some_of};
use crate::blast::{Dark, Fate};
use crate::firmware::{Firmware, Resolution};
use crate::health::Wish;
use crate::id::{FirmwareId, MachineId, PowerShelfId, RunId, SwitchId};
use crate::lifecycle::{Lifecycle, NewRun};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};
use serde::{Deserialize, Serialize};

/// The number of devices that a request may name.
pub const MAX_SCOPE: usize = 768;

/// The devices in scope. If all three lists are empty: all devices of the rack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    pub machines: Vec<MachineId>,
    pub switches: Vec<SwitchId>,
    pub power_shelves: Vec<PowerShelfId>,
}

impl Scope {
    pub fn is_full(&self) -> bool {
        self.machines.is_empty() && self.switches.is_empty() && self.power_shelves.is_empty()
    }

    /// Every named device, with the request field that names it.
    pub fn named(&self) -> Vec<(String, TargetId)> {
        let field = |name: &str, index: usize| format!("scope.{name}[{index}]");
        let machines = self.machines.iter().enumerate();
        let switches = self.switches.iter().enumerate();
        let shelves = self.power_shelves.iter().enumerate();
        machines
            .map(|(at, id)| (field("machine_ids", at), TargetId::from(id)))
            .chain(switches.map(|(at, id)| (field("switch_ids", at), TargetId::from(id))))
            .chain(shelves.map(|(at, id)| (field("power_shelf_ids", at), TargetId::from(id))))
            .collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerSequence {
    /// The default: it never removes power.
    #[default]
    On,
    Off,
    Reset,
}

impl PowerSequence {
    pub const ALL: [Self; 3] = [Self::On, Self::Off, Self::Reset];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Reset => "reset",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }

    pub const fn goes_off(self) -> bool {
        match self {
            Self::On => false,
            Self::Off | Self::Reset => true,
        }
    }
}

/// One requested activity with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// The firmware to install; none means the default of the rack's hardware type.
    FirmwareUpgrade(Option<FirmwareId>),
    ConfigureNmxCluster,
    PowerSequence(PowerSequence),
}

impl Asked {
    pub const fn activity(&self) -> Activity {
        match self {
            Self::FirmwareUpgrade(_) => Activity::FirmwareUpgrade,
            Self::ConfigureNmxCluster => Activity::ConfigureNmxCluster,
            Self::PowerSequence(_) => Activity::PowerSequence,
        }
    }
}

/// A maintenance request. An empty list of activities means all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    pub scope: Scope,
    pub activities: Vec<Asked>,
}

impl Wanted {
    /// Refuses too large scopes and duplicate activities.
    pub fn checked(self) -> Result<Self, Refusal> {
        let named = self.scope.named().len();
        if named > MAX_SCOPE {
            let problem = format!("names {named} devices");
            return Err(Refusal::invalid("scope", problem, format!("name at most {MAX_SCOPE}")));
        }
        for (index, asked) in self.activities.iter().enumerate() {
            let before = self.activities.iter().take(index);
            if before.into_iter().any(|one| one.activity() == asked.activity()) {
                return Err(Refusal::invalid(
                    &format!("scope.activities[{index}]"),
                    format!("asks for {} again", asked.activity().as_str()),
                    "ask for each activity once",
                ));
            }
        }
        Ok(self)
    }

    fn asks(&self, activity: Activity) -> bool {
        self.activities.is_empty() || self.explicitly(activity)
    }

    fn explicitly(&self, activity: Activity) -> bool {
        self.activities.iter().any(|asked| asked.activity() == activity)
    }

    /// The firmware that the request names.
    pub fn firmware(&self) -> Option<&FirmwareId> {
        self.activities.iter().find_map(|asked| match asked {
            Asked::FirmwareUpgrade(named) => named.as_ref(),
            Asked::ConfigureNmxCluster | Asked::PowerSequence(_) => None,
        })
    }

    /// The power sequence, if power is switched.
    pub fn power(&self) -> Option<PowerSequence> {
        let asked = self.activities.iter().find_map(|asked| match asked {
            Asked::PowerSequence(sequence) => Some(*sequence),
            Asked::FirmwareUpgrade(_) | Asked::ConfigureNmxCluster => None,
        });
        asked.or(self.activities.is_empty().then(PowerSequence::default))
    }
}

/// The cause of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    OnDemand,
    Ingestion,
    Reprovision,
}

impl Trigger {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Ingestion => "ingestion",
            Self::Reprovision => "reprovision",
        }
    }
}

/// The plan of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub wanted: Wanted,
    pub trigger: Trigger,
    /// The devices in scope, ordered by kind and slot.
    pub devices: Vec<Device>,
    pub steps: Vec<RunStep>,
    /// The affected machines, in scope or not.
    pub dark: Vec<Dark>,
    pub fate: Fate,
    pub firmware: Option<FirmwareId>,
    pub firmware_skipped: Option<String>,
    /// The named firmware is not in the catalogue: the operation fails, and the rack enters the
    /// error state.
    pub unknown: Option<FirmwareId>,
    /// Omissions and warnings.
    pub notes: Vec<String>,
}

impl Planned {
    pub fn claims(&self) -> Vec<TargetId> {
        self.devices.iter().map(|device| device.target.clone()).collect()
    }

    /// The run on the rack for this plan.
    pub fn new_run(&self, rack: &Rack, id: &RunId, initiator: String) -> NewRun {
        NewRun {
            id: id.clone(),
            target: rack.target(),
            run_type: RunType::RackMaintenance,
            steps: self.steps.clone(),
            request_id: id.to_string(),
            initiator,
            part_of: None,
            reports_to: Some(rack.subject()),
            claims: self.claims(),
            params: self.params(),
        }
    }

    pub fn params(&self) -> Params {
        words::params(self)
    }
}

/// Plans a request or a reprovision. `devices` are all devices of the rack; those out of scope
/// matter only as affected machines.
pub fn plan(
    rack: &Rack,
    devices: &[Device],
    wanted: Wanted,
    trigger: Trigger,
    (firmware, limits): (Resolution, &Limits),
) -> Result<Planned, Refusal> {
    let mut notes = Vec::new();
    let scope = select(rack, devices, &wanted, &mut notes)?;
    let fabric = fabric(devices, &scope, &wanted, &mut notes)?;
    let (used, skipped, unknown) = match (wanted.asks(Activity::FirmwareUpgrade), firmware) {
        (false, _) => (None, None, None),
        (true, Resolution::Use(firmware)) => (Some(*firmware), None, None),
        (true, Resolution::Skip(why)) => (None, Some(why), None),
        (true, Resolution::Unknown(id)) => (None, None, Some(id)),
    };
    let course = legs::Course { devices: scope, firmware: used, fabric, power: wanted.power() };
    let steps = match unknown {
        Some(_) => Vec::new(),
        None => course.steps(limits),
    };
    notes.extend(course.warnings());
    if let Some(why) = &skipped {
        notes.insert(0, format!("no firmware is applied: {why}"));
    }
    if let Some(id) = &unknown {
        let rack = &rack.head.id;
        notes.insert(
            0,
            format!("firmware {id} is not in the catalogue: it fails, and leaves {rack} in Error"),
        );
    }
    let (fate, dark) = dark(devices, &course);
    Ok(Planned {
        dark,
        fate,
        firmware: course.firmware.as_ref().map(|firmware| firmware.id.clone()),
        devices: course.devices,
        wanted,
        trigger,
        steps,
        firmware_skipped: skipped,
        unknown,
        notes,
    })
}

/// Plans the ingestion of a rack that has found its devices. No operator can be asked, so machines
/// in service are left out, and so is what they use: the fabric, and the firmware of switches and
/// power shelves.
pub fn ingestion(seen: &Seen) -> Planned {
    let mut notes = Vec::new();
    let serving: Vec<String> = seen
        .devices
        .iter()
        .filter(|device| device.in_service())
        .map(|device| device.target.to_string())
        .collect();
    if !serving.is_empty() {
        notes.push(format!("in service, and left alone with the fabric: {}", some_of(&serving)));
    }
    let devices = seen.devices.iter().filter(|device| !device.in_service());
    let mut scope: Vec<Device> = devices.cloned().collect();
    leave_blocked(&mut scope, &mut notes);
    leave_ill(&mut scope, &mut notes);
    in_order(&mut scope);
    let (firmware, skipped) = match &seen.firmware {
        Resolution::Use(firmware) if serving.is_empty() => (Some(Firmware::clone(firmware)), None),
        Resolution::Use(firmware) => spare(firmware, &mut notes),
        Resolution::Skip(why) => (None, Some(why.clone())),
        Resolution::Unknown(id) => (None, Some(format!("firmware {id} is not known"))),
    };
    if let Some(why) = &skipped {
        notes.insert(0, format!("no firmware is applied: {why}"));
    }
    let fabric = serving.is_empty().then(|| primary(&scope)).flatten();
    let power = Some(PowerSequence::On);
    let course = legs::Course { devices: scope, firmware, fabric, power };
    Planned {
        wanted: Wanted::default(),
        trigger: Trigger::Ingestion,
        steps: course.steps(&seen.limits),
        dark: Vec::new(),
        fate: Fate::Restart,
        firmware: course.firmware.as_ref().map(|firmware| firmware.id.clone()),
        firmware_skipped: skipped,
        unknown: None,
        devices: course.devices,
        notes,
    }
}

/// Reduces a firmware to its components for machines, for a rack with machines in service.
fn spare(firmware: &Firmware, notes: &mut Vec<String>) -> (Option<Firmware>, Option<String>) {
    let mut left = firmware.clone();
    left.components.retain(|kind, _| *kind == TargetKind::Machine);
    let has = |one: &Firmware| one.components.values().any(|parts| !parts.is_empty());
    let why = "switches and power shelves are not flashed under machines that are in service";
    if !has(&left) {
        return (None, Some(why.into()));
    }
    if left.components != firmware.components {
        notes.push(why.into());
    }
    (Some(left), None)
}

/// The devices in scope. A named device that is blocked is an error; with a full scope it is left
/// out.
fn select(
    rack: &Rack,
    devices: &[Device],
    wanted: &Wanted,
    notes: &mut Vec<String>,
) -> Result<Vec<Device>, Refusal> {
    let mut scope = Vec::new();
    if wanted.scope.is_full() {
        scope.extend_from_slice(devices);
        leave_blocked(&mut scope, notes);
    }
    for (field, target) in wanted.scope.named() {
        let found = devices.iter().find(|device| device.target == target).ok_or_else(|| {
            let problem = format!("{target} does not stand in {}", rack.head.id);
            Refusal::invalid(&field, problem, format!("see `farrier rack get {}`", rack.head.id))
        })?;
        if let Some(why) = &found.blocked {
            return Err(Refusal::precondition("DEVICE_BLOCKED", why.clone()).next(target.get()));
        }
        if !scope.contains(found) {
            scope.push(found.clone());
        }
    }
    if scope.is_empty() {
        let said = format!("{} has no device that could be maintained", rack.head.id);
        return Err(Refusal::precondition("RACK_EMPTY", said)
            .next(format!("farrier rack get {}", rack.head.id)));
    }
    in_order(&mut scope);
    Ok(scope)
}

fn leave_blocked(scope: &mut Vec<Device>, notes: &mut Vec<String>) {
    let blocked: Vec<String> = scope.iter().filter_map(|device| device.blocked.clone()).collect();
    if !blocked.is_empty() {
        notes.push(format!("left alone: {}", some_of(&blocked)));
        scope.retain(|device| device.blocked.is_none());
    }
}

/// Leaves out unhealthy devices: no operator can override the health gate here, and one unhealthy
/// device must not delay the others.
fn leave_ill(scope: &mut Vec<Device>, notes: &mut Vec<String>) {
    let ill = |device: &Device| {
        let health = &device.health;
        health.permit(&device.target, "maintenance", Wish::Change, None).err()
    };
    let said: Vec<String> = scope.iter().filter_map(ill).map(|refusal| refusal.said).collect();
    if !said.is_empty() {
        notes.push(format!("left alone: {}", some_of(&said)));
        scope.retain(|device| ill(device).is_none());
    }
}

fn in_order(scope: &mut [Device]) {
    scope.sort_by(|a, b| (a.target.kind, a.place()).cmp(&(b.target.kind, b.place())));
}

/// The primary switch: the one in the lowest slot.
fn primary(devices: &[Device]) -> Option<TargetId> {
    let switches = devices.iter().filter(|device| device.target.kind == TargetKind::Switch);
    switches.min_by_key(|device| device.place()).map(|device| device.target.clone())
}

/// The switch that manages the fabric, if the fabric is to be configured. The scope must contain
/// it.
fn fabric(
    devices: &[Device],
    scope: &[Device],
    wanted: &Wanted,
    notes: &mut Vec<String>,
) -> Result<Option<TargetId>, Refusal> {
    if !wanted.asks(Activity::ConfigureNmxCluster) {
        return Ok(None);
    }
    let (why, name) = match primary(devices) {
        None => ("no switch stands in the rack".to_string(), String::new()),
        Some(id) if scope.iter().any(|device| device.target == id) => return Ok(Some(id)),
        Some(id) => (format!("its primary switch {id} is not in scope"), id.to_string()),
    };
    if !wanted.explicitly(Activity::ConfigureNmxCluster) {
        notes.push(format!("the NMX cluster is not configured: {why}"));
        return Ok(None);
    }
    let instead = match name.is_empty() {
        true => "leave ConfigureNmxCluster out".to_string(),
        false => format!("name {name} too, or leave ConfigureNmxCluster out"),
    };
    Err(Refusal::invalid("scope.switch_ids", format!("cannot form a fabric: {why}"), instead))
}

/// The affected machines: those whose power or firmware is changed, or whose power feed goes off.
/// Machines in service are also affected when the fabric is configured or its switches go down.
fn dark(devices: &[Device], course: &legs::Course) -> (Fate, Vec<Dark>) {
    let of = |devices: &[Device]| devices.iter().filter_map(|one| one.dark.clone()).collect();
    let has = |kind| course.devices.iter().any(|one| one.target.kind == kind);
    let flashes = |kind| {
        let firmware = course.firmware.as_ref();
        let parts = firmware.and_then(|firmware| firmware.components.get(&kind));
        parts.is_some_and(|parts| !parts.is_empty())
    };
    let off = course.power.is_some_and(PowerSequence::goes_off);
    let switches_down = has(TargetKind::Switch) && (off || flashes(TargetKind::Switch));
    let mut all: Vec<Dark> = match (off, flashes(TargetKind::Machine)) {
        (true, _) if has(TargetKind::PowerShelf) => of(devices),
        (true, _) | (false, true) => of(&course.devices),
        (false, false) => Vec::new(),
    };
    let fate = match (all.is_empty(), off) {
        (true, _) => Fate::LoseFabric,
        (false, true) => Fate::LosePower,
        (false, false) => Fate::Restart,
    };
    if course.fabric.is_some() || switches_down {
        let needed = devices.iter().filter_map(|one| one.dark.clone()).filter(Dark::is_needed);
        let others: Vec<Dark> = needed.filter(|one| !all.contains(one)).collect();
        all.extend(others);
    }
    (fate, all)
}
