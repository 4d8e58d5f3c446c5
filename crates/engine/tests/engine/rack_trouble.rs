//! Racks in simulated time: failures of fabric and validation, refusals, and settings.

use crate::racks::{Scene, asked, machines, power, who};
use crate::world::simulate;
use engine::Settings;
use engine::components::{Outcome, Update};
use engine::rack::{DescribedRack, MaintenanceStart};
use model::condition::ConditionType;
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::machine::Labels;
use model::rack::maintenance::{Asked, FORCED, Limits, PowerSequence, Scope, Wanted};
use model::rack::{Counts, During, RackSpec, RackState};
use model::refusal::Refusal;
use model::run::RunPhase;
use model::run::act::RestartMode;
use model::target::TargetId;
use store::{Result, StoreError};

fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn only(activity: Asked) -> Wanted {
    Wanted { scope: Scope::default(), activities: vec![activity] }
}

/// Runs into a fault of a device, and returns the state of the rack.
async fn fails(device: &str, effect: &str, wanted: Wanted) -> (During, String, String) {
    let scene = Scene::ready().await;
    scene.fail(device, effect);
    let id = scene.started(wanted).await;
    assert_eq!(scene.ended(&id).await.phase(), RunPhase::Failed);
    let rack = scene.until("Error").await;
    let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
    assert!(cause.next.contains(id.as_str()), "{}", cause.next);
    assert!(rack.active.is_empty() && rack.maintenance_requested.is_empty());
    scene.nobody_is_held().await;
    let device = cause.device.as_ref().map(ToString::to_string).unwrap_or_default();
    (cause.during, device, cause.trouble.said.clone())
}

#[test]
fn a_device_that_fails_the_last_look_is_an_error_of_the_validation() {
    simulate(async {
        let wanted = power(machines(&["m-1", "m-2"]), PowerSequence::On);
        let (during, device, said) = fails("m-2", "check", wanted).await;
        assert_eq!((during, device.as_str()), (During::Validation, "m-2"));
        assert!(said.contains("it is broken"), "{said}");
    });
}

#[test]
fn a_switch_that_fails_at_the_fabric_is_an_error_of_its_activity() {
    simulate(async {
        // A fabric in order would be left alone, so it is to be formed for the first time.
        let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
        let scene = Scene::under(Settings::default(), expected).await;
        scene.fail("sw-1", "fabric");
        scene.fill().await;
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.during, During::ConfigureNmxCluster);
        assert_eq!(cause.device.as_ref().map(|device| device.as_str()), Some("sw-1"));
        assert!(cause.trouble.said.contains("it is broken"), "{}", cause.trouble.said);
        scene.nobody_is_held().await;
    });
}

#[test]
fn what_was_forced_is_kept_with_the_operation_and_in_its_history() {
    simulate(async {
        let scene = Scene::ready().await;
        let force = Some("fire".to_string());
        let wanted = power(machines(&["m-1"]), PowerSequence::Reset);
        let start = MaintenanceStart { force, ..asked(wanted) };
        let run = scene
            .engine()
            .racks()
            .maintain(start)
            .await
            .expect("accepted")
            .run
            .expect("an operation");
        assert_eq!(run.spec.params.get(FORCED).map(String::as_str), Some("fire"));
        let events = scene.engine().history(run.spec.id.as_str(), 0, 100).await;
        let events = events.expect("a history");
        assert!(events.iter().any(|event| event.message.contains("by force: fire")), "{events:?}");
    });
}

#[test]
fn a_device_that_is_flagged_is_refused_by_name_and_left_out_of_the_whole() {
    simulate(async {
        let scene = Scene::ready().await;
        let flagged = MachineId::trusted("m-2");
        scene
            .engine()
            .machines()
            .flag(flagged, ConditionType::Rma, true, who())
            .await
            .expect("flagged");
        let refused = scene.refused(power(machines(&["m-2"]), PowerSequence::On)).await;
        assert_eq!(refused.reason, "DEVICE_BLOCKED");
        assert!(refused.said.contains("m-2 is flagged"), "{refused}");
        let started = scene.start(power(Scope::default(), PowerSequence::On)).await;
        let planned = started.expect("accepted").preview.expect("a preview").planned;
        assert!(planned.devices.iter().all(|device| device.target.as_str() != "m-2"));
        assert!(planned.notes.iter().any(|note| note.contains("m-2")), "{:?}", planned.notes);
    });
}

#[test]
fn an_empty_rack_has_nothing_to_maintain() {
    simulate(async {
        let scene = Scene::ready().await;
        let id = RackId::trusted("rack-2");
        let spec = RackSpec { hardware_type: "gb200".into(), expected: Counts::default() };
        let described = DescribedRack { id: id.clone(), labels: Labels::new(), spec };
        scene.engine().racks().create(described, "test".into()).await.expect("created");
        for dry_run in [false, true] {
            let start =
                MaintenanceStart { rack_id: id.clone(), dry_run, ..asked(Wanted::default()) };
            let refused = refusal(scene.engine().racks().maintain(start).await);
            assert_eq!(refused.reason, "RACK_EMPTY");
            assert_eq!(refused.next.as_deref(), Some("farrier rack get rack-2"));
        }
    });
}

#[test]
fn what_acts_on_something_else_is_no_maintenance_of_a_rack_and_no_run_on_a_machine() {
    simulate(async {
        let scene = Scene::ready().await;
        let newer = crate::racks::firmware("fw-2", "3.0", false, true);
        crate::racks::add_firmware(&scene.world.store, newer).await;
        let update = Update {
            targets: vec![TargetId::parse("ps-1").expect("an id")],
            firmware: Some(FirmwareId::trusted("fw-2")),
            request_id: "up".into(),
            by: "ada".into(),
            reference: String::new(),
            force: None,
            dry_run: false,
        };
        let done = scene.engine().components().update(update).await.expect("answered");
        let [Outcome::Started(run)] =
            &done.iter().map(|one| one.outcome.clone()).collect::<Vec<_>>()[..]
        else {
            panic!("{done:?}")
        };
        let run: &RunId = run;
        let refused = refusal(scene.engine().racks().status(run).await);
        assert_eq!(refused.reason, "NOT_ON_A_RACK");
        assert!(refused.said.contains("acts on ps-1"), "{refused}");
        scene.ended(run).await;
        let again = scene
            .engine()
            .runs()
            .restart(run.clone(), RestartMode::Rerun, "again".into(), who())
            .await;
        let again = again.expect("accepted").run.spec.id;
        assert_eq!(scene.ended(&again).await.phase(), RunPhase::Succeeded);
    });
}

#[test]
fn what_is_set_for_racks_reaches_the_steps_of_their_operations() {
    simulate(async {
        let racks = Limits {
            discovery_seconds: 86_400,
            firmware_seconds: 7_001,
            fabric_seconds: 7_002,
            power_seconds: 7_003,
            check_seconds: 7_004,
            at_once: 3,
        };
        let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
        let scene = Scene::under(Settings { racks, ..Settings::default() }, expected).await;
        scene.fill().await;
        scene.until("Ready").await;
        // The operation of the rack's own lifecycle and the one of the request.
        let own = scene.engine().racks().operations(&RackId::trusted("rack-1")).await;
        let own = own.expect("a status").remove(0).run;
        let asked = scene.start(Wanted::default()).await.expect("accepted").run.expect("a run");
        for run in [own, asked] {
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
                assert_eq!(step.effect.group().map(|group| group.at_once), Some(3));
            }
        }
    });
}

/// A dry run is the transaction of its request, rolled back: it is refused for the same reasons.
#[test]
fn a_dry_run_of_a_maintenance_asks_every_gate_and_leaves_nothing() {
    simulate(async {
        let scene = Scene::ready().await;
        let before = scene.engine().history("rack-1", 0, 10_000).await.expect("a history").len();
        let wanted = only(Asked::PowerSequence(PowerSequence::Reset));
        let rehearsal = MaintenanceStart { dry_run: true, ..asked(wanted.clone()) };
        let foreseen = scene.engine().racks().maintain(rehearsal).await.expect("a dry run");
        assert!(foreseen.run.is_none() && !foreseen.new);
        assert!(!foreseen.preview.expect("a preview").planned.steps.is_empty());
        let after = scene.engine().history("rack-1", 0, 10_000).await.expect("a history").len();
        assert_eq!(before, after);
        scene.nobody_is_held().await;
        let id = scene.started(wanted).await;
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Succeeded);
    });
}
