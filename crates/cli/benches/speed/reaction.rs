//! Reaction: from the run's `created_at` to the `started_at` of its first step, both from the
//! server's clock.

use crate::fleet::{Fleet, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::percentile_ms;
use crate::{Bench, Outcome, Store, provision};
use std::time::{Duration, Instant};

const BUSY_CLIENTS: usize = 32;
const PAUSE: Duration = Duration::from_millis(10);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let idle = idle(bench, store).await?;
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
    Ok(())
}

/// One run at a time, with a pause after each.
async fn idle(bench: &Bench, store: Store) -> Outcome<Vec<Duration>> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(1)).await?;
    let crew = fleet.client_pool(1).await?;
    let mut call = crew.first();
    let mut observed = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < bench.span {
        let request = format!("r-{}", observed.len());
        let run = call.run_to_success(&machine(0), "ENTER_MAINTENANCE", &request).await?;
        observed.push(run.reaction().ok_or("a run ended without having started")?);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(observed)
}
