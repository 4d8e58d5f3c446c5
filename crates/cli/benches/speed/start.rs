//! StartRun: how many are accepted, durably, per second. Every one is an ENTER_MAINTENANCE on a machine that was
//! registered before; the hardware begins the step and does not answer, so that accepted runs merely wait.

use crate::fleet::{Fleet, Hardware, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::press;
use crate::{Bench, Outcome, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each run wants a machine of its own; this is more than can be accepted.
const MACHINES_PER_SECOND: f64 = 8_000.0;
/// Where an fsync is quicker than this, half the raw rate is wanted.
const FAST_FSYNC_MS: f64 = 0.5;
/// Where it is slower than this, five times the raw rate is wanted; in between nothing is.
const SLOW_FSYNC_MS: f64 = 3.0;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let machines = (MACHINES_PER_SECOND * (bench.span.as_secs_f64() + 1.0)) as usize;
    for clients in bench.clients.iter().copied() {
        let setup = Setup::new(store).machines(machines).hardware(Hardware::Holding);
        let fleet = Fleet::start(bench, setup).await?;
        let crew = fleet.crew(clients).await?;
        let next = Arc::new(AtomicUsize::new(0));
        let mut tally = press(&crew.hands, bench.span, move |mut hand, _| {
            let index = next.fetch_add(1, Ordering::Relaxed);
            async move {
                hand.start(&machine(index), "ENTER_MAINTENANCE", "start").await?;
                Ok(())
            }
        })
        .await;
        fleet.complaints().lines().for_each(|line| tally.error(line));
        report.errors_of("StartRun", &tally);
        let p99 = tally.percentile_ms(99.0);
        let row = Row::new("StartRun accepted", tally.per_second(), Unit::PerSecond)
            .store(store)
            .clients(clients)
            .limit(bench.limits.commits(store, clients), "raw commits")
            .note(format!("hardware holds the first step; p99 {p99:.1} ms"));
        report.add(match target(bench).filter(|_| clients == 32) {
            Some(target) => row.target(target),
            None => row,
        });
    }
    Ok(())
}

/// Measured against SQLite's raw rate, whichever database is used.
fn target(bench: &Bench) -> Option<Target> {
    let raw = bench.limits.sqlite_commits();
    match bench.limits.fsync_ms() {
        fast if fast < FAST_FSYNC_MS => Some(Target::AtLeast(raw / 2.0)),
        slow if slow > SLOW_FSYNC_MS => Some(Target::AtLeast(raw * 5.0)),
        _ => None,
    }
}
