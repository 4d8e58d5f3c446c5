//! Reaction: from the run's `created_at` to the `started_at` of its first step, both from the
//! server's clock; and, by the clock of one client, from the answer of StartRun until its watch has
//! delivered the last event of the run.

use crate::fleet::{Fleet, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::percentile_ms;
use crate::{Bench, Outcome, Store, provision};
use std::time::{Duration, Instant};

const BUSY_CLIENTS: usize = 32;
const PAUSE: Duration = Duration::from_millis(10);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let Idle { reactions: idle, watched } = idle(bench, store).await?;
    let (tally, busy) = provision::load(bench, Setup::new(store), BUSY_CLIENTS).await?;
    report.errors_of("reaction", &tally);
    for (what, clients, desired, observed) in [
        ("reaction p99, idle", 1, 20.0, idle),
        ("reaction p99, provisioning", BUSY_CLIENTS, 100.0, busy),
    ] {
        let row = Row::new(what, percentile_ms(&observed, 99.0), Unit::Millis);
        let median = percentile_ms(&observed, 50.0);
        report.add(
            row.store(store)
                .clients(clients)
                .limit(bench.limits.fsync_ms(), "one fsync")
                .target(Target::AtMost(desired))
                .note(format!(
                    "created_at to first step; median {median:.2} ms, {} runs",
                    observed.len()
                )),
        );
    }
    let median = percentile_ms(&watched, 50.0);
    report.add(
        Row::new("accepted to last event seen p99", percentile_ms(&watched, 99.0), Unit::Millis)
            .store(store)
            .clients(1)
            .limit(bench.limits.fsync_ms(), "one fsync")
            .target(Target::AtMost(50.0))
            .note(format!(
                "StartRun answered to the watch; median {median:.2} ms, {} runs",
                watched.len()
            )),
    );
    Ok(())
}

/// The times of single runs on an idle server.
#[derive(Default)]
struct Idle {
    reactions: Vec<Duration>,
    /// From the acceptance to the last event in the client's watch.
    watched: Vec<Duration>,
}

/// One run at a time, with a pause after each.
async fn idle(bench: &Bench, store: Store) -> Outcome<Idle> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(1)).await?;
    let crew = fleet.client_pool(1).await?;
    let mut call = crew.first();
    let mut observed = Idle::default();
    let begun = Instant::now();
    while begun.elapsed() < bench.span {
        let request = format!("r-{}", observed.watched.len());
        let id = call.start(&machine(0), "ENTER_MAINTENANCE", &request).await?;
        let accepted = Instant::now();
        let run = call.ended(&id).await?;
        observed.watched.push(accepted.elapsed());
        if !run.succeeded() {
            return Err(format!("ENTER_MAINTENANCE {id} did not succeed").into());
        }
        observed.reactions.push(run.reaction().ok_or("a run ended without having started")?);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(observed)
}
