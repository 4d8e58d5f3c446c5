//! Conversion of racks between the wire and the model.

use super::super::convert::{run, time};
use super::super::health::health_summary;
use engine::rack::{
    DescribedRack, LegStatus, MaintenanceStarted, MaintenanceStatus, PartStatus, Preview, RackView,
};
use model::effect::PowerTo;
use model::id::{FirmwareId, Id, Kind, RackId};
use model::lifecycle::Lifecycle;
use model::machine::Labels;
use model::plan::RunStep;
use model::rack::maintenance::{
    Asked, FIRMWARE_SKIPPED, FIRMWARE_USED, Leg, PowerSequence, Scope, Wanted, notes_of,
};
use model::rack::{Counts, Device, Rack, RackSpec, RackState, RackTrouble};
use model::refusal::Refusal;
use model::run::{RunPhase, StepPhase};
use model::target::TargetId;
use model::text;
use proto::v1;

/// The activity of the last step of a rack's maintenance. It cannot be requested.
const VALIDATION: &str = "Validation";

/// A rack as a client describes it. Its status is ignored.
pub(super) fn described(rack: Option<v1::Rack>) -> Result<DescribedRack, Refusal> {
    let rack = rack.ok_or_else(|| Refusal::missing("rack"))?;
    let id = RackId::parse_field(&rack.rack_id, "rack.rack_id")?;
    let labels: Labels = rack.labels.into_iter().collect();
    text::labels("rack.labels", &labels)?;
    let expected = rack.expected.unwrap_or_default();
    let count = |name: &str, value: i32| {
        u32::try_from(value).map_err(|_| {
            let field = format!("rack.expected.{name}");
            Refusal::invalid(&field, format!("is {value}"), "use 0 or more")
        })
    };
    let expected = Counts {
        machines: count("machines", expected.machines)?,
        switches: count("switches", expected.switches)?,
        power_shelves: count("power_shelves", expected.power_shelves)?,
    };
    let spec = RackSpec { hardware_type: rack.hardware_type, expected }.checked()?;
    Ok(DescribedRack { id, labels, spec })
}

/// The states that a list selects. Case is ignored.
pub(super) fn states(words: Vec<String>) -> Result<Vec<String>, Refusal> {
    let known = |word: &String| Rack::STATES.iter().find(|one| one.eq_ignore_ascii_case(word));
    let mut states = Vec::with_capacity(words.len());
    for (index, word) in words.iter().enumerate() {
        let found = known(word).ok_or_else(|| {
            let shown: String = word.chars().take(64).collect();
            let instead = format!("use one of {}", Rack::STATES.join(", "));
            Refusal::invalid(&format!("states[{index}]"), format!("is {shown:?}"), instead)
        })?;
        states.push((*found).to_string());
    }
    Ok(states)
}

pub(super) fn wanted(scope: v1::RackMaintenanceScope) -> Result<Wanted, Refusal> {
    let v1::RackMaintenanceScope { machine_ids, switch_ids, power_shelf_ids, activities } = scope;
    let scope = Scope {
        machines: ids("scope.machine_ids", &machine_ids)?,
        switches: ids("scope.switch_ids", &switch_ids)?,
        power_shelves: ids("scope.power_shelf_ids", &power_shelf_ids)?,
    };
    let activities = activities.into_iter().enumerate();
    let activities = activities.map(|(at, one)| asked(&format!("scope.activities[{at}]"), one));
    Ok(Wanted { scope, activities: activities.collect::<Result<_, _>>()? })
}

fn ids<K: Kind>(field: &str, words: &[String]) -> Result<Vec<Id<K>>, Refusal> {
    let words = words.iter().enumerate();
    words.map(|(at, word)| Id::parse_field(word, &format!("{field}[{at}]"))).collect()
}

fn asked(field: &str, activity: v1::MaintenanceActivityConfig) -> Result<Asked, Refusal> {
    use v1::maintenance_activity_config::Activity as A;
    match activity.activity {
        None => Err(Refusal::missing(&format!("{field}.activity"))),
        Some(A::ConfigureNmxCluster(_)) => Ok(Asked::ConfigureNmxCluster),
        Some(A::FirmwareUpgrade(one)) => {
            let field = format!("{field}.firmware_upgrade.firmware_version");
            let named = match one.firmware_version.as_str() {
                "" => None,
                id => Some(FirmwareId::parse_field(id, &field)?),
            };
            Ok(Asked::FirmwareUpgrade(named))
        }
        Some(A::PowerSequence(one)) => {
            let word = match one.sequence.as_str() {
                "" => PowerSequence::default().as_str(),
                word => word,
            };
            let sequence = PowerSequence::parse(&word.to_lowercase()).ok_or_else(|| {
                let shown: String = word.chars().take(64).collect();
                let field = format!("{field}.power_sequence.sequence");
                Refusal::invalid(&field, format!("is {shown:?}"), "use on, off or reset")
            })?;
            Ok(Asked::PowerSequence(sequence))
        }
    }
}

pub(super) fn rack(rack: &Rack) -> v1::Rack {
    let ids = |ids: &[model::id::RunId]| ids.iter().map(ToString::to_string).collect();
    let (stage, error) = match &rack.state {
        RackState::Maintenance { stage } => (stage.as_str(), None),
        RackState::Error { cause } => ("", Some(trouble(cause))),
        RackState::Created
        | RackState::Discovering
        | RackState::Validating
        | RackState::Ready
        | RackState::Deleting => ("", None),
    };
    let head = &rack.head;
    let status = v1::RackStatus {
        state: rack.word().into(),
        stage: stage.into(),
        error,
        topology_changed: rack.topology_changed,
        reprovision_requested: text_of(rack.reprovision_requested.as_ref()),
        maintenance_requested: ids(&rack.maintenance_requested),
        active_operations: ids(&rack.active),
        deleted: head.deleted,
        version: head.version,
        since: Some(time(head.since)),
        created_at: Some(time(head.created_at)),
        updated_at: Some(time(head.updated_at)),
        waiting_for: String::new(),
        devices: Vec::new(),
        health: health_summary(&rack.target(), &head.health),
    };
    let expected = rack.spec.expected;
    v1::Rack {
        rack_id: head.id.clone(),
        labels: head.labels.clone().into_iter().collect(),
        hardware_type: rack.spec.hardware_type.clone(),
        expected: Some(v1::RackCounts {
            machines: expected.machines as i32,
            switches: expected.switches as i32,
            power_shelves: expected.power_shelves as i32,
        }),
        status: Some(status),
    }
}

fn text_of(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn trouble(cause: &RackTrouble) -> v1::RackError {
    let kind = cause.device.as_ref().map(|device| device.kind.as_str().to_string());
    v1::RackError {
        during: cause.during.as_str().into(),
        device_kind: kind.unwrap_or_default(),
        device_id: text_of(cause.device.as_ref()),
        message: cause.trouble.said.clone(),
        operation_id: text_of(cause.trouble.run.as_ref()),
        fault: cause.trouble.code.clone(),
        next_command: cause.next.clone(),
    }
}

/// A rack with its devices and what it waits for.
pub(super) fn view(view: &RackView) -> v1::Rack {
    let mut shown = rack(&view.rack);
    if let Some(status) = &mut shown.status {
        status.waiting_for.clone_from(&view.waits_for);
        status.devices = view.devices.iter().map(device).collect();
    }
    shown
}

fn device(device: &Device) -> v1::RackDevice {
    v1::RackDevice {
        kind: device.target.kind.as_str().into(),
        id: device.target.to_string(),
        slot: device.slot.map(|slot| slot as i32),
        state: device.state.clone(),
        power: device.power.map(PowerTo::as_str).unwrap_or_default().into(),
        active_operation_id: text_of(device.active_run.as_ref()),
    }
}

pub(super) fn started(started: &MaintenanceStarted) -> v1::RackMaintenanceOnDemandResponse {
    v1::RackMaintenanceOnDemandResponse {
        operation_id: text_of(started.run.as_ref().map(|run| &run.spec.id)),
        preview: started.preview.as_ref().map(preview),
    }
}

fn preview(preview: &Preview) -> v1::RackMaintenancePreview {
    let planned = &preview.planned;
    v1::RackMaintenancePreview {
        devices: planned.devices.iter().map(device).collect(),
        legs: planned.steps.iter().map(planned_leg).collect(),
        refusals: preview.refusals.iter().map(gate).collect(),
        dark_machine_ids: dark_ids(preview),
        notes: planned.notes.clone(),
        firmware_id: text_of(planned.firmware.as_ref()),
        firmware_skipped: planned.firmware_skipped.clone().unwrap_or_default(),
    }
}

pub(in super::super) fn gate(refusal: &Refusal) -> v1::RackMaintenanceGate {
    v1::RackMaintenanceGate {
        reason: refusal.reason.into(),
        message: refusal.said.clone(),
        next_command: refusal.next.clone().unwrap_or_default(),
    }
}

/// The machines that the maintenance takes down.
pub(in super::super) fn dark_ids(preview: &Preview) -> Vec<String> {
    preview.planned.dark.iter().map(|dark| dark.machine.to_string()).collect()
}

fn activity(leg: Option<Leg>) -> String {
    leg.and_then(Leg::activity).map_or(VALIDATION, |activity| activity.as_str()).into()
}

fn planned_leg(step: &RunStep) -> v1::RackMaintenanceLeg {
    let parts = step.effect.group().map(|group| group.parts.as_slice()).unwrap_or_default();
    let parts = parts.iter().map(|part| waiting(&part.target)).collect();
    v1::RackMaintenanceLeg {
        name: step.name.clone(),
        activity: activity(Leg::parse(&step.name)),
        state: step_word(StepPhase::Waiting).into(),
        message: String::new(),
        parts,
    }
}

fn waiting(target: &TargetId) -> v1::RackMaintenancePart {
    v1::RackMaintenancePart {
        kind: target.kind.as_str().into(),
        id: target.to_string(),
        operation_id: String::new(),
        state: step_word(StepPhase::Waiting).into(),
        message: String::new(),
    }
}

const fn step_word(phase: StepPhase) -> &'static str {
    match phase {
        StepPhase::Waiting => "WAITING",
        StepPhase::Running => "RUNNING",
        StepPhase::Succeeded => "SUCCEEDED",
        StepPhase::Failed => "FAILED",
    }
}

pub(super) fn status(status: &MaintenanceStatus) -> v1::RackMaintenanceStatus {
    let params = &status.run.spec.params;
    let param = |name: &str| params.get(name).cloned().unwrap_or_default();
    v1::RackMaintenanceStatus {
        operation: Some(run(&status.run)),
        legs: status.legs.iter().map(leg).collect(),
        firmware_id: param(FIRMWARE_USED),
        firmware_skipped: param(FIRMWARE_SKIPPED),
        notes: notes_of(params),
    }
}

fn leg(leg: &LegStatus) -> v1::RackMaintenanceLeg {
    v1::RackMaintenanceLeg {
        name: leg.name.clone(),
        activity: activity(leg.leg),
        state: step_word(leg.state.state).into(),
        message: leg.state.message.clone(),
        parts: leg.parts.iter().map(part).collect(),
    }
}

fn part(part: &PartStatus) -> v1::RackMaintenancePart {
    let Some(run) = &part.run else { return waiting(&part.target) };
    let message = match (&run.progress.failure, run.phase()) {
        (Some(failure), _) => format!("{}: {}", failure.step, failure.fault.said),
        (None, RunPhase::Succeeded) => {
            run.progress.steps.last().map(|step| step.message.clone()).unwrap_or_default()
        }
        (None, RunPhase::Pending | RunPhase::Running | RunPhase::Failed | RunPhase::Canceled) => {
            run.current_step()
        }
    };
    v1::RackMaintenancePart {
        operation_id: run.spec.id.to_string(),
        state: run.phase().as_str().into(),
        message,
        ..waiting(&part.target)
    }
}
