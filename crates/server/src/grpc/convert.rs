//! Conversion between the wire and the model. Every incoming field is parsed here once and refused
//! with its name; every response is built here.

mod plan;
mod preview;
mod watch;

use super::health::health_summary;
pub(crate) use plan::plan_from;
pub(super) use plan::{drain_options_from, plan, run_step};
pub(super) use preview::{AnsweredRun, milliseconds, planned_run, preview, time_fields};
pub(super) use watch::{WatchEvent, machine_event, operation_event, run_event, watch_change};

use engine::DescribedMachine;
use model::fault::FaultClass;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, RackId, RunId};
use model::machine::hardware::RecordedHardware;
use model::machine::view::{EffectiveState, LifecycleState};
use model::machine::{Labels, MAX_SLOT, Machine, MachineProblem, MachineSpec, Phase};
use model::placement::{check_height, parse_feeds};
use model::plan::RunType;
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::run::{Run, RunPhase, StepPhase, StepState, Workflow};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use model::{text, why};
use proto::v1;
use proto::words::{self, WireEnum};
use std::collections::HashMap;
use store::LogLine;
use tonic::metadata::MetadataMap;

/// The header with the name of the caller. The authentication sets it on every request; a name
/// that a client gives never gets this far.
pub(crate) const INITIATOR: &str = "farrier-initiator";

/// The name of the authenticated caller.
pub(super) fn initiator(metadata: &MetadataMap) -> String {
    let message = metadata.get(INITIATOR).map(|value| value.as_encoded_bytes()).unwrap_or_default();
    let message = std::str::from_utf8(message).unwrap_or_default();
    match text::check_short(INITIATOR, message) {
        Ok(()) if !message.is_empty() => message.to_string(),
        Ok(()) | Err(_) => "anonymous".into(),
    }
}

/// The caller's name; none when the client gives none or does not know it.
pub(super) fn known_caller(metadata: &MetadataMap) -> Option<String> {
    Some(initiator(metadata)).filter(|name| !["anonymous", "admin-cli"].contains(&name.as_str()))
}

pub(super) fn who(metadata: &MetadataMap, reason: &str) -> Result<Requester, Refusal> {
    Ok(Requester {
        by: initiator(metadata),
        reason: text::check_optional_reason("reason", reason)?,
    })
}

/// The request id. A dry run stores nothing that could be replayed, so it needs none.
pub(super) fn request_id_from(id: &str, dry_run: bool) -> Result<String, Refusal> {
    match dry_run && id.is_empty() {
        true => Ok(String::new()),
        false => text::check_request_id(id),
    }
}

/// The version that a request was made from; 0 stands for none.
pub(super) fn expected_version(version: i64) -> Option<i64> {
    (version != 0).then_some(version)
}

/// The override of a request that has these gates.
pub(super) fn overrides_from(
    requested: Option<v1::GateOverride>,
    of_request: &[Gate],
) -> Result<Overrides, Refusal> {
    let v1::GateOverride { gates, reason } = requested.unwrap_or_default();
    Overrides::parse(&gates, &reason, of_request)
}

/// The override as a record shows it.
pub(super) fn gate_override(overrides: &Overrides) -> Option<v1::GateOverride> {
    (!overrides.is_empty()).then(|| v1::GateOverride {
        gates: overrides.words(),
        reason: overrides.reason().to_string(),
    })
}

/// The word of an enum's value; none when it is unspecified.
pub(super) fn word_from<E: WireEnum>(
    field: &str,
    value: i32,
) -> Result<Option<&'static str>, Refusal> {
    match words::word::<E>(value) {
        "" if value == 0 => Ok(None),
        "" => {
            let instead = format!("use one of {}, or 1 to {}", E::WORDS.join(", "), E::WORDS.len());
            Err(Refusal::invalid(field, format!("is {value}"), instead))
        }
        word => Ok(Some(word)),
    }
}

pub(crate) fn time(at: Timestamp) -> proto::Timestamp {
    let micros = at.as_micros();
    proto::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: (micros.rem_euclid(1_000_000) * 1_000) as i32,
    }
}

pub(super) fn time_from(at: &proto::Timestamp) -> Timestamp {
    let micros = at.seconds.saturating_mul(1_000_000);
    Timestamp::from_micros(micros.saturating_add(i64::from(at.nanos) / 1_000))
}

/// A machine as a client describes it. Its status is ignored.
pub(super) fn machine_from(machine: Option<v1::Machine>) -> Result<DescribedMachine, Refusal> {
    let machine = machine.ok_or_else(|| Refusal::missing("machine"))?;
    let id = optional_machine_id(&machine.machine_id)?;
    let labels: Labels = machine.labels.into_iter().collect();
    text::check_labels("machine.labels", &labels)?;
    let placed =
        machine.spec.as_ref().map(|spec| location_from("machine.spec", &spec.rack_id, spec.slot));
    let placed = placed.transpose()?;
    let slot = placed.as_ref().and_then(|(_, slot)| *slot);
    let (height_u, feeds) = match &machine.spec {
        None => (None, Vec::new()),
        Some(spec) => (
            check_height("machine.spec", spec.height_u, slot)?,
            parse_feeds("machine.spec", TargetKind::Machine, &spec.feeds)?,
        ),
    };
    let spec = machine.spec.map(|spec| MachineSpec {
        ssh_endpoint: spec.ssh_endpoint,
        bmc_endpoint: spec.bmc_endpoint,
        target_cluster_ref: spec.target_cluster_ref,
        mac_addresses: spec.mac_addresses,
        provider: spec.provider,
        serial: spec.serial,
        customer_id: spec.customer_id,
        bmc_credential: spec.bmc_credential,
        ssh_credential: spec.ssh_credential,
        root_disk: spec.root_disk,
        rack: placed.as_ref().and_then(|(rack, _)| rack.clone()),
        slot,
        node_name: spec.node_name,
        height_u,
        feeds,
    });
    let spec = spec.map(MachineSpec::checked).transpose()?;
    Ok(DescribedMachine { id, spec, labels })
}

/// The id of a described machine. None: the server generates one.
pub(super) fn optional_machine_id(id: &str) -> Result<Option<MachineId>, Refusal> {
    let id = Some(id).filter(|id| !id.is_empty());
    id.map(|id| MachineId::parse_field(id, "machine.machine_id")).transpose()
}

/// The rack and slot of a device, as a client describes them.
pub(super) fn location_from(
    field: &str,
    rack_id: &str,
    slot: Option<i32>,
) -> Result<(Option<RackId>, Option<u32>), Refusal> {
    let rack = match rack_id {
        "" => None,
        id => Some(RackId::parse_field(id, &format!("{field}.rack_id"))?),
    };
    let slot_field = format!("{field}.slot");
    let slot = match (slot, &rack) {
        (None, _) => None,
        (Some(_), None) => {
            let problem = "is given without a rack";
            return Err(Refusal::invalid(
                &slot_field,
                problem,
                format!("give {field}.rack_id too"),
            ));
        }
        (Some(slot), Some(_)) => {
            let range = 1..=MAX_SLOT;
            let checked = u32::try_from(slot).ok().filter(|slot| range.contains(slot));
            Some(checked.ok_or_else(|| {
                Refusal::invalid(&slot_field, format!("is {slot}"), format!("use 1 to {MAX_SLOT}"))
            })?)
        }
    };
    Ok((rack, slot))
}

pub(super) const fn effective_state(state: EffectiveState) -> v1::EffectiveState {
    match state {
        EffectiveState::New => v1::EffectiveState::New,
        EffectiveState::Idle => v1::EffectiveState::Idle,
        EffectiveState::Busy => v1::EffectiveState::Busy,
        EffectiveState::Maintenance => v1::EffectiveState::Maintenance,
        EffectiveState::Attention => v1::EffectiveState::Attention,
        EffectiveState::Blocked => v1::EffectiveState::Blocked,
    }
}

pub(super) fn machine(machine: Machine) -> v1::Machine {
    use v1::machine_status::Phase as P;
    let effective_state = effective_state(machine.effective_state());
    let lifecycle_state = match machine.lifecycle_state() {
        LifecycleState::FactoryReady => v1::LifecycleState::FactoryReady,
        LifecycleState::Ready => v1::LifecycleState::Ready,
        LifecycleState::Provisioning => v1::LifecycleState::Provisioning,
        LifecycleState::InService => v1::LifecycleState::InService,
        LifecycleState::Maintenance => v1::LifecycleState::Maintenance,
        LifecycleState::Rma => v1::LifecycleState::Rma,
        LifecycleState::Retired => v1::LifecycleState::Retired,
    };
    let phase = match machine.phase {
        Phase::FactoryReady => P::FactoryReady,
        Phase::Ready => P::Ready,
        Phase::Maintenance => P::Maintenance,
    };
    let conditions = machine.conditions.iter().map(|(condition, known)| v1::Condition {
        r#type: condition.as_str().into(),
        status: known.status,
        reason: known.reason.clone(),
        last_transition: Some(time(known.last_transition)),
    });
    let active = machine.active_run.as_ref().map(ToString::to_string).unwrap_or_default();
    let status = v1::MachineStatus {
        phase: phase.into(),
        conditions: conditions.collect(),
        active_run_id: active.clone(),
        effective_state: effective_state.into(),
        lifecycle_state: lifecycle_state.into(),
        active_operation_id: active,
        version: machine.version,
        created_at: Some(time(machine.created_at)),
        updated_at: Some(time(machine.updated_at)),
        health: health_summary(&TargetId::from(&machine.id), &machine.health),
        hardware: None,
        would_follow: Vec::new(),
        problem: machine.problem().map(MachineProblem::describe).unwrap_or_default(),
    };
    v1::Machine {
        machine_id: machine.id.to_string(),
        labels: machine.labels.into_iter().collect(),
        spec: Some(v1::MachineSpec {
            ssh_endpoint: machine.spec.ssh_endpoint,
            bmc_endpoint: machine.spec.bmc_endpoint,
            target_cluster_ref: machine.spec.target_cluster_ref,
            mac_addresses: machine.spec.mac_addresses,
            provider: machine.spec.provider,
            serial: machine.spec.serial,
            customer_id: machine.spec.customer_id,
            bmc_credential: machine.spec.bmc_credential,
            ssh_credential: machine.spec.ssh_credential,
            root_disk: machine.spec.root_disk,
            rack_id: machine.spec.rack.map(|rack| rack.to_string()).unwrap_or_default(),
            slot: machine.spec.slot.map(|slot| slot as i32),
            node_name: machine.spec.node_name,
            height_u: machine.spec.height_u.map(|height| height as i32),
            feeds: machine.spec.feeds.iter().map(ToString::to_string).collect(),
        }),
        status: Some(status),
    }
}

/// A machine with the hardware that its last inspection found.
pub(super) fn machine_with_hardware(
    known: Machine,
    recorded: Option<&RecordedHardware>,
) -> v1::Machine {
    let hardware = recorded.map(|recorded| hardware(recorded, &known.spec));
    let mut shown = machine(known);
    if let Some(status) = &mut shown.status {
        status.hardware = hardware;
    }
    shown
}

fn hardware(recorded: &RecordedHardware, spec: &MachineSpec) -> v1::MachineHardware {
    let found = recorded.summary.clone();
    let parts = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let size = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    v1::MachineHardware {
        vendor: found.vendor,
        model: found.model,
        serial: found.serial,
        sku: found.sku,
        bios_version: found.bios_version,
        bmc_version: found.bmc_version,
        cpu_count: parts(found.cpus.count),
        cpu_model: found.cpus.model,
        memory_mib: size(found.memory_mib),
        gpu_count: parts(found.gpus.count),
        gpu_model: found.gpus.model,
        disk_count: parts(found.disks.count),
        disk_model: found.disks.model,
        disk_bytes: size(found.disk_bytes),
        inspected_at: Some(time(recorded.inspected_at)),
        serial_differs: recorded.serial_differs(spec),
    }
}

pub(super) fn operation(run: &Run) -> v1::Operation {
    use v1::OperationType as T;
    use v1::operation::Phase as P;
    let kind = match run.spec.run_type {
        RunType::Reboot => T::Reboot,
        RunType::Reimage => T::Reimage,
        RunType::EnterMaintenance => T::EnterMaintenance,
        RunType::ExitMaintenance => T::ExitMaintenance,
        RunType::Upgrade => T::Upgrade,
        RunType::NetReconfig => T::NetReconfig,
        RunType::Rma => T::Rma,
        RunType::Power => T::Power,
        RunType::ExitRma => T::ExitRma,
        RunType::Join => T::Join,
        RunType::RackMaintenance => T::RackMaintenance,
        RunType::Firmware => T::Firmware,
        RunType::Fabric => T::Fabric,
        RunType::Intake => T::Intake,
        RunType::Check => T::Check,
        RunType::Onboard => T::Onboard,
        RunType::Decommission => T::Decommission,
        RunType::NodeDrain => T::NodeDrain,
    };
    let phase = match run.phase() {
        RunPhase::Pending => P::Pending,
        RunPhase::Running => P::Running,
        RunPhase::Succeeded => P::Succeeded,
        RunPhase::Failed => P::Failed,
        RunPhase::Canceled => P::Canceled,
    };
    v1::Operation {
        operation_id: run.spec.id.to_string(),
        machine_id: run.spec.target.machine().map(|id| id.to_string()).unwrap_or_default(),
        request_id: run.spec.request_id.clone(),
        r#type: kind.into(),
        phase: phase.into(),
        params: run.spec.params.clone().into_iter().collect(),
        error: error(run),
        created_at: Some(time(run.spec.created_at)),
        started_at: run.progress.started_at.map(time),
        finished_at: run.progress.finished_at.map(time),
        current_step: run.current_step(),
        initiator: run.spec.initiator.clone(),
        version: run.version,
        target_kind: words::value::<v1::TargetKind>(run.spec.target.kind.as_str()),
        target_id: run.spec.target.to_string(),
        part_of: run.spec.parent_run.as_ref().map(ToString::to_string).unwrap_or_default(),
        preview: None,
    }
}

pub(super) fn run(run: &Run) -> v1::Run {
    use v1::WorkflowState as W;
    use v1::run::Phase as P;
    let phase = match run.phase() {
        RunPhase::Pending => P::Pending,
        RunPhase::Running => P::Running,
        RunPhase::Succeeded => P::Succeeded,
        RunPhase::Failed => P::Failed,
        RunPhase::Canceled => P::Canceled,
    };
    let workflow = match run.progress.workflow {
        Workflow::Pending => W::Pending,
        Workflow::Running => W::Running,
        Workflow::Completed => W::Completed,
        Workflow::FailedRetryable => W::FailedRetryable,
        Workflow::FailedManualIntervention => W::FailedManualIntervention,
        Workflow::Cancelled => W::Cancelled,
        Workflow::Compensating => W::Compensating,
        Workflow::Reconciled => W::Reconciled,
    };
    v1::Run {
        run_id: run.spec.id.to_string(),
        machine_id: run.spec.target.machine().map(|id| id.to_string()).unwrap_or_default(),
        request_id: run.spec.request_id.clone(),
        r#type: run.spec.run_type.run_word().into(),
        plan_id: run.spec.plan_id.to_string(),
        phase: phase.into(),
        steps: run.progress.steps.iter().map(|state| step_status(run, state)).collect(),
        current_step: run.current_step(),
        created_at: Some(time(run.spec.created_at)),
        started_at: run.progress.started_at.map(time),
        finished_at: run.progress.finished_at.map(time),
        error: error(run),
        workflow_state: workflow.into(),
        params: run.spec.params.clone().into_iter().collect(),
        initiator: run.spec.initiator.clone(),
        parent_run_id: run.spec.rerun_of.as_ref().map(ToString::to_string).unwrap_or_default(),
        version: run.version,
        plan_steps: run.spec.steps.iter().map(run_step).collect(),
        engine_version: run.spec.engine_version as i32,
        target_kind: words::value::<v1::TargetKind>(run.spec.target.kind.as_str()),
        target_id: run.spec.target.to_string(),
        part_of: run.spec.parent_run.as_ref().map(ToString::to_string).unwrap_or_default(),
        preview: None,
    }
}

pub(super) const fn step_phase(phase: StepPhase) -> v1::step_status::State {
    use v1::step_status::State;
    match phase {
        StepPhase::Waiting => State::Waiting,
        StepPhase::Running => State::Running,
        StepPhase::Succeeded => State::Succeeded,
        StepPhase::Failed => State::Failed,
    }
}

fn step_status(run: &Run, state: &StepState) -> v1::StepStatus {
    v1::StepStatus {
        name: run.step_name(state),
        state: step_phase(state.state).into(),
        retry_count: state.attempt.saturating_sub(1) as i32,
        started_at: state.started_at.map(time),
        finished_at: state.finished_at.map(time),
        message: state.message.clone(),
        kind: run.effect(state).map(|effect| effect.name().to_string()).unwrap_or_default(),
        undo: state.undo,
    }
}

/// The error of a failed run.
fn error(run: &Run) -> Option<v1::ErrorStatus> {
    let failure = run.progress.failure.as_ref()?;
    let class = failure.fault.class();
    // An operator may have marked a run manual whose fault would allow a retry.
    let manual = run.progress.workflow == Workflow::FailedManualIntervention;
    let retryable = class == FaultClass::Retryable && !manual;
    let code = if retryable { "EXECUTION_FAILED" } else { "INTERVENTION_REQUIRED" };
    let retries = failure.attempts.saturating_sub(1);
    let after = match retries {
        0 => String::new(),
        1 => " after 1 retry".into(),
        many => format!(" after {many} retries"),
    };
    Some(v1::ErrorStatus {
        code: code.into(),
        message: format!("{}{after}", failure.fault.message),
        retryable,
        details: HashMap::from([
            ("fault".to_string(), failure.fault.code.as_str().to_string()),
            ("class".to_string(), class.as_str().to_string()),
            ("step".to_string(), failure.step.clone()),
            ("attempts".to_string(), failure.attempts.to_string()),
        ]),
        next_command: why::next_command(run).unwrap_or_default(),
    })
}

pub(super) fn log_chunk(run: &RunId, line: LogLine) -> v1::LogChunk {
    v1::LogChunk {
        ts: Some(time(line.ts)),
        run_id: run.to_string(),
        stream: line.stream,
        data: line.data,
        step: line.step,
        offset: line.start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::FaultCode;
    use model::host::Host;
    use model::lifecycle::Lifecycle;
    use model::node::{DecommissionMode, Node, TransitionOwner};
    use model::power_shelf::PowerShelf;
    use model::rack::Rack;
    use model::rack::maintenance::PowerSequence;
    use model::site::Site;
    use model::switch::Switch;
    use model::target::TargetKind;
    use model::why::Urgency;

    /// A word of the model that the wire's table lacks would be sent as unspecified.
    #[test]
    fn every_word_of_the_model_has_a_number() {
        fn check<E: WireEnum>(words: impl IntoIterator<Item = &'static str>) {
            for word in words {
                assert_ne!(words::value::<E>(word), 0, "{} {word:?}", E::NAME);
            }
        }
        check::<v1::TargetKind>(TargetKind::ALL.map(TargetKind::as_str));
        check::<v1::RackState>(Rack::STATES.iter().copied());
        check::<v1::DeviceState>(Switch::STATES.iter().copied());
        check::<v1::DeviceState>(PowerShelf::STATES.iter().copied());
        check::<v1::HostState>(Host::STATES.iter().copied());
        check::<v1::NodeState>(Node::STATES.iter().copied());
        check::<v1::SiteState>(Site::STATES.iter().copied());
        check::<v1::NodeTransitionOwner>(TransitionOwner::ALL.map(TransitionOwner::as_str));
        check::<v1::NodeWorkflow>(DecommissionMode::ALL.map(DecommissionMode::as_str));
        check::<v1::DecommissionMode>(
            DecommissionMode::DECOMMISSION.into_iter().map(DecommissionMode::as_str),
        );
        check::<v1::AttentionUrgency>(Urgency::ALL.map(Urgency::as_str));
        check::<v1::PowerSequence>(PowerSequence::ALL.map(PowerSequence::as_str));
        check::<v1::FaultClass>(FaultCode::ALL.iter().map(|code| code.class().as_str()));
        check::<v1::RackChildRunState>(RunPhase::ALL.map(RunPhase::as_str));
    }
}
