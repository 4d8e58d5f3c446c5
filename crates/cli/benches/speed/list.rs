//! ListMachines: the whole fleet page by page, and one page with the machines of a rack.

use crate::client::BenchClient;
use crate::fleet::{Fleet, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::{Tally, press};
use crate::{Bench, MACHINES, Outcome, Store};
use std::collections::HashSet;

const PAGE: i32 = 1_000;
/// The simulated fleet has forty machines per rack.
const PER_RACK: usize = 40;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(MACHINES)).await?;
    let crew = fleet.client_pool(1).await?;
    let tally = press(&crew.clients, bench.span, |call, _| list_fleet(call)).await;
    report.errors_of("ListMachines", &tally);
    let pages = MACHINES as f64 / f64::from(PAGE);
    let empty = bench.limits.calls(1)?;
    report.add(
        Row::new(
            "ListMachines, 20,000 in 20 pages, p99",
            tally.percentile_ms(99.0) / 1e3,
            Unit::Seconds,
        )
        .store(store)
        .clients(1)
        .limit(empty.median_ms * pages / 1e3, "20 empty calls")
        .target(Target::AtMost(1.0))
        .note(format!("median {:.3} s", tally.percentile_ms(50.0) / 1e3)),
    );
    for clients in bench.clients.iter().copied() {
        let crew = fleet.client_pool(clients).await?;
        let tally = press(&crew.clients, bench.span, |call, _| rack(call)).await;
        report.add(filtered_row(bench, store, clients, &tally)?);
        report.errors_of("ListMachines of a rack", &tally);
    }
    Ok(())
}

fn filtered_row(bench: &Bench, store: Store, clients: usize, tally: &Tally) -> Outcome<Row> {
    let row = Row::new("ListMachines, labels.rack=…, p99", tally.percentile_ms(99.0), Unit::Millis);
    let (rate, median) = (tally.per_second(), tally.percentile_ms(50.0));
    Ok(row
        .store(store)
        .clients(clients)
        .limit(bench.limits.calls(clients)?.p99_ms, "empty call")
        .target_if(clients == 1, Target::AtMost(20.0))
        .note(format!("40 of 20,000; median {median:.2} ms, {rate:.0}/s")))
}

/// Reads the whole fleet, and checks that each machine is listed once.
async fn list_fleet(mut call: BenchClient) -> Outcome<()> {
    let mut observed = HashSet::new();
    let mut token = String::new();
    loop {
        let page = call.list("", PAGE, token).await?;
        for machine in page.machines {
            if !observed.insert(machine.machine_id.clone()) {
                return Err(format!("{} was listed twice", machine.machine_id).into());
            }
        }
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    match observed.len() {
        MACHINES => Ok(()),
        other => Err(format!("{other} machines were listed").into()),
    }
}

async fn rack(mut call: BenchClient) -> Outcome<()> {
    let rack = rand::random_range(1..=MACHINES / PER_RACK);
    list_rack(&mut call, rack).await
}

/// Reads one page with all machines of a rack.
pub async fn list_rack(call: &mut BenchClient, rack: usize) -> Outcome<()> {
    let page = call.list(&format!("labels.rack=r{rack}"), 100, String::new()).await?;
    match page.machines.len() {
        PER_RACK => Ok(()),
        other => Err(format!("rack r{rack} has {other} machines").into()),
    }
}
