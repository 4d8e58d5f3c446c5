//! Misbehaving workers, in real time, on a database file.

use async_trait::async_trait;
use engine::admission::StartRequest;
use engine::{DescribedMachine, Engine, Settings, clock, random};
use model::condition::ConditionObservation;
use model::effect::{CallVerb, Capability, ProviderAnswer, ProviderCall};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, RunId};
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::machine::{Labels, MachineSpec};
use model::plan::{Defaults, Params, RunType};
use model::run::actions::Requester;
use model::run::{Run, RunPhase, Workflow};
use model::time::Timestamp;
use providers::sim::{Action, FaultRule, Sim, Speed};
use providers::{Journal, Provider, Providers, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Options, Store};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(&Options::Sqlite { path: dir.path().join("test.db") }).await.unwrap()
}

pub fn settings(name: &str) -> Settings {
    Settings {
        replica: name.into(),
        grace_period: Duration::from_millis(100),
        ..Settings::default()
    }
}

pub async fn engine(store: &Store, provider: Arc<dyn Provider>, settings: Settings) -> Engine {
    let providers = Providers::default().with(provider);
    Engine::start_up(store.clone(), providers, settings, clock::system(), random::system())
        .await
        .unwrap()
}

/// Adds the default image to the catalogue; a simulated machine installs no other.
async fn create_default_image(engine: &Engine) {
    let file = Artifact { sha256: "0".repeat(64), size: 1, url: None };
    let body = ImageContent::Disk { format: DiskFormat::Raw, file };
    let name = Defaults::default().image_ref;
    let image = Image { name, body, created_at: Timestamp::default() };
    let who = Requester { by: "test".into(), reason: String::new() };
    engine.images().create(image, who).await.unwrap();
}

pub async fn start(engine: &Engine, machine: &str, run_type: RunType) -> Run {
    if run_type == RunType::Reimage {
        create_default_image(engine).await;
    }
    let start = StartRequest {
        machine_id: MachineId::trusted(machine),
        request_id: format!("{run_type:?}"),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: model::gate::Overrides::default(),
        initiator: "test".into(),
    };
    engine.runs().start(start).await.unwrap().run
}

pub async fn wait_for_run(engine: &Engine, id: &RunId, reached: impl Fn(&Run) -> bool) -> Run {
    let started = Instant::now();
    loop {
        let run = engine.runs().get(id).await.unwrap();
        if reached(&run) {
            return run;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "timed out: {run:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the engine has no claims: they are released shortly after the last commit.
pub async fn wait_until_idle(engine: &Engine) {
    let started = Instant::now();
    while engine.scheduler().in_flight() > 0 {
        assert!(started.elapsed() < TEST_TIMEOUT, "a run is still claimed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn in_maintenance(engine: &Engine, machine: &str) {
    let spec = MachineSpec {
        target_cluster_ref: "c".into(),
        provider: "sim".into(),
        ..MachineSpec::default()
    };
    let id = Some(MachineId::trusted(machine));
    let described = DescribedMachine { id, spec: Some(spec), labels: Labels::new() };
    engine.machines().register(described, "test".into()).await.unwrap();
    let run = start(engine, machine, RunType::EnterMaintenance).await;
    wait_for_run(engine, &run.spec.id, Run::ended).await;
}

/// The simulator, except that repaving the machine `bad` panics before anything happens.
struct Panicking(Sim);

#[async_trait]
impl Provider for Panicking {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_simulated(&self) -> bool {
        self.0.is_simulated()
    }

    fn capabilities(&self) -> &'static [Capability] {
        self.0.capabilities()
    }

    async fn call(
        &self,
        target: &Target,
        order: &ProviderCall,
        journal: &Journal,
    ) -> Result<ProviderAnswer, Fault> {
        let bad = target.id.as_str() == "bad" && order.effect.name() == "repave";
        assert!(!bad || order.verb != CallVerb::Perform, "the driver has a bug");
        self.0.call(target, order, journal).await
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>, Fault> {
        self.0.probe(target).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_stays_with_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let sim = Sim::in_ram(Speed::Zero);
    let engine = engine(&store, Arc::new(Panicking(sim)), settings("one")).await;
    in_maintenance(&engine, "bad").await;
    in_maintenance(&engine, "good").await;
    let bad = start(&engine, "bad", RunType::Reimage).await;
    let good = start(&engine, "good", RunType::Reimage).await;
    let good = wait_for_run(&engine, &good.spec.id, Run::ended).await;
    assert_eq!(good.phase(), RunPhase::Succeeded);
    let bad = wait_for_run(&engine, &bad.spec.id, Run::ended).await;
    assert_eq!(bad.progress.workflow, Workflow::FailedManualIntervention, "{bad:#?}");
    assert_eq!(bad.progress.failure.unwrap().fault.code, FaultCode::WorkerPanicked);
    wait_until_idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_lease_writes_nothing_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let sim = Sim::in_ram(Speed::Fast);
    // This one never renews its lease, as if it were frozen while its work continues.
    let frozen = Settings {
        lease: Duration::from_millis(200),
        renew_interval: Duration::from_secs(3_600),
        ..settings("frozen")
    };
    let frozen = engine(&store, Arc::new(sim.clone()), frozen).await;
    in_maintenance(&frozen, "m-1").await;
    let mut slow = FaultRule::new(Action::Slow);
    slow.effect = "repave".into();
    slow.delay_ms = 2_000;
    slow.times = 1;
    sim.add_fault(slow).unwrap();
    let run = start(&frozen, "m-1", RunType::Reimage).await;
    wait_for_run(&frozen, &run.spec.id, |run| run.current_step() == "repave-os").await;

    let quick = Settings {
        lease: Duration::from_millis(200),
        renew_interval: Duration::from_millis(50),
        ..settings("quick")
    };
    let quick = engine(&store, Arc::new(sim.clone()), quick).await;
    let ended = wait_for_run(&quick, &run.spec.id, Run::ended).await;
    assert_eq!(ended.phase(), RunPhase::Succeeded, "{ended:#?}");
    // The frozen worker notices when its own call returns, and releases without writing.
    wait_until_idle(&frozen).await;
    assert_eq!(
        quick.runs().get(&run.spec.id).await.unwrap(),
        ended,
        "nothing was written afterwards"
    );
    let effects = sim.effects(run.spec.id.as_str()).unwrap();
    assert_eq!(effects.len(), 5, "{effects:?}");
    assert!(effects.iter().all(|effect| effect.applied == 1), "{effects:?}");
    let history = quick.history(run.spec.id.as_str(), 0, 1_000).await.unwrap();
    assert!(history.iter().any(|event| event.message.contains("took over")), "{history:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_resume_after_an_engine_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let sim = Sim::in_ram(Speed::Fast);
    // Long enough for the turns to end on a busy host.
    let patient = Settings { grace_period: Duration::from_secs(60), ..settings("one") };
    let first = engine(&store, Arc::new(sim.clone()), patient).await;
    for index in 0..10 {
        in_maintenance(&first, &format!("m-{index}")).await;
    }
    let mut runs = Vec::new();
    for index in 0..10 {
        runs.push(start(&first, &format!("m-{index}"), RunType::Reimage).await.spec.id);
    }
    first.shut_down().await;
    assert_eq!(first.scheduler().in_flight(), 0, "all claims are released");
    let second = engine(&store, Arc::new(sim.clone()), settings("two")).await;
    for id in &runs {
        let ended = wait_for_run(&second, id, Run::ended).await;
        assert_eq!(ended.phase(), RunPhase::Succeeded, "{ended:#?}");
        let effects = sim.effects(id.as_str()).unwrap();
        assert!(effects.len() == 5 && effects.iter().all(|effect| effect.applied == 1));
    }
}
