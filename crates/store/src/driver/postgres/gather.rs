//! Machines that are asked for one by one, read together.
//!
//! A lookup is a round trip, however small its answer. Lookups that come while others are under way
//! share the next one. Nobody waits for company: what comes alone is read alone. And nobody is told
//! of an older machine than it could have read by itself, as a statement begins after all that it
//! answers have asked.

use super::{Postgres, READ_LIMIT, too_long};
use crate::driver::{Transaction, View};
use crate::{Result, StoreError, Tx};
use model::id::MachineId;
use model::machine::Machine;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// How many statements may be under way. More than one, so that a slow connection holds up only a
/// part.
const READERS: usize = 2;
/// How many machines one statement reads.
const MAX_TOGETHER: usize = 256;

type Found = HashMap<MachineId, Result<Machine>>;

#[derive(Default)]
pub struct Lookups(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    asked: Vec<Lookup>,
    readers: usize,
}

struct Lookup {
    id: MachineId,
    answer: oneshot::Sender<Result<Option<Machine>>>,
}

impl Lookups {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one. True when the caller has to see to a reader.
    fn ask(&self, lookup: Lookup) -> bool {
        let mut queue = self.queue();
        queue.asked.push(lookup);
        let wanted = queue.readers < READERS;
        queue.readers += usize::from(wanted);
        wanted
    }

    /// What the next statement reads; empty when a reader may go.
    fn take(&self) -> Vec<Lookup> {
        let mut queue = self.queue();
        queue.asked.retain(|lookup| !lookup.answer.is_closed());
        let together = queue.asked.len().min(MAX_TOGETHER);
        queue.asked.drain(..together).collect()
    }
}

impl Postgres {
    pub async fn machine(self: &Arc<Self>, id: &MachineId) -> Result<Option<Machine>> {
        let (answer, answered) = oneshot::channel();
        if self.lookups.ask(Lookup { id: id.clone(), answer }) {
            // On its own: whoever asked may go away, and others count on the reader.
            tokio::spawn(Reader(Arc::clone(self)).run());
        }
        let gone = || StoreError::Unavailable("the reading of machines was stopped".into());
        // Who waited this long has waited for another's statement as well; the queue forgets who
        // goes.
        let answered = tokio::time::timeout(READ_LIMIT, answered).await;
        answered.map_err(|_| too_long(READ_LIMIT))?.map_err(|_| gone())?
    }
}

struct Reader(Arc<Postgres>);

impl Reader {
    async fn run(self) {
        loop {
            let asked = self.0.lookups.take();
            if asked.is_empty() {
                return;
            }
            let ids: Vec<MachineId> = asked.iter().map(|lookup| lookup.id.clone()).collect();
            let job = Transaction::new(ids, |ids, tx| Box::pin(machines_among(tx, ids)));
            let mut read = match self.0.read(&*job, View::Statement).await {
                Ok(()) => job.result(),
                Err(error) => Err(error),
            };
            for Lookup { id, answer } in asked {
                let found = match &mut read {
                    Ok(found) => found.get(&id).cloned().transpose(),
                    Err(error) => Err(error.clone()),
                };
                // Who went away needs no answer.
                let _ = answer.send(found);
            }
        }
    }
}

impl Drop for Reader {
    /// Also after a panic. What came between the last look and now finds no reader: it gets one.
    fn drop(&mut self) {
        let mut queue = self.0.lookups.queue();
        queue.readers -= 1;
        if queue.asked.is_empty() {
            return;
        }
        // Without a runtime the process is ending, and nobody is left to be answered.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            queue.readers += 1;
            runtime.spawn(Reader(Arc::clone(&self.0)).run());
        }
    }
}

async fn machines_among(tx: &mut Tx, ids: &[MachineId]) -> Result<Found> {
    let ids: Vec<&str> = ids.iter().map(MachineId::as_str).collect();
    Ok(tx.machines_among(&ids).await?.into_iter().collect())
}
