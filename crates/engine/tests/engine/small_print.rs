//! Details that the documentation promises, each in simulated time.

use crate::clients::{Door, operator};
use crate::world::{World, simulate};
use engine::watch::Place;
use engine::{Described, Engine, Settings, clock, random};
use futures_util::future::BoxFuture;
use model::filter::{Filter, Subject};
use model::id::MachineId;
use model::machine::{Labels, MachineSpec};
use model::plan::RunType;
use model::run::RunPhase;
use model::run::act::Action;
use model::time::Timestamp;
use providers::Providers;
use providers::clock::tokio_clock;
use providers::sim::{self, FaultRule, Sim, Speed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Options, Passing, Result, Store, StoreError, Tap};
use tokio::time::{Instant, sleep};

const MACHINE: &str = "m-1";

/// Only the last run of a machine may resume. The order of acceptance decides, not the clocks.
#[test]
fn the_last_run_is_the_one_that_came_last_whatever_the_clocks_say() {
    simulate(async {
        let world = World::new(1).await;
        let (ahead, right) = (world.boot("ahead").await, world.boot("right").await);
        ahead.step_clock(3_600_000);
        world.register(&ahead.engine, MACHINE).await;
        let rule =
            FaultRule { effect: "reboot".into(), times: 0, ..FaultRule::new(sim::Action::Fail) };
        world.sim.add_fault(rule).expect("a rule");
        let mut failed = Vec::new();
        for (process, request) in [(&ahead, "first"), (&right, "second"), (&right, "third")] {
            let door = Door::to(&process.engine);
            let enter = door.start(MACHINE, RunType::EnterMaintenance, "enter".into()).await;
            door.ended(&enter.expect("accepted")).await;
            let id = door.start(MACHINE, RunType::Reboot, request.into()).await.expect("accepted");
            assert_eq!(door.ended(&id).await.phase(), RunPhase::Failed);
            failed.push(id);
        }
        let last = failed.pop().expect("three failed runs");
        for superseded in failed {
            let told = right.engine.runs().act(superseded, Action::RetryStep, operator()).await;
            let Err(StoreError::Refused(refusal)) = told else { panic!("{told:?}") };
            assert_eq!(refusal.reason, "RUN_SUPERSEDED");
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
fn full_hands_take_the_next_run_as_soon_as_one_ends() {
    simulate(async {
        let store = Store::open(&Options::Memory).await.expect("a database");
        let time = tokio_clock(Timestamp::from_millis(0));
        let sim = Arc::new(Sim::in_ram(Speed::Fast).with_clock(time));
        let settings = Settings {
            max_in_flight: 1,
            eager_in_flight: 0,
            poll: Duration::from_secs(3_600),
            ..Settings::default()
        };
        let engine = boot(&store, sim, settings).await;
        let door = Door::to(&engine);
        let mut runs = Vec::new();
        for n in 0..20 {
            let machine = format!("m-{n}");
            register(&engine, &machine, Labels::new()).await;
            let run = door.start(&machine, RunType::EnterMaintenance, "enter".into()).await;
            runs.push(run.expect("accepted"));
        }
        let begun = Instant::now();
        for id in &runs {
            door.ended(id).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    });
}

/// Reads fail while this is true.
struct Away(AtomicBool);

impl Tap for Away {
    fn pass(&self, passing: Passing) -> BoxFuture<'_, Result<()>> {
        let away = passing == Passing::Read && self.0.load(Ordering::SeqCst);
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
fn a_short_outage_costs_a_watch_nothing() {
    simulate(async {
        let store = Store::open(&Options::Memory).await.expect("a database");
        let away = Arc::new(Away(AtomicBool::new(false)));
        let tapped = store.tapped(Arc::clone(&away) as Arc<dyn Tap>);
        let engine = boot(&tapped, Arc::new(Sim::in_ram(Speed::Zero)), Settings::default()).await;
        let labels = Labels::from([("rack".to_string(), "r1".to_string())]);
        register(&engine, MACHINE, labels).await;
        let filter = Filter::parse("labels.rack=r1", Subject::Run).expect("a filter");
        let door = Door::to(&engine);
        let mut watch = engine.runs().watch(filter, None).await.expect("a watch");
        let first = door.start(MACHINE, RunType::EnterMaintenance, "a".into()).await;
        let first = door.ended(&first.expect("accepted")).await;
        let mut shown = 0;
        while shown < first.version as usize {
            shown += watch.next().await.expect("no outage yet").len();
        }
        let run = door.start(MACHINE, RunType::Reboot, "b".into()).await.expect("accepted");
        let run = door.ended(&run).await;
        // The events are cached; the machine is not.
        sleep(Duration::from_secs(2)).await;
        away.0.store(true, Ordering::SeqCst);
        let mended = Arc::clone(&away);
        tokio::spawn(async move {
            sleep(Duration::from_secs(3)).await;
            mended.0.store(false, Ordering::SeqCst);
        });
        let mut shown = Vec::new();
        while shown.len() < run.version as usize {
            let seen = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
            let seen = seen.unwrap_or_else(|_| panic!("only {shown:?} of {}", run.version));
            shown.extend(seen.expect("a short outage").iter().map(|one| one.run.version));
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
        for word in ["0.99999999", "7.3", "0.99999999~"] {
            let place = Place::parse(word).expect("a cursor");
            match engine.runs().watch(Filter::default(), Some(place)).await.map(drop) {
                Err(StoreError::Refused(refusal)) => assert_eq!(refusal.reason, "CURSOR_GONE"),
                other => panic!("{word}: {other:?}"),
            }
        }
        let watch = engine.runs().watch(Filter::default(), None).await.expect("a watch");
        engine
            .runs()
            .watch(Filter::default(), Some(watch.place().clone()))
            .await
            .expect("its own cursor");
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
    let spec = MachineSpec { target_cluster_ref: "c".into(), ..MachineSpec::default() };
    let described = Described { id: Some(MachineId::trusted(machine)), spec: Some(spec), labels };
    engine.machines().register(described, "test".into()).await.expect("registered");
}
