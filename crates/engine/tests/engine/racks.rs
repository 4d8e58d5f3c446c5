//! Racks in simulated time: intake, concurrent operations, failures and cancels.

use crate::rack_fixture::{
    MAX_POLLS, RACK, RackFixture, add_firmware, event, firmware, machines, maintenance_request,
    power, requester,
};
use crate::test_env::simulate;
use engine::admission::StartRequest;
use engine::rack::MaintenanceStart;
use engine::{DescribedDevice, PlacedSpec};
use model::gate::{Gate, Overrides};
use model::id::{FirmwareId, MachineId, PowerShelfId, RackId, SwitchId};
use model::lifecycle::{
    DeviceSpec, IdleReason, Lifecycle, LifecycleDecision, RecordHeader, SubjectKind,
};
use model::machine::Labels;
use model::plan::{Params, PowerChange, RunType};
use model::rack::maintenance::{
    MaintenanceScope, MaintenanceTrigger, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use model::rack::{Counts, RackDeviceState, RackFailurePhase, RackState};
use model::run::RunPhase;
use model::run::actions::{Action, RestartMode};
use model::switch::Switch;
use model::target::TargetKind;
use model::time::Timestamp;
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{Result, StoreError, Tx};

#[test]
fn a_rack_comes_into_service_when_all_its_devices_are_there() {
    simulate(async {
        let fixture =
            RackFixture::with_expected(Counts { machines: 2, switches: 2, power_shelves: 1 }).await;
        fixture.wait_for_state("Discovering").await;
        let waits = fixture.view().await.waits_for;
        assert!(waits.contains("0 of 2 machines stand in it"), "{waits}");
        fixture.add_devices().await;
        fixture.wait_for_state("Ready").await;
        let path = ["Created", "Discovering", "Maintenance", "Validating", "Ready"];
        assert_eq!(fixture.rack_states().await, path);
        fixture.wait_until_released().await;
        let all =
            fixture.engine().racks().operations(&RackId::trusted(RACK)).await.expect("a status");
        let [ingestion] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(ingestion.run.spec.initiator, "engine");
        let rack_steps: Vec<&str> =
            ingestion.steps.iter().map(|rack_step| rack_step.name.as_str()).collect();
        let expected = [
            "firmware-machines",
            "firmware-switches",
            "firmware-power-shelves",
            "fabric-off",
            "fabric-manager",
            "fabric-configured",
            "power-on-shelves",
            "power-on-switches",
            "power-on-machines",
            "validate",
        ];
        assert_eq!(rack_steps, expected);
        let manager = &ingestion.steps[4].child_runs;
        assert_eq!(manager.len(), 1);
        assert_eq!(manager[0].target.as_str(), "sw-1", "the lowest slot is the primary");
    });
}

#[test]
fn a_rack_without_all_devices_fails_until_they_come() {
    simulate(async {
        let fixture =
            RackFixture::with_expected(Counts { machines: 2, switches: 0, power_shelves: 0 }).await;
        fixture.add_machine("m-1", None).await.expect("registered");
        tokio::time::sleep(Duration::from_secs(24 * 3_600 - 60)).await;
        fixture.wait_for_state("Discovering").await;
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.phase, RackFailurePhase::Discovery);
        assert!(cause.failure.message.contains("1 of 2 machines"), "{}", cause.failure.message);
        fixture.add_machine("m-2", None).await.expect("registered");
        fixture.wait_for_state("Ready").await;
    });
}

#[test]
fn a_full_maintenance_goes_through_every_stage() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        add_firmware(&fixture.env.store, firmware("fw-2", "3.0", false, true)).await;
        let activities = vec![
            RequestedActivity::FirmwareUpgrade(Some(FirmwareId::trusted("fw-2"))),
            RequestedActivity::ConfigureNmxCluster,
            RequestedActivity::PowerSequence(PowerSequence::Reset),
        ];
        let id = fixture
            .start_accepted(RackMaintenanceRequest {
                scope: MaintenanceScope::default(),
                activities,
            })
            .await;
        let run = fixture.wait_until_ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
        assert_eq!(run.spec.initiator, "ada (T-1)");
        let rack = fixture.wait_for_state("Ready").await;
        assert!(rack.active.is_empty() && rack.maintenance_requested.is_empty());
        fixture.wait_until_released().await;
        let events = fixture.engine().history(RACK, 0, 10_000).await.expect("a history");
        let message: Vec<&str> = events.iter().map(|event| event.message.as_str()).collect();
        for stage in ["at ConfigureNmxCluster", "at PowerSequence", "at Completed"] {
            assert!(message.contains(&stage), "{stage} is not in {message:?}");
        }
        // The fabric was as desired, and was not taken down.
        let status = fixture.engine().racks().status(&id).await.expect("a status");
        let off = status
            .steps
            .iter()
            .find(|rack_step| rack_step.name == "fabric-off")
            .expect("a rack step");
        assert!(off.child_runs.iter().all(|part| part.run.is_none()), "{off:?}");
        let check = status.steps.last().expect("a rack step");
        assert_eq!(check.child_runs.len(), 5);
    });
}

/// The check of the fabric is only a check: if it fails, child runs configure each switch.
#[test]
fn a_missing_fabric_is_formed_by_child_runs() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let runs = fixture.env.stored_state().await.runs;
        let parent = runs.iter().find(|stored| stored.run.spec.target.kind == TargetKind::Rack);
        let id = &parent.expect("an ingestion").run.spec.id;
        let status = fixture.engine().racks().status(id).await.expect("a status");
        for name in ["fabric-off", "fabric-manager", "fabric-configured"] {
            let rack_step =
                status.steps.iter().find(|rack_step| rack_step.name == name).expect("a rack step");
            assert!(rack_step.child_runs.iter().all(|part| part.run.is_some()), "{rack_step:?}");
        }
    });
}

/// Rule 14: only devices in scope are checked.
#[test]
fn a_partial_scope_works_next_to_a_broken_neighbour() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-2", "power");
        fixture.fail("m-2", "check");
        let id = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::Reset)).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
    });
}

#[test]
fn a_failure_names_device_and_activity_until_a_retry() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-2", "power");
        let id =
            fixture.start_accepted(power(MaintenanceScope::default(), PowerSequence::Reset)).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.phase, RackFailurePhase::PowerSequence);
        assert_eq!(cause.device.as_ref().map(|device| device.as_str()), Some("m-2"));
        assert!(cause.failure.message.contains("it is broken"), "{}", cause.failure.message);
        assert!(
            cause.next_command.contains(&format!("farrier operation retry-step {id}")),
            "{}",
            cause.next_command
        );
        assert!(rack.maintenance_requested.is_empty() && rack.active.is_empty());
        fixture.wait_until_released().await;
        tokio::time::sleep(Duration::from_secs(7_200)).await;
        fixture.wait_for_state("Error").await;
        // The hardware is repaired, and the operation resumes where it stopped.
        fixture.env.sim.clear_faults(None).expect("cleared");
        fixture
            .engine()
            .runs()
            .act(id.clone(), Action::RetryStep, requester())
            .await
            .expect("accepted");
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        fixture.wait_until_released().await;
    });
}

/// Power states that were read back are recorded at once, also by a sequence that failed.
#[test]
fn power_states_are_recorded_after_every_sequence() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let powers = async || {
            let devices = fixture.view().await.devices;
            let words = devices.iter().map(|one| format!("{} {:?}", one.target, one.power));
            words.collect::<Vec<_>>().join(", ")
        };
        let all = |power: &str| {
            let ids = ["m-1", "m-2", "sw-1", "sw-2", "ps-1"];
            ids.map(|id| format!("{id} Some({power})")).join(", ")
        };
        assert_eq!(powers().await, all("On"));
        for (sequence, power) in [(PowerSequence::Off, "Off"), (PowerSequence::On, "On")] {
            let id =
                fixture.start_accepted(self::power(MaintenanceScope::default(), sequence)).await;
            assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
            assert_eq!(powers().await, all(power));
            fixture.wait_for_state("Ready").await;
        }
        fixture.fail("m-2", "power");
        let id =
            fixture.start_accepted(power(MaintenanceScope::default(), PowerSequence::Reset)).await;
        let run = fixture.wait_until_ended(&id).await;
        let message = run.progress.failure.expect("it failed").fault.message;
        let left = "on: sw-1, sw-2, ps-1; off: m-1; not known: m-2";
        assert!(message.contains("m-2 (") && message.ends_with(left), "{message}");
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        let message = &cause.failure.message;
        assert!(message.contains("it is broken") && message.ends_with(left), "{message}");
        assert!(powers().await.starts_with("m-1 Some(Off), m-2"), "{}", powers().await);
    });
}

/// The explanation of a rack at work names the device that it waits for.
#[test]
fn a_rack_at_work_names_its_slowest_device() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let id = fixture.start_accepted(power(machines(&["m-1", "m-2"]), PowerSequence::Off)).await;
        fixture.wait_for_state("Maintenance").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let why = fixture.engine().explain(RACK).await.expect("explained");
        let told = &why.explanation;
        assert!(told.waiting_for.starts_with("m-1 to finish "), "{told:?}");
        assert!(told.waiting_for.contains("the slowest of 1 at work"), "{told:?}");
        assert!(told.next_commands[0].starts_with("farrier why op-"), "{told:?}");
        assert!(told.requested_by.starts_with("ada (T-1), "), "{told:?}");
        assert_eq!(why.run_id, Some(id));
    });
}

/// The commit that releases a device wakes the rack that waits for it: without the wake-up, the
/// rack looks again after 15 seconds.
#[test]
fn a_rack_begins_when_its_device_is_released() {
    simulate(async {
        let fixture =
            RackFixture::with_expected(Counts { machines: 2, switches: 0, power_shelves: 0 }).await;
        fixture.add_machine("m-1", None).await.expect("registered");
        let slow = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            delay_ms: 97_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        fixture.env.sim.add_fault(slow).expect("a rule");
        let start = StartRequest {
            machine_id: MachineId::trusted("m-1"),
            request_id: "on".into(),
            run_type: RunType::Power,
            plan_id: Some(PowerChange::On.plan_id()),
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: "ada".into(),
        };
        let held = fixture.engine().runs().start(start).await.expect("accepted").run.spec.id;
        // Now all devices are there, and one of them is held.
        fixture.add_machine("m-2", None).await.expect("registered");
        let ended = fixture.wait_until_ended(&held).await.progress.finished_at.expect("its end");
        let rack = fixture.wait_for_state("Maintenance").await;
        let waited = rack.head.since.since(ended);
        assert!(waited < Duration::from_secs(1), "{waited:?}");
    });
}

/// A stage that times out or is canceled records them as well.
#[test]
fn a_stopped_sequence_reports_the_power_states() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let id = fixture.start_accepted(power(machines(&["m-1", "m-2"]), PowerSequence::Off)).await;
        fixture.wait_for_state("Maintenance").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        fixture
            .engine()
            .runs()
            .act(id.clone(), Action::Cancel, requester())
            .await
            .expect("accepted");
        fixture.wait_until_ended(&id).await;
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        let message = &cause.failure.message;
        assert!(message.ends_with("; off: m-2; not known: m-1"), "{message}");
    });
}

#[test]
fn a_rerun_leaves_the_error_and_supersedes_the_failed_run() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-2", "power");
        let id =
            fixture.start_accepted(power(MaintenanceScope::default(), PowerSequence::On)).await;
        fixture.wait_until_ended(&id).await;
        fixture.wait_for_state("Error").await;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let rerun = fixture
            .engine()
            .runs()
            .restart(id.clone(), RestartMode::Rerun, "again".into(), requester())
            .await;
        let rerun = rerun.expect("accepted").run;
        assert_eq!(rerun.spec.rerun_of, Some(id.clone()));
        assert_eq!(fixture.wait_until_ended(&rerun.spec.id).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        let reported = fixture.engine().runs().act(id, Action::RetryStep, requester()).await;
        let Err(StoreError::Refused(refusal)) = reported else { panic!("{reported:?}") };
        assert_eq!(refusal.reason.as_str(), "RUN_SUPERSEDED");
    });
}

#[test]
fn a_cancel_leaves_an_error_and_releases_all_devices() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let id = fixture.start_accepted(power(machines(&["m-1", "m-2"]), PowerSequence::Off)).await;
        fixture.wait_for_state("Maintenance").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        fixture
            .engine()
            .runs()
            .act(id.clone(), Action::Cancel, requester())
            .await
            .expect("accepted");
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Canceled);
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert!(cause.failure.message.contains("was canceled by ada"), "{}", cause.failure.message);
        fixture.wait_until_released().await;
    });
}

#[test]
fn one_maintenance_at_a_time_whatever_its_scope() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            effect: "power".into(),
            delay_ms: 60_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let first = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::Off)).await;
        fixture.wait_for_state("Maintenance").await;
        for request in [
            power(machines(&["m-1"]), PowerSequence::On),
            power(machines(&["m-2"]), PowerSequence::Off),
            RackMaintenanceRequest::default(),
        ] {
            let refusal = fixture.start_refused(request).await;
            assert_eq!(refusal.reason.as_str(), "RACK_NOT_READY");
            assert!(refusal.message.contains(first.as_str()), "{}", refusal.message);
        }
        assert_eq!(fixture.wait_until_ended(&first).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        let second = fixture.start_accepted(power(machines(&["m-2"]), PowerSequence::Off)).await;
        assert_eq!(fixture.wait_until_ended(&second).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        fixture.wait_until_released().await;
    });
}

#[test]
fn missing_firmware_is_skipped_or_fails() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        add_firmware(&fixture.env.store, firmware("fw-0", "9.9", false, false)).await;
        let with = |id: &str| RackMaintenanceRequest {
            scope: MaintenanceScope::default(),
            activities: vec![RequestedActivity::FirmwareUpgrade(Some(FirmwareId::trusted(id)))],
        };
        let id = fixture.start_accepted(with("fw-0")).await;
        let run = fixture.wait_until_ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Succeeded);
        let skipped = run.spec.params.get("firmware_skipped").expect("a recorded reason");
        assert!(skipped.contains("fw-0 is not available"), "{skipped}");
        assert!(run.spec.steps.iter().all(|step| !step.name.starts_with("firmware-")));
        fixture.wait_for_state("Ready").await;
        let id = fixture.start_accepted(with("fw-none")).await;
        let run = fixture.wait_until_ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Failed);
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(
            (cause.phase, cause.failure.code.as_str()),
            (RackFailurePhase::FirmwareUpgrade, "firmware-unknown")
        );
        let reported = fixture.engine().runs().act(id, Action::RetryStep, requester()).await;
        let Err(StoreError::Refused(refusal)) = reported else { panic!("{reported:?}") };
        assert_eq!(refusal.reason.as_str(), "NOTHING_PLANNED");
    });
}

#[test]
fn a_reprovision_supersedes_pending_requests() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        // Both are accepted before the rack has a turn: the runtime has one thread.
        let pending = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::On)).await;
        let trigger = MaintenanceTrigger::Reprovision;
        let reprovision = MaintenanceStart {
            trigger,
            overrides: Overrides::of(&[Gate::InService], "a test"),
            ..maintenance_request(RackMaintenanceRequest::default())
        };
        let started = fixture.engine().racks().maintain(reprovision).await;
        let id = started.expect("accepted").run.expect("an operation").spec.id;
        let requested = fixture.view().await.rack;
        assert_eq!(requested.reprovision_requested, Some(id.clone()));
        assert_eq!(requested.maintenance_requested, std::slice::from_ref(&pending));
        let first = fixture.wait_until_ended(&pending).await;
        assert_eq!(first.phase(), RunPhase::Canceled, "it was superseded");
        assert_eq!(first.progress.started_at, None, "it never started");
        assert!(fixture.view().await.rack.maintenance_requested.is_empty());
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        fixture.wait_until_released().await;
    });
}

#[test]
fn ids_that_are_unknown_or_of_another_rack_are_refused_with_their_field() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.place("m-9", None, None).await.expect("registered");
        for (id, message) in [("m-9", "stands in no rack"), ("m-8", "is not known")] {
            let refusal =
                fixture.start_refused(power(machines(&["m-1", id]), PowerSequence::On)).await;
            assert_eq!(refusal.field.as_deref(), Some("scope.machine_ids[1]"));
            assert!(refusal.message.contains(&format!("{id} {message}")), "{}", refusal.message);
        }
        let switches = vec![SwitchId::trusted("sw-2")];
        let scope = MaintenanceScope { switches, ..MaintenanceScope::default() };
        let activities = vec![RequestedActivity::ConfigureNmxCluster];
        let refusal = fixture.start_refused(RackMaintenanceRequest { scope, activities }).await;
        assert!(refusal.message.contains("primary switch sw-1"), "{}", refusal.message);
        let power_shelves = vec![PowerShelfId::trusted("ps-7")];
        let scope = MaintenanceScope { power_shelves, ..MaintenanceScope::default() };
        let refusal =
            fixture.start_refused(RackMaintenanceRequest { scope, activities: Vec::new() }).await;
        assert_eq!(refusal.field.as_deref(), Some("scope.power_shelf_ids[0]"));
    });
}

#[test]
fn slots_are_checked_and_moves_wake_the_rack() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let taken = fixture.add_machine("m-3", Some(10)).await;
        let Err(StoreError::Refused(refusal)) = taken else { panic!("{taken:?}") };
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.slot"));
        assert!(refusal.message.contains("m-1 stands in rack-1"), "{}", refusal.message);
        let nowhere = fixture.place("m-3", Some("rack-9"), None).await;
        let Err(StoreError::Refused(refusal)) = nowhere else { panic!("{nowhere:?}") };
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.rack_id"));
        fixture.add_machine("m-3", Some(12)).await.expect("registered");
        // It reads its devices again, and brings the new one into service.
        for _ in 0..MAX_POLLS {
            if fixture.rack_states().await.iter().filter(|name| *name == "Validating").count() == 2
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let path = fixture.rack_states().await;
        assert_eq!(path.iter().filter(|name| *name == "Discovering").count(), 2, "{path:?}");
        fixture.wait_for_state("Ready").await;
        fixture.wait_until_released().await;
    });
}

/// The lowest slot makes a switch the primary, so a changed slot wakes the rack; others do not.
#[test]
fn a_changed_slot_wakes_the_rack() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let moved = async |slot: u32| {
            let spec = DeviceSpec { provider: "sim".into(), ..DeviceSpec::default() };
            let spec = PlacedSpec { spec, rack: Some(RackId::trusted(RACK)), slot: Some(slot) };
            let (id, labels) = ("sw-2".into(), Labels::new());
            let described = DescribedDevice { id, spec: Some(spec), labels };
            let done =
                fixture.engine().devices().register::<Switch>(described, "test".into()).await;
            done.expect("moved");
            let rack =
                fixture.engine().racks().get(&RackId::trusted(RACK)).await.expect("a rack").rack;
            rack.topology_changed
        };
        let primary = async || {
            let all = fixture.engine().racks().operations(&RackId::trusted(RACK)).await;
            let rack_steps = all.expect("a status").remove(0).steps;
            let manager =
                rack_steps.into_iter().find(|rack_step| rack_step.name == "fabric-manager");
            manager.expect("a rack step").child_runs.remove(0).target.to_string()
        };
        assert!(!moved(3).await, "the slot is unchanged");
        assert_eq!(primary().await, "sw-1");
        assert!(moved(0).await);
        for _ in 0..MAX_POLLS {
            if fixture.rack_states().await.iter().filter(|name| *name == "Validating").count() == 2
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        fixture.wait_for_state("Ready").await;
        assert_eq!(primary().await, "sw-2");
    });
}

#[test]
fn a_machine_stays_in_its_rack_while_an_operation_holds_it() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            effect: "power".into(),
            delay_ms: 60_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let id = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::Off)).await;
        let taken_out = fixture.place("m-1", None, None).await;
        let Err(StoreError::Refused(refusal)) = taken_out else { panic!("{taken_out:?}") };
        assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
        assert!(refusal.message.contains(id.as_str()), "{}", refusal.message);
        fixture.wait_until_ended(&id).await;
        fixture.place("m-1", None, None).await.expect("moved");
    });
}

/// A switch record without the required fields.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct UnreadableSwitch {
    head: RecordHeader,
}

impl Lifecycle for UnreadableSwitch {
    const KIND: SubjectKind = SubjectKind::Switch;
    const STATES: &'static [&'static str] = &["Ready"];
    type TurnInput = ();

    fn head(&self) -> &RecordHeader {
        &self.head
    }

    fn head_mut(&mut self) -> &mut RecordHeader {
        &mut self.head
    }

    fn state_name(&self) -> &'static str {
        "Ready"
    }

    fn next(&self, (): &(), _now: Timestamp) -> LifecycleDecision<Self> {
        LifecycleDecision::Idle(IdleReason::new("never claimed"))
    }
}

async fn add_unreadable_switch(tx: &mut Tx, now: Timestamp) -> Result<()> {
    let mut head = RecordHeader::new("sw-9", Labels::new(), now);
    head.rack = Some(RackId::trusted(RACK));
    tx.insert_record(&mut UnreadableSwitch { head }, &event(now)).await
}

/// The rack reports the bad record, skips it, and continues with the other devices.
#[test]
fn an_unreadable_device_does_not_affect_others() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let now = fixture.env.now();
        let added = fixture
            .env
            .store
            .write("add_half", now, |now, tx| Box::pin(add_unreadable_switch(tx, *now)));
        added.await.expect("added");
        let devices = fixture.view().await.devices;
        assert_eq!(devices.len(), 6);
        let half = devices
            .iter()
            .find(|one| one.target.as_str() == "sw-9")
            .expect("the unreadable device");
        assert_eq!(half.state, RackDeviceState::Unreadable);
        let named = vec![SwitchId::trusted("sw-9")];
        let scope = MaintenanceScope { switches: named, ..MaintenanceScope::default() };
        let refused = fixture.start(power(scope, PowerSequence::On)).await;
        assert!(refused.is_err(), "{refused:?}");
        for scope in [machines(&["m-1"]), MaintenanceScope::default()] {
            let id = fixture.start_accepted(power(scope, PowerSequence::Reset)).await;
            let run = fixture.wait_until_ended(&id).await;
            assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
            assert!(run.spec.held_targets.iter().all(|claim| claim.as_str() != "sw-9"));
            fixture.wait_for_state("Ready").await;
        }
    });
}

/// An override passes only its own gate: devices that an operation holds stay in their rack.
#[test]
fn a_rack_whose_devices_are_held_is_not_deleted() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let all = power(MaintenanceScope::default(), PowerSequence::Reset);
        let run = fixture.start_accepted(all).await;
        let named = Overrides::of(&[Gate::Devices], "it is scrapped");
        let racks = fixture.engine().racks();
        let held = racks.delete(RackId::trusted(RACK), None, named, "ada".into()).await;
        let Err(StoreError::Refused(refusal)) = held else { panic!("{held:?}") };
        assert!(refusal.message.contains(run.as_str()), "{refusal:?}");
        let run = fixture.wait_until_ended(&run).await;
        assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
    });
}

#[test]
fn a_rack_is_deleted_when_it_is_empty_or_with_an_override() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let id = RackId::trusted(RACK);
        let none = Overrides::default();
        let stored = fixture.engine().racks().delete(id.clone(), None, none, "ada".into()).await;
        let Err(StoreError::Refused(refusal)) = stored else { panic!("{stored:?}") };
        assert_eq!(
            (refusal.reason.as_str(), refusal.gate),
            ("RACK_NOT_EMPTY", Some(Gate::Devices))
        );
        let named = Overrides::of(&[Gate::Devices], "it is scrapped");
        let before = fixture.rack_states().await;
        let rehearsed = fixture
            .engine()
            .with_dry_run(true)
            .racks()
            .delete(id.clone(), None, named.clone(), "ada".into())
            .await;
        let foreseen = rehearsed.expect("a dry run");
        assert!(foreseen.rack.head.deleted && foreseen.devices.len() > 1, "{foreseen:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(fixture.rack_states().await, before);
        assert!(!fixture.engine().racks().get(&id).await.expect("a rack").rack.head.deleted);
        fixture
            .engine()
            .racks()
            .delete(id.clone(), None, named.clone(), "ada".into())
            .await
            .expect("marked");
        for _ in 0..MAX_POLLS {
            if fixture.engine().racks().get(&id).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let gone = fixture.engine().racks().get(&id).await;
        assert!(matches!(gone, Err(StoreError::Refused(_))), "{gone:?}");
        let machine = fixture.env.machine("m-1").await;
        assert_eq!((machine.spec.rack, machine.spec.slot), (None, None));
    });
}
