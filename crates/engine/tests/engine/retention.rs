//! Retention in the engine: expired rows are deleted while work continues, and a watch whose cursor
//! has expired is refused.

use crate::workers::{
    TEST_TIMEOUT, engine, in_maintenance, open, settings, start, wait_for_run, wait_until_idle,
};
use engine::watch::{Watch, WatchChange, WatchPosition};
use engine::{Engine, Retention, Settings, clock, random};
use model::filter::Filter;
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::plan::RunType;
use model::refusal::Refusal;
use model::run::Run;
use providers::Providers;
use providers::sim::{Sim, Speed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Store, StoreError};

const DAY: Duration = Duration::from_secs(86_400);

fn never() -> Retention {
    Retention {
        runs: None,
        logs: None,
        events: None,
        max_runs: None,
        max_log_bytes: None,
        max_events: None,
        interval: Duration::from_millis(20),
    }
}

/// An engine whose clock is so many days ahead.
async fn engine_in_days(store: &Store, sim: &Sim, days: u32, retention: Retention) -> Engine {
    let providers = Providers::default().with(Arc::new(sim.clone()));
    let now = clock::system();
    let then: clock::Clock = Arc::new(move || now() + DAY * days);
    let settings = Settings { retention, ..settings("one") };
    Engine::start_up(store.clone(), providers, settings, then, random::system()).await.unwrap()
}

/// A machine with three ended runs, oldest first.
async fn with_three_runs(store: &Store, sim: &Sim) -> Vec<RunId> {
    let settings = Settings { retention: never(), ..settings("one") };
    let engine = engine(store, Arc::new(sim.clone()), settings).await;
    in_maintenance(&engine, "m-1").await;
    wait_until_idle(&engine).await;
    engine.shut_down().await;
    with_more(store, sim).await
}

/// Two more runs on the machine; returns all runs, oldest first.
async fn with_more(store: &Store, sim: &Sim) -> Vec<RunId> {
    let settings = Settings { retention: never(), ..settings("one") };
    let engine = engine(store, Arc::new(sim.clone()), settings).await;
    for run_type in [RunType::Reimage, RunType::ExitMaintenance] {
        let run = start(&engine, "m-1", run_type).await;
        wait_for_run(&engine, &run.spec.id, Run::ended).await;
    }
    wait_until_idle(&engine).await;
    let page = engine.runs().list(Filter::default(), None, 10).await.unwrap();
    assert_eq!(page.runs.len(), 3);
    engine.shut_down().await;
    page.runs.into_iter().rev().map(|run| run.spec.id).collect()
}

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < TEST_TIMEOUT, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn log_of(engine: &Engine, id: &RunId) -> usize {
    let mut log = engine.runs().follow_log(id, 0, false).await.unwrap();
    let mut bytes = 0;
    loop {
        let lines = log.next().await.unwrap();
        if lines.is_empty() {
            return bytes;
        }
        bytes += lines.iter().map(|line| line.data.len()).sum::<usize>();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_runs_are_deleted_except_the_latest() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    let runs = with_three_runs(&store, &sim).await;
    // The later engines may add events of their own, so only events before this one are old.
    let machine = store.machine(&MachineId::trusted("m-1")).await.unwrap().unwrap();
    let stored = Retention { runs: Some(90 * DAY), events: Some(30 * DAY), ..never() };
    let engine = engine_in_days(&store, &sim, 89, stored.clone()).await;
    wait_until("the end of old events", async || {
        engine.history("m-1", 0, 100).await.unwrap()[0].version >= machine.version
    })
    .await;
    assert_eq!(engine.runs().list(Filter::default(), None, 10).await.unwrap().runs.len(), 3);
    engine.shut_down().await;

    let engine = engine_in_days(&store, &sim, 91, stored).await;
    wait_until("the end of old runs", async || {
        engine.runs().list(Filter::default(), None, 10).await.unwrap().runs.len() == 1
    })
    .await;
    assert!(engine.runs().get(&runs[2]).await.is_ok(), "the latest");
    for id in &runs[..2] {
        assert!(matches!(engine.runs().get(id).await, Err(StoreError::Refused(_))));
        assert!(engine.history(id.as_str(), 0, 10).await.is_err());
    }
    // The machine works as before, and its request ids are free again.
    let run = start(&engine, "m-1", RunType::EnterMaintenance).await;
    let run = wait_for_run(&engine, &run.spec.id, Run::ended).await;
    let history = engine.history("m-1", 0, 100).await.unwrap();
    // An event may be deleted as soon as a later one of the same object exists.
    assert!(history[0].version >= machine.version);
    assert!(history.len() > 1, "{run:?}");
    wait_until_idle(&engine).await;
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_counts_have_their_own_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    let runs = with_three_runs(&store, &sim).await;
    let engine = engine_in_days(&store, &sim, 0, never()).await;
    assert!(log_of(&engine, &runs[1]).await > 0, "a reimage writes a log");
    engine.shut_down().await;

    let stored = Retention { logs: Some(30 * DAY), ..never() };
    let engine = engine_in_days(&store, &sim, 31, stored).await;
    wait_until("the end of the log", async || log_of(&engine, &runs[1]).await == 0).await;
    assert_eq!(engine.runs().list(Filter::default(), None, 10).await.unwrap().runs.len(), 3);
    engine.shut_down().await;

    let engine = engine_in_days(&store, &sim, 0, Retention { max_runs: Some(2), ..never() }).await;
    wait_until("the end of the oldest run", async || engine.runs().get(&runs[0]).await.is_err())
        .await;
    assert_eq!(engine.runs().list(Filter::default(), None, 10).await.unwrap().runs.len(), 2);
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_logs_are_deleted_above_the_byte_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    let runs = with_three_runs(&store, &sim).await;
    let engine = engine_in_days(&store, &sim, 0, never()).await;
    let mut newest = 0;
    for id in &runs[1..] {
        newest += log_of(&engine, id).await as u64;
    }
    engine.shut_down().await;
    let engine =
        engine_in_days(&store, &sim, 0, Retention { max_log_bytes: Some(newest), ..never() }).await;
    wait_until("the end of the oldest log", async || log_of(&engine, &runs[0]).await == 0).await;
    let mut left = 0;
    for id in &runs[1..] {
        left += log_of(&engine, id).await as u64;
    }
    assert_eq!(left, newest);
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_replica_deletes_expired_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    let runs = with_three_runs(&store, &sim).await;
    let first = engine_in_days(&store, &sim, 0, never()).await;
    let greedy = Retention { max_runs: Some(1), ..never() };
    let second = Settings { retention: greedy, ..settings("two") };
    let second = engine(&store, Arc::new(sim.clone()), second).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(second.runs().get(&runs[0]).await.is_ok(), "only the first replica deletes");
    first.shut_down().await;
    wait_until("the turn of the second", async || second.runs().get(&runs[0]).await.is_err()).await;
    second.shut_down().await;
}

async fn next_cursor(watch: &mut Watch<Run>) -> WatchPosition {
    let observed = tokio::time::timeout(TEST_TIMEOUT, watch.next()).await.unwrap().unwrap();
    observed.last().unwrap().position.clone()
}

fn assert_cursor_gone(result: Result<impl Sized, StoreError>) -> Refusal {
    match result {
        Err(StoreError::Refused(refusal)) => {
            assert_eq!(refusal.reason.as_str(), "CURSOR_GONE");
            refusal
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the cursor was accepted"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_cursor_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    let quiet = Settings { retention: never(), ..settings("one") };
    let first = engine(&store, Arc::new(sim.clone()), quiet).await;
    let beginning = WatchPosition::parse("0.0").unwrap();
    let mut early = first.runs().watch(Filter::default(), Some(beginning.clone())).await.unwrap();
    in_maintenance(&first, "m-1").await;
    next_cursor(&mut early).await;
    drop(early);
    first.shut_down().await;
    let runs = with_more(&store, &sim).await;

    let stored = Retention { runs: Some(90 * DAY), ..never() };
    let engine = engine_in_days(&store, &sim, 91, stored).await;
    wait_until("the end of old runs", async || engine.runs().get(&runs[0]).await.is_err()).await;
    let refusal = assert_cursor_gone(engine.runs().watch(Filter::default(), Some(beginning)).await);
    assert!(refusal.message.contains("without a cursor"), "{refusal}");
    assert_eq!(refusal.next_command.as_deref(), Some("farrier watch --all"));
    assert_cursor_gone(
        engine.runs().watch(Filter::default(), Some(WatchPosition::parse("0.0~").unwrap())).await,
    );
    // A new watch starts with a snapshot and continues from there.
    let mut restarted = engine.runs().watch(Filter::default(), None).await.unwrap();
    let position = next_cursor(&mut restarted).await;
    let run = start(&engine, "m-1", RunType::Reboot).await;
    let mut resumed = engine.runs().watch(Filter::default(), Some(position)).await.unwrap();
    let observed = tokio::time::timeout(TEST_TIMEOUT, resumed.next()).await.unwrap().unwrap();
    assert_eq!(observed[0].object.spec.id, run.spec.id);
    wait_for_run(&engine, &run.spec.id, Run::ended).await;
    wait_until_idle(&engine).await;
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cursors_of_a_kind_expire_with_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let (store, sim) = (open(&dir).await, Sim::in_ram(Speed::Zero));
    with_three_runs(&store, &sim).await;
    let stored = Retention { events: Some(30 * DAY), ..never() };
    let engine = engine_in_days(&store, &sim, 31, stored).await;
    let beginning = || Some(WatchPosition::parse("0.0").unwrap());
    wait_until("the end of old events", async || {
        engine.watch::<Machine>(Filter::default(), beginning()).await.is_err()
    })
    .await;
    let refusal = assert_cursor_gone(engine.watch::<Machine>(Filter::default(), beginning()).await);
    assert_eq!(refusal.next_command.as_deref(), Some("farrier machine watch"));
    // The events of runs are deleted with their runs.
    assert!(engine.watch::<Run>(Filter::default(), beginning()).await.is_ok());
    let mut restarted = engine.watch::<Machine>(Filter::default(), None).await.unwrap();
    let observed = tokio::time::timeout(TEST_TIMEOUT, restarted.next()).await.unwrap().unwrap();
    assert!(observed.iter().all(|one| one.change == WatchChange::Snapshot), "{observed:?}");
    engine.shut_down().await;
}
