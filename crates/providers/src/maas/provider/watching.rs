//! Waiting for machines of one region together. Thousands may be installed at once, each for an hour: whoever waits says for which machine, and
//! what one of them is told about all of them serves everybody who has not seen it yet.

use crate::maas::{Filter, Maas, Machine};
use model::fault::Fault;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// How many machines one question names, so that it stays short enough to be asked.
const MAX_NAMED: usize = 200;

/// Who waits at one region.
#[derive(Default)]
pub(super) struct Watching {
    /// The machines that are waited for, and by how many.
    awaited: Mutex<BTreeMap<String, usize>>,
    /// The last look. Who waits for it while another looks gets what that one saw.
    look: AsyncMutex<Option<Look>>,
}

type Seen = Result<Arc<BTreeMap<String, Arc<Machine>>>, Fault>;

struct Look {
    /// When it was begun: what it shows is not older.
    asked: Instant,
    seen: Seen,
}

/// One who waits for one machine.
pub(super) struct Waiter<'a> {
    at: &'a Watching,
    system_id: &'a str,
    /// What it has seen is as old as this. A look before it began to wait tells it nothing.
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
    /// What MAAS has of the machine, and it is news to this one.
    pub async fn look(&mut self, maas: &Maas) -> Result<Arc<Machine>, Fault> {
        let seen = self.news(maas).await?;
        match seen.get(self.system_id) {
            Some(machine) => Ok(Arc::clone(machine)),
            // It was not in the list: then MAAS says itself what has become of it.
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
