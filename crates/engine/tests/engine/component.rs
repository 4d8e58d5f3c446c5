//! Component firmware in simulated time: devices through their rack, shelves directly, and hosts.

use crate::rack_fixture::{
    RackFixture, add_firmware, firmware, machines, maintenance_request, power,
};
use crate::test_env::simulate;
use engine::component::{FirmwareUpdate, FirmwareUpdateResult, UpdateOutcome};
use engine::rack::MaintenanceStart;
use model::gate::{Gate, Overrides};
use model::host::HostState;
use model::id::{FirmwareId, MachineId, RunId};
use model::rack::maintenance::{MaintenanceScope, PowerSequence, REFERENCE};
use model::run::RunPhase;
use model::target::TargetId;
use store::AppliedQuery;

fn target(id: &str) -> TargetId {
    TargetId::parse(id).expect("an id")
}

async fn rack_fixture() -> RackFixture {
    let fixture = RackFixture::ready().await;
    add_firmware(&fixture.env.store, firmware("fw-2", "3.0", false, true)).await;
    fixture
}

fn update_request(ids: &[&str], request_id: &str, dry_run: bool) -> FirmwareUpdate {
    FirmwareUpdate {
        targets: ids.iter().map(|id| target(id)).collect(),
        firmware: Some(FirmwareId::trusted("fw-2")),
        request_id: request_id.into(),
        by: "ada".into(),
        reference: String::new(),
        overrides: Overrides::default(),
        dry_run,
    }
}

async fn update(
    fixture: &RackFixture,
    ids: &[&str],
    request_id: &str,
    dry_run: bool,
) -> Vec<FirmwareUpdateResult> {
    let update = update_request(ids, request_id, dry_run);
    fixture.engine().components().update(update).await.expect("answered")
}

/// The number of active operations on the rack and its shelf.
async fn operations(fixture: &RackFixture) -> usize {
    fixture.view().await.devices.iter().filter(|device| device.active_run.is_some()).count()
}

fn operation(one: &FirmwareUpdateResult) -> RunId {
    match &one.outcome {
        UpdateOutcome::Started(run) => run.clone(),
        other => panic!("{}: {other:?}", one.target),
    }
}

fn refused(one: &FirmwareUpdateResult) -> &'static str {
    match &one.outcome {
        UpdateOutcome::Refused(refusal) => refusal.reason.as_str(),
        other => panic!("{}: {other:?}", one.target),
    }
}

async fn state(fixture: &RackFixture, machine: &str) -> HostState {
    let id = MachineId::trusted(machine);
    fixture.engine().hosts().get(&id).await.expect("a host").host.state
}

/// The states of a host since it was last Ready.
async fn host_states(fixture: &RackFixture, machine: &str) -> Vec<String> {
    let history = fixture.engine().history(&format!("host:{machine}"), 0, 10_000).await;
    let mut words: Vec<String> =
        history.expect("a history").into_iter().map(|event| event.state).collect();
    words.dedup();
    words
}

#[test]
fn devices_of_a_rack_share_an_operation_and_a_shelf_has_its_own() {
    simulate(async {
        let fixture = rack_fixture().await;
        let ids = ["m-1", "sw-1", "ps-1", "m-2"];
        let preview = update(&fixture, &ids, "", true).await;
        for one in &preview {
            let UpdateOutcome::Planned(steps) = &one.outcome else { panic!("{one:?}") };
            assert!(!steps.is_empty(), "{one:?}");
        }
        let foreseen = preview[0].preview.as_ref().expect("the preview of its rack");
        assert_eq!(
            foreseen.planned.devices.len(),
            3,
            "the devices of one rack share one operation"
        );
        assert!(preview[2].preview.is_none(), "a shelf is upgraded by itself");
        assert_eq!(operations(&fixture).await, 0, "nothing was changed");
        let done = update(&fixture, &ids, "up", false).await;
        let named: Vec<&str> = done.iter().map(|one| one.target.as_str()).collect();
        assert_eq!(named, ids, "in the order in which they were named");
        let (rack, shelf) = (operation(&done[0]), operation(&done[2]));
        assert_eq!([operation(&done[1]), operation(&done[3])], [rack.clone(), rack.clone()]);
        assert_ne!(rack, shelf);
        let again = update(&fixture, &ids, "up", false).await;
        assert_eq!(
            again.iter().map(operation).collect::<Vec<_>>(),
            done.iter().map(operation).collect::<Vec<_>>()
        );
        for run in [&rack, &shelf] {
            let run = fixture.wait_until_ended(run).await;
            assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
        }
        fixture.wait_for_state("Ready").await;
        assert_eq!(state(&fixture, "m-1").await, HostState::Ready);
        let waited = "WaitingForRackFirmwareUpgrade".to_string();
        assert!(host_states(&fixture, "m-1").await.contains(&waited));
        let history = fixture.engine().history("m-1", 0, 10_000).await.expect("a history");
        let change = "changed the firmware of BMC from 2.0 to 3.0";
        assert!(history.iter().any(|event| event.message.ends_with(change)), "{history:?}");
        for id in ids {
            let applied = fixture
                .engine()
                .firmware()
                .applied(AppliedQuery { device: Some(target(id)), ..Default::default() }, 1)
                .await
                .expect("a history");
            assert_eq!((applied[0].previous.as_str(), applied[0].version.as_str()), ("2.0", "3.0"));
        }
        let status =
            fixture.engine().components().status(&ids.map(target), None).await.expect("a status");
        assert!(
            status.iter().all(|one| one
                .device
                .facts
                .firmware
                .get("BMC")
                .is_some_and(|has| has == "3.0"))
        );
        // On a second request the devices report that they have the version, and are left alone.
        let again = update(&fixture, &ids, "more", false).await;
        for run in [operation(&again[0]), operation(&again[2])] {
            assert_eq!(fixture.wait_until_ended(&run).await.phase(), RunPhase::Succeeded);
        }
        for id in ids {
            let applied = fixture
                .engine()
                .firmware()
                .applied(AppliedQuery { device: Some(target(id)), ..Default::default() }, 1)
                .await
                .expect("a history");
            assert_eq!((applied[0].previous.as_str(), applied[0].changed), ("3.0", false), "{id}");
        }
    });
}

/// One request for a rack's devices and a shelf records its reference in both.
#[test]
fn the_reference_and_the_override_are_recorded() {
    simulate(async {
        let fixture = rack_fixture().await;
        let update = FirmwareUpdate {
            reference: "T-7".into(),
            overrides: Overrides::of(&[Gate::Health], "a leak"),
            ..update_request(&["m-1", "ps-1"], "up", false)
        };
        let done = fixture.engine().components().update(update).await.expect("answered");
        for one in &done {
            let id = operation(one);
            let run = fixture.wait_until_ended(&id).await;
            assert_eq!(run.spec.initiator, "ada (T-7)", "{one:?}");
            let param = |name: &str| run.spec.params.get(name).map(String::as_str);
            assert_eq!(param(REFERENCE), Some("T-7"), "{one:?}");
            let overrides = Overrides::of_params(&run.spec.params);
            assert_eq!(overrides, Overrides::of(&[Gate::Health], "a leak"), "{one:?}");
            let history = fixture.engine().history(id.as_str(), 0, 1).await.expect("a history");
            let message =
                "accepted for ada (T-7); gate health named by ada, and it did not refuse: a leak";
            assert!(history[0].message.ends_with(message), "{:?}", history[0].message);
        }
    });
}

#[test]
fn shelves_update_all_or_none_and_racks_separately() {
    simulate(async {
        let fixture = rack_fixture().await;
        fixture.place("m-9", None, None).await.expect("registered");
        let done = update(&fixture, &["ps-1", "ps-9", "m-9", "m-1"], "up", false).await;
        assert_eq!(refused(&done[1]), "NOT_FOUND");
        assert_eq!(refused(&done[0]), "NOT_FOUND", "refused together with the other shelf");
        assert_eq!(refused(&done[2]), "NO_RACK");
        let run = fixture.wait_until_ended(&operation(&done[3])).await;
        assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
    });
}

/// A host whose child run failed is freed by the next operation of its rack, without a retry.
#[test]
fn a_new_rack_request_frees_a_failed_host() {
    simulate(async {
        let fixture = rack_fixture().await;
        fixture.fail("m-1", "firmware");
        let done = update(&fixture, &["m-1"], "first", false).await;
        assert_eq!(fixture.wait_until_ended(&operation(&done[0])).await.phase(), RunPhase::Failed);
        fixture.wait_for_state("Error").await;
        assert!(matches!(state(&fixture, "m-1").await, HostState::FailedFirmwareUpgrade { .. }));
        fixture.env.sim.clear_faults(None).expect("cleared");
        let done = update(&fixture, &["m-1"], "second", false).await;
        assert_eq!(
            fixture.wait_until_ended(&operation(&done[0])).await.phase(),
            RunPhase::Succeeded
        );
        fixture.wait_for_state("Ready").await;
        assert_eq!(state(&fixture, "m-1").await, HostState::Ready);
        let path = host_states(&fixture, "m-1").await;
        let tail: Vec<&str> = path.iter().rev().take(4).map(String::as_str).collect();
        let waiting = "WaitingForRackFirmwareUpgrade";
        assert_eq!(tail, ["Ready", waiting, "FailedFirmwareUpgrade", waiting]);
    });
}

/// A dry run reports all refusals, not only the first, and the affected machines.
#[test]
fn a_dry_run_reports_all_refusals() {
    simulate(async {
        let fixture = rack_fixture().await;
        let busy = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::Off)).await;
        let foreseen = update(&fixture, &["m-1", "m-2"], "", true).await;
        let preview = foreseen[0].preview.as_ref().expect("a preview");
        let reasons: Vec<&str> = preview.refusals.iter().map(|one| one.reason.as_str()).collect();
        let all = ["MAINTENANCE_PENDING", "MACHINE_BUSY", "MACHINES_IN_SERVICE"];
        assert_eq!(reasons, all);
        for refusal in &preview.refusals {
            assert!(refusal.message.contains(busy.as_str()), "{refusal}");
        }
        let affected: Vec<&str> =
            preview.planned.affected.iter().map(|affected| affected.machine.as_str()).collect();
        assert_eq!(affected, ["m-1", "m-2"]);
        assert!(!preview.planned.steps.is_empty());
    });
}

/// A request id that was used for another request is refused.
#[test]
fn a_reused_request_id_is_refused() {
    simulate(async {
        let fixture = rack_fixture().await;
        let on = power(MaintenanceScope::default(), PowerSequence::On);
        let start = MaintenanceStart { request_id: "on-1".into(), ..maintenance_request(on) };
        let run = fixture.engine().racks().maintain(start).await.expect("accepted").run;
        fixture.wait_until_ended(&run.expect("an operation").spec.id).await;
        for ids in [&["m-1"], &["sw-1"]] {
            assert_eq!(
                refused(&update(&fixture, ids, "on-1", false).await[0]),
                "REQUEST_ID_REUSED"
            );
        }
    });
}
