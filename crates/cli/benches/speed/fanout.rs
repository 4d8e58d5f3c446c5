//! Watch fan-out: many watchers of all runs, while runs start at a steady rate. Every watcher must
//! see every version of every run once and in order. The latency of an event is from its timestamp
//! to its arrival.

use crate::client::ClientPool;
use crate::fleet::{Fleet, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::percentile_ms;
use crate::wire::{self, Event, since_1970};
use crate::{Bench, Outcome, Store};
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinSet;
use tonic::Streaming;

pub const WATCHERS: usize = 200;
/// Each run has three events: accepted, started, ended. That is a little more than 1,000 events per
/// second.
const RUNS_PER_SECOND: f64 = 360.0;
/// Long enough that the latency of the last event is a small part of it.
const SPAN: Duration = Duration::from_secs(5);
const EVENTS_PER_RUN: usize = 3;
const TARGET_PER_SECOND: f64 = 1_000.0;
/// Runs rotate over this many machines, more than are ever busy at the same time.
const MACHINES: usize = 2_000;
/// An event that takes longer counts as missed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The events that one watcher received.
#[derive(Default)]
struct ReceivedEvents {
    versions: HashMap<String, i64>,
    latencies: Vec<Duration>,
    ended: usize,
    out_of_order: usize,
}

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(MACHINES)).await?;
    let runs = (SPAN.as_secs_f64() * RUNS_PER_SECOND) as usize;
    let mut watchers = JoinSet::new();
    let channels: Vec<_> =
        futures_util::future::try_join_all((0..8).map(|_| fleet.channel())).await?;
    for channel in channels.iter().cycle().take(WATCHERS) {
        let stream = wire::watch(channel.clone(), "", "").await?;
        watchers.spawn(watch(stream, runs));
    }
    let crew = fleet.client_pool(8).await?;
    let begun = Instant::now();
    let refused = produce(&crew, runs).await;
    let produced = begun.elapsed();
    let mut all = Vec::new();
    while let Some(observed) = watchers.join_next().await {
        all.push(observed??);
    }
    let took = begun.elapsed();
    refused.into_iter().for_each(|message| report.wrong(format!("fan-out: {message}")));
    check(&all, runs, report);
    add_rows(bench, store, report, &all, [produced, took]);
    Ok(())
}

/// Starts runs at a steady rate, without waiting for earlier ones.
async fn produce(crew: &ClientPool, runs: usize) -> Vec<String> {
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / RUNS_PER_SECOND));
    let mut started = JoinSet::new();
    for (index, call) in (0..runs).zip(crew.clients.iter().cycle()) {
        tick.tick().await;
        let mut call = call.clone();
        started.spawn(async move {
            let request = format!("f-{index}");
            call.start(&machine(index % MACHINES), "ENTER_MAINTENANCE", &request).await
        });
    }
    let mut refused = Vec::new();
    while let Some(done) = started.join_next().await {
        match done {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => refused.push(error.to_string()),
            Err(error) => refused.push(error.to_string()),
        }
    }
    refused
}

/// Reads until this many runs have ended, or until no event arrives.
async fn watch(mut stream: Streaming<Event>, runs: usize) -> Outcome<ReceivedEvents> {
    let mut observed = ReceivedEvents::default();
    while observed.ended < runs {
        let Ok(next) = tokio::time::timeout(TIMEOUT, stream.message()).await else { break };
        let Some(event) = next? else { break };
        let (Some(ts), Some(run)) = (event.ts, event.run) else {
            return Err("an event without a time or a run".into());
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        observed.latencies.push(now.saturating_sub(since_1970(&ts)));
        observed.ended += usize::from(run.ended());
        let last = observed.versions.entry(run.run_id).or_default();
        observed.out_of_order += usize::from(run.version != *last + 1);
        *last = run.version;
    }
    Ok(observed)
}

/// Checks that every watcher saw every version of every run, once and in order.
fn check(all: &[ReceivedEvents], runs: usize, report: &mut Report) {
    let incomplete =
        all.iter().filter(|observed| observed.ended != runs || observed.versions.len() != runs);
    let unlike = all.iter().filter(|observed| observed.versions != all[0].versions).count();
    let out_of_order: usize = all.iter().map(|observed| observed.out_of_order).sum();
    let incomplete = incomplete.count();
    if incomplete + unlike + out_of_order > 0 {
        report.wrong(format!(
            "fan-out: {incomplete} watchers missed a run, {unlike} saw other versions than the \
             first, {out_of_order} events were missed, doubled or out of order"
        ));
    }
}

fn add_rows(
    bench: &Bench,
    store: Store,
    report: &mut Report,
    all: &[ReceivedEvents],
    [produced, took]: [Duration; 2],
) {
    let latencies: Vec<Duration> =
        all.iter().flat_map(|observed| &observed.latencies).copied().collect();
    let events = latencies.len() as f64 / WATCHERS as f64;
    let rate = events / took.as_secs_f64();
    let row = Row::new("fan-out to 200 watchers, events", rate, Unit::PerSecond);
    report.add(
        row.store(store)
            .clients(WATCHERS)
            .limit(bench.limits.events_per_second / WATCHERS as f64, "empty events")
            .target(Target::AtLeast(TARGET_PER_SECOND))
            .note(format!(
                "{events:.0} events in {:.1} s, offered in {:.1} s, {EVENTS_PER_RUN} a run",
                took.as_secs_f64(),
                produced.as_secs_f64()
            )),
    );
    let row =
        Row::new("fan-out to 200 watchers, p99", percentile_ms(&latencies, 99.0), Unit::Millis);
    let (median, count) = (percentile_ms(&latencies, 50.0), latencies.len());
    report.add(
        row.store(store)
            .clients(WATCHERS)
            .target(Target::AtMost(250.0))
            .note(format!("event's ts to arrival; median {median:.1} ms, {count} deliveries")),
    );
}
