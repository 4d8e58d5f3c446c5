//! The effect log: every call and every applied effect, by key.
//!
//! An applied effect is logged before the hardware is stored, with the machine's number for it. A
//! crash in between leaves a line for an effect that was not stored; the next effect gets the same
//! number, and the later line counts. So a crash can neither hide an effect nor count it twice.

use model::effect::{Effect, Key, Order, Verb};
use model::id::MachineId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// How many keys are counted in memory. Keys sort by creation, so the oldest are dropped.
const MAX_COUNTED: usize = 1_000_000;

/// How often one attempt of one step was requested and applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCount {
    pub key: String,
    pub machine: String,
    pub effect: String,
    /// The number of `perform` calls.
    #[serde(rename = "asked")]
    pub asked: u32,
    /// How often it changed the hardware. More than once is a bug of the engine or the simulator.
    pub applied: u32,
}

/// One line of the effect log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Entry {
    #[serde(rename = "asked")]
    Asked {
        key: Key,
        machine: String,
        effect: String,
        verb: Verb,
    },
    Applied {
        key: Key,
        machine: String,
        effect: String,
        act: u64,
    },
}

impl Entry {
    pub fn asked(machine: &MachineId, order: &Order) -> Self {
        Self::Asked {
            key: order.key.clone(),
            machine: machine.to_string(),
            effect: order.effect.word().into(),
            verb: order.verb,
        }
    }

    pub fn applied(machine: &MachineId, key: &Key, effect: &Effect, act: u64) -> Self {
        Self::Applied {
            key: key.clone(),
            machine: machine.to_string(),
            effect: effect.word().into(),
            act,
        }
    }
}

/// The counts by key.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<String, EffectCount>);

impl Tally {
    /// The counts of a complete effect log.
    pub fn of(entries: Vec<Entry>) -> Self {
        let mut last: HashMap<(String, u64), usize> = HashMap::new();
        for (line, entry) in entries.iter().enumerate() {
            if let Entry::Applied { machine, act, .. } = entry {
                last.insert((machine.clone(), *act), line);
            }
        }
        let mut tally = Self::default();
        for (line, entry) in entries.iter().enumerate() {
            let counts = match entry {
                Entry::Asked { .. } => true,
                Entry::Applied { machine, act, .. } => {
                    last.get(&(machine.clone(), *act)) == Some(&line)
                }
            };
            if counts {
                tally.add(entry);
            }
        }
        tally
    }

    pub fn add(&mut self, entry: &Entry) {
        let (key, machine, effect, asked, applied) = match entry {
            Entry::Asked { key, machine, effect, verb: Verb::Perform } => {
                (key, machine, effect, 1, 0)
            }
            Entry::Asked {
                verb: Verb::Follow | Verb::GetStatus | Verb::Observe | Verb::Stop,
                ..
            } => return,
            Entry::Applied { key, machine, effect, .. } => (key, machine, effect, 0, 1),
        };
        let count = self.0.entry(key.to_string()).or_insert_with(|| EffectCount {
            key: key.to_string(),
            machine: machine.clone(),
            effect: effect.clone(),
            asked: 0,
            applied: 0,
        });
        count.asked = count.asked.saturating_add(asked);
        count.applied = count.applied.saturating_add(applied);
        if self.0.len() > MAX_COUNTED {
            self.0.pop_first();
        }
    }

    /// The counts of the keys with this prefix, in key order.
    pub fn counts(&self, prefix: &str) -> Vec<EffectCount> {
        self.0
            .range(prefix.to_string()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(_, count)| count.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::RunId;

    fn applied(step: &str, act: u64) -> Entry {
        let key = Key::new(&RunId::trusted("op-1"), step, 1);
        let effect = Effect::Repave { image: "a".into() };
        Entry::applied(&MachineId::trusted("m-1"), &key, &effect, act)
    }

    fn sums(entries: Vec<Entry>) -> Vec<(String, u32)> {
        Tally::of(entries).counts("op-1").into_iter().map(|one| (one.key, one.applied)).collect()
    }

    #[test]
    fn a_line_left_by_a_crash_is_no_second_act() {
        let twice_written = vec![applied("a", 1), applied("a", 1)];
        assert_eq!(sums(twice_written), [("op-1/a/1".to_string(), 1)]);
        let overtaken = vec![applied("a", 1), applied("b", 1)];
        assert_eq!(sums(overtaken), [("op-1/b/1".to_string(), 1)]);
        let truly_twice = vec![applied("a", 1), applied("a", 2)];
        assert_eq!(sums(truly_twice), [("op-1/a/1".to_string(), 2)]);
    }

    #[test]
    fn the_prefix_selects() {
        let tally = Tally::of(vec![applied("a", 1), applied("b", 2)]);
        assert_eq!(tally.counts("").len(), 2);
        assert_eq!(tally.counts("op-1/b").len(), 1);
        assert_eq!(tally.counts("op-2").len(), 0);
    }
}
