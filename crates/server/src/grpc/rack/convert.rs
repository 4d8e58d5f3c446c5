//! Conversion of racks between the wire and the model.

use super::super::convert::{
    effective_state, milliseconds, run, step_phase, time, time_fields, watch_change, word_from,
};
use super::super::device::power_state;
use super::super::health::health_summary;
use engine::rack::{
    ChildRunStatus, MaintenancePreview, MaintenanceStartResult, MaintenanceStatus, RackDescription,
    RackStepStatus, RackView,
};
use engine::watch::{WatchChange, WatchUpdate};
use model::id::{FirmwareId, Id, Kind, RackId};
use model::lifecycle::Lifecycle;
use model::machine::Labels;
use model::plan::RunStep;
use model::rack::maintenance::{
    FIRMWARE_SKIPPED, FIRMWARE_USED, MaintenanceScope, PowerSequence, RackMaintenanceRequest,
    RackStep, RequestedActivity, notes_from_params,
};
use model::rack::{
    Counts, NotIngested, Rack, RackDevice, RackDeviceState, RackFailure, RackLocation, RackSpec,
    RackState,
};
use model::refusal::Refusal;
use model::run::{PreviewedStep, RunPhase, StepPhase, TimeEstimate};
use model::target::TargetId;
use model::text;
use proto::{v1, words};

/// The activity of the last step of a rack's maintenance. It cannot be requested.
const VALIDATION: &str = "Validation";

/// A rack as a client describes it. Its status is ignored.
pub(super) fn described(rack: Option<v1::Rack>) -> Result<RackDescription, Refusal> {
    let rack = rack.ok_or_else(|| Refusal::missing("rack"))?;
    let id = RackId::parse_field(&rack.rack_id, "rack.rack_id")?;
    let labels: Labels = rack.labels.into_iter().collect();
    text::check_labels("rack.labels", &labels)?;
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
    let v1::RackLocation { room, row, position } = rack.location.unwrap_or_default();
    let location = RackLocation { room, row, position };
    let spec = RackSpec { hardware_type: rack.hardware_type, expected, location }.checked()?;
    Ok(RackDescription { id, labels, spec })
}

pub(super) fn maintenance_from(
    scope: v1::RackMaintenanceScope,
) -> Result<RackMaintenanceRequest, Refusal> {
    let v1::RackMaintenanceScope { machine_ids, switch_ids, power_shelf_ids, activities } = scope;
    let scope = MaintenanceScope {
        machines: ids("scope.machine_ids", &machine_ids)?,
        switches: ids("scope.switch_ids", &switch_ids)?,
        power_shelves: ids("scope.power_shelf_ids", &power_shelf_ids)?,
    };
    let activities = activities.into_iter().enumerate();
    let activities =
        activities.map(|(at, one)| activity_from(&format!("scope.activities[{at}]"), one));
    Ok(RackMaintenanceRequest { scope, activities: activities.collect::<Result<_, _>>()? })
}

fn ids<K: Kind>(field: &str, words: &[String]) -> Result<Vec<Id<K>>, Refusal> {
    let words = words.iter().enumerate();
    words.map(|(at, name)| Id::parse_field(name, &format!("{field}[{at}]"))).collect()
}

fn activity_from(
    field: &str,
    activity: v1::MaintenanceActivityConfig,
) -> Result<RequestedActivity, Refusal> {
    use v1::maintenance_activity_config::Activity as A;
    match activity.activity {
        None => Err(Refusal::missing(&format!("{field}.activity"))),
        Some(A::ConfigureNmxCluster(_)) => Ok(RequestedActivity::ConfigureNmxCluster),
        Some(A::FirmwareUpgrade(one)) => {
            let field = format!("{field}.firmware_upgrade.firmware_version");
            let named = match one.firmware_version.as_str() {
                "" => None,
                id => Some(FirmwareId::parse_field(id, &field)?),
            };
            Ok(RequestedActivity::FirmwareUpgrade(named))
        }
        Some(A::PowerSequence(one)) => {
            let field = format!("{field}.power_sequence.sequence");
            let word = word_from::<v1::PowerSequence>(&field, one.sequence)?;
            let sequence = word.and_then(PowerSequence::parse).unwrap_or_default();
            Ok(RequestedActivity::PowerSequence(sequence))
        }
    }
}

pub(super) fn event(observed: WatchUpdate<Rack>) -> v1::RackEvent {
    v1::RackEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(rack(&observed.object)),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        deleted: observed.change == WatchChange::Deleted,
        change: watch_change(observed.change).into(),
    }
}

pub(super) fn rack(rack: &Rack) -> v1::Rack {
    let ids = |ids: &[model::id::RunId]| ids.iter().map(ToString::to_string).collect();
    let (stage, error) = match &rack.state {
        RackState::Maintenance { stage } => (stage.as_str(), None),
        RackState::Error { cause } => ("", Some(rack_error(cause))),
        RackState::Created
        | RackState::Discovering
        | RackState::Validating
        | RackState::Ready
        | RackState::Deleting => ("", None),
    };
    let head = &rack.head;
    let status = v1::RackStatus {
        state: words::value::<v1::RackState>(rack.state_name()),
        stage: words::value::<v1::RackMaintenanceStage>(stage),
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
        not_ingested: Vec::new(),
        would_follow: Vec::new(),
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
        location: location(&rack.spec.location),
    }
}

/// None when nothing is known.
fn location(known: &RackLocation) -> Option<v1::RackLocation> {
    let RackLocation { room, row, position } = known.clone();
    (*known != RackLocation::default()).then_some(v1::RackLocation { room, row, position })
}

fn text_of(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn rack_error(cause: &RackFailure) -> v1::RackError {
    let kind = cause.device.as_ref().map(|device| device.kind.as_str());
    v1::RackError {
        during: words::value::<v1::RackErrorPhase>(cause.phase.as_str()),
        device_kind: words::value::<v1::TargetKind>(kind.unwrap_or_default()),
        device_id: text_of(cause.device.as_ref()),
        message: cause.failure.message.clone(),
        operation_id: text_of(cause.failure.run.as_ref()),
        fault: cause.failure.code.clone(),
        next_command: cause.next_command.clone(),
    }
}

/// A rack with its devices and what it waits for.
pub(super) fn view(view: &RackView) -> v1::Rack {
    let mut shown = rack(&view.rack);
    if let Some(status) = &mut shown.status {
        status.waiting_for.clone_from(&view.waits_for);
        status.devices = view.devices.iter().map(device).collect();
        status.not_ingested = view.not_ingested.iter().map(not_ingested).collect();
    }
    shown
}

fn not_ingested(one: &NotIngested) -> v1::MachineNotIngested {
    v1::MachineNotIngested {
        machine_id: one.machine.to_string(),
        next_command: one.next_command.clone(),
    }
}

fn device(device: &RackDevice) -> v1::RackDevice {
    let (machine, other) = match device.state {
        RackDeviceState::Machine(state) => (effective_state(state), 0),
        RackDeviceState::Device(name) => {
            (v1::EffectiveState::Unspecified, words::value::<v1::DeviceState>(name))
        }
        RackDeviceState::Unreadable => (v1::EffectiveState::Unspecified, 0),
    };
    v1::RackDevice {
        kind: words::value::<v1::TargetKind>(device.target.kind.as_str()),
        id: device.target.to_string(),
        slot: device.slot.map(|slot| slot as i32),
        effective_state: machine.into(),
        device_state: other,
        unreadable: device.state == RackDeviceState::Unreadable,
        power: power_state(device.power).into(),
        active_operation_id: text_of(device.active_run.as_ref()),
        height_u: device.height_u.map(|height| height as i32),
        feeds: device.feeds.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn started(started: &MaintenanceStartResult) -> v1::RackMaintenanceOnDemandResponse {
    v1::RackMaintenanceOnDemandResponse {
        operation_id: text_of(started.run.as_ref().map(|run| &run.spec.id)),
        preview: started.preview.as_ref().map(preview),
        request_id: text_of(started.run.as_ref().map(|run| &run.spec.request_id)),
    }
}

fn preview(preview: &MaintenancePreview) -> v1::RackMaintenancePreview {
    let planned = &preview.planned;
    let time = |step: &RunStep| preview.steps.iter().find(|one| one.left.step.name == step.name);
    let (limit_seconds, usual_ms, usual_p95_ms) = time_fields(TimeEstimate::of(&preview.steps));
    v1::RackMaintenancePreview {
        devices: planned.devices.iter().map(device).collect(),
        steps: planned.steps.iter().map(|step| planned_step(step, time(step))).collect(),
        refusals: preview.refusals.iter().map(gate).collect(),
        affected_machine_ids: affected_machine_ids(preview),
        notes: notes(preview),
        firmware_id: text_of(planned.firmware.as_ref()),
        firmware_skipped: planned.firmware_skipped.clone().unwrap_or_default(),
        limit_seconds,
        usual_ms,
        usual_p95_ms,
    }
}

/// The notes of the plan, the gates that the override passes, and the gates `budget` and
/// `approval`.
pub(in super::super) fn notes(preview: &MaintenancePreview) -> Vec<String> {
    let passed = preview.overrides.describe(&preview.refusing);
    let later = preview.later_gates.iter().cloned();
    preview.planned.notes.iter().cloned().chain(passed).chain(later).collect()
}

pub(in super::super) fn gate(refusal: &Refusal) -> v1::RackMaintenanceGate {
    v1::RackMaintenanceGate {
        reason: refusal.reason.as_str().into(),
        message: refusal.message.clone(),
        next_command: refusal.next_command.clone().unwrap_or_default(),
        gate: refusal.gate_word().unwrap_or_default(),
    }
}

/// The machines that the maintenance takes down.
pub(in super::super) fn affected_machine_ids(preview: &MaintenancePreview) -> Vec<String> {
    preview.planned.affected.iter().map(|affected| affected.machine.to_string()).collect()
}

fn activity(rack_step: Option<RackStep>) -> i32 {
    let activity = rack_step.and_then(RackStep::activity);
    words::value::<v1::RackActivity>(activity.map_or(VALIDATION, |activity| activity.as_str()))
}

/// A step of a plan. `time` is known in a dry run only.
fn planned_step(step: &RunStep, time: Option<&PreviewedStep>) -> v1::RackMaintenanceStep {
    let group = step.effect.group().filter(|_| time.is_some());
    let max_concurrent = group.map_or(0, |group| group.max_concurrent);
    let parts = step.effect.group().map(|group| group.child_runs.as_slice()).unwrap_or_default();
    let parts = parts.iter().map(|part| waiting(&part.target)).collect();
    let usual = time.and_then(|time| time.usual.as_ref());
    let limit = time.map_or(0, |time| time.left.step.time_limit().as_secs());
    v1::RackMaintenanceStep {
        max_concurrent: i32::try_from(max_concurrent).unwrap_or(i32::MAX),
        limit_seconds: i64::try_from(limit).unwrap_or(i64::MAX),
        usual_ms: milliseconds(usual.map(|usual| usual.median)),
        usual_p95_ms: milliseconds(usual.map(|usual| usual.p95)),
        destructive: step.effect.erases(),
        name: step.name.clone(),
        activity: activity(RackStep::parse(&step.name)),
        state: step_phase(StepPhase::Waiting).into(),
        message: String::new(),
        child_runs: parts,
    }
}

fn waiting(target: &TargetId) -> v1::RackMaintenanceChildRun {
    v1::RackMaintenanceChildRun {
        kind: words::value::<v1::TargetKind>(target.kind.as_str()),
        id: target.to_string(),
        operation_id: String::new(),
        state: v1::RackChildRunState::Waiting.into(),
        message: String::new(),
    }
}

pub(super) fn status(status: &MaintenanceStatus) -> v1::RackMaintenanceStatus {
    let params = &status.run.spec.params;
    let param = |name: &str| params.get(name).cloned().unwrap_or_default();
    v1::RackMaintenanceStatus {
        operation: Some(run(&status.run)),
        steps: status.steps.iter().map(maintenance_step).collect(),
        firmware_id: param(FIRMWARE_USED),
        firmware_skipped: param(FIRMWARE_SKIPPED),
        notes: notes_from_params(params),
    }
}

fn maintenance_step(rack_step: &RackStepStatus) -> v1::RackMaintenanceStep {
    v1::RackMaintenanceStep {
        name: rack_step.name.clone(),
        activity: activity(rack_step.step),
        state: step_phase(rack_step.state.state).into(),
        message: rack_step.state.message.clone(),
        child_runs: rack_step.child_runs.iter().map(child_run).collect(),
        ..Default::default()
    }
}

fn child_run(part: &ChildRunStatus) -> v1::RackMaintenanceChildRun {
    let Some(run) = &part.run else { return waiting(&part.target) };
    let message = match (&run.progress.failure, run.phase()) {
        (Some(failure), _) => format!("{}: {}", failure.step, failure.fault.message),
        (None, RunPhase::Succeeded) => {
            run.progress.steps.last().map(|step| step.message.clone()).unwrap_or_default()
        }
        (None, RunPhase::Canceled) => {
            let stop = run.progress.stop_request.as_ref();
            stop.map(|stop| stop.reason.clone()).unwrap_or_default()
        }
        (None, RunPhase::Pending | RunPhase::Running | RunPhase::Failed) => run.current_step(),
    };
    v1::RackMaintenanceChildRun {
        operation_id: run.spec.id.to_string(),
        state: words::value::<v1::RackChildRunState>(run.phase().as_str()),
        message,
        ..waiting(&part.target)
    }
}
