//! Resident memory of the server with a large fleet and many runs in flight.

use crate::fleet::{Fleet, Hardware, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, MACHINES, Outcome, Store, process};
use std::time::{Duration, Instant};

const IN_FLIGHT: usize = 1_000;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Long enough for the server to free the memory of its start.
const SETTLE: Duration = Duration::from_secs(2);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let setup = Setup::new(store).machines(MACHINES).hardware(Hardware::Holding);
    let fleet = Fleet::start(bench, setup).await?;
    let crew = fleet.client_pool(1).await?;
    let mut call = crew.first();
    for index in 0..IN_FLIGHT {
        call.start(&machine(index), "ENTER_MAINTENANCE", "memory").await?;
    }
    until_running(&fleet, IN_FLIGHT).await?;
    tokio::time::sleep(SETTLE).await;
    report.add(
        Row::new(
            "memory, 20,000 machines, 1,000 runs",
            process::resident_mb(fleet.pid())?,
            Unit::Megabytes,
        )
        .store(store)
        .target(Target::AtMost(150.0))
        .note("VmRSS of farrier serve, runs held in their first step"),
    );
    Ok(())
}

/// Waits until the server executes this many runs.
pub async fn until_running(fleet: &Fleet, desired: usize) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        let running = fleet.metric("farrier_runs_active{phase=\"RUNNING\"}")?;
        if running >= desired as f64 {
            return Ok(());
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("only {running} of {desired} runs are under way").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
