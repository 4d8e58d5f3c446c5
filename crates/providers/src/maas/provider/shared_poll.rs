//! Shares polls among the waits at one region. Thousands of machines may be installed at once, each
//! for an hour: one poll reads all awaited machines and serves every waiter.

use crate::maas::{Maas, Machine, MachineFilter};
use model::fault::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// The most machines that one request names, so that its URL stays short enough.
const MAX_NAMED: usize = 200;

/// The waits at one region.
#[derive(Default)]
pub(super) struct SharedPoll {
    /// The awaited machines, and the number of waiters of each.
    awaited: Mutex<BTreeMap<String, usize>>,
    /// The last poll. Single-flight: concurrent waiters share it.
    last_poll: AsyncMutex<Option<Poll>>,
}

type PollResult = Result<Arc<BTreeMap<String, Arc<Machine>>>>;

struct Poll {
    /// The time when it started: its result is not older.
    started_at: Instant,
    result: PollResult,
}

/// One wait for one machine.
pub(super) struct Waiter<'a> {
    shared_poll: &'a SharedPoll,
    system_id: &'a str,
    /// The start of the newest poll it has used. Polls before the wait do not count.
    newest: Instant,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut awaited = self.shared_poll.awaited();
        if let Some(count) = awaited.get_mut(self.system_id) {
            *count -= 1;
            if *count == 0 {
                awaited.remove(self.system_id);
            }
        }
    }
}

impl SharedPoll {
    pub fn join<'a>(&'a self, system_id: &'a str) -> Waiter<'a> {
        *self.awaited().entry(system_id.to_owned()).or_default() += 1;
        Waiter { shared_poll: self, system_id, newest: Instant::now() }
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn poll(&self, maas: &Maas) -> PollResult {
        let ids: Vec<String> = self.awaited().keys().cloned().collect();
        let mut observed = BTreeMap::new();
        for named in ids.chunks(MAX_NAMED) {
            let filter = MachineFilter { ids: named.to_vec(), ..MachineFilter::default() };
            for machine in maas.machines(&filter).await? {
                observed.insert(machine.system_id.clone(), Arc::new(machine));
            }
        }
        Ok(Arc::new(observed))
    }
}

impl Waiter<'_> {
    /// Returns the machine from a poll that this waiter has not used yet.
    pub async fn poll(&mut self, maas: &Maas) -> Result<Arc<Machine>> {
        let observed = self.newer_poll(maas).await?;
        match observed.get(self.system_id) {
            Some(machine) => Ok(Arc::clone(machine)),
            // Not in the list: the single read reports why.
            None => maas.machine(self.system_id).await.map(Arc::new),
        }
    }

    async fn newer_poll(&mut self, maas: &Maas) -> PollResult {
        let mut last = self.shared_poll.last_poll.lock().await;
        if let Some(probe) = last.as_ref()
            && probe.started_at > self.newest
        {
            self.newest = probe.started_at;
            return probe.result.clone();
        }
        let requested = Instant::now();
        let observed = self.shared_poll.poll(maas).await;
        *last = Some(Poll { started_at: requested, result: observed.clone() });
        self.newest = requested;
        observed
    }
}
