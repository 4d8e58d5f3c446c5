//! The effect log: every call and every applied effect, by key.
//!
//! An applied effect is logged before the hardware is stored, with the machine's number for it. A
//! crash in between leaves a line for an effect that was not stored; the next effect gets the same
//! number, and the later line counts. So a crash can neither hide an effect nor count it twice.

use model::effect::{CallVerb, Effect, EffectKey, ProviderCall};
use model::filter::{Filter, FilterValues};
use model::id::MachineId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// The most keys that are counted in memory. Keys sort by creation, so the oldest are dropped.
const MAX_COUNTED: usize = 1_000_000;

/// The number of times that one attempt of one step was requested and applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCount {
    pub key: String,
    pub machine: String,
    pub effect: String,
    /// The number of `perform` calls.
    #[serde(rename = "asked")]
    pub requested: u32,
    /// The number of times that it changed the hardware. More than one is a bug of the engine or
    /// the simulator.
    pub applied: u32,
}

impl FilterValues for EffectCount {
    fn values_of(&self, field: &str) -> Vec<String> {
        // A key is run/step/attempt.
        let part = |number: usize| self.key.split('/').nth(number).map(String::from);
        match field {
            "key" => vec![self.key.clone()],
            "run_id" => part(0).into_iter().collect(),
            "step" => part(1).into_iter().collect(),
            "machine" => vec![self.machine.clone()],
            "effect" => vec![self.effect.clone()],
            _ => Vec::new(),
        }
    }
}

/// One line of the effect log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum EffectRecord {
    #[serde(rename = "asked")]
    Requested {
        key: EffectKey,
        machine: String,
        effect: String,
        verb: CallVerb,
    },
    Applied {
        key: EffectKey,
        machine: String,
        effect: String,
        act: u64,
    },
}

impl EffectRecord {
    pub fn requested(machine: &MachineId, call: &ProviderCall) -> Self {
        Self::Requested {
            key: call.key.clone(),
            machine: machine.to_string(),
            effect: call.effect.name().into(),
            verb: call.verb,
        }
    }

    pub fn applied(machine: &MachineId, key: &EffectKey, effect: &Effect, act: u64) -> Self {
        Self::Applied {
            key: key.clone(),
            machine: machine.to_string(),
            effect: effect.name().into(),
            act,
        }
    }
}

/// The counts by key.
#[derive(Debug, Default)]
pub struct EffectCounts(BTreeMap<String, EffectCount>);

impl EffectCounts {
    /// The counts of a complete effect log.
    pub fn of(entries: Vec<EffectRecord>) -> Self {
        let mut last: HashMap<(String, u64), usize> = HashMap::new();
        for (line, entry) in entries.iter().enumerate() {
            if let EffectRecord::Applied { machine, act, .. } = entry {
                last.insert((machine.clone(), *act), line);
            }
        }
        let mut tally = Self::default();
        for (line, entry) in entries.iter().enumerate() {
            let counts = match entry {
                EffectRecord::Requested { .. } => true,
                EffectRecord::Applied { machine, act, .. } => {
                    last.get(&(machine.clone(), *act)) == Some(&line)
                }
            };
            if counts {
                tally.add(entry);
            }
        }
        tally
    }

    pub fn add(&mut self, entry: &EffectRecord) {
        let (key, machine, effect, request, applied) = match entry {
            EffectRecord::Requested { key, machine, effect, verb: CallVerb::Perform } => {
                (key, machine, effect, 1, 0)
            }
            EffectRecord::Requested {
                verb: CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop,
                ..
            } => return,
            EffectRecord::Applied { key, machine, effect, .. } => (key, machine, effect, 0, 1),
        };
        let count = self.0.entry(key.to_string()).or_insert_with(|| EffectCount {
            key: key.to_string(),
            machine: machine.clone(),
            effect: effect.clone(),
            requested: 0,
            applied: 0,
        });
        count.requested = count.requested.saturating_add(request);
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

    /// The first `limit` counts after a key that match.
    pub fn page(&self, filter: &Filter, after: &str, limit: usize) -> Vec<EffectCount> {
        // The keys of a run are next to each other.
        let run = filter.named_value("run_id").map(|run| format!("{run}/")).unwrap_or_default();
        let first = match run.as_str() > after {
            true => Bound::Included(run.clone()),
            false => Bound::Excluded(after.to_string()),
        };
        self.0
            .range((first, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&run))
            .map(|(_, count)| count)
            .filter(|count| filter.matches_values(*count))
            .take(limit)
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::filter::FilterSubject;
    use model::id::RunId;

    fn applied(step: &str, act: u64) -> EffectRecord {
        let key = EffectKey::new(&RunId::trusted("op-1"), step, 1);
        let effect = Effect::Repave { image: "a".into() };
        EffectRecord::applied(&MachineId::trusted("m-1"), &key, &effect, act)
    }

    fn sums(entries: Vec<EffectRecord>) -> Vec<(String, u32)> {
        EffectCounts::of(entries)
            .counts("op-1")
            .into_iter()
            .map(|one| (one.key, one.applied))
            .collect()
    }

    #[test]
    fn a_line_left_by_a_crash_is_not_counted() {
        let twice_written = vec![applied("a", 1), applied("a", 1)];
        assert_eq!(sums(twice_written), [("op-1/a/1".to_string(), 1)]);
        let overtaken = vec![applied("a", 1), applied("b", 1)];
        assert_eq!(sums(overtaken), [("op-1/b/1".to_string(), 1)]);
        let truly_twice = vec![applied("a", 1), applied("a", 2)];
        assert_eq!(sums(truly_twice), [("op-1/a/1".to_string(), 2)]);
    }

    #[test]
    fn the_prefix_selects() {
        let tally = EffectCounts::of(vec![applied("a", 1), applied("b", 2)]);
        assert_eq!(tally.counts("").len(), 2);
        assert_eq!(tally.counts("op-1/b").len(), 1);
        assert_eq!(tally.counts("op-2").len(), 0);
        let page = |text: &str, after: &str, limit: usize| {
            let filter = Filter::parse(text, FilterSubject::SimEffect).unwrap();
            let found = tally.page(&filter, after, limit);
            found.into_iter().map(|one| one.key).collect::<Vec<_>>()
        };
        let (a, b) = ("op-1/a/1", "op-1/b/1");
        assert_eq!(page("", "", 9), [a, b]);
        assert_eq!(page("", "", 1), [a]);
        assert_eq!(page("run_id=op-1", "", 9), [a, b]);
        assert_eq!(page("run_id=op-1 AND machine=m-1", a, 9), [b]);
        assert_eq!(page("step!=a", "", 9), [b]);
        assert_eq!(page("key=op-1/a/1 AND effect=repave", "", 9), [a]);
        assert!(page("run_id=op", "", 9).is_empty());
        assert!(page("run_id=op-1", "op-1/b/1", 9).is_empty());
    }
}
