//! Batches concurrent lookups of single machines.
//!
//! Every lookup costs a round trip. Lookups that arrive while others are in progress share the next
//! statement; a single lookup is not delayed. A statement starts after all lookups that it answers,
//! so none of them gets an older machine than it could have read by itself.

use super::{Postgres, READ_LIMIT, timeout_error};
use crate::driver::{ReadConsistency, Transaction};
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
const MAX_BATCH: usize = 256;

type MachinesById = HashMap<MachineId, Result<Machine>>;

#[derive(Default)]
pub struct Lookups(Mutex<LookupQueue>);

#[derive(Default)]
struct LookupQueue {
    waiting: Vec<Lookup>,
    readers: usize,
}

struct Lookup {
    id: MachineId,
    answer: oneshot::Sender<Result<Option<Machine>>>,
}

impl Lookups {
    fn queue(&self) -> MutexGuard<'_, LookupQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a lookup. True if the caller must spawn a reader.
    fn enqueue(&self, lookup: Lookup) -> bool {
        let mut queue = self.queue();
        queue.waiting.push(lookup);
        let desired = queue.readers < READERS;
        queue.readers += usize::from(desired);
        desired
    }

    /// The lookups of the next statement; empty if the reader may end.
    fn take_batch(&self) -> Vec<Lookup> {
        let mut queue = self.queue();
        queue.waiting.retain(|lookup| !lookup.answer.is_closed());
        let together = queue.waiting.len().min(MAX_BATCH);
        queue.waiting.drain(..together).collect()
    }
}

impl Postgres {
    pub async fn machine(self: &Arc<Self>, id: &MachineId) -> Result<Option<Machine>> {
        let (answer, answered) = oneshot::channel();
        if self.lookups.enqueue(Lookup { id: id.clone(), answer }) {
            // In its own task: the caller may be dropped, but other lookups need the reader.
            tokio::spawn(LookupReader(Arc::clone(self)).run());
        }
        let gone = || StoreError::Unavailable("the reading of machines was stopped".into());
        // This includes the wait for an earlier statement. The queue drops lookups whose caller is
        // gone.
        let answered = tokio::time::timeout(READ_LIMIT, answered).await;
        answered.map_err(|_| timeout_error(READ_LIMIT))?.map_err(|_| gone())?
    }
}

struct LookupReader(Arc<Postgres>);

impl LookupReader {
    async fn run(self) {
        loop {
            let requested = self.0.lookups.take_batch();
            if requested.is_empty() {
                return;
            }
            let ids: Vec<MachineId> = requested.iter().map(|lookup| lookup.id.clone()).collect();
            let job = Transaction::new(ids, |ids, tx| Box::pin(machines_among(tx, ids)));
            let mut read = match self.0.read(&*job, ReadConsistency::Statement).await {
                Ok(()) => job.result(),
                Err(error) => Err(error),
            };
            for Lookup { id, answer } in requested {
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

impl Drop for LookupReader {
    /// Also runs after a panic. Lookups queued since the last `take_batch` get a new reader.
    fn drop(&mut self) {
        let mut queue = self.0.lookups.queue();
        queue.readers -= 1;
        if queue.waiting.is_empty() {
            return;
        }
        // Without a runtime the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            queue.readers += 1;
            runtime.spawn(LookupReader(Arc::clone(&self.0)).run());
        }
    }
}

async fn machines_among(tx: &mut Tx, ids: &[MachineId]) -> Result<MachinesById> {
    let ids: Vec<&str> = ids.iter().map(MachineId::as_str).collect();
    Ok(tx.machines_by_ids(&ids).await?.into_iter().collect())
}
