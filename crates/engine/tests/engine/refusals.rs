//! A refused request is shown by its object: power shelves, hosts, component firmware, and the
//! targets of operations, in simulated time.

use crate::rack_fixture::{RackFixture, add_firmware, firmware, machines, power};
use engine::component::{FirmwareUpdate, UpdateOutcome};
use engine::host::Reprovision;
use engine::rack::RackDescription;
use engine::{Change, DescribedDevice, DescribedMachine, Engine, SiteDescription};
use model::effect::DesiredPower;
use model::gate::Overrides;
use model::id::{FirmwareId, MachineId, PowerShelfId, RackId, RunId, SiteId};
use model::machine::{Labels, Machine};
use model::power_shelf::maintenance::PowerChangeRequest;
use model::rack::Rack;
use model::rack::maintenance::PowerSequence;
use model::refusal::{Reason, Refusal};
use model::run::actions::{Action, Requester, RestartMode};
use model::site::{Site, SiteSpec};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;

/// The last refused request in the explanation and in the history of an object. It is written in
/// the background.
async fn refused(engine: &Engine, id: &str) -> String {
    tokio::time::sleep(Duration::from_secs(5)).await;
    let told = engine.explain(id).await.expect("an explanation").explanation.refused;
    let history = engine.history(id, 0, 1_000).await.expect("a history");
    let entry = history.iter().any(|event| event.state == "refused");
    assert_eq!(entry, !told.is_empty(), "{id}: {history:?}");
    told
}

fn shelf_off(initiator: &str) -> PowerChangeRequest {
    PowerChangeRequest {
        ids: vec![PowerShelfId::trusted("ps-1")],
        operation: DesiredPower::Off,
        initiator: initiator.into(),
        overrides: Overrides::default(),
        request_id: None,
    }
}

fn upgrade(ids: &[(TargetKind, &str)], dry_run: bool) -> FirmwareUpdate {
    FirmwareUpdate {
        targets: ids.iter().map(|(kind, id)| TargetId::new(*kind, *id)).collect(),
        firmware: Some(FirmwareId::trusted("fw-old")),
        request_id: String::new(),
        by: "ada".into(),
        reference: String::new(),
        overrides: Overrides::default(),
        dry_run,
    }
}

#[test]
fn a_refused_request_is_shown_by_its_object() {
    crate::test_env::simulate(async {
        let fixture = RackFixture::ready().await;
        let engine = fixture.engine();
        // A record that is not available is refused at once, for each device.
        add_firmware(&fixture.env.store, firmware("fw-old", "1.0", false, false)).await;
        let targets = [(TargetKind::Machine, "m-2"), (TargetKind::PowerShelf, "ps-1")];
        let all_refused = async |dry_run: bool| {
            let done = engine.components().update(upgrade(&targets, dry_run)).await;
            let done = done.expect("answered");
            assert!(done.iter().all(|one| matches!(one.outcome, UpdateOutcome::Refused(_))));
        };
        all_refused(true).await;
        assert_eq!(refused(engine, "m-2").await, "", "a dry run leaves no trace");
        all_refused(false).await;
        for (_, id) in targets {
            let told = refused(engine, id).await;
            assert!(told.starts_with("firmware of ada, "), "{id}: {told}");
        }
        // A shelf that is worked on refuses the next change of its power.
        engine.power_shelves().maintain(shelf_off("ada")).await.expect("accepted");
        engine.power_shelves().maintain(shelf_off("bob")).await.expect_err("refused");
        let told = refused(engine, "ps-1").await;
        assert!(told.starts_with("power-off of bob, "), "{told}");
        // A host that is being upgraded refuses another request.
        let reprovision = |request_id: &str| Reprovision {
            machine: MachineId::trusted("m-2"),
            firmware: Some(FirmwareId::trusted("fw-1")),
            request_id: request_id.into(),
            by: "cleo".into(),
        };
        engine.hosts().reprovision(reprovision("first")).await.expect("accepted");
        engine.hosts().reprovision(reprovision("second")).await.expect_err("refused");
        let told = refused(engine, "m-2").await;
        assert!(told.starts_with("reprovision of cleo, "), "{told}");
    });
}

/// The refused update of an object leaves the same trace as any other request on it.
#[test]
fn a_refused_update_is_shown_by_its_object() {
    crate::test_env::simulate(async {
        let fixture = RackFixture::ready().await;
        let engine = fixture.engine();
        let refuse = || Refusal::new(Reason::DeviceBusy, "it is held");
        let by = || "dora".to_string();
        let machine = MachineId::trusted("m-2");
        let change: Change<Machine, DescribedMachine> = Arc::new(move |_| Err(refuse()));
        engine.machines().update(machine, change, None, by()).await.expect_err("refused");
        let rack = RackId::trusted("rack-1");
        let change: Change<Rack, RackDescription> = Arc::new(move |_| Err(refuse()));
        engine.racks().update(rack, change, None, by()).await.expect_err("refused");
        let change: Change<Switch, DescribedDevice> = Arc::new(move |_| Err(refuse()));
        engine.devices().update("sw-1", change, None, by()).await.expect_err("refused");
        for id in ["m-2", "rack-1", "sw-1"] {
            let told = refused(engine, id).await;
            assert!(told.starts_with("update of dora, "), "{id}: {told}");
        }
        let site = SiteId::trusted("site-1");
        let spec = SiteSpec { provider: "sim".into(), ..SiteSpec::default() };
        let described = SiteDescription { id: site.clone(), spec, labels: Labels::new() };
        let who = || Requester { by: by(), reason: String::new() };
        engine.sites().create(described, who()).await.expect("created");
        let change: Change<Site, SiteDescription> = Arc::new(move |_| Err(refuse()));
        engine.sites().update(site, change, None, who()).await.expect_err("refused");
        let told = refused(engine, "site-1").await;
        assert!(told.starts_with("update of dora, "), "{told}");
    });
}

/// People ask about the machine or the rack, not about the operation on it.
#[test]
fn a_refused_action_is_shown_by_the_target_of_its_operation() {
    crate::test_env::simulate(async {
        let fixture = RackFixture::ready().await;
        let engine = fixture.engine();
        let run = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::On)).await;
        fixture.wait_until_ended(&run).await;
        let who = || Requester { by: "bob".into(), reason: String::new() };
        let dry = engine.with_dry_run(true);
        dry.runs().act(run.clone(), Action::RetryStep, who()).await.expect_err("refused");
        assert_eq!(refused(engine, "rack-1").await, "", "a dry run leaves no trace");
        engine.runs().act(run.clone(), Action::RetryStep, who()).await.expect_err("refused");
        let told = refused(engine, "rack-1").await;
        assert!(told.starts_with(&format!("retry-step {run} of bob, ")), "{told}");
        assert!(refused(engine, run.as_str()).await.starts_with("retry-step of bob, "));
        // A maintenance is told by the type of its operation, like an operation on a machine.
        let again = || power(machines(&["m-1"]), PowerSequence::On);
        fixture.start_accepted(again()).await;
        fixture.start_refused(again()).await;
        let told = refused(engine, "rack-1").await;
        assert!(told.starts_with("RACK_MAINTENANCE of "), "{told}");
        // An unknown operation has no target.
        let unknown = RunId::trusted("op-none");
        let done = engine.runs().restart(unknown, RestartMode::Rerun, "x".into(), who()).await;
        assert!(matches!(done, Err(StoreError::Refused(_))));
    });
}

/// Refused requests are written in batches, at most one in a second; the newest is shown at once.
#[test]
fn the_newest_refusal_is_shown_before_it_is_stored() {
    crate::test_env::simulate(async {
        let fixture = RackFixture::ready().await;
        let engine = fixture.engine();
        let refuse = async |by: &str| {
            let change: Change<Machine, DescribedMachine> =
                Arc::new(|_| Err(Refusal::new(Reason::DeviceBusy, "it is held")));
            let machine = MachineId::trusted("m-2");
            let done = engine.machines().update(machine, change, None, by.into()).await;
            done.expect_err("refused");
        };
        refuse("bob").await;
        // The writer has stored it, and pauses.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for by in ["cleo", "dora"] {
            refuse(by).await;
            let told = engine.explain("m-2").await.expect("an explanation").explanation.refused;
            assert!(told.starts_with(&format!("update of {by}, ")), "{told}");
            let history = engine.history("m-2", 0, 1_000).await.expect("a history");
            let entries = history.iter().filter(|event| event.state == "refused");
            let actors: Vec<&str> = entries.map(|event| event.actor.as_str()).collect();
            assert_eq!(actors, [by]);
        }
        let told = refused(engine, "m-2").await;
        assert!(told.starts_with("update of dora, "), "it is stored: {told}");
    });
}
