//! The storage of the state of the simulated hardware: in this process or in a directory.
//!
//! A directory survives the process and may be shared by several processes on one host. Every
//! access is a short read, change and write under the machine's own lock.

use super::dir;
use super::effect_log::{EffectCount, EffectCounts, EffectRecord};
use super::fault::{FaultRule, FaultSubject, Rules};
use super::hardware::Hardware;
use model::fault::Result;
use model::filter::Filter;
use model::id::MachineId;
use model::time::Timestamp;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of shards in RAM, which reduces lock contention.
const SHARDS: usize = 64;

/// The store of a simulated fleet. A clone shares the store.
#[derive(Debug, Clone)]
pub enum SimStore {
    Ram(Arc<RamStore>),
    Dir(PathBuf),
}

/// A fleet in the memory of this process.
#[derive(Debug)]
pub struct RamStore {
    machines: Vec<Mutex<HashMap<MachineId, Hardware>>>,
    rules: Mutex<Rules>,
    tally: Mutex<EffectCounts>,
}

impl SimStore {
    pub fn ram() -> Self {
        Self::Ram(Arc::new(RamStore {
            machines: (0..SHARDS).map(|_| Mutex::default()).collect(),
            rules: Mutex::default(),
            tally: Mutex::default(),
        }))
    }

    /// A fleet in a directory, which is created if missing.
    pub fn dir(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        dir::prepare(&root)?;
        Ok(Self::Dir(root))
    }

    /// Reads, changes and writes one machine under its lock. `change` logs the applied effects.
    pub(super) fn change<T>(
        &self,
        machine: &MachineId,
        now: Timestamp,
        change: impl FnOnce(&mut Hardware, &mut Vec<EffectRecord>) -> T,
    ) -> Result<T> {
        match self {
            Self::Ram(ram) => {
                let mut shard = lock(ram.shard(machine));
                let hardware =
                    shard.entry(machine.clone()).or_insert_with(|| Hardware::factory(now));
                let mut ledger = Vec::new();
                let result = change(hardware, &mut ledger);
                ram.record(&ledger);
                Ok(result)
            }
            Self::Dir(root) => dir::change_machine(root, machine, now, change),
        }
    }

    pub(super) fn record(&self, entries: &[EffectRecord]) -> Result<()> {
        match self {
            Self::Ram(ram) => {
                ram.record(entries);
                Ok(())
            }
            Self::Dir(root) => dir::record(root, entries),
        }
    }

    pub(super) fn counts(&self, prefix: &str) -> Result<Vec<EffectCount>> {
        match self {
            Self::Ram(ram) => Ok(lock(&ram.tally).counts(prefix)),
            Self::Dir(root) => Ok(EffectCounts::of(dir::read_effect_log(root)?).counts(prefix)),
        }
    }

    pub(super) fn count_page(
        &self,
        filter: &Filter,
        after: &str,
        limit: usize,
    ) -> Result<Vec<EffectCount>> {
        match self {
            Self::Ram(ram) => Ok(lock(&ram.tally).page(filter, after, limit)),
            Self::Dir(root) => {
                let tally = EffectCounts::of(dir::read_effect_log(root)?);
                Ok(tally.page(filter, after, limit))
            }
        }
    }

    pub(super) fn rules(&self) -> Result<Rules> {
        match self {
            Self::Ram(ram) => Ok(lock(&ram.rules).clone()),
            Self::Dir(root) => dir::rules(root),
        }
    }

    pub(super) fn change_rules<T>(&self, change: impl FnOnce(&mut Rules) -> T) -> Result<T> {
        match self {
            Self::Ram(ram) => Ok(change(&mut lock(&ram.rules))),
            Self::Dir(root) => dir::change_rules(root, change),
        }
    }

    /// The fault rule that matches a call or a probe; its counter is increased.
    pub(super) fn match_fault_rule(
        &self,
        machine: &MachineId,
        selected: FaultSubject<'_>,
    ) -> Result<Option<FaultRule>> {
        let machine = machine.as_str();
        if let Self::Dir(root) = self
            && !dir::rules(root)?.any_matches(machine, &selected)
        {
            // The common case takes no lock.
            return Ok(None);
        }
        self.change_rules(|rules| rules.apply_match(machine, &selected))
    }
}

impl RamStore {
    fn shard(&self, machine: &MachineId) -> &Mutex<HashMap<MachineId, Hardware>> {
        let mut hasher = DefaultHasher::new();
        machine.as_str().hash(&mut hasher);
        &self.machines[hasher.finish() as usize % SHARDS]
    }

    fn record(&self, entries: &[EffectRecord]) {
        if entries.is_empty() {
            return;
        }
        let mut tally = lock(&self.tally);
        for entry in entries {
            tally.add(entry);
        }
    }
}

/// A panic leaves no partial change behind a lock, so a poisoned lock is usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
