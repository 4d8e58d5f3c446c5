//! Batches concurrent lookups of single machines.
//!
//! Every lookup costs a round trip. Lookups that arrive while others are in progress share the next
//! statement; a single lookup is not delayed. A statement starts after all lookups that it answers,
//! so none of them gets an older machine than it could have read by itself.

use super::{Postgres, READ_LIMIT, too_long};
use crate::driver::{Transaction, View};
use crate::{Result, StoreError, Tx};
use model::id::MachineId;
use model::machine::Machine;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The maximum number of concurrent statements. Two, so that a slow connection delays only some
/// lookups.
const READERS: usize = 2;
/// The maximum number of machines that one statement reads.
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

    /// Queues a lookup. True if the caller must spawn a reader.
    fn ask(&self, lookup: Lookup) -> bool {
        let mut queue = self.queue();
        queue.asked.push(lookup);
        let wanted = queue.readers < READERS;
        queue.readers += usize::from(wanted);
        wanted
    }

    /// The lookups of the next statement; empty if the reader may end.
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
            // In its own task: the caller may be dropped, but other lookups need the reader.
            tokio::spawn(Reader(Arc::clone(self)).run());
        }
        let gone = || StoreError::Unavailable("the reading of machines was stopped".into());
        // This includes the wait for an earlier statement. The queue drops lookups whose caller is
        // gone.
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
                // Fails only if the caller was dropped.
                let _ = answer.send(found);
            }
        }
    }
}

impl Drop for Reader {
    /// Also runs after a panic. Lookups queued since the last `take_batch` get a new reader.
    fn drop(&mut self) {
        let mut queue = self.0.lookups.queue();
        queue.readers -= 1;
        if queue.asked.is_empty() {
            return;
        }
        // Without a runtime the process is ending.
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
