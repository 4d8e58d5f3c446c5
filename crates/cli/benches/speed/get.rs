//! GetMachine, each time for another machine of the fleet.

use crate::fleet::{Fleet, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::press;
use crate::{Bench, MACHINES, Outcome, Store};

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(MACHINES)).await?;
    for clients in bench.clients.iter().copied() {
        let crew = fleet.client_pool(clients).await?;
        let tally = press(&crew.clients, bench.span, |mut call, _| async move {
            call.get(&machine(rand::random_range(0..MACHINES))).await
        })
        .await;
        report.errors_of("GetMachine", &tally);
        let empty = bench.limits.calls(clients)?;
        report.add(
            Row::new("GetMachine of 20,000", tally.per_second(), Unit::PerSecond)
                .store(store)
                .clients(clients)
                .limit(empty.per_second, "empty calls")
                .target(Target::AtLeast(empty.per_second / 2.0)),
        );
        report.add(
            Row::new("GetMachine of 20,000, p99", tally.percentile_ms(99.0), Unit::Millis)
                .store(store)
                .clients(clients)
                .limit(empty.p99_ms, "empty call")
                .target_if(clients == 8, Target::AtMost(5.0)),
        );
    }
    Ok(())
}
