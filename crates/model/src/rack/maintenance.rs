//! A maintenance of a rack: the request, the devices in its scope, and the resulting steps.
//!
//! Everything here is a function of the request and the devices in the rack, so a dry run uses the
//! same code as the operation. The request is stored in the operation's parameters, and a rerun
//! reads it from there.

mod gate;
mod params;
mod steps;

pub(crate) use gate::health_refusals;
pub use gate::{
    admit, admit_resume, check_empty, check_planned_impact, gates, refusing_gates, resume_gate,
};
pub use params::{
    FIRMWARE_SKIPPED, FIRMWARE_USED, NOTES, REFERENCE, TRIGGER, add_request_metadata, initiator,
    notes_from_params, request_from_params,
};
pub use steps::{RackLimits, RackStep, switched_power};

use super::{MaintenanceActivity, Rack, RackDevice, RackTurnInput, some_of};
use crate::blast_radius::{AffectedMachine, Impact};
use crate::firmware::{Firmware, FirmwareResolution};
use crate::gate::Overrides;
use crate::health::HealthImpact;
use crate::id::{FirmwareId, MachineId, PowerShelfId, RunId, SwitchId};
use crate::lifecycle::{Lifecycle, NewRun};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::target::{TargetId, TargetKind};
use serde::{Deserialize, Serialize};

/// The number of devices that a request may name.
pub const MAX_SCOPE: usize = 768;

/// The devices in scope. If all three lists are empty: all devices of the rack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MaintenanceScope {
    pub machines: Vec<MachineId>,
    pub switches: Vec<SwitchId>,
    pub power_shelves: Vec<PowerShelfId>,
}

impl MaintenanceScope {
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

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
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
pub enum RequestedActivity {
    /// The firmware to install; none means the default of the rack's hardware type.
    FirmwareUpgrade(Option<FirmwareId>),
    ConfigureNmxCluster,
    PowerSequence(PowerSequence),
}

impl RequestedActivity {
    pub const fn activity(&self) -> MaintenanceActivity {
        match self {
            Self::FirmwareUpgrade(_) => MaintenanceActivity::FirmwareUpgrade,
            Self::ConfigureNmxCluster => MaintenanceActivity::ConfigureNmxCluster,
            Self::PowerSequence(_) => MaintenanceActivity::PowerSequence,
        }
    }
}

/// A maintenance request. An empty list of activities means all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RackMaintenanceRequest {
    pub scope: MaintenanceScope,
    pub activities: Vec<RequestedActivity>,
}

impl RackMaintenanceRequest {
    /// Refuses too large scopes and duplicate activities.
    pub fn checked(self) -> Result<Self, Refusal> {
        let named = self.scope.named().len();
        if named > MAX_SCOPE {
            let problem = format!("names {named} devices");
            return Err(Refusal::invalid("scope", problem, format!("name at most {MAX_SCOPE}")));
        }
        for (index, requested) in self.activities.iter().enumerate() {
            let before = self.activities.iter().take(index);
            if before.into_iter().any(|one| one.activity() == requested.activity()) {
                return Err(Refusal::invalid(
                    &format!("scope.activities[{index}]"),
                    format!("asks for {} again", requested.activity().as_str()),
                    "ask for each activity once",
                ));
            }
        }
        Ok(self)
    }

    pub(super) fn asks(&self, activity: MaintenanceActivity) -> bool {
        self.activities.is_empty() || self.explicitly(activity)
    }

    fn explicitly(&self, activity: MaintenanceActivity) -> bool {
        self.activities.iter().any(|requested| requested.activity() == activity)
    }

    /// The firmware that the request names.
    pub fn firmware(&self) -> Option<&FirmwareId> {
        self.activities.iter().find_map(|requested| match requested {
            RequestedActivity::FirmwareUpgrade(named) => named.as_ref(),
            RequestedActivity::ConfigureNmxCluster | RequestedActivity::PowerSequence(_) => None,
        })
    }

    /// The power sequence, if power is switched.
    pub fn power(&self) -> Option<PowerSequence> {
        let requested = self.activities.iter().find_map(|requested| match requested {
            RequestedActivity::PowerSequence(sequence) => Some(*sequence),
            RequestedActivity::FirmwareUpgrade(_) | RequestedActivity::ConfigureNmxCluster => None,
        });
        requested.or(self.activities.is_empty().then(PowerSequence::default))
    }
}

/// The cause of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaintenanceTrigger {
    OnDemand,
    Ingestion,
    Reprovision,
}

impl MaintenanceTrigger {
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
pub struct PlannedMaintenance {
    pub request: RackMaintenanceRequest,
    pub trigger: MaintenanceTrigger,
    /// The devices in scope, ordered by kind and slot.
    pub devices: Vec<RackDevice>,
    pub steps: Vec<RunStep>,
    /// The affected machines, in scope or not.
    pub affected: Vec<AffectedMachine>,
    pub impact: Impact,
    pub firmware: Option<FirmwareId>,
    pub firmware_skipped: Option<String>,
    /// The named firmware is not in the catalogue: the operation fails, and the rack enters the
    /// error state.
    pub unknown: Option<FirmwareId>,
    /// Omissions and warnings.
    pub notes: Vec<String>,
}

impl PlannedMaintenance {
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
        params::params(self)
    }
}

/// Plans a request or a reprovision. `devices` are all devices of the rack; those out of scope
/// matter only as affected machines.
pub fn plan(
    rack: &Rack,
    devices: &[RackDevice],
    desired: RackMaintenanceRequest,
    trigger: MaintenanceTrigger,
    (firmware, limits): (FirmwareResolution, &RackLimits),
) -> Result<PlannedMaintenance, Refusal> {
    let mut notes = Vec::new();
    let scope = select(rack, devices, &desired, &mut notes)?;
    let fabric = fabric(devices, &scope, &desired, &mut notes)?;
    let (used, skipped, unknown) =
        match (desired.asks(MaintenanceActivity::FirmwareUpgrade), firmware) {
            (false, _) => (None, None, None),
            (true, FirmwareResolution::Use(firmware)) => (Some(*firmware), None, None),
            (true, FirmwareResolution::Skip(why)) => (None, Some(why), None),
            (true, FirmwareResolution::Unknown(id)) => (None, None, Some(id)),
        };
    let progress =
        steps::DeviceWorkPlan { devices: scope, firmware: used, fabric, power: desired.power() };
    let steps = match unknown {
        Some(_) => Vec::new(),
        None => progress.steps(limits),
    };
    notes.extend(progress.warnings());
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
    let (impact, affected) = affected_machines(devices, &progress);
    Ok(PlannedMaintenance {
        affected,
        impact,
        firmware: progress.firmware.as_ref().map(|firmware| firmware.id.clone()),
        devices: progress.devices,
        request: desired,
        trigger,
        steps,
        firmware_skipped: skipped,
        unknown,
        notes,
    })
}

/// Plans the ingestion of a rack that has found its devices. No operator can be asked, so machines
/// in service are left out, and so is what they use: the fabric, and the firmware of switches and
/// power shelves. A machine that waits for an operator is left out too.
pub fn ingestion(observed: &RackTurnInput) -> PlannedMaintenance {
    let mut notes = Vec::new();
    let serving: Vec<String> = observed
        .devices
        .iter()
        .filter(|device| device.in_service())
        .map(|device| device.target.to_string())
        .collect();
    if !serving.is_empty() {
        notes.push(format!("in service, and left alone with the fabric: {}", some_of(&serving)));
    }
    let devices = observed.devices.iter().filter(|device| !device.in_service());
    let (waiting, scope): (Vec<&RackDevice>, Vec<&RackDevice>) =
        devices.partition(|device| device.needs_operator());
    if !waiting.is_empty() {
        let names: Vec<String> = waiting.iter().map(|one| one.target.to_string()).collect();
        notes.push(format!("waiting for an operator, and left alone: {}", some_of(&names)));
    }
    let mut scope: Vec<RackDevice> = scope.into_iter().cloned().collect();
    exclude_blocked(&mut scope, &mut notes);
    exclude_unhealthy(&mut scope, &mut notes);
    in_order(&mut scope);
    let (firmware, skipped) = match &observed.firmware {
        FirmwareResolution::Use(firmware) if serving.is_empty() => {
            (Some(Firmware::clone(firmware)), None)
        }
        FirmwareResolution::Use(firmware) => machine_components_only(firmware, &mut notes),
        FirmwareResolution::Skip(why) => (None, Some(why.clone())),
        FirmwareResolution::Unknown(id) => (None, Some(format!("firmware {id} is not known"))),
    };
    if let Some(why) = &skipped {
        notes.insert(0, format!("no firmware is applied: {why}"));
    }
    let fabric = serving.is_empty().then(|| primary(&scope)).flatten();
    let power = Some(PowerSequence::On);
    let plan = steps::DeviceWorkPlan { devices: scope, firmware, fabric, power };
    PlannedMaintenance {
        request: RackMaintenanceRequest::default(),
        trigger: MaintenanceTrigger::Ingestion,
        steps: plan.steps(&observed.limits),
        affected: Vec::new(),
        impact: Impact::Restart,
        firmware: plan.firmware.as_ref().map(|firmware| firmware.id.clone()),
        firmware_skipped: skipped,
        unknown: None,
        devices: plan.devices,
        notes,
    }
}

/// Reduces a firmware to its components for machines, for a rack with machines in service.
fn machine_components_only(
    firmware: &Firmware,
    notes: &mut Vec<String>,
) -> (Option<Firmware>, Option<String>) {
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
    devices: &[RackDevice],
    desired: &RackMaintenanceRequest,
    notes: &mut Vec<String>,
) -> Result<Vec<RackDevice>, Refusal> {
    let mut scope = Vec::new();
    if desired.scope.is_full() {
        scope.extend_from_slice(devices);
        exclude_blocked(&mut scope, notes);
    }
    for (field, target) in desired.scope.named() {
        let found = devices.iter().find(|device| device.target == target).ok_or_else(|| {
            let problem = format!("{target} does not stand in {}", rack.head.id);
            Refusal::invalid(&field, problem, format!("see `farrier rack get {}`", rack.head.id))
        })?;
        if let Some(why) = &found.blocked {
            return Err(
                Refusal::new(Reason::DeviceBlocked, why.clone()).next(target.show_command())
            );
        }
        if !scope.contains(found) {
            scope.push(found.clone());
        }
    }
    if scope.is_empty() {
        let message = format!("{} has no device that could be maintained", rack.head.id);
        return Err(Refusal::new(Reason::RackEmpty, message)
            .next(format!("farrier rack get {}", rack.head.id)));
    }
    in_order(&mut scope);
    Ok(scope)
}

fn exclude_blocked(scope: &mut Vec<RackDevice>, notes: &mut Vec<String>) {
    let blocked: Vec<String> = scope.iter().filter_map(|device| device.blocked.clone()).collect();
    if !blocked.is_empty() {
        notes.push(format!("left alone: {}", some_of(&blocked)));
        scope.retain(|device| device.blocked.is_none());
    }
}

/// Leaves out unhealthy devices: no operator can override the health gate here, and one unhealthy
/// device must not delay the others.
fn exclude_unhealthy(scope: &mut Vec<RackDevice>, notes: &mut Vec<String>) {
    let ill = |device: &RackDevice| {
        let health = &device.health;
        let none = &Overrides::default();
        health.check_permitted(&device.target, "maintenance", HealthImpact::Change, none).err()
    };
    let message: Vec<String> =
        scope.iter().filter_map(ill).map(|refusal| refusal.message).collect();
    if !message.is_empty() {
        notes.push(format!("left alone: {}", some_of(&message)));
        scope.retain(|device| ill(device).is_none());
    }
}

fn in_order(scope: &mut [RackDevice]) {
    scope.sort_by(|a, b| (a.target.kind, a.position()).cmp(&(b.target.kind, b.position())));
}

/// The primary switch: the one in the lowest slot.
fn primary(devices: &[RackDevice]) -> Option<TargetId> {
    let switches = devices.iter().filter(|device| device.target.kind == TargetKind::Switch);
    switches.min_by_key(|device| device.position()).map(|device| device.target.clone())
}

/// The switch that manages the fabric, if the fabric is to be configured. The scope must contain
/// it.
fn fabric(
    devices: &[RackDevice],
    scope: &[RackDevice],
    desired: &RackMaintenanceRequest,
    notes: &mut Vec<String>,
) -> Result<Option<TargetId>, Refusal> {
    if !desired.asks(MaintenanceActivity::ConfigureNmxCluster) {
        return Ok(None);
    }
    let (why, name) = match primary(devices) {
        None => ("no switch stands in the rack".to_string(), String::new()),
        Some(id) if scope.iter().any(|device| device.target == id) => return Ok(Some(id)),
        Some(id) => (format!("its primary switch {id} is not in scope"), id.to_string()),
    };
    if !desired.explicitly(MaintenanceActivity::ConfigureNmxCluster) {
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
fn affected_machines(
    devices: &[RackDevice],
    plan: &steps::DeviceWorkPlan,
) -> (Impact, Vec<AffectedMachine>) {
    let of =
        |devices: &[RackDevice]| devices.iter().filter_map(|one| one.affected.clone()).collect();
    let has = |kind| plan.devices.iter().any(|one| one.target.kind == kind);
    let flashes = |kind| {
        let firmware = plan.firmware.as_ref();
        let parts = firmware.and_then(|firmware| firmware.components.get(&kind));
        parts.is_some_and(|parts| !parts.is_empty())
    };
    let off = plan.power.is_some_and(PowerSequence::goes_off);
    let shelves: Vec<PowerShelfId> =
        plan.devices.iter().filter_map(RackDevice::power_shelf).filter(|_| off).collect();
    let unpowered = |one: &&RackDevice| !shelves.is_empty() && one.loses_power(&shelves, devices);
    let switch_unpowered =
        devices.iter().filter(unpowered).any(|one| one.target.kind == TargetKind::Switch);
    let switches_down =
        switch_unpowered || (has(TargetKind::Switch) && (off || flashes(TargetKind::Switch)));
    let in_scope = |one: &RackDevice| plan.devices.iter().any(|other| other.target == one.target);
    let mut all: Vec<AffectedMachine> = match (off, flashes(TargetKind::Machine)) {
        (true, _) if !shelves.is_empty() => {
            let lost = devices.iter().filter(|one| in_scope(one) || unpowered(one));
            lost.filter_map(|one| one.affected.clone()).collect()
        }
        (true, _) | (false, true) => of(&plan.devices),
        (false, false) => Vec::new(),
    };
    let impact = match (all.is_empty(), off) {
        (true, _) => Impact::FabricLoss,
        (false, true) => Impact::PowerLoss,
        (false, false) => Impact::Restart,
    };
    if plan.fabric.is_some() || switches_down {
        let needed = devices
            .iter()
            .filter_map(|one| one.affected.clone())
            .filter(AffectedMachine::is_needed);
        let others: Vec<AffectedMachine> = needed.filter(|one| !all.contains(one)).collect();
        all.extend(others);
    }
    (impact, all)
}
