//! The counts above the fleet. Counting reads every machine, so the result is cached for a multiple
//! of the time that it took: open pages use only a small share of the server.

use super::badge::deviation;
use engine::Engine;
use model::filter::Filter;
use model::machine::Machine;
use model::machine::view::EffectiveState;
use std::time::{Duration, Instant};
use store::Result;
use tokio::sync::Mutex;

const PAGE: i64 = 1_000;
/// The largest number of machines that are counted; a larger fleet is shown as "at least".
const MAX_COUNTED: usize = 200_000;
const KEEP_AT_LEAST: Duration = Duration::from_secs(1);
/// A count is cached this many times longer than it took.
const KEEP_FACTOR: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Summary {
    counts: [usize; EffectiveState::ALL.len()],
    /// How many of them have a problem that their state does not say.
    deviating: [usize; EffectiveState::ALL.len()],
    pub total: usize,
    /// There are more machines than were counted.
    pub more: bool,
}

impl Summary {
    pub fn count(&self, state: EffectiveState) -> usize {
        position(state).map_or(0, |position| self.counts[position])
    }

    /// The machines in this state that need a person, or cannot be changed.
    pub fn deviating(&self, state: EffectiveState) -> usize {
        position(state).map_or(0, |position| self.deviating[position])
    }

    /// Corrects the counts by the machines that a list shows completely: without a filter, or with
    /// one that selects this state. So the counts never contradict the table beside them.
    pub fn corrected_by(&mut self, only: Option<EffectiveState>, machines: &[Machine]) {
        match only {
            None => {
                *self = Self::default();
                machines.iter().for_each(|machine| self.add(machine));
            }
            Some(state) => {
                if let Some(position) = position(state) {
                    self.total -= self.counts[position];
                    (self.counts[position], self.deviating[position]) = (0, 0);
                    machines.iter().for_each(|machine| self.add(machine));
                }
            }
        }
    }

    fn add(&mut self, machine: &Machine) {
        self.total += 1;
        if let Some(position) = position(machine.effective_state()) {
            self.counts[position] += 1;
            self.deviating[position] += usize::from(deviation(machine).is_some());
        }
    }
}

fn position(state: EffectiveState) -> Option<usize> {
    EffectiveState::ALL.iter().position(|one| *one == state)
}

/// The last count, and when it expires. Single-flight: concurrent callers wait for one count.
#[derive(Default)]
pub(super) struct SummaryCache(Mutex<Option<(Instant, Summary)>>);

impl SummaryCache {
    pub async fn get(&self, engine: &Engine) -> Result<Summary> {
        let mut stored = self.0.lock().await;
        let begun = Instant::now();
        if let Some((until, summary)) = *stored
            && begun < until
        {
            return Ok(summary);
        }
        let summary = count(engine).await?;
        let keep = KEEP_AT_LEAST.max(begun.elapsed() * KEEP_FACTOR);
        *stored = Some((Instant::now() + keep, summary));
        Ok(summary)
    }
}

async fn count(engine: &Engine) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut after = None;
    loop {
        let page = engine.machines().list(Filter::default(), after, PAGE).await?;
        page.machines.iter().for_each(|machine| summary.add(machine));
        after = page.next;
        if after.is_none() {
            return Ok(summary);
        }
        if summary.total >= MAX_COUNTED {
            summary.more = true;
            return Ok(summary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::condition::{ConditionObservation, ConditionType};
    use model::id::MachineId;
    use model::machine::{Labels, MachineSpec, Phase};
    use model::time::Timestamp;

    #[test]
    fn a_complete_list_corrects_the_counts() {
        let machine = |phase| {
            let (id, spec) = (MachineId::trusted("m-1"), MachineSpec::default());
            Machine { phase, ..Machine::new(id, spec, Labels::new(), Timestamp::default()) }
        };
        let ready = [machine(Phase::Ready), machine(Phase::Ready)];
        let mut summary = Summary::default();
        summary.corrected_by(None, &[&ready[..], &[machine(Phase::FactoryReady)]].concat());
        let counted = |summary: &Summary| {
            (summary.total, summary.count(EffectiveState::Idle), summary.count(EffectiveState::New))
        };
        assert_eq!(counted(&summary), (3, 2, 1));
        summary.corrected_by(Some(EffectiveState::Idle), &ready[..1]);
        assert_eq!(counted(&summary), (2, 1, 1));
        // What deviates is counted apart from what is well, and in the same reading.
        let lost = ConditionObservation::new(ConditionType::Reachable, false, "host-unreachable");
        let mut silent = machine(Phase::Ready);
        silent.learn(&[lost], Timestamp::default());
        for list in [None, Some(EffectiveState::Idle)] {
            summary.corrected_by(list, &[silent.clone(), machine(Phase::Ready)]);
            let deviating = summary.deviating(EffectiveState::Idle);
            assert_eq!((summary.count(EffectiveState::Idle), deviating), (2, 1), "{list:?}");
        }
        summary.corrected_by(Some(EffectiveState::Idle), &ready);
        assert_eq!(summary.deviating(EffectiveState::Idle), 0);
    }
}
