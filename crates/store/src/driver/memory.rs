//! SQLite in memory, on the caller's own thread. For simulations: with no thread of its own and no
//! disk to wait for, nothing happens beside the clock that the simulation moves.

use super::{Conn, Tx, Work, sqlite};
use crate::Result;
use crate::signal::Bus;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct Memory {
    tx: Mutex<Tx>,
    bus: Bus,
}

impl Memory {
    pub fn open(bus: Bus) -> Result<Arc<Self>> {
        let mut conn = sqlite::connect(Path::new(":memory:"))?;
        sqlite::migrate(&mut conn)?;
        Ok(Arc::new(Self { tx: Mutex::new(Tx::new(Conn::Sqlite(conn))), bus }))
    }

    /// One piece of work, whole or not at all. Who only reads says nothing, so nothing is published.
    pub fn run<W: Work>(&self, work: &W) -> Result<W::Out> {
        let mut tx = self.tx.lock().unwrap_or_else(PoisonError::into_inner);
        let result = sqlite::in_savepoint(&mut tx, work);
        let signals = std::mem::take(&mut tx.signals);
        if result.is_ok() {
            self.bus.publish(signals);
        }
        result
    }
}
