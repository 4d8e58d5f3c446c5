//! Shares polls among the waits at one region. Thousands of machines may be installed at once, each
//! for an hour: one poll reads all awaited machines and serves every waiter.

use crate::maas::{Filter, Maas, Machine};
use model::fault::Fault;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// How many machines one request names, so that its URL stays short enough.
const MAX_NAMED: usize = 200;

/// The waits at one region.
#[derive(Default)]
pub(super) struct Watching {
    /// The awaited machines, and the number of waiters of each.
    awaited: Mutex<BTreeMap<String, usize>>,
    /// The last poll. Single-flight: concurrent waiters share it.
    look: AsyncMutex<Option<Look>>,
}

type Seen = Result<Arc<BTreeMap<String, Arc<Machine>>>, Fault>;

struct Look {
    /// When it started: its result is not older.
    asked: Instant,
    seen: Seen,
}

/// One wait for one machine.
pub(super) struct Waiter<'a> {
    at: &'a Watching,
    system_id: &'a str,
    /// The start of the newest poll it has used. Polls before the wait do not count.
    newest: Instant,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut awaited = self.at.awaited();
        if let Some(count) = awaited.get_mut(self.system_id) {
            *count -= 1;
            if *count == 0 {
                awaited.remove(self.system_id);
            }
        }
    }
}

impl Watching {
    pub fn join<'a>(&'a self, system_id: &'a str) -> Waiter<'a> {
        *self.awaited().entry(system_id.to_owned()).or_default() += 1;
        Waiter { at: self, system_id, newest: Instant::now() }
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, maas: &Maas) -> Seen {
        let ids: Vec<String> = self.awaited().keys().cloned().collect();
        let mut seen = BTreeMap::new();
        for named in ids.chunks(MAX_NAMED) {
            let filter = Filter { ids: named.to_vec(), ..Filter::default() };
            for machine in maas.machines(&filter).await? {
                seen.insert(machine.system_id.clone(), Arc::new(machine));
            }
        }
        Ok(Arc::new(seen))
    }
}

impl Waiter<'_> {
    /// Returns the machine from a poll that this waiter has not used yet.
    pub async fn look(&mut self, maas: &Maas) -> Result<Arc<Machine>, Fault> {
        let seen = self.news(maas).await?;
        match seen.get(self.system_id) {
            Some(machine) => Ok(Arc::clone(machine)),
            // Not in the list: the single read reports why.
            None => maas.machine(self.system_id).await.map(Arc::new),
        }
    }

    async fn news(&mut self, maas: &Maas) -> Seen {
        let mut last = self.at.look.lock().await;
        if let Some(look) = last.as_ref()
            && look.asked > self.newest
        {
            self.newest = look.asked;
            return look.seen.clone();
        }
        let asked = Instant::now();
        let seen = self.at.look(maas).await;
        *last = Some(Look { asked, seen: seen.clone() });
        self.newest = asked;
        seen
    }
}
