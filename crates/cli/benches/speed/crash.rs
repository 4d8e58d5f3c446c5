//! `kill -9` with thousands of active runs, and a restart on the same data: measures how long it
//! takes until a worker has claimed every run again. A watch that resumes from the last cursor
//! before the crash reports it. Then every run must succeed, and the hardware must have executed
//! each effect once.

use crate::fleet::{Fleet, Hardware, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::wire::{self, Event};
use crate::{Bench, Outcome, Store, memory};
use proto::v1;
use proto::v1::simulator_service_client::SimulatorServiceClient;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Streaming;

const RUNS: usize = 5_000;
const CLIENTS: usize = 32;
/// A run that has not ended by then is lost.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The response with 5,000 effects exceeds the client's default limit.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The time from the start of the new process until the last run was claimed, and until it had
/// ended.
struct Resumed {
    taken_over: Duration,
    ended: Duration,
}

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let setup = Setup::new(store).machines(RUNS).hardware(Hardware::Holding);
    let mut fleet = Fleet::start(bench, setup).await?;
    let mut before = wire::watch(fleet.channel().await?, "", "").await?;
    let runs = start_all(&fleet).await?;
    let cursor = until_started(&mut before).await?;
    memory::until_running(&fleet, RUNS).await?;

    let begun = Instant::now();
    fleet.crash()?;
    let serving = begun.elapsed();
    let after = wire::watch(fleet.channel().await?, "", &cursor).await?;
    let resumed = until_ended(after, &runs, begun).await?;
    check_effects(&fleet, &runs).await?;

    let raw = RUNS as f64 / bench.limits.commits(store, CLIENTS);
    let row = Row::new(
        "crash with 5,000 runs: all resumed",
        resumed.taken_over.as_secs_f64(),
        Unit::Seconds,
    );
    report.add(row.store(store).limit(raw, "5,000 raw commits").target(Target::AtMost(10.0)).note(
        format!(
            "kill -9 to the last takeover; serving after {:.1} s, all ended after {:.1} s",
            serving.as_secs_f64(),
            resumed.ended.as_secs_f64()
        ),
    ));
    Ok(())
}

async fn start_all(fleet: &Fleet) -> Outcome<HashSet<String>> {
    let crew = fleet.client_pool(CLIENTS).await?;
    let mut clients = JoinSet::new();
    for (client, mut call) in crew.clients.iter().cloned().enumerate() {
        clients.spawn(async move {
            let mut started = Vec::new();
            for index in (client..RUNS).step_by(CLIENTS) {
                started.push(call.start(&machine(index), "ENTER_MAINTENANCE", "crash").await?);
            }
            Outcome::Ok(started)
        });
    }
    let mut runs = HashSet::new();
    while let Some(started) = clients.join_next().await {
        runs.extend(started??);
    }
    Ok(runs)
}

/// Waits until every run has started its first step. Returns the cursor after that event.
async fn until_started(stream: &mut Streaming<Event>) -> Outcome<String> {
    let mut started = HashSet::new();
    loop {
        let event = next(stream).await?;
        let run = event.run.ok_or("an event without a run")?;
        if run.steps.first().is_some_and(|step| step.started_at.is_some()) {
            started.insert(run.run_id);
        }
        if started.len() == RUNS {
            return Ok(event.cursor);
        }
    }
}

async fn until_ended(
    mut stream: Streaming<Event>,
    runs: &HashSet<String>,
    begun: Instant,
) -> Outcome<Resumed> {
    let (mut open, mut untaken) = (runs.clone(), runs.clone());
    let mut taken_over = Duration::ZERO;
    while !open.is_empty() {
        let event = next(&mut stream).await.map_err(|error| {
            format!("{} runs not taken over, {} not ended: {error}", untaken.len(), open.len())
        })?;
        let run = event.run.ok_or("an event without a run")?;
        if event.message.contains("took over") && untaken.remove(&run.run_id) {
            taken_over = begun.elapsed();
        }
        if run.ended() && !run.succeeded() {
            return Err(format!("{} did not succeed", run.run_id).into());
        }
        if run.ended() && !open.remove(&run.run_id) {
            return Err(format!("{} ended twice", run.run_id).into());
        }
    }
    match untaken.len() {
        0 => Ok(Resumed { taken_over, ended: begun.elapsed() }),
        some => Err(format!("{some} runs ended without a takeover in their history").into()),
    }
}

async fn next(stream: &mut Streaming<Event>) -> Outcome<Event> {
    let event = tokio::time::timeout(TIMEOUT, stream.message()).await;
    event.map_err(|_| "nothing came in a minute")??.ok_or_else(|| "the watch ended".into())
}

/// Checks that no effect is repeated: the hardware executed each effect key once.
async fn check_effects(fleet: &Fleet, runs: &HashSet<String>) -> Outcome<()> {
    let mut sim = SimulatorServiceClient::new(fleet.channel().await?)
        .max_decoding_message_size(MAX_ANSWER_BYTES);
    let mut effects = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListEffectsRequest { page_size: 1_000, page_token, ..Default::default() };
        let page = sim.list_effects(request).await?.into_inner();
        effects.extend(page.effects);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let repeated = effects.iter().filter(|effect| effect.applied != 1).count();
    match (effects.len() == runs.len(), repeated) {
        (true, 0) => Ok(()),
        _ => Err(format!("{} effects for {RUNS} runs, {repeated} not once", effects.len()).into()),
    }
}
