//! StartRun: how many are durably accepted per second. Each is an ENTER_MAINTENANCE on a machine
//! that is already registered, and only waits once it is accepted: in the queue of an engine whose
//! slots are full; or, at 32 clients, also in a first step that the hardware has started and does
//! not answer. In the second case the engine and the simulated hardware use the same cores, and the
//! simulator writes each match of its fault rule to a file.

use crate::fleet::{Fleet, Hardware, RunSlots, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::{WARM_UP, press};
use crate::{Bench, Outcome, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each run needs its own machine; this is more than can be accepted. If it is ever too few, the
/// error about an unknown machine is reported like any other.
const fn machines_per_second(store: Store) -> f64 {
    match store {
        Store::Sqlite => 15_000.0,
        Store::Postgres => 5_000.0,
    }
}

/// The number of clients that the target applies to.
const JUDGED: usize = 32;
/// With an fsync faster than this, the target is half the raw rate.
const FAST_FSYNC_MS: f64 = 0.5;
/// With an fsync slower than this, the target is five times the raw rate; in between there is no
/// target.
const SLOW_FSYNC_MS: f64 = 3.0;

/// The place where an accepted run waits.
#[derive(Clone, Copy)]
enum Wait {
    Queue,
    FirstStep,
}

impl Wait {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "the engine has no free slot, runs wait in the queue",
            Self::FirstStep => "simulated hardware holds the first step",
        }
    }
}

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    for clients in bench.clients.iter().copied() {
        accept(bench, store, clients, Wait::Queue, report).await?;
    }
    if bench.clients.contains(&JUDGED) {
        accept(bench, store, JUDGED, Wait::FirstStep, report).await?;
    }
    Ok(())
}

async fn accept(
    bench: &Bench,
    store: Store,
    clients: usize,
    wait: Wait,
    report: &mut Report,
) -> Outcome<()> {
    let machines = machines_per_second(store) * (bench.span + WARM_UP).as_secs_f64();
    let setup = Setup::new(store).machines(machines as usize).hardware(Hardware::Holding);
    let (name, setup) = match wait {
        Wait::Queue => ("StartRun accepted", setup.run_slots(RunSlots::One)),
        Wait::FirstStep => ("StartRun accepted, first step begun", setup),
    };
    let fleet = Fleet::start(bench, setup).await?;
    let crew = fleet.client_pool(clients).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut tally = press(&crew.clients, bench.span, move |mut call, _| {
        let index = next.fetch_add(1, Ordering::Relaxed);
        async move {
            call.start(&machine(index), "ENTER_MAINTENANCE", "start").await?;
            Ok(())
        }
    })
    .await;
    fleet.complaints().lines().for_each(|line| tally.error(line));
    report.errors_of(name, &tally);
    let p99 = tally.percentile_ms(99.0);
    let row = Row::new(name, tally.per_second(), Unit::PerSecond)
        .store(store)
        .clients(clients)
        .limit(bench.limits.commits(store, clients), "raw commits")
        .note(format!("{}; p99 {p99:.1} ms", wait.as_str()));
    report.add(match target(bench).filter(|_| clients == JUDGED) {
        Some(target) => row.target(target),
        None => row,
    });
    Ok(())
}

/// Compared with SQLite's raw rate, whichever database is used.
fn target(bench: &Bench) -> Option<Target> {
    let raw = bench.limits.sqlite_commits();
    match bench.limits.fsync_ms() {
        fast if fast < FAST_FSYNC_MS => Some(Target::AtLeast(raw / 2.0)),
        slow if slow > SLOW_FSYNC_MS => Some(Target::AtLeast(raw * 5.0)),
        _ => None,
    }
}
