//! Growth: the same operations on ever larger fleets. Constant costs must stay constant.

use crate::client::{BenchClient, ClientPool};
use crate::fleet::{Fleet, Setup, machine};
use crate::list::list_rack;
use crate::table::{Report, Row, Target, Unit};
use crate::tally::{Tally, press};
use crate::{Bench, Outcome, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const SPAN: Duration = Duration::from_millis(1_500);
/// A run holds its machine to its end, so two concurrent runs would need two machines.
const RUN_CLIENTS: usize = 1;

#[derive(Clone, Copy)]
enum Operation {
    Get,
    Run,
    FilteredPage,
}

const OPERATIONS: [Operation; 3] = [Operation::Get, Operation::Run, Operation::FilteredPage];

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Get => "growth 1,000 → 100,000: GetMachine",
            Self::Run => "growth 1,000 → 100,000: a run",
            Self::FilteredPage => "growth 1,000 → 100,000: a rack's page",
        }
    }

    async fn press(self, crew: &ClientPool, machines: usize) -> Tally {
        match self {
            Self::Get => {
                press(&crew.clients, SPAN, move |mut call, _| async move {
                    call.get(&machine(rand::random_range(0..machines))).await
                })
                .await
            }
            Self::Run => {
                let next = Arc::new(AtomicUsize::new(0));
                press(&crew.clients, SPAN, move |call, _| {
                    run(call, next.fetch_add(1, Ordering::Relaxed), machines)
                })
                .await
            }
            Self::FilteredPage => {
                press(&crew.clients, SPAN, move |mut call, _| async move {
                    list_rack(&mut call, rand::random_range(1..=machines / 40)).await
                })
                .await
            }
        }
    }
}

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let mut medians = [const { Vec::new() }; OPERATIONS.len()];
    for machines in SIZES {
        let fleet = Fleet::start(bench, Setup::new(store).machines(machines)).await?;
        let crew = fleet.client_pool(RUN_CLIENTS).await?;
        for (operation, medians) in OPERATIONS.into_iter().zip(&mut medians) {
            let tally = operation.press(&crew, machines).await;
            report.errors_of(operation.name(), &tally);
            medians.push(tally.percentile_ms(50.0));
        }
    }
    for (operation, medians) in OPERATIONS.into_iter().zip(&medians) {
        let [small, middle, large] = medians[..] else {
            return Err("a fleet was not measured".into());
        };
        report.add(
            Row::new(operation.name(), large / small, Unit::Times)
                .store(store)
                .clients(RUN_CLIENTS)
                .target(Target::AtMost(1.3))
                .note(format!("medians {small:.2}, {middle:.2}, {large:.2} ms")),
        );
    }
    Ok(())
}

/// From StartRun to the end of the run, on one machine after the other.
async fn run(mut call: BenchClient, index: usize, machines: usize) -> Outcome<()> {
    let request = format!("r-{index}");
    call.run_to_success(&machine(index % machines), "ENTER_MAINTENANCE", &request).await?;
    Ok(())
}
