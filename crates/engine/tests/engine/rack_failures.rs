//! Racks in simulated time: failures of fabric and validation, refusals, and settings.

use crate::rack_fixture::{
    RackFixture, add_firmware, firmware, machines, maintenance_request, power, requester,
};
use crate::test_env::simulate;
use engine::Settings;
use engine::component::{FirmwareUpdate, UpdateOutcome};
use engine::machine::FlagRequest;
use engine::rack::{MaintenanceStart, RackDescription};
use model::condition::ConditionType;
use model::gate::{Gate, Overrides};
use model::id::{FirmwareId, MachineId, RackId, RunId, SwitchId};
use model::machine::Labels;
use model::plan::RunType;
use model::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackLimits, RackMaintenanceRequest, RequestedActivity,
};
use model::rack::{Counts, RackFailurePhase, RackSpec, RackState};
use model::refusal::Refusal;
use model::run::actions::{Action, RestartMode};
use model::run::{Run, RunPhase};
use model::target::TargetId;
use store::{Result, StoreError};

fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn only(activity: RequestedActivity) -> RackMaintenanceRequest {
    RackMaintenanceRequest { scope: MaintenanceScope::default(), activities: vec![activity] }
}

/// Runs into a fault of a device, and returns the state of the rack.
async fn fail_maintenance(
    device: &str,
    effect: &str,
    desired: RackMaintenanceRequest,
) -> (RackFailurePhase, String, String) {
    let fixture = RackFixture::ready().await;
    fixture.fail(device, effect);
    let id = fixture.start_accepted(desired).await;
    assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
    let rack = fixture.wait_for_state("Error").await;
    let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
    assert!(cause.next_command.contains(id.as_str()), "{}", cause.next_command);
    assert!(rack.active.is_empty() && rack.maintenance_requested.is_empty());
    fixture.wait_until_released().await;
    let device = cause.device.as_ref().map(ToString::to_string).unwrap_or_default();
    (cause.phase, device, cause.failure.message.clone())
}

#[test]
fn a_failed_check_is_a_validation_error() {
    simulate(async {
        let desired = power(machines(&["m-1", "m-2"]), PowerSequence::On);
        let (during, device, message) = fail_maintenance("m-2", "check", desired).await;
        assert_eq!((during, device.as_str()), (RackFailurePhase::Validation, "m-2"));
        assert!(message.contains("it is broken"), "{message}");
    });
}

#[test]
fn a_switch_that_fails_at_the_fabric_is_an_error_of_its_activity() {
    simulate(async {
        // A fabric in order would be left alone, so it is to be formed for the first time.
        let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
        let fixture = RackFixture::with_settings(Settings::default(), expected).await;
        fixture.fail("sw-1", "fabric");
        fixture.add_devices().await;
        let rack = fixture.wait_for_state("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.phase, RackFailurePhase::ConfigureNmxCluster);
        assert_eq!(cause.device.as_ref().map(|device| device.as_str()), Some("sw-1"));
        assert!(cause.failure.message.contains("it is broken"), "{}", cause.failure.message);
        fixture.wait_until_released().await;
    });
}

/// A switch that failed is flashed again by its own operation. It asks as a maintenance of the rack
/// does: machines may have come into service since.
#[test]
fn a_switch_is_not_flashed_under_machines_in_service() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        add_firmware(&fixture.env.store, firmware("fw-2", "3.0", false, true)).await;
        fixture.fail("sw-1", "firmware");
        let scope = MaintenanceScope {
            switches: vec![SwitchId::trusted("sw-1")],
            ..MaintenanceScope::default()
        };
        let activity = RequestedActivity::FirmwareUpgrade(Some(FirmwareId::trusted("fw-2")));
        let flash = RackMaintenanceRequest { scope, activities: vec![activity] };
        let id = fixture.start_accepted(flash.clone()).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        fixture.wait_until_released().await;
        let mut runs = fixture.env.stored_state().await.runs.into_iter().map(|stored| stored.run);
        let is_part = |run: &Run| run.spec.parent_run.as_ref() == Some(&id);
        let child = runs.find(is_part).expect("its part").spec.id;
        let client = crate::clients::Client::new(fixture.engine());
        for (run_type, request) in
            [(RunType::EnterMaintenance, "in"), (RunType::ExitMaintenance, "out")]
        {
            let run = client.start("m-1", run_type, request.into()).await.expect("accepted");
            client.wait_until_ended(&run).await;
        }
        let engine = fixture.engine();
        let retried = engine.runs().act(child.clone(), Action::RetryStep, requester()).await;
        let mode = RestartMode::Rerun;
        let rerun = engine.runs().restart(child, mode, "anew".into(), requester()).await;
        for answer in [retried, rerun.map(|started| started.run)] {
            let refused = refusal(answer);
            assert_eq!(refused.reason.as_str(), "MACHINES_IN_SERVICE", "{refused}");
            assert!(refused.message.contains("take the fabric from"), "{refused}");
            let next = refused.next_command.unwrap_or_default();
            assert!(next.contains("rack maintenance start rack-1 --switch sw-1 --over"), "{next}");
        }
        // The rack says the same.
        let refused = fixture.start_refused(flash).await;
        assert_eq!(refused.reason.as_str(), "MACHINES_IN_SERVICE", "{refused}");
    });
}

#[test]
fn an_override_is_recorded() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let overrides = Overrides::of(&[Gate::InService], "fire");
        let desired = power(machines(&["m-1"]), PowerSequence::Reset);
        let start =
            MaintenanceStart { overrides: overrides.clone(), ..maintenance_request(desired) };
        let run = fixture
            .engine()
            .racks()
            .maintain(start)
            .await
            .expect("accepted")
            .run
            .expect("an operation");
        assert_eq!(Overrides::of_params(&run.spec.params), overrides);
        let events = fixture.engine().history(run.spec.id.as_str(), 0, 100).await;
        let events = events.expect("a history");
        let note = "; gate in-service named by ada, and it did not refuse: fire";
        assert!(events.iter().any(|event| event.message.ends_with(note)), "{events:?}");
    });
}

#[test]
fn a_flagged_device_is_refused_by_name_and_skipped_in_a_full_scope() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let flag = FlagRequest {
            id: MachineId::trusted("m-2"),
            condition: ConditionType::Rma,
            status: true,
            overrides: Overrides::default(),
        };
        fixture.engine().machines().flag(flag, requester()).await.expect("flagged");
        let refused = fixture.start_refused(power(machines(&["m-2"]), PowerSequence::On)).await;
        assert_eq!(refused.reason.as_str(), "DEVICE_BLOCKED");
        assert!(refused.message.contains("m-2 is flagged"), "{refused}");
        let started = fixture.start(power(MaintenanceScope::default(), PowerSequence::On)).await;
        let planned = started.expect("accepted").preview.expect("a preview").planned;
        assert!(planned.devices.iter().all(|device| device.target.as_str() != "m-2"));
        assert!(planned.notes.iter().any(|note| note.contains("m-2")), "{:?}", planned.notes);
    });
}

#[test]
fn an_empty_rack_has_nothing_to_maintain() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let id = RackId::trusted("rack-2");
        let spec = RackSpec {
            hardware_type: "gb200".into(),
            expected: Counts::default(),
            ..RackSpec::default()
        };
        let described = RackDescription { id: id.clone(), labels: Labels::new(), spec };
        fixture.engine().racks().create(described, "test".into()).await.expect("created");
        for dry_run in [false, true] {
            let start = MaintenanceStart {
                rack_id: id.clone(),
                dry_run,
                ..maintenance_request(RackMaintenanceRequest::default())
            };
            let refused = refusal(fixture.engine().racks().maintain(start).await);
            assert_eq!(refused.reason.as_str(), "RACK_EMPTY");
            assert_eq!(refused.next_command.as_deref(), Some("farrier rack get rack-2"));
        }
    });
}

#[test]
fn a_shelf_run_has_no_rack_status() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let newer = crate::rack_fixture::firmware("fw-2", "3.0", false, true);
        crate::rack_fixture::add_firmware(&fixture.env.store, newer).await;
        let update = FirmwareUpdate {
            targets: vec![TargetId::parse("ps-1").expect("an id")],
            firmware: Some(FirmwareId::trusted("fw-2")),
            request_id: "up".into(),
            by: "ada".into(),
            reference: String::new(),
            overrides: Overrides::default(),
            dry_run: false,
        };
        let done = fixture.engine().components().update(update).await.expect("answered");
        let [UpdateOutcome::Started(run)] =
            &done.iter().map(|one| one.outcome.clone()).collect::<Vec<_>>()[..]
        else {
            panic!("{done:?}")
        };
        let run: &RunId = run;
        let refused = refusal(fixture.engine().racks().status(run).await);
        assert_eq!(refused.reason.as_str(), "NOT_ON_A_RACK");
        assert!(refused.message.contains("acts on ps-1"), "{refused}");
        fixture.wait_until_ended(run).await;
        let again = fixture
            .engine()
            .runs()
            .restart(run.clone(), RestartMode::Rerun, "again".into(), requester())
            .await;
        let again = again.expect("accepted").run.spec.id;
        assert_eq!(fixture.wait_until_ended(&again).await.phase(), RunPhase::Succeeded);
    });
}

#[test]
fn rack_limits_reach_the_steps() {
    simulate(async {
        let racks = RackLimits {
            discovery_seconds: 86_400,
            firmware_seconds: 7_001,
            fabric_seconds: 7_002,
            power_seconds: 7_003,
            check_seconds: 7_004,
            at_once: 3,
        };
        let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
        let fixture = RackFixture::with_settings(
            Settings { rack_limits: racks, ..Settings::default() },
            expected,
        )
        .await;
        fixture.add_devices().await;
        fixture.wait_for_state("Ready").await;
        // The operation of the rack's own lifecycle and the one of the request.
        let own = fixture.engine().racks().operations(&RackId::trusted("rack-1")).await;
        let own = own.expect("a status").remove(0).run;
        let requested = fixture
            .start(RackMaintenanceRequest::default())
            .await
            .expect("accepted")
            .run
            .expect("a run");
        for run in [own, requested] {
            assert!(run.spec.steps.len() > 3, "{:?}", run.spec.steps);
            for step in &run.spec.steps {
                let seconds = match step.name.split('-').next() {
                    Some("firmware") => 7_001,
                    Some("fabric") => 7_002,
                    Some("power") => 7_003,
                    Some("validate") => 7_004,
                    other => panic!("{other:?}"),
                };
                assert_eq!(step.timeout_seconds, seconds, "{}", step.name);
                assert_eq!(step.effect.group().map(|group| group.max_concurrent), Some(3));
            }
        }
    });
}

/// A dry run is the transaction of its request, rolled back: it is refused for the same reasons.
#[test]
fn a_dry_run_of_a_maintenance_writes_nothing() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let before = fixture.engine().history("rack-1", 0, 10_000).await.expect("a history").len();
        let desired = only(RequestedActivity::PowerSequence(PowerSequence::Reset));
        let dry_run = MaintenanceStart { dry_run: true, ..maintenance_request(desired.clone()) };
        let previewed = fixture.engine().racks().maintain(dry_run).await.expect("a dry run");
        assert!(previewed.run.is_none() && !previewed.new);
        assert!(!previewed.preview.expect("a preview").planned.steps.is_empty());
        let after = fixture.engine().history("rack-1", 0, 10_000).await.expect("a history").len();
        assert_eq!(before, after);
        fixture.wait_until_released().await;
        let id = fixture.start_accepted(desired).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
    });
}
