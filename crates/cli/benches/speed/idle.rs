//! The CPU cost of an idle fleet, from the kernel's process statistics.

use crate::fleet::{Fleet, Probes, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, MACHINES, Outcome, Store, process};
use std::time::{Duration, Instant};

/// The kernel counts CPU time in hundredths of a second; over this span that is a thousandth of a
/// core.
const SPAN: Duration = Duration::from_secs(10);
/// Long enough for the work of the start to finish.
const SETTLE: Duration = Duration::from_secs(2);
/// Frequent enough that every machine is probed before the measurement begins.
const LEARN_EVERY_MS: u64 = 4_000;
const TIMEOUT: Duration = Duration::from_secs(60);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let learning = Setup::new(store).machines(MACHINES).probes(Probes::EveryMs(LEARN_EVERY_MS));
    let mut fleet = Fleet::start(bench, learning).await?;
    until_probed(&fleet).await?;

    fleet.setup.probes = Probes::Seldom;
    fleet.crash()?;
    let (percent, _) = cost(&fleet).await?;
    let row = Row::new("idle fleet of 20,000", percent, Unit::Percent).store(store);
    report.add(row.target(Target::AtMost(2.0)).note("of one core, beside the probes"));

    fleet.setup.probes = Probes::Default;
    fleet.crash()?;
    let (percent, probes) = cost(&fleet).await?;
    let row = Row::new("idle fleet of 20,000, probed", percent, Unit::Percent).store(store);
    report.add(row.note(format!("of one core, with {probes:.0} probes/s, the default")));
    Ok(())
}

/// Waits until every machine was probed, so that later probes find no change.
async fn until_probed(fleet: &Fleet) -> Outcome<()> {
    let begun = Instant::now();
    while fleet.metric("farrier_probes_total")? < 2.0 * MACHINES as f64 {
        if begun.elapsed() > TIMEOUT {
            return Err("the fleet was not probed in a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Percent of a core, and probes per second.
async fn cost(fleet: &Fleet) -> Outcome<(f64, f64)> {
    tokio::time::sleep(SETTLE).await;
    let probes = fleet.metric("farrier_probes_total")?;
    let (begun, before) = (Instant::now(), process::cpu_seconds(fleet.pid())?);
    tokio::time::sleep(SPAN).await;
    let used = process::cpu_seconds(fleet.pid())? - before;
    let span = begun.elapsed().as_secs_f64();
    Ok((used / span * 100.0, (fleet.metric("farrier_probes_total")? - probes) / span))
}
