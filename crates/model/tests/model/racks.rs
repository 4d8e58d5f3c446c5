//! The lifecycle of a rack as tables: every state with every input, as in the document; and the
//! plans of maintenances.

mod requests;

use crate::support::spec;
use model::blast_radius::{AffectedMachine, ImpactObjection};
use model::effect::{DeviceWork, Effect};
use model::firmware::{Firmware, FirmwareComponent, FirmwareResolution};
use model::gate::{Gate, Overrides};
use model::health::{BlockingAlert, HealthSummary};
use model::id::{FirmwareId, MachineId, RunId, SwitchId};
use model::lifecycle::{
    DeviceFailure, Lifecycle, LifecycleChange, LifecycleDecision, RecordHeader,
};
use model::machine::Labels;
use model::rack::maintenance::{
    MaintenanceScope, MaintenanceTrigger, PlannedMaintenance, PowerSequence, RackLimits,
    RackMaintenanceRequest, RackStep, RequestedActivity, admit, admit_resume, gates, plan,
    refusing_gates, request_from_params, resume_gate,
};
use model::rack::{
    Counts, MaintenanceStage, Rack, RackDevice, RackDeviceState, RackFailure, RackFailurePhase,
    RackOperation, RackSpec, RackState, RackTurnInput,
};
use model::run::{Run, RunPhase, RunSpec};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

const BEGUN: Timestamp = Timestamp::from_millis(1_000_000);

pub fn now() -> Timestamp {
    BEGUN + Duration::from_secs(60)
}

fn id(text: &str) -> RunId {
    RunId::trusted(text)
}

pub fn rack(state: RackState) -> Rack {
    let head = RecordHeader::new("rack-1", Labels::new(), BEGUN);
    let expected = Counts { machines: 1, switches: 2, power_shelves: 1 };
    let spec = RackSpec { hardware_type: "gb200".into(), expected, ..RackSpec::default() };
    Rack { state, ..Rack::new(head, spec) }
}

pub fn error(during: RackFailurePhase) -> RackState {
    let trouble = DeviceFailure { message: "it broke".into(), run: None, code: String::new() };
    RackState::Error {
        cause: RackFailure {
            phase: during,
            device: None,
            failure: trouble,
            next_command: String::new(),
            canceled: false,
        },
    }
}

fn stage(stage: MaintenanceStage) -> RackState {
    RackState::Maintenance { stage }
}

fn device(kind: TargetKind, name: &str, slot: u32) -> RackDevice {
    let affected = AffectedMachine { machine: MachineId::trusted(name), objection: None };
    RackDevice {
        target: TargetId::new(kind, name),
        slot: Some(slot),
        height_u: None,
        feeds: Vec::new(),
        state: RackDeviceState::Device("Ready"),
        ready: true,
        active_run: None,
        power: None,
        affected: (kind == TargetKind::Machine).then_some(affected),
        stays_on: false,
        blocked: None,
        health: HealthSummary::default(),
    }
}

pub fn devices() -> Vec<RackDevice> {
    vec![
        device(TargetKind::Machine, "m-1", 10),
        device(TargetKind::Switch, "sw-2", 3),
        device(TargetKind::Switch, "sw-1", 4),
        device(TargetKind::PowerShelf, "ps-1", 1),
    ]
}

pub fn operation(name: &str, phase: RunPhase, rack_step: Option<RackStep>) -> RackOperation {
    let error = matches!(phase, RunPhase::Failed | RunPhase::Canceled).then(|| RackFailure {
        phase: rack_step
            .map_or(RackFailurePhase::FirmwareUpgrade, |_| RackFailurePhase::PowerSequence),
        device: Some(TargetId::new(TargetKind::Machine, "m-1")),
        failure: DeviceFailure { message: "no".into(), run: Some(id(name)), code: String::new() },
        next_command: format!("farrier operation retry-step {name}"),
        canceled: false,
    });
    let claims = devices().into_iter().map(|device| device.target).collect();
    let (parts_at_work, parent, against) = (false, None, None);
    RackOperation {
        id: id(name),
        phase,
        step: rack_step,
        children_active: parts_at_work,
        claims,
        failure: error,
        rerun_of: parent,
        brings_into_service: true,
        against,
    }
}

pub fn context(devices: Vec<RackDevice>, operations: Vec<RackOperation>) -> RackTurnInput {
    RackTurnInput {
        fresh: id("op-fresh"),
        devices,
        operations,
        firmware: FirmwareResolution::Use(Box::new(firmware())),
        limits: RackLimits::default(),
    }
}

fn firmware() -> Firmware {
    let component = FirmwareComponent {
        name: "BMC".into(),
        version: "2".into(),
        url: "http://f".into(),
        sha256: "0".into(),
    };
    Firmware {
        id: FirmwareId::trusted("fw-1"),
        hardware_type: "gb200".into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, vec![component])]),
        is_default: true,
        available: true,
        created_at: BEGUN,
        version: 1,
    }
}

/// The result of a turn in one line.
fn describe_next(next: LifecycleDecision<Rack>) -> String {
    match next {
        LifecycleDecision::Idle(_) => "rests".into(),
        LifecycleDecision::IdleUntil(..) => "waits".into(),
        LifecycleDecision::Remove(_) => "is gone".into(),
        LifecycleDecision::Transition(change) => {
            let LifecycleChange { record, start, begin, cancel, .. } = *change;
            let state = match &record.state {
                RackState::Maintenance { stage } => format!("Maintenance/{}", stage.as_str()),
                RackState::Error { cause } => format!("Error/{}", cause.phase.as_str()),
                _ => record.state_name().into(),
            };
            let mut message = state;
            message.extend(start.iter().map(|run| format!(" start {}", run.id)));
            message.extend(begin.iter().map(|id| format!(" begin {id}")));
            message.extend(cancel.iter().map(|(id, _)| format!(" cancel {id}")));
            if record.topology_changed {
                message.push_str(" changed");
            }
            message.extend(record.maintenance_requested.iter().map(|id| format!(" pending {id}")));
            message.extend(record.active.iter().map(|id| format!(" active {id}")));
            message
        }
    }
}

#[test]
fn discovering() {
    let short = || devices().into_iter().skip(1).collect::<Vec<_>>();
    let unready = || {
        let mut all = devices();
        all[1].ready = false;
        all
    };
    let claimed = || {
        let mut all = devices();
        all[0].active_run = Some(id("op-9"));
        all
    };
    let late = BEGUN + Duration::from_secs(24 * 3_600);
    let changed = Rack { topology_changed: true, ..rack(RackState::Discovering) };
    let mut deleted = rack(RackState::Discovering);
    deleted.head.deleted = true;
    let here = || rack(RackState::Discovering);
    let table = [
        (rack(RackState::Created), Vec::new(), now(), "Discovering"),
        (here(), short(), now(), "waits"),
        (here(), unready(), now(), "waits"),
        (here(), claimed(), now(), "waits"),
        (here(), claimed(), late, "Error/Discovery"),
        (here(), short(), late, "Error/Discovery"),
        (here(), unready(), late, "Error/Discovery"),
        (here(), devices(), now(), "Maintenance/FirmwareUpgrade start op-fresh active op-fresh"),
        (changed, devices(), now(), "Discovering"),
        (deleted, devices(), now(), "Deleting"),
    ];
    for (rack, devices, at, expected) in table {
        let observed = context(devices, Vec::new());
        assert_eq!(
            describe_next(rack.next(&observed, at)),
            expected,
            "{:?} {:?}",
            rack.state,
            observed.devices
        );
    }
}

/// The three flags in the documented order, in both states in which they count.
#[test]
fn what_begins_first() {
    use RunPhase::Pending;
    let flags = |state: RackState, topology: bool, reprovision: bool, maintenance: bool| {
        let mut rack = rack(state);
        rack.topology_changed = topology;
        rack.reprovision_requested = reprovision.then(|| id("op-r"));
        rack.maintenance_requested.extend(maintenance.then(|| id("op-m")));
        rack
    };
    let begins = "Maintenance/FirmwareUpgrade begin op-m active op-m";
    let reprovisions = "Maintenance/FirmwareUpgrade begin op-r active op-r";
    let failed = || error(RackFailurePhase::PowerSequence);
    let lacking = || error(RackFailurePhase::Discovery);
    let table = [
        (RackState::Ready, [false, false, false], "rests"),
        (RackState::Ready, [false, false, true], begins),
        (RackState::Ready, [false, true, false], reprovisions),
        (RackState::Ready, [false, true, true], "Ready cancel op-m"),
        (RackState::Ready, [true, false, false], "Discovering"),
        (RackState::Ready, [true, false, true], "Discovering cancel op-m"),
        (RackState::Ready, [true, true, false], "Discovering"),
        (RackState::Ready, [true, true, true], "Discovering cancel op-m"),
        (failed(), [false, false, false], "rests"),
        (failed(), [false, false, true], begins),
        (failed(), [false, true, false], reprovisions),
        (failed(), [true, false, false], "rests"),
        (failed(), [true, false, true], &format!("{begins} ").replace("active", "changed active")),
        (lacking(), [false, false, false], "rests"),
        (lacking(), [false, false, true], begins),
        (lacking(), [true, false, false], "Discovering"),
    ];
    for (state, [topology, reprovision, maintenance], expected) in table {
        let rack = flags(state, topology, reprovision, maintenance);
        let operations = vec![operation("op-r", Pending, None), operation("op-m", Pending, None)];
        let observed = context(devices(), operations);
        let flags = [topology, reprovision, maintenance];
        assert_eq!(
            describe_next(rack.next(&observed, now())),
            expected.trim(),
            "{:?} {flags:?}",
            rack.state
        );
        let mut deleted = rack.clone();
        deleted.head.deleted = true;
        assert!(describe_next(deleted.next(&observed, now())).starts_with("Deleting"), "{flags:?}");
    }
}

#[test]
fn what_was_withdrawn_does_not_begin_and_a_reprovision_waits_for_its_devices() {
    let mut pending = rack(RackState::Ready);
    pending.maintenance_requested = vec![id("op-m")];
    let over = operation("op-m", RunPhase::Canceled, None);
    assert_eq!(describe_next(pending.next(&context(devices(), vec![over]), now())), "Ready");
    let mut requested = rack(RackState::Ready);
    requested.reprovision_requested = Some(id("op-r"));
    let over = operation("op-r", RunPhase::Canceled, None);
    assert_eq!(describe_next(requested.next(&context(devices(), vec![over]), now())), "Ready");
    let mut claimed = devices();
    claimed[2].active_run = Some(id("op-9"));
    let waiting = operation("op-r", RunPhase::Pending, None);
    let refused = RackOperation { against: Some("m-1 is held by op-9".into()), ..waiting.clone() };
    assert_eq!(
        describe_next(requested.next(&context(claimed.clone(), vec![waiting]), now())),
        "waits"
    );
    // The gate is asked again only after all devices are released: the holder may have given way.
    assert_eq!(
        describe_next(requested.next(&context(claimed, vec![refused.clone()]), now())),
        "waits"
    );
    assert_eq!(
        describe_next(requested.next(&context(devices(), vec![refused]), now())),
        "Ready cancel op-r"
    );
}

#[test]
fn a_maintenance_is_followed_to_its_end() {
    use RunPhase::{Canceled, Failed, Pending, Running, Succeeded};
    let at = |phase, rack_step| Some(operation("op-1", phase, rack_step));
    let firmware = Some(RackStep::Firmware(TargetKind::Machine));
    let power = Some(RackStep::PowerOff(TargetKind::Machine));
    let check = Some(RackStep::Validate);
    let fw = || stage(MaintenanceStage::FirmwareUpgrade);
    let table = [
        (fw(), at(Pending, None), "rests"),
        (fw(), at(Running, firmware), "rests"),
        (
            fw(),
            at(Running, Some(RackStep::FabricOff)),
            "Maintenance/ConfigureNmxCluster active op-1",
        ),
        (fw(), at(Running, power), "Maintenance/PowerSequence active op-1"),
        (fw(), at(Running, check), "Maintenance/Completed active op-1"),
        (fw(), at(Succeeded, check), "Maintenance/Completed active op-1"),
        (fw(), at(Failed, None), "Error/FirmwareUpgrade"),
        (fw(), at(Failed, power), "Error/PowerSequence"),
        (fw(), at(Canceled, power), "Error/PowerSequence"),
        (fw(), None, "Error/Validation"),
        (stage(MaintenanceStage::PowerSequence), at(Running, power), "rests"),
        (stage(MaintenanceStage::PowerSequence), at(Failed, power), "Error/PowerSequence"),
        (stage(MaintenanceStage::Completed), at(Running, check), "Validating active op-1"),
        (stage(MaintenanceStage::Completed), at(Succeeded, check), "Validating active op-1"),
        (stage(MaintenanceStage::Completed), at(Failed, check), "Error/PowerSequence"),
        (RackState::Validating, at(Running, check), "rests"),
        (RackState::Validating, at(Succeeded, check), "Ready"),
        (RackState::Validating, at(Failed, check), "Error/PowerSequence"),
        (RackState::Ready, at(Running, power), "Maintenance/FirmwareUpgrade active op-1"),
        (
            error(RackFailurePhase::Validation),
            at(Running, power),
            "Maintenance/FirmwareUpgrade active op-1",
        ),
        (RackState::Deleting, at(Running, power), "rests"),
        (RackState::Deleting, at(Failed, power), "is gone"),
        (RackState::Deleting, None, "is gone"),
    ];
    for (state, operation, expected) in table {
        let mut rack = rack(state);
        rack.active = vec![id("op-1")];
        let message = format!("{:?} {operation:?}", rack.state);
        let observed = context(Vec::new(), operation.into_iter().collect());
        assert_eq!(describe_next(rack.next(&observed, now())), expected, "{message}");
    }
}

#[test]
fn several_at_once_are_one_maintenance_until_the_last_has_ended() {
    use RunPhase::{Canceled, Failed, Running};
    let power = Some(RackStep::PowerOn(TargetKind::Machine));
    let mut rack = rack(stage(MaintenanceStage::PowerSequence));
    rack.active = vec![id("op-1"), id("op-2")];
    let both = |first, second| context(Vec::new(), vec![first, second]);
    let going = operation("op-2", Running, power);
    let failed = operation("op-1", Failed, power);
    assert_eq!(describe_next(rack.next(&both(failed.clone(), going.clone()), now())), "rests");
    let over = operation("op-2", RunPhase::Succeeded, Some(RackStep::Validate));
    assert_eq!(describe_next(rack.next(&both(failed, over), now())), "Error/PowerSequence");
    let stopped = RackOperation { children_active: true, ..operation("op-1", Canceled, power) };
    let over = operation("op-2", RunPhase::Succeeded, Some(RackStep::Validate));
    let left = "Maintenance/PowerSequence active op-1";
    assert_eq!(describe_next(rack.next(&both(stopped, over), now())), left);
    let restarted = RackOperation { rerun_of: Some(id("op-1")), ..going.clone() };
    let failed = operation("op-1", Failed, power);
    let left = "Maintenance/PowerSequence active op-2";
    assert_eq!(describe_next(rack.next(&both(failed, restarted), now())), left);
    rack.active = vec![id("op-2")];
    rack.maintenance_requested = vec![id("op-1")];
    let pending = operation("op-1", RunPhase::Pending, None);
    let expected = "Maintenance/PowerSequence begin op-1 active op-2 active op-1";
    assert_eq!(describe_next(rack.next(&both(pending.clone(), going.clone()), now())), expected);
    let withdrawn = operation("op-1", Canceled, None);
    let left = "Maintenance/PowerSequence active op-2";
    assert_eq!(describe_next(rack.next(&both(withdrawn, going.clone()), now())), left);
    let refused =
        RackOperation { against: Some("m-1 is in service and not drained".into()), ..pending };
    let canceled = "Maintenance/PowerSequence cancel op-1 active op-2";
    assert_eq!(describe_next(rack.next(&both(refused, going), now())), canceled);
}

/// Work on healthy devices does not resolve a failure on another one.
#[test]
fn what_failed_is_not_forgotten_by_work_on_others() {
    let mut failed = rack(error(RackFailurePhase::FirmwareUpgrade));
    let RackState::Error { cause } = &mut failed.state else { panic!("{failed:?}") };
    cause.device = Some(TargetId::new(TargetKind::Machine, "m-1"));
    failed.maintenance_requested = vec![id("op-2")];
    let ends_in = |claims: &[&str]| {
        let operation = |phase, rack_step| {
            let one = operation("op-2", phase, rack_step);
            let claims = one.claims.into_iter().filter(|one| claims.contains(&one.as_str()));
            context(Vec::new(), vec![RackOperation { claims: claims.collect(), ..one }])
        };
        let mut rack = failed.clone();
        let mut observed = operation(RunPhase::Pending, None);
        for _ in 0..10 {
            match rack.next(&observed, now()) {
                LifecycleDecision::Transition(change) => rack = change.record,
                LifecycleDecision::Idle(_)
                | LifecycleDecision::IdleUntil(..)
                | LifecycleDecision::Remove(_) => break,
            }
            observed = operation(RunPhase::Succeeded, Some(RackStep::Validate));
        }
        (rack.state_name(), rack.unresolved_failure)
    };
    assert_eq!(ends_in(&["sw-1"]), ("Error", None));
    assert_eq!(ends_in(&["m-1"]), ("Ready", None));
    assert_eq!(ends_in(&["m-1", "sw-1"]), ("Ready", None));
}

/// An operation that was accepted or failed long ago passes the gate again, for its remaining
/// steps.
#[test]
fn what_is_left_of_an_operation_needs_leave_again() {
    let run_of = |sequence, at| {
        let requested = vec![RequestedActivity::PowerSequence(sequence)];
        let planned = planned(RackMaintenanceRequest {
            scope: MaintenanceScope::default(),
            activities: requested,
        });
        let new = planned.new_run(&rack(RackState::Ready), &id("op-1"), "ada".into());
        let mut run = Run::new(RunSpec {
            id: new.id,
            target: new.target,
            steps: new.steps,
            held_targets: new.claims,
            params: new.params,
            ..spec(Vec::new())
        });
        run.progress.step_index = at;
        run
    };
    let serving = |run: Option<&str>| {
        let mut all = devices();
        let machine = all.iter_mut().find(|one| one.affected.is_some()).expect("a machine");
        let against = match run {
            None => ImpactObjection::InService,
            Some(run) => ImpactObjection::HeldBy(id(run)),
        };
        machine.affected.as_mut().expect("dark").objection = Some(against);
        all
    };
    let refused = |run: &Run, devices: &[RackDevice]| {
        admit_resume(run, devices).err().map(|it| it.reason.as_str())
    };
    let off = run_of(PowerSequence::Off, 0);
    assert_eq!(refused(&off, &devices()), None);
    assert_eq!(refused(&off, &serving(None)), Some("MACHINES_IN_SERVICE"));
    assert_eq!(refused(&off, &serving(Some("op-2"))), Some("MACHINES_IN_SERVICE"));
    assert_eq!(refused(&off, &serving(Some("op-1"))), None, "it holds them itself");
    assert_eq!(refused(&run_of(PowerSequence::On, 0), &serving(None)), None);
    // Only the last step remains, and it only reads.
    let last = off.progress.steps.len() - 1;
    assert_eq!(refused(&run_of(PowerSequence::Off, last), &serving(None)), None);
    let mut forced = off.clone();
    for (gate, expected) in [(Gate::Health, Some("MACHINES_IN_SERVICE")), (Gate::InService, None)] {
        Overrides::of(&[gate], "fire").store_in(&mut forced.spec.params);
        assert_eq!(refused(&forced, &serving(None)), expected, "{gate}");
        // Without its override the same gate refuses it.
        assert_eq!(resume_gate(&forced, &serving(None)), Some(Gate::InService), "{gate}");
        assert_eq!(resume_gate(&forced, &devices()), None, "{gate}");
    }
    // A new operation is refused by the health of its rack as well, one that continues is not.
    let alert = BlockingAlert { source: "s".into(), alert: "leak".into(), message: "wet".into() };
    let mut ill = rack(RackState::Ready);
    ill.head.health.state_changes = Some(alert);
    let gates = |run: &Run| refusing_gates(&ill, run, &serving(None));
    assert_eq!(gates(&forced), [Gate::Health, Gate::InService]);
    let mut begun = forced.clone();
    begun.progress.started_at = Some(now());
    assert_eq!(gates(&begun), [Gate::InService]);
    // As older versions stored it.
    forced.spec.params = model::plan::Params::from([("forced".into(), "fire".into())]);
    assert_eq!(refused(&forced, &serving(None)), None);
    assert_eq!(refused(&off, &devices()[1..]), Some("DEVICE_MOVED"));
}

/// Reconfiguring the fabric interrupts distributed workloads, whatever else is in scope.
#[test]
fn whoever_is_in_service_keeps_the_fabric() {
    let serving = |against: Option<ImpactObjection>| {
        let mut all = devices();
        let machine = MachineId::trusted("m-1");
        all[0].affected = Some(AffectedMachine { machine, objection: against });
        all
    };
    let node = || ImpactObjection::Serves(model::id::NodeId::trusted("node-1"));
    let fabric = || vec![RequestedActivity::ConfigureNmxCluster];
    let power = || vec![RequestedActivity::PowerSequence(PowerSequence::On)];
    for (against, requested, refused) in [
        (Some(node()), fabric(), Some("this maintenance would take the fabric from")),
        (Some(ImpactObjection::InService), fabric(), Some("m-1 is in service and not drained")),
        (None, fabric(), None),
        (Some(node()), power(), None),
    ] {
        let desired =
            RackMaintenanceRequest { scope: MaintenanceScope::default(), activities: requested };
        let given = (FirmwareResolution::Skip("none".into()), &RackLimits::default());
        let (rack, all) = (rack(RackState::Ready), serving(against));
        let planned =
            plan(&rack, &all, desired, MaintenanceTrigger::OnDemand, given).expect("a plan");
        let message =
            model::rack::maintenance::check_planned_impact(&planned, &Overrides::default())
                .err()
                .map(|refusal| refusal.message);
        match (&message, refused) {
            (Some(message), Some(words)) => assert!(message.contains(words), "{message}"),
            (message, refused) => assert_eq!(message.as_deref(), refused),
        }
        let named = Overrides::of(&[Gate::InService], "fire");
        assert_eq!(model::rack::maintenance::check_planned_impact(&planned, &named), Ok(()));
        let new = planned.new_run(&rack, &id("op-1"), "ada".into());
        let run =
            Run::new(RunSpec { steps: new.steps, held_targets: new.claims, ..spec(Vec::new()) });
        assert_eq!(admit_resume(&run, &all).is_err(), refused.is_some());
    }
}

fn planned(desired: RackMaintenanceRequest) -> PlannedMaintenance {
    let given = (FirmwareResolution::Use(Box::new(firmware())), &RackLimits::default());
    plan(&rack(RackState::Ready), &devices(), desired, MaintenanceTrigger::OnDemand, given)
        .expect("a plan")
}
