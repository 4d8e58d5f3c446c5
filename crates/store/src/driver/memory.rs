//! SQLite in memory, on the caller's thread, for simulations: without threads and disk waits, only
//! the simulated clock determines the order of things.
//!
//! Creating the schema and preparing the statements takes as long as a short simulation, so
//! databases are reused. Everything is written in one transaction that is never committed; its
//! rollback leaves an empty database with its schema and prepared statements.

use super::{Conn, Job, SchemaPolicy, TransactionEnd, Tx, sqlite};
use crate::Result;
use crate::signal::SignalBus;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of idle databases: one for each concurrent simulation.
const MAX_IDLE: usize = 16;

/// Idle databases, all empty.
static IDLE_DATABASES: Mutex<Vec<Arc<Mutex<Tx>>>> = Mutex::new(Vec::new());

pub(crate) struct Memory {
    tx: Arc<Mutex<Tx>>,
    bus: SignalBus,
}

impl Memory {
    pub fn open(bus: SignalBus) -> Result<Arc<Self>> {
        let spare = locked(&IDLE_DATABASES).pop();
        let tx = spare.map_or_else(create, Ok)?;
        sqlite::execute_control(&locked(&tx), "BEGIN")?;
        Ok(Arc::new(Self { tx, bus }))
    }

    /// Runs one transaction. A read queues no signals.
    pub fn run(&self, job: &dyn Job, ending: TransactionEnd) -> Result<()> {
        let mut tx = locked(&self.tx);
        let result = sqlite::in_savepoint(&mut tx, job, ending);
        let signals = std::mem::take(&mut tx.signals);
        if result.is_ok() {
            self.bus.publish(signals);
        }
        result
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let emptied = sqlite::execute_control(&locked(&self.tx), "ROLLBACK");
        let mut spare = locked(&IDLE_DATABASES);
        if emptied.is_ok() && spare.len() < MAX_IDLE {
            spare.push(Arc::clone(&self.tx));
        }
    }
}

fn create() -> Result<Arc<Mutex<Tx>>> {
    let mut conn = sqlite::connect(Path::new(":memory:"))?;
    sqlite::migrate(&mut conn, SchemaPolicy::Migrate)?;
    Ok(Arc::new(Mutex::new(Tx::new(Conn::Sqlite(conn)))))
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Transaction;
    use model::plan::{RunType, default_plan};
    use model::time::Timestamp;

    fn add_plan(db: &Memory) {
        let plan = default_plan(RunType::Reboot).unwrap();
        let job =
            Transaction::new(plan, |plan, tx| Box::pin(tx.insert_plan(plan, Timestamp::default())));
        db.run(&*job, TransactionEnd::Commit).unwrap();
    }

    fn count_plans(db: &Memory) -> usize {
        let job = Transaction::new((), |(), tx| Box::pin(tx.plans("", 10)));
        db.run(&*job, TransactionEnd::Commit).unwrap();
        job.result().unwrap().0.items.len()
    }

    #[test]
    fn what_one_wrote_the_next_does_not_find() {
        for spare_before in [0, 1] {
            assert_eq!(locked(&IDLE_DATABASES).len(), spare_before);
            let db = Memory::open(SignalBus::default()).unwrap();
            assert_eq!(count_plans(&db), 0);
            add_plan(&db);
            assert_eq!(count_plans(&db), 1);
        }
    }
}
