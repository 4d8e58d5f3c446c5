//! Dry runs of operations on racks and nodes in simulated time: their time, the gates that an
//! override passes, and what a cancel leaves behind. And what may not be continued.

use crate::clients::Client;
use crate::machine_scenarios::MACHINE;
use crate::node_scenarios::SITE;
use crate::nodes::{NodeFixture, refusal};
use crate::rack_fixture::{RackFixture, machines, maintenance_request, power, requester};
use crate::test_env::simulate;
use engine::Settings;
use engine::admission::RestartRequest;
use engine::node::Onboard;
use engine::rack::{MaintenancePreview, MaintenanceStart};
use model::effect::DesiredPower;
use model::gate::{Gate, Overrides};
use model::id::{FirmwareId, MachineId, RunId, SiteId};
use model::plan::RunType;
use model::rack::Counts;
use model::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackLimits, RackMaintenanceRequest, RequestedActivity,
};
use model::run::actions::{Action, RestartMode};
use model::run::{RunPhase, TimeEstimate};
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{StepDuration, Store};

fn hang(device: &str, effect: &str) -> FaultRule {
    let (machine, effect) = (device.into(), effect.into());
    FaultRule { machine, effect, ..FaultRule::new(sim::Action::Hang) }
}

/// Records ten durations of a step.
async fn record(store: &Store, step: &str, duration: Duration) {
    let written = store.write("durations", (step.to_string(), duration), |(step, duration), tx| {
        Box::pin(async move {
            for count in 0..10 {
                let one = StepDuration {
                    run: RunId::trusted(format!("op-{count}")),
                    machine: None,
                    step: step.clone(),
                    ended_at: model::time::Timestamp::from_millis(count),
                    duration: *duration,
                };
                tx.record_step_duration(&one).await?;
            }
            Ok(())
        })
    });
    written.await.expect("recorded");
}

async fn dry_run(fixture: &RackFixture, desired: RackMaintenanceRequest) -> MaintenancePreview {
    let start = MaintenanceStart { dry_run: true, ..maintenance_request(desired) };
    let would = fixture.engine().racks().maintain(start).await.expect("a preview");
    assert!(would.run.is_none(), "{would:?}");
    would.preview.expect("a preview")
}

/// The work on the devices of a rack is done beside each other, as far as the rack's limit allows.
#[test]
fn a_dry_run_of_a_rack_has_the_time_of_its_devices() {
    simulate(async {
        for at_once in [16, 1] {
            let limits = RackLimits { at_once, ..RackLimits::default() };
            let settings =
                Settings { replica: "a".into(), rack_limits: limits, ..Settings::default() };
            let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
            let fixture = RackFixture::with_settings(settings, expected).await;
            fixture.add_devices().await;
            fixture.wait_for_state("Ready").await;
            let desired = || power(machines(&["m-1", "m-2"]), PowerSequence::On);
            // Validation is the last step of each maintenance.
            let limit = Duration::from_secs(u64::from(limits.power_seconds + limits.check_seconds));
            record(&fixture.env.store, "lifecycle-power/power-on", Duration::from_secs(5)).await;
            let unknown = TimeEstimate::of(&dry_run(&fixture, desired()).await.steps);
            assert_eq!((unknown.usual, unknown.limit), (None, limit), "{at_once} at once");
            record(&fixture.env.store, "lifecycle-check/check", Duration::from_secs(1)).await;
            let preview = dry_run(&fixture, desired()).await;
            let time = TimeEstimate::of(&preview.steps);
            let usual = preview.steps.iter().map(|step| step.usual.as_ref().unwrap().median);
            let usual: Vec<u64> = usual.map(|median| median.as_secs()).collect();
            let together = if at_once == 1 { [10, 2] } else { [5, 1] };
            assert_eq!(usual, together, "{at_once} at once");
            assert_eq!(time.usual.map(|usual| usual.median.as_secs()), Some(together.iter().sum()));
            assert_eq!(time.limit, limit);
        }
    });
}

/// The notes of the dry run of an action.
async fn notes(fixture: &RackFixture, id: &RunId, action: Action) -> Vec<String> {
    let engine = fixture.engine().with_dry_run(true);
    let would = engine.runs().act(id.clone(), action, requester()).await.expect("accepted");
    engine.runs().preview(&would).await.expect("a preview").notes
}

async fn wait_for_note(fixture: &RackFixture, id: &RunId, note: &str) -> Vec<String> {
    let mut found = Vec::new();
    while !fixture.engine().runs().get(id).await.expect("a run").ended() {
        found = notes(fixture, id, Action::Cancel).await;
        if found.iter().any(|one| one.contains(note)) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("{note:?} is not in {found:?}");
}

/// A cancel names each device that stays off, that is being switched, or that is being flashed.
#[test]
fn a_cancel_of_a_rack_names_what_stays_off_and_what_is_being_flashed() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.env.sim.add_fault(hang("m-1", "power")).expect("a rule");
        let desired = power(machines(&["m-1", "m-2"]), PowerSequence::Reset);
        let id = fixture.start_accepted(desired).await;
        let off = "off now, and would stay off: m-2";
        let found = wait_for_note(&fixture, &id, off).await;
        let switched = "power-off would be stopped: m-1 may be off, and would stay so";
        assert!(found.iter().any(|one| one == switched), "{found:?}");
        // A freeze leaves the same behind.
        let frozen = notes(&fixture, &id, Action::MarkManual).await;
        assert!(frozen.iter().any(|one| one == off), "{frozen:?}");
        let runs = fixture.engine().runs();
        runs.act(id.clone(), Action::Cancel, requester()).await.expect("accepted");
        fixture.wait_until_ended(&id).await;
        fixture.wait_until_released().await;
        let devices = fixture.view().await.devices;
        let left = devices.iter().find(|one| one.target.as_str() == "m-2").expect("m-2");
        assert_eq!(left.power, Some(DesiredPower::Off));
    });
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.env.sim.add_fault(hang("m-1", "firmware")).expect("a rule");
        let activity = RequestedActivity::FirmwareUpgrade(Some(FirmwareId::trusted("fw-1")));
        let desired =
            RackMaintenanceRequest { scope: machines(&["m-1"]), activities: vec![activity] };
        let id = fixture.start_accepted(desired).await;
        let flashed = "the firmware update of m-1 is seen through to its end";
        let found = wait_for_note(&fixture, &id, flashed).await;
        assert!(found.iter().all(|one| !one.contains("would stay off")), "{found:?}");
    });
}

/// A rack operation that failed is rerun past a gate that refuses it now.
#[test]
fn a_rack_operation_is_rerun_with_an_override() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-1", "power");
        let id = fixture.start_accepted(power(machines(&["m-1"]), PowerSequence::Off)).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        fixture.wait_for_state("Error").await;
        fixture.wait_until_released().await;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let client = Client::new(fixture.engine());
        for (run_type, request) in
            [(RunType::EnterMaintenance, "in"), (RunType::ExitMaintenance, "out")]
        {
            let run = client.start("m-1", run_type, request.into()).await.expect("accepted");
            client.wait_until_ended(&run).await;
        }
        let rerun = |gates: &[Gate], request_id: &str| RestartRequest {
            original: id.clone(),
            mode: RestartMode::Rerun,
            request_id: request_id.into(),
            overrides: match gates {
                [] => Overrides::default(),
                named => Overrides::of(named, "fire"),
            },
        };
        let runs = fixture.engine().runs();
        for gates in [&[][..], &[Gate::Health]] {
            let refused = refusal(runs.restart_with(rerun(gates, "refused"), requester()).await);
            assert_eq!(refused.reason.as_str(), "MACHINES_IN_SERVICE", "{refused}");
            assert_eq!(refused.gate, Some(Gate::InService));
        }
        // The dry run names the gate that the override passes, and one that refuses nothing.
        let dry = fixture.engine().with_dry_run(true).runs();
        let both = rerun(&[Gate::InService, Gate::Health], "dry");
        let would = dry.restart_with(both, requester()).await.expect("accepted");
        let preview = dry.preview(&would.run).await.expect("a preview");
        let expected = [
            "gate in-service refuses it, and the override passes it",
            "gate health is named by the override, and does not refuse it",
        ];
        assert_eq!(preview.notes, expected);
        assert!(TimeEstimate::of(&preview.steps).limit > Duration::ZERO);
        assert!(runs.get(&would.run.spec.id).await.is_err());

        let real = runs.restart_with(rerun(&[Gate::InService], "real"), requester()).await;
        let real = real.expect("accepted").run;
        assert_eq!(Overrides::of_params(&real.spec.params).reason(), "fire");
        let events = fixture.engine().history(real.spec.id.as_str(), 0, 100).await.expect("events");
        let note = "gate in-service overridden by ada: fire";
        assert!(events.iter().any(|event| event.message.contains(note)), "{events:?}");
        assert_eq!(fixture.wait_until_ended(&real.spec.id).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
    });
}

/// An operation is not continued after a later operation on the same target, and a node's
/// operation is not repeated either. The dry run gives the same refusal.
#[test]
fn an_operation_that_another_one_has_followed_is_not_continued() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-2", "power");
        let id =
            fixture.start_accepted(power(MaintenanceScope::default(), PowerSequence::On)).await;
        fixture.wait_until_ended(&id).await;
        fixture.wait_until_released().await;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let client = Client::new(fixture.engine());
        let later = client.start("m-2", RunType::EnterMaintenance, "in".into()).await;
        let later = later.expect("accepted");
        client.wait_until_ended(&later).await;
        for (action, dry_run) in [Action::RetryStep, Action::Resume, Action::Adopt]
            .map(|action| [(action, false), (action, true)])
            .concat()
        {
            let runs = fixture.engine().with_dry_run(dry_run).runs();
            let refused = refusal(runs.act(id.clone(), action, requester()).await);
            assert_eq!(refused.reason.as_str(), "RUN_SUPERSEDED", "{action:?}: {refused}");
            let cause = format!("{id} has been followed by {later} on m-2: its steps");
            assert!(refused.message.starts_with(&cause), "{action:?}: {refused}");
            let next = refused.next_command.unwrap_or_default();
            assert_eq!(next, format!("farrier operation rerun {id}"), "{action:?}");
        }
        // The advice is followed.
        let runs = fixture.engine().runs();
        let rerun = runs.restart(id, RestartMode::Rerun, "again".into(), requester()).await;
        fixture.wait_until_ended(&rerun.expect("accepted").run.spec.id).await;
        fixture.wait_for_state("Ready").await;
    });
    simulate(async {
        let fixture = NodeFixture::new().await;
        let failed = fixture.onboarding_fails_at("wait_for_hardware_sync_healthy").await;
        let id = failed.spec.id;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let runs = fixture.process.engine.runs();
        let rerun = runs.restart(id.clone(), RestartMode::Rerun, "anew".into(), requester()).await;
        let rerun = rerun.expect("restarted").run.spec.id;
        fixture.client.wait_until_ended(&rerun).await;
        let followed = format!("{id} has been followed by {rerun} on ");
        let refused = refusal(runs.act(id.clone(), Action::RetryStep, requester()).await);
        assert_eq!(refused.reason.as_str(), "RUN_SUPERSEDED", "{refused}");
        assert!(refused.message.starts_with(&format!("{followed}m-1:")), "{refused}");
        assert_eq!(refused.next_command, Some(format!("farrier why {rerun}")));
        let node = fixture.node().await.head.id;
        for dry_run in [false, true] {
            let runs = fixture.process.engine.with_dry_run(dry_run).runs();
            let mode = RestartMode::Rerun;
            let refused = refusal(runs.restart(id.clone(), mode, "more".into(), requester()).await);
            assert_eq!(refused.reason.as_str(), "NODE_MOVED_ON", "{refused}");
            assert_eq!(refused.message, format!("{followed}{node}"));
            assert_eq!(refused.next_command, Some(format!("farrier why {node}")));
        }
    });
}

/// The time of an onboarding is that of the stages that would run.
#[test]
fn a_dry_run_of_an_onboarding_has_the_time_of_its_stages() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let request = || Onboard {
            machine: MachineId::trusted(MACHINE),
            site: SiteId::trusted(SITE),
            overrides: Overrides::default(),
            request_id: "would".into(),
            by: "ada".into(),
        };
        let nodes = fixture.process.engine.nodes();
        let would = nodes.preview_onboard(request()).await.expect("a preview");
        let executed: Vec<&str> = would
            .stages
            .iter()
            .filter(|stage| stage.adopted.is_none())
            .map(|stage| stage.stage.as_str())
            .collect();
        let timed: Vec<&str> =
            would.preview.steps.iter().map(|step| step.left.step.name.as_str()).collect();
        assert_eq!(timed, executed);
        let time = TimeEstimate::of(&would.preview.steps);
        assert!(time.limit > Duration::ZERO && time.usual.is_none(), "{time:?}");
        let plan = would.planned.run.spec.plan_id;
        for stage in &executed {
            let step = format!("{plan}/{stage}");
            record(&fixture.env.store, &step, Duration::from_secs(2)).await;
        }
        let would = nodes.preview_onboard(request()).await.expect("a preview");
        let usual = TimeEstimate::of(&would.preview.steps).usual;
        assert_eq!(
            usual.map(|usual| usual.median),
            Some(Duration::from_secs(2 * executed.len() as u64))
        );
    });
}
