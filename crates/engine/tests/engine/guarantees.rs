//! Details that the documentation promises, each in simulated time.

use crate::clients::{Client, operator};
use crate::test_env::{TestEnv, simulate};
use engine::watch::WatchPosition;
use engine::{DescribedMachine, Engine, Settings, clock, random};
use futures_util::future::BoxFuture;
use model::effect::CallVerb;
use model::filter::{Filter, FilterSubject};
use model::id::MachineId;
use model::machine::{Labels, MachineSpec};
use model::plan::RunType;
use model::run::RunPhase;
use model::run::actions::Action;
use model::time::Timestamp;
use providers::Providers;
use providers::clock::tokio_clock;
use providers::sim::{self, FaultRule, Sim, Speed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Options, Result, Store, StoreError, TransactionHook, TransactionPoint};
use tokio::time::{Instant, sleep, timeout};

const MACHINE: &str = "m-1";

/// Only the last run of a machine may resume. The order of acceptance decides, not the clocks.
#[test]
fn the_last_accepted_run_is_the_latest_despite_clock_skew() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let (ahead, right) = (env.boot("ahead").await, env.boot("right").await);
        ahead.step_clock(3_600_000);
        env.register(&ahead.engine, MACHINE).await;
        let rule =
            FaultRule { effect: "reboot".into(), times: 0, ..FaultRule::new(sim::Action::Fail) };
        env.sim.add_fault(rule).expect("a rule");
        let mut failed = Vec::new();
        for (process, request) in [(&ahead, "first"), (&right, "second"), (&right, "third")] {
            let client = Client::new(&process.engine);
            let enter = client.start(MACHINE, RunType::EnterMaintenance, "enter".into()).await;
            client.wait_until_ended(&enter.expect("accepted")).await;
            let id =
                client.start(MACHINE, RunType::Reboot, request.into()).await.expect("accepted");
            assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Failed);
            failed.push(id);
        }
        let last = failed.pop().expect("three failed runs");
        for superseded in failed {
            let reported = right.engine.runs().act(superseded, Action::RetryStep, operator()).await;
            let Err(StoreError::Refused(refusal)) = reported else { panic!("{reported:?}") };
            assert_eq!(refusal.reason.as_str(), "RUN_SUPERSEDED");
        }
        right
            .engine
            .runs()
            .act(last, Action::RetryStep, operator())
            .await
            .expect("the last run may resume");
    });
}

/// A worker that becomes free claims the next run at once, not at the next poll.
#[test]
fn a_freed_worker_claims_the_next_run_at_once() {
    simulate(async {
        let store = Store::open(&Options::Memory).await.expect("a database");
        let time = tokio_clock(Timestamp::from_millis(0));
        let sim = Arc::new(Sim::in_ram(Speed::Fast).with_clock(time));
        let settings = Settings {
            max_in_flight: 1,
            eager_in_flight: 0,
            poll_interval: Duration::from_secs(3_600),
            ..Settings::default()
        };
        let engine = boot(&store, sim, settings).await;
        let client = Client::new(&engine);
        let mut runs = Vec::new();
        for n in 0..20 {
            let machine = format!("m-{n}");
            register(&engine, &machine, Labels::new()).await;
            let run = client.start(&machine, RunType::EnterMaintenance, "enter".into()).await;
            runs.push(run.expect("accepted"));
        }
        let begun = Instant::now();
        for id in &runs {
            client.wait_until_ended(id).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    });
}

/// Reads fail while this is true.
struct ReadOutage(AtomicBool);

impl TransactionHook for ReadOutage {
    fn intercept(&self, passing: TransactionPoint) -> BoxFuture<'_, Result<()>> {
        let away = passing == TransactionPoint::Read && self.0.load(Ordering::SeqCst);
        Box::pin(async move {
            match away {
                true => Err(StoreError::Unavailable("away".into())),
                false => Ok(()),
            }
        })
    }
}

/// A filter on machine fields reads the machine for each event, and must survive a database outage.
#[test]
fn a_watch_survives_a_short_outage() {
    simulate(async {
        let store = Store::open(&Options::Memory).await.expect("a database");
        let away = Arc::new(ReadOutage(AtomicBool::new(false)));
        let tapped = store.with_hook(Arc::clone(&away) as Arc<dyn TransactionHook>);
        let engine = boot(&tapped, Arc::new(Sim::in_ram(Speed::Zero)), Settings::default()).await;
        let labels = Labels::from([("rack".to_string(), "r1".to_string())]);
        register(&engine, MACHINE, labels).await;
        let filter = Filter::parse("labels.rack=r1", FilterSubject::Run).expect("a filter");
        let client = Client::new(&engine);
        let mut watch = engine.runs().watch(filter, None).await.expect("a watch");
        let first = client.start(MACHINE, RunType::EnterMaintenance, "a".into()).await;
        let first = client.wait_until_ended(&first.expect("accepted")).await;
        let mut shown = 0;
        while shown < first.version as usize {
            shown += watch.next().await.expect("no outage yet").len();
        }
        let run = client.start(MACHINE, RunType::Reboot, "b".into()).await.expect("accepted");
        let run = client.wait_until_ended(&run).await;
        // The events are cached; the machine is not.
        sleep(Duration::from_secs(2)).await;
        away.0.store(true, Ordering::SeqCst);
        let repaired = Arc::clone(&away);
        tokio::spawn(async move {
            sleep(Duration::from_secs(3)).await;
            repaired.0.store(false, Ordering::SeqCst);
        });
        let mut shown = Vec::new();
        while shown.len() < run.version as usize {
            let observed = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
            let observed = observed.unwrap_or_else(|_| panic!("only {shown:?} of {}", run.version));
            shown.extend(observed.expect("a short outage").iter().map(|one| one.object.version));
        }
        assert_eq!(shown, (1..=run.version).collect::<Vec<_>>());
    });
}

/// After a restore from a backup such a cursor would never return an event.
#[test]
fn a_cursor_from_the_future_is_refused() {
    simulate(async {
        let store = Store::open(&Options::Memory).await.expect("a database");
        let engine = boot(&store, Arc::new(Sim::in_ram(Speed::Zero)), Settings::default()).await;
        for name in ["0.99999999", "7.3", "0.99999999~"] {
            let position = WatchPosition::parse(name).expect("a cursor");
            match engine.runs().watch(Filter::default(), Some(position)).await.map(drop) {
                Err(StoreError::Refused(refusal)) => {
                    assert_eq!(refusal.reason.as_str(), "CURSOR_GONE")
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let watch = engine.runs().watch(Filter::default(), None).await.expect("a watch");
        engine
            .runs()
            .watch(Filter::default(), Some(watch.position().clone()))
            .await
            .expect("its own cursor");
    });
}

/// A device that does not answer does not hold up the dry run of an adoption.
#[test]
fn the_dry_run_of_an_adoption_ends_without_an_answer() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let process = env.boot("one").await;
        env.register(&process.engine, MACHINE).await;
        let client = Client::new(&process.engine);
        let enter = client.start(MACHINE, RunType::EnterMaintenance, "enter".into()).await;
        client.wait_until_ended(&enter.expect("accepted")).await;
        let rule =
            |verb, action| FaultRule { effect: "reboot".into(), verb, ..FaultRule::new(action) };
        env.sim.add_fault(rule(CallVerb::Perform, sim::Action::Fail)).expect("a rule");
        env.sim.add_fault(rule(CallVerb::Observe, sim::Action::Hang)).expect("a rule");
        let run = client.start(MACHINE, RunType::Reboot, "reboot".into()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Failed);
        let runs = process.engine.with_dry_run(true).runs();
        let adopting = runs.act(run, Action::Adopt, operator()).await.expect("accepted");
        let preview = timeout(Duration::from_secs(3_600), runs.preview(&adopting)).await;
        let notes = preview.expect("the call has a time limit").expect("a preview").notes.join("");
        assert!(notes.contains("whether reboot holds cannot be read now"), "{notes}");
        assert!(notes.contains("no answer within 30s"), "{notes}");
    });
}

async fn boot(store: &Store, sim: Arc<Sim>, settings: Settings) -> Engine {
    let settings =
        Settings { replica: "one".into(), probe_interval: Duration::from_secs(86_400), ..settings };
    let providers = Providers::default().with(sim);
    let clock = clock::system();
    Engine::start_up(store.clone(), providers, settings, clock, random::system())
        .await
        .expect("an engine")
}

async fn register(engine: &Engine, machine: &str, labels: Labels) {
    let spec = MachineSpec {
        target_cluster_ref: "c".into(),
        provider: "sim".into(),
        ..MachineSpec::default()
    };
    let described =
        DescribedMachine { id: Some(MachineId::trusted(machine)), spec: Some(spec), labels };
    engine.machines().register(described, "test".into()).await.expect("registered");
}
