//! SQLite in memory, on the caller's own thread. For simulations: with no thread of its own and no
//! disk to wait for, nothing happens beside the clock that the simulation moves.
//!
//! To make the schema and to prepare the statements takes as long as a short simulation, so a database that is done
//! with is kept for the next one. All that is ever written to it is one transaction that nobody commits: rolled back, it
//! leaves an empty database, with its schema and its statements as they are.

use super::{Conn, Tx, Work, sqlite};
use crate::Result;
use crate::signal::Bus;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many are kept: one for each simulation that may run at once.
const MAX_SPARE: usize = 16;

/// Databases that are done with, each empty again.
static SPARE: Mutex<Vec<Arc<Mutex<Tx>>>> = Mutex::new(Vec::new());

pub(crate) struct Memory {
    tx: Arc<Mutex<Tx>>,
    bus: Bus,
}

impl Memory {
    pub fn open(bus: Bus) -> Result<Arc<Self>> {
        let spare = locked(&SPARE).pop();
        let tx = spare.map_or_else(create, Ok)?;
        sqlite::begin(&locked(&tx), "BEGIN")?;
        Ok(Arc::new(Self { tx, bus }))
    }

    /// One piece of work, whole or not at all. Who only reads says nothing, so nothing is published.
    pub fn run<W: Work>(&self, work: &W) -> Result<W::Out> {
        let mut tx = locked(&self.tx);
        let result = sqlite::in_savepoint(&mut tx, work);
        let signals = std::mem::take(&mut tx.signals);
        if result.is_ok() {
            self.bus.publish(signals);
        }
        result
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let emptied = sqlite::begin(&locked(&self.tx), "ROLLBACK");
        let mut spare = locked(&SPARE);
        if emptied.is_ok() && spare.len() < MAX_SPARE {
            spare.push(Arc::clone(&self.tx));
        }
    }
}

fn create() -> Result<Arc<Mutex<Tx>>> {
    let mut conn = sqlite::connect(Path::new(":memory:"))?;
    sqlite::migrate(&mut conn)?;
    Ok(Arc::new(Mutex::new(Tx::new(Conn::Sqlite(conn)))))
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::plan::{RunType, default_plan};
    use model::time::Timestamp;

    struct AddPlan;

    impl Work for AddPlan {
        type Out = ();

        async fn run(&self, tx: &mut Tx) -> Result<()> {
            tx.insert_plan(&default_plan(RunType::Reboot).unwrap(), Timestamp::default()).await
        }
    }

    struct CountPlans;

    impl Work for CountPlans {
        type Out = usize;

        async fn run(&self, tx: &mut Tx) -> Result<usize> {
            Ok(tx.plans("", 10).await?.len())
        }
    }

    #[test]
    fn what_one_wrote_the_next_does_not_find() {
        for spare_before in [0, 1] {
            assert_eq!(locked(&SPARE).len(), spare_before);
            let db = Memory::open(Bus::default()).unwrap();
            assert_eq!(db.run(&CountPlans), Ok(0));
            db.run(&AddPlan).unwrap();
            assert_eq!(db.run(&CountPlans), Ok(1));
        }
    }
}
