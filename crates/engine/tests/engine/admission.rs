//! Every path that creates a run goes through admission: each run is counted once; repeated
//! requests and dry runs are not.

use crate::nodes::{
    self, DAY, agents, decommission_request, enrolling_agent, onboard_request, requester,
};
use crate::rack_fixture::{RackFixture, add_firmware, firmware, maintenance_request};
use crate::test_env::{TestEnv, simulate};
use engine::Engine;
use engine::admission::{StartRequest, StartedRun};
use engine::component::FirmwareUpdate;
use engine::host::Reprovision;
use engine::rack::MaintenanceStart;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use model::filter::Filter;
use model::gate::Overrides;
use model::id::{FirmwareId, MachineId, RunId};
use model::node::{DecommissionMode, NodeState};
use model::plan::{Params, RunType};
use model::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use model::run::actions::{Requester, RestartMode};
use model::target::TargetId;
use secrecy::ExposeSecret;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NAME: &str = "farrier_runs_started_total";

/// A recorder of one counter, whatever its labels.
#[derive(Default)]
struct RunCounter(Arc<AtomicU64>);

impl Recorder for RunCounter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            NAME => Counter::from_arc(Arc::clone(&self.0)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl RunCounter {
    fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Stored and counted runs are equal, and more than before.
    async fn check(&self, env: &TestEnv, what: &str, before: u64) -> u64 {
        let runs = env.store.read((), |(), tx| {
            Box::pin(async move { tx.runs(&Filter::default(), None, 1_000).await })
        });
        let stored = runs.await.expect("the in-memory database answers").runs.len() as u64;
        assert_eq!(self.total(), stored, "{what}");
        assert!(stored > before, "{what} created no run");
        stored
    }
}

async fn ended(engine: &Engine, id: &RunId) {
    while !engine.runs().get(id).await.expect("a run").ended() {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// Starts a run on a machine, twice.
async fn start_twice(engine: &Engine, run_type: RunType) -> RunId {
    let start = StartRequest {
        machine_id: MachineId::trusted("m-1"),
        request_id: run_type.as_str().into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: Overrides::default(),
        initiator: "ada".into(),
    };
    let first = engine.runs().start(start.clone()).await.expect("accepted");
    let second = engine.runs().start(start).await.expect("the same");
    same(&first, &second)
}

async fn restart_twice(engine: &Engine, id: &RunId) -> RunId {
    ended(engine, id).await;
    let runs = engine.runs();
    let because = || Requester { reason: "the fan was replaced".into(), ..requester() };
    let restart = || runs.restart(id.clone(), RestartMode::Rerun, "rerun".into(), because());
    let first = restart().await.expect("accepted");
    let second = restart().await.expect("the same");
    let again = same(&first, &second);
    let history = engine.history(again.as_str(), 0, 1).await.expect("a history");
    let note = format!(", rerun of {id} by somebody: the fan was replaced");
    assert!(history[0].message.ends_with(&note), "{:?}", history[0].message);
    again
}

fn same(first: &StartedRun, second: &StartedRun) -> RunId {
    assert_eq!((first.new, second.new), (true, false));
    assert_eq!(first.run.spec.id, second.run.spec.id);
    first.run.spec.id.clone()
}

fn power(request_id: &str, dry_run: bool) -> MaintenanceStart {
    let scope = MaintenanceScope {
        machines: vec![MachineId::trusted("m-1")],
        ..MaintenanceScope::default()
    };
    let activities = vec![RequestedActivity::PowerSequence(PowerSequence::Reset)];
    let desired = RackMaintenanceRequest { scope, activities };
    MaintenanceStart { request_id: request_id.into(), dry_run, ..maintenance_request(desired) }
}

#[test]
fn every_run_on_a_machine_or_in_a_rack_is_counted_once() {
    let counted = RunCounter::default();
    let _recorder = metrics::set_default_local_recorder(&counted);
    simulate(async {
        // The rack's lifecycle starts an operation, which starts its child runs.
        let fixture = RackFixture::ready().await;
        let (env, engine) = (&fixture.env, fixture.engine());
        let count = counted.check(env, "the lifecycle of a rack", 0).await;
        for dry_run in [true, false, false] {
            let started = engine.racks().maintain(power("reset", dry_run)).await;
            started.expect("accepted");
        }
        let found =
            engine.racks().operations(&fixture.view().await.rack.id()).await.expect("a status");
        let operation = found[0].run.spec.id.clone();
        restart_twice(engine, &operation).await;
        fixture.wait_for_state("Ready").await;
        let count = counted.check(env, "the maintenance of a rack, and its restart", count).await;

        add_firmware(&env.store, firmware("fw-2", "3.0", false, true)).await;
        for dry_run in [true, false, false] {
            let update = FirmwareUpdate {
                targets: vec![TargetId::parse("ps-1").expect("an id")],
                firmware: Some(FirmwareId::trusted("fw-2")),
                request_id: "flash".into(),
                by: "ada".into(),
                reference: String::new(),
                overrides: Overrides::default(),
                dry_run,
            };
            engine.components().update(update).await.expect("answered");
        }
        let count = counted.check(env, "the firmware of a power shelf", count).await;
        let latest = env.store.read((), |(), tx| {
            Box::pin(async move { tx.latest_run(&TargetId::parse("ps-1")?).await })
        });
        let flash = latest.await.expect("an answer").expect("a run").spec.id;
        restart_twice(engine, &flash).await;
        let count = counted.check(env, "the restart on a power shelf", count).await;

        let enter = start_twice(engine, RunType::EnterMaintenance).await;
        restart_twice(engine, &enter).await;
        let count = counted.check(env, "a run on a machine, and its restart", count).await;
        let reprovision = || Reprovision {
            machine: MachineId::trusted("m-2"),
            firmware: Some(FirmwareId::trusted("fw-2")),
            request_id: "reprovision".into(),
            by: "ada".into(),
        };
        engine.hosts().reprovision(reprovision()).await.expect("accepted");
        engine.hosts().reprovision(reprovision()).await.expect("the same");
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        counted.check(env, "the firmware of a host", count).await;
    });
}

#[test]
fn every_run_on_a_node_is_counted_once() {
    let counted = RunCounter::default();
    let _recorder = metrics::set_default_local_recorder(&counted);
    simulate(async {
        let fixture = nodes::NodeFixture::new().await;
        let (env, engine) = (&fixture.env, &fixture.process.engine);
        engine.nodes().preview_onboard(onboard_request("m-1", "on")).await.expect("a preview");
        assert_eq!(counted.total(), 0, "a dry run");
        for _ in 0..2 {
            engine.nodes().onboard(onboard_request("m-1", "on")).await.expect("accepted");
        }
        let node = fixture.wait_for_state(NodeState::Active).await;
        let count = counted.check(env, "an onboarding", 0).await;
        engine
            .nodes()
            .preview_decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("a preview");
        for _ in 0..2 {
            engine
                .nodes()
                .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
                .await
                .expect("accepted");
        }
        counted.check(env, "a drain", count).await;
    });
}

#[test]
fn the_run_that_an_enrollment_creates_is_counted_once() {
    let counted = RunCounter::default();
    let _recorder = metrics::set_default_local_recorder(&counted);
    simulate(async {
        let fixture = nodes::NodeFixture::new().await;
        let agents = agents(&fixture);
        let bundle = agents.bootstrap(MachineId::trusted("m-1"), DAY, requester()).await;
        let token = bundle.expect("a bundle").token.expose_secret().to_string();
        for _ in 0..2 {
            agents
                .enroll(&token, enrolling_agent("s1"))
                .await
                .expect("an answer")
                .expect("enrolled");
        }
        counted.check(&fixture.env, "an enrollment", 0).await;
    });
}
