//! The gates of a rack maintenance. A dry run shows all refusals; a request is refused with the
//! first.

use super::super::{Rack, RackDevice, RackState};
use super::{MaintenanceTrigger, PlannedMaintenance, RackStep};
use crate::blast_radius::{AffectedMachine, Impact, ImpactObjection, check_impact};
use crate::gate::{Gate, Overrides, gate_of, gates_of, name_all, remove_from};
use crate::health::{HealthImpact, HealthSummary};
use crate::id::{PowerShelfId, RackId};
use crate::lifecycle::Lifecycle;
use crate::refusal::{Reason, Refusal};
use crate::run::Run;
use crate::target::{TargetId, TargetKind};
use std::collections::BTreeSet;

/// All refusals: by the state of the rack, by operations that hold its devices, by health reports,
/// and by affected machines that are needed.
pub fn gates(rack: &Rack, planned: &PlannedMaintenance, overrides: &Overrides) -> Vec<Refusal> {
    let state = admit(rack, planned.trigger).err();
    let claimed =
        planned.devices.iter().filter_map(|device| refuse_held(rack, device, planned.trigger));
    // With an unknown firmware the affected machines are unknown too.
    let affected = if planned.unknown.is_some() {
        None
    } else {
        check_planned_impact(planned, overrides).err()
    };
    let ill = health_refusals(rack, &planned.devices, overrides);
    let mut refusals: Vec<Refusal> =
        state.into_iter().chain(claimed).chain(ill).chain(affected).collect();
    name_all(&mut refusals, overrides);
    refusals
}

/// The health reports of the rack and its devices that prevent a start.
pub(crate) fn health_refusals(
    rack: &Rack,
    devices: &[RackDevice],
    overrides: &Overrides,
) -> Vec<Refusal> {
    let own = (rack.target(), &rack.head.health);
    let all = devices.iter().map(|device| (device.target.clone(), &device.health));
    let permit = |(target, health): (TargetId, &HealthSummary)| {
        health.check_permitted(&target, "maintenance", HealthImpact::Change, overrides).err()
    };
    [own].into_iter().chain(all).filter_map(permit).collect()
}

/// The documented preconditions, whatever the scope: the rack is Ready or in Error, and no other
/// maintenance is pending.
pub fn admit(rack: &Rack, trigger: MaintenanceTrigger) -> Result<(), Refusal> {
    let id = &rack.head.id;
    let why = format!("farrier why {id}");
    let not_ready =
        |message: String| Err(Refusal::new(Reason::RackNotReady, message).next(why.clone()));
    if rack.head.deleted {
        return not_ready(format!("{id} is marked for deletion"));
    }
    if let Some(pending) = &rack.reprovision_requested {
        let message = format!("a reprovision of {id} is pending: {pending}");
        return Err(Refusal::new(Reason::MaintenancePending, message).next(why));
    }
    match &rack.state {
        RackState::Ready if rack.topology_changed => {
            not_ready(format!("the devices of {id} have changed, and it looks for them first"))
        }
        RackState::Ready | RackState::Error { .. } => match rack.maintenance_requested.first() {
            Some(pending) if trigger == MaintenanceTrigger::OnDemand => {
                let message = format!("a maintenance of {id} is already pending: {pending}");
                Err(Refusal::new(Reason::MaintenancePending, message).next(why))
            }
            Some(_) | None => Ok(()),
        },
        RackState::Created
        | RackState::Discovering
        | RackState::Maintenance { .. }
        | RackState::Validating
        | RackState::Deleting => {
            let with = rack.active.first().map(|run| format!(" with {run}")).unwrap_or_default();
            not_ready(format!(
                "{id} is in {}{with}; a maintenance can only be asked for in Ready or Error",
                rack.state_name()
            ))
        }
    }
}

/// Refuses a device that an operation holds. A pending maintenance that has not begun gives way to
/// a reprovision.
fn refuse_held(rack: &Rack, device: &RackDevice, trigger: MaintenanceTrigger) -> Option<Refusal> {
    let holder = device.active_run.as_ref()?;
    let gives_way =
        trigger == MaintenanceTrigger::Reprovision && rack.maintenance_requested.contains(holder);
    (!gives_way).then(|| device.target.refuse_held(holder))
}

/// Machines in service are affected only by an override.
pub fn check_planned_impact(
    planned: &PlannedMaintenance,
    overrides: &Overrides,
) -> Result<(), Refusal> {
    let what = match planned.impact {
        Impact::PowerLoss => "this power sequence",
        Impact::Restart => "this firmware upgrade",
        Impact::FabricLoss
        | Impact::Maintenance
        | Impact::OperationsBlocked
        | Impact::Reboot
        | Impact::NetworkLoss
        | Impact::SystemChange
        | Impact::DiskLoss => "this maintenance",
    };
    check_impact(what, planned.impact, &planned.affected, overrides)
}

/// Checks whether a rack may be deleted: no device is in it, or the gate is overridden.
pub fn check_empty(rack: &RackId, devices: usize, overrides: &Overrides) -> Result<(), Refusal> {
    if devices == 0 || overrides.passes(Gate::Devices) {
        return Ok(());
    }
    let stand = if devices == 1 { "device is" } else { "devices are" };
    let message = format!("{devices} {stand} in {rack}: take them out first");
    let flags = overrides.flags_with(Gate::Devices);
    Err(Refusal::new(Reason::RackNotEmpty, message)
        .at_gate(Gate::Devices)
        .next(format!("farrier rack delete {rack} {flags}   # takes them out")))
}

/// The gates that refuse an operation of the rack without its override: a new one, or one that
/// continues. `devices` are all devices of the rack.
pub fn refusing_gates(rack: &Rack, run: &Run, devices: &[RackDevice]) -> Vec<Gate> {
    let held = devices.iter().filter(|device| run.spec.held_targets.contains(&device.target));
    let held: Vec<RackDevice> = held.cloned().collect();
    // The health is checked when an operation is requested, and not again.
    let ill = match run.progress.started_at {
        None => gates_of(&health_refusals(rack, &held, &Overrides::default())),
        Some(_) => Vec::new(),
    };
    ill.into_iter().chain(resume_gate(run, devices)).collect()
}

/// The gate that refuses the remaining steps of an operation without its override.
pub fn resume_gate(run: &Run, devices: &[RackDevice]) -> Option<Gate> {
    let mut plain = run.clone();
    remove_from(&mut plain.spec.params);
    gate_of(&admit_resume(&plain, devices))
}

/// Checks whether an operation may execute its remaining steps now. It may have been accepted, or
/// have failed, long ago. `devices` are all devices of the rack.
pub fn admit_resume(run: &Run, devices: &[RackDevice]) -> Result<(), Refusal> {
    let (id, rack) = (&run.spec.id, &run.spec.target);
    let stands = |target: &TargetId| devices.iter().any(|device| device.target == *target);
    if let Some(gone) = run.spec.held_targets.iter().find(|target| !stands(target)) {
        let message =
            format!("{gone} does not stand in {rack} any more, and {id} was planned with it");
        return Err(Refusal::new(Reason::DeviceMoved, message)
            .next(format!("farrier operation rerun {id}   # planned from what stands there now")));
    }
    let left = run.progress.steps.iter().skip(run.progress.step_index);
    let (mut off, mut fabric, mut impact) = (None, false, Impact::FabricLoss);
    let mut named = BTreeSet::new();
    for step in left.filter_map(|state| run.plan_step(state)) {
        match RackStep::parse(&step.name) {
            Some(RackStep::PowerOff(TargetKind::PowerShelf)) => {
                let parts = step.effect.group().map(|group| group.child_runs.as_slice());
                let shelves = parts.unwrap_or_default().iter();
                let shelves = shelves.map(|part| PowerShelfId::trusted(part.target.as_str()));
                (off, impact) = (Some(shelves.collect::<Vec<_>>()), Impact::PowerLoss)
            }
            Some(
                rack_step @ (RackStep::PowerOff(TargetKind::Machine)
                | RackStep::Firmware(TargetKind::Machine)),
            ) => {
                let off = matches!(rack_step, RackStep::PowerOff(_));
                impact = impact.max(if off { Impact::PowerLoss } else { Impact::Restart });
                let parts = step.effect.group().map(|group| group.child_runs.as_slice());
                named.extend(parts.unwrap_or_default().iter().map(|part| &part.target));
            }
            Some(
                RackStep::FabricOff
                | RackStep::Firmware(TargetKind::Switch)
                | RackStep::PowerOff(TargetKind::Switch),
            ) => fabric = true,
            Some(
                RackStep::Firmware(_)
                | RackStep::PowerOff(_)
                | RackStep::PowerOn(_)
                | RackStep::FabricManager
                | RackStep::FabricConfigured
                | RackStep::Validate,
            )
            | None => {}
        }
    }
    let unpowered = |device: &RackDevice| {
        off.as_ref().is_some_and(|shelves| device.loses_power(shelves, devices))
    };
    let switch = |device: &&RackDevice| device.target.kind == TargetKind::Switch;
    fabric |= devices.iter().filter(switch).any(unpowered);
    let suffers = |device: &&RackDevice| {
        let needed = device.affected.as_ref().is_some_and(AffectedMachine::is_needed);
        unpowered(device) || named.contains(&device.target) || (fabric && needed)
    };
    let taken = devices.iter().filter(suffers);
    let own = |affected: &AffectedMachine| {
        affected.objection == Some(ImpactObjection::HeldBy(id.clone()))
    };
    let affected: Vec<AffectedMachine> =
        taken.filter_map(|one| one.affected.clone()).filter(|one| !own(one)).collect();
    let overrides = Overrides::of_params(&run.spec.params);
    check_impact(&format!("what is left of {id}"), impact, &affected, &overrides).map_err(
        |refusal| {
            let flags = overrides.flags_with(Gate::InService);
            let restarted = format!("farrier rack maintenance start {rack} … {flags}");
            refusal.next(format!("{restarted}   # or move their work away first"))
        },
    )
}
