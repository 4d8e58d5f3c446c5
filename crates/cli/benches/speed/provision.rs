//! Full provisions: a new machine is registered, enters maintenance, is reimaged in five steps and
//! exits maintenance.

use crate::client::BenchClient;
use crate::fleet::{Fleet, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::{Tally, Turn, press};
use crate::{Bench, Outcome, Store};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Registering is one; each run is one for its acceptance, one for its end, one for each step.
const COMMITS: f64 = 14.0;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    for clients in bench.clients.iter().copied() {
        let (tally, _) = load(bench, Setup::new(store), clients).await?;
        report.errors_of("provision", &tally);
        let target = match store {
            Store::Sqlite => Target::AtLeast(300.0),
            Store::Postgres => Target::AtLeast(150.0),
        };
        let alone = bench.limits.commits(store, clients) / COMMITS;
        let (median, p99) = (tally.percentile_ms(50.0), tally.percentile_ms(99.0));
        report.add(
            Row::new("full provision", tally.per_second(), Unit::PerSecond)
                .store(store)
                .clients(clients)
                .limit(alone, "raw commits ÷ 14")
                .target_if(clients == 32, target)
                .note(format!("each: median {median:.1} ms, p99 {p99:.1} ms")),
        );
    }
    Ok(())
}

/// Provisions machines for a while. Also returns the time from acceptance to the first step of each
/// run.
pub async fn load(bench: &Bench, setup: Setup, clients: usize) -> Outcome<(Tally, Vec<Duration>)> {
    let fleet = Fleet::start(bench, setup).await?;
    let crew = fleet.client_pool(clients).await?;
    let reactions = Arc::new(Mutex::new(Vec::new()));
    let stored = Arc::clone(&reactions);
    let mut tally = press(&crew.clients, bench.span, move |call, turn| {
        let stored = Arc::clone(&stored);
        async move {
            let observed = provision(call, turn).await?;
            stored.lock().unwrap_or_else(PoisonError::into_inner).extend(observed);
            Ok(())
        }
    })
    .await;
    fleet.complaints().lines().for_each(|line| tally.error(line));
    let reactions = std::mem::take(&mut *reactions.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((tally, reactions))
}

async fn provision(mut call: BenchClient, turn: Turn) -> Outcome<Vec<Duration>> {
    let id = format!("b-{}-{}", turn.client, turn.turn);
    call.register(&id).await?;
    let mut reactions = Vec::new();
    for kind in ["ENTER_MAINTENANCE", "REPAVE", "EXIT_MAINTENANCE"] {
        let run = call.run_to_success(&id, kind, kind).await?;
        reactions.push(run.reaction().ok_or("a run ended without having started")?);
    }
    Ok(reactions)
}
