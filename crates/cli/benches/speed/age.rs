//! Age: provisions on an empty database, compared with a database that holds many past runs.

use crate::fleet::Setup;
use crate::provision::load;
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, Outcome, Store};

const CLIENTS: usize = 32;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let mut rates = Vec::new();
    for runs in [0, bench.past_runs] {
        let (tally, _) = load(bench, Setup::new(store).past_runs(runs), CLIENTS).await?;
        report.errors_of("age", &tally);
        rates.push(tally.per_second());
    }
    let [young, old] = rates[..] else { return Err("a database was not measured".into()) };
    let past = bench.past_runs;
    report.add(
        Row::new("age: an empty database beside a full one", young / old, Unit::Times)
            .store(store)
            .clients(CLIENTS)
            .target(Target::AtMost(1.3))
            .note(format!("{young:.0} provisions/s, {old:.0} after {past} runs")),
    );
    Ok(())
}
