//! The input of a rack's lifecycle: its devices, its operations, and the firmware of an ingestion.

use super::maintenance::{RackLimits, RackStep, request_from_params};
use super::{
    Counts, DevicePower, MaintenanceActivity, RackFailure, RackFailurePhase, format_power,
};
use crate::blast_radius::{AffectedMachine, ImpactObjection, ServingNode, loses_power};
use crate::condition::ConditionType;
use crate::device::Device;
use crate::effect::DesiredPower;
use crate::fault::FaultCode;
use crate::firmware::FirmwareResolution;
use crate::health::HealthSummary;
use crate::id::{PowerShelfId, RunId};
use crate::lifecycle::DeviceFailure;
use crate::machine::Machine;
use crate::machine::view::EffectiveState;
use crate::power_shelf::topology::stays_on;
use crate::power_shelf::{PowerShelf, PowerShelfState};
use crate::run::{Run, RunPhase, StopRequest};
use crate::switch::{Switch, SwitchState};
use crate::target::{TargetId, TargetKind};

/// The state of a device in a rack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RackDeviceState {
    Machine(EffectiveState),
    /// The name of the state of a switch or a power shelf.
    Device(&'static str),
    /// Its record cannot be read.
    Unreadable,
}

impl RackDeviceState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine(state) => state.as_str(),
            Self::Device(name) => name,
            Self::Unreadable => "Unreadable",
        }
    }
}

/// A device in a rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackDevice {
    pub target: TargetId,
    pub slot: Option<u32>,
    /// Its height in rack units; None means unknown.
    pub height_u: Option<u32>,
    /// The power shelves that feed it; empty means unknown.
    pub feeds: Vec<PowerShelfId>,
    pub state: RackDeviceState,
    /// The device has come into service. Machines have no lifecycle to wait for, so they are always
    /// ready.
    pub ready: bool,
    pub active_run: Option<RunId>,
    /// None when unknown.
    pub power: Option<DesiredPower>,
    /// The objection to taking it down; machines only.
    pub affected: Option<AffectedMachine>,
    /// True for a power shelf that is on, if nothing is about to change that.
    pub stays_on: bool,
    /// The reason why no operation may touch it.
    pub blocked: Option<String>,
    /// The summary of its health reports.
    pub health: HealthSummary,
}

impl RackDevice {
    /// `node` is the node that uses the machine, if there is one.
    pub fn of_machine(machine: &Machine, node: Option<&ServingNode>) -> Self {
        let flag = [ConditionType::Retired, ConditionType::Rma]
            .into_iter()
            .find(|flag| machine.is(*flag))
            .map(|flag| format!("{} is flagged {}", machine.id, flag.as_str()));
        Self {
            target: TargetId::from(&machine.id),
            slot: machine.spec.slot,
            height_u: machine.spec.height_u,
            feeds: machine.spec.feeds.clone(),
            state: RackDeviceState::Machine(machine.effective_state()),
            ready: true,
            active_run: machine.active_run.clone(),
            power: None,
            affected: Some(AffectedMachine::of(machine, node)),
            stays_on: false,
            blocked: flag,
            health: machine.health.clone(),
        }
    }

    pub fn of_switch(switch: &Switch) -> Self {
        Self::of_device(switch, matches!(switch.state, SwitchState::Ready))
    }

    pub fn of_shelf(shelf: &PowerShelf) -> Self {
        let device = Self::of_device(shelf, matches!(shelf.state, PowerShelfState::Ready));
        Self { stays_on: stays_on(shelf), ..device }
    }

    fn of_device<D: Device>(device: &D, ready: bool) -> Self {
        let (head, spec) = (device.head(), device.spec());
        Self {
            target: device.target(),
            slot: head.slot,
            height_u: spec.height_u,
            feeds: spec.feeds.clone(),
            state: RackDeviceState::Device(device.state_name()),
            ready,
            active_run: head.active_run.clone(),
            power: device.facts().power,
            affected: None,
            stays_on: false,
            blocked: head.deleted.then(|| format!("{} is marked for deletion", head.id)),
            health: head.health.clone(),
        }
    }

    /// A device whose record cannot be read. It is shown but not touched, and does not block the
    /// other devices.
    pub fn unreadable(target: TargetId, message: &str) -> Self {
        Self {
            affected: target.machine().map(AffectedMachine::unreadable),
            stays_on: false,
            blocked: Some(format!("{target} cannot be worked on: {message}")),
            target,
            slot: None,
            height_u: None,
            feeds: Vec::new(),
            state: RackDeviceState::Unreadable,
            ready: false,
            active_run: None,
            power: None,
            health: HealthSummary::default(),
        }
    }

    /// True if it loses power when these shelves are switched off. `devices` are all devices of
    /// the rack. A feed that is not in the rack is not known to stay on. Without a feed in the
    /// rack, any shelf of the rack may feed it.
    pub(crate) fn loses_power(&self, off: &[PowerShelfId], devices: &[Self]) -> bool {
        let shelf = |id: &PowerShelfId| devices.iter().find(|one| one.target == TargetId::from(id));
        let feeds: Vec<PowerShelfId> =
            self.feeds.iter().filter(|id| shelf(id).is_some()).cloned().collect();
        feeds.is_empty() || loses_power(&feeds, off, |id| shelf(id).is_some_and(|one| one.stays_on))
    }

    /// The id of a power shelf.
    pub(crate) fn power_shelf(&self) -> Option<PowerShelfId> {
        (self.target.kind == TargetKind::PowerShelf)
            .then(|| PowerShelfId::trusted(self.target.as_str()))
    }

    /// True if it is a machine whose workloads have not been moved away.
    pub fn in_service(&self) -> bool {
        let against = self.affected.as_ref().and_then(|affected| affected.objection.as_ref());
        matches!(against, Some(ImpactObjection::InService | ImpactObjection::Serves(_)))
    }

    /// True if it is a machine whose last operation failed and waits for an operator. Another
    /// operation would clear that, and the failed one could no longer be resumed.
    pub const fn needs_operator(&self) -> bool {
        matches!(self.state, RackDeviceState::Machine(EffectiveState::Attention))
    }

    /// The sort key: from the bottom to the top, devices without a slot last.
    pub(crate) fn position(&self) -> (u32, &str) {
        (self.slot.unwrap_or(u32::MAX), self.target.as_str())
    }
}

/// An operation on the rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackOperation {
    pub id: RunId,
    pub phase: RunPhase,
    /// The current or last step; none before the first.
    pub step: Option<RackStep>,
    /// Child runs are active, although the operation may have ended.
    pub children_active: bool,
    pub claims: Vec<TargetId>,
    pub failure: Option<RackFailure>,
    /// The operation that this one reruns.
    pub rerun_of: Option<RunId>,
    /// It installs firmware, as an ingestion does: a machine that was left out is ingested by it.
    pub brings_into_service: bool,
    /// The reason why an accepted operation may not begin now; computed only before it has begun.
    pub against: Option<String>,
}

impl RackOperation {
    /// `failed` is the child run that caused its failure, if any.
    pub fn of(run: &Run, children_active: bool, failed: Option<&Run>) -> Self {
        let last = run.progress.steps.iter().rfind(|step| step.started_at.is_some());
        let rack_step = last.and_then(|step| run.plan_step(step));
        let step = rack_step.and_then(|step| RackStep::parse(&step.name));
        Self {
            id: run.spec.id.clone(),
            phase: run.phase(),
            step,
            children_active,
            claims: run.spec.held_targets.clone(),
            failure: trouble(run, step, failed),
            rerun_of: run.spec.rerun_of.clone(),
            brings_into_service: request_from_params(&run.spec.params)
                .asks(MaintenanceActivity::FirmwareUpgrade),
            against: None,
        }
    }

    /// True if a power sequence stopped before its end.
    pub fn stopped_switching(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| failure.phase == RackFailurePhase::PowerSequence)
    }

    /// Adds the power states that a stopped sequence left behind. The failure of a child run
    /// contains them already.
    pub fn set_power(&mut self, devices: &[DevicePower]) {
        if let Some(RackFailure { failure: error, .. }) = &mut self.failure
            && FaultCode::parse(&error.code) != Some(FaultCode::PartFailed)
            && !devices.is_empty()
        {
            error.message = format!("{}; {}", error.message, format_power(devices));
        }
    }

    /// True if the operation and all its child runs have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.ended() && !self.children_active
    }

    pub(crate) fn describe(&self) -> String {
        let at = self.step.map_or("not begun", RackStep::as_str);
        match self.phase.ended() {
            true => format!("parts of {} are still at work", self.id),
            false => format!("{} is at work: {at}", self.id),
        }
    }
}

fn trouble(run: &Run, rack_step: Option<RackStep>, failed: Option<&Run>) -> Option<RackFailure> {
    let id = &run.spec.id;
    let during = RackFailurePhase::of(rack_step);
    let restarted = format!("farrier operation rerun {id}");
    match (run.phase(), &run.progress.failure) {
        (RunPhase::Pending | RunPhase::Running | RunPhase::Succeeded, _) => None,
        (RunPhase::Failed | RunPhase::Canceled, Some(failure)) => {
            let part = failed.and_then(|part| part.progress.failure.as_ref());
            let fault = part.map_or(&failure.fault, |failure| &failure.fault);
            let error = DeviceFailure {
                message: fault.message.clone(),
                run: Some(failed.map_or(id, |part| &part.spec.id).clone()),
                code: fault.code.as_str().into(),
            };
            let retry = run.command("retry-step");
            let next_command = if run.spec.steps.is_empty() { restarted } else { retry };
            let device = failed.map(|part| part.spec.target.clone());
            let canceled = false;
            Some(RackFailure { phase: during, device, failure: error, next_command, canceled })
        }
        (RunPhase::Failed | RunPhase::Canceled, None) => {
            let by = run.progress.stop_request.as_ref().map(StopRequest::describe);
            let text = format!(
                "{id} was canceled{}, and what it began may be half done",
                by.unwrap_or_default()
            );
            let error = DeviceFailure { message: text, run: Some(id.clone()), code: String::new() };
            let (next_command, canceled) = (restarted, true);
            let (device, failure) = (None, error);
            Some(RackFailure { phase: during, device, failure, next_command, canceled })
        }
    }
}

#[derive(Debug, Clone)]
pub struct RackTurnInput {
    /// The id for a run that this turn may start.
    pub fresh: RunId,
    pub devices: Vec<RackDevice>,
    /// The operations that the rack names, as far as they exist.
    pub operations: Vec<RackOperation>,
    /// The firmware of an ingestion.
    pub firmware: FirmwareResolution,
    pub limits: RackLimits,
}

impl RackTurnInput {
    pub(crate) fn operation(&self, id: &RunId) -> Option<&RackOperation> {
        self.operations.iter().find(|one| one.id == *id)
    }

    /// A run that no longer exists counts as ended.
    pub(crate) fn is_over(&self, id: &RunId) -> bool {
        self.operation(id).is_none_or(RackOperation::is_over)
    }

    /// The reason why an accepted operation may not begin.
    pub(crate) fn against(&self, id: &RunId) -> Option<&str> {
        self.operation(id)?.against.as_deref()
    }

    pub(crate) fn went_well(&self, id: &RunId) -> bool {
        self.operation(id).is_some_and(|one| one.phase == RunPhase::Succeeded)
    }

    /// True if one of these operations includes the device that failed. A failure without a device
    /// concerns all of them.
    pub(crate) fn touches(&self, ids: &[RunId], cause: &RackFailure) -> bool {
        let mut at_work = ids.iter().filter_map(|id| self.operation(id));
        cause.device.as_ref().is_none_or(|device| at_work.any(|one| one.claims.contains(device)))
    }

    /// True if `one` reruns `of`.
    pub(crate) fn is_anew(&self, one: &RunId, of: &RunId) -> bool {
        self.operation(one).is_some_and(|one| one.rerun_of.as_ref() == Some(of))
    }

    pub(crate) fn going<'a>(&'a self, ids: &'a [RunId]) -> impl Iterator<Item = &'a RackOperation> {
        ids.iter().filter_map(|id| self.operation(id)).filter(|one| !one.is_over())
    }

    pub(crate) fn any_going(&self, ids: &[RunId]) -> bool {
        self.going(ids).next().is_some()
    }

    /// The failure of the first operation that did not succeed.
    pub(crate) fn trouble(&self, ids: &[RunId]) -> Option<RackFailure> {
        ids.iter().find_map(|id| match self.operation(id) {
            Some(operation) => operation.failure.clone(),
            None => Some(RackFailure {
                phase: RackFailurePhase::Validation,
                device: None,
                failure: DeviceFailure {
                    message: format!("{id} is not there any more, and its end is not known"),
                    run: Some(id.clone()),
                    code: String::new(),
                },
                next_command: "farrier rack maintenance start …".into(),
                canceled: false,
            }),
        })
    }

    /// Describes the devices that are missing for the rack to be complete.
    pub(crate) fn missing(&self, expected: Counts) -> Vec<String> {
        let there = Counts::of(self.devices.iter().map(|device| &device.target));
        missing_devices(expected, there, &self.devices)
    }
}

/// What a rack in which these devices stand waits for: the expected ones that are missing, and
/// those of `known` that have not come into service.
pub(super) fn missing_devices(
    expected: Counts,
    there: Counts,
    known: &[RackDevice],
) -> Vec<String> {
    let waiting = known.iter().filter(|device| !device.ready);
    let waiting = waiting.map(|device| format!("{} is {}", device.target, device.state.as_str()));
    let mut missing = expected.missing_from(there);
    missing.extend(waiting);
    if there == Counts::default() && missing.is_empty() {
        missing.push("no device stands in it".into());
    }
    missing
}
