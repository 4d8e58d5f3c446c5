//! The plan of a rollout: which machines become targets, in which order, in which waves.

use super::pace::Pace;
use super::sequence::RolloutTarget;
use crate::budget::Budget;
use crate::condition::ConditionType;
use crate::id::MachineId;
use crate::machine::{Labels, Machine, Phase};
use crate::plan::RunType;
use crate::target::TargetId;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most targets of one rollout.
pub const MAX_TARGETS: usize = 20_000;

/// A machine or a rack that matches the filter and is no target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedTarget {
    pub target: TargetId,
    pub reason: String,
}

/// What a rollout would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutPreview {
    /// The targets in their order.
    pub targets: Vec<TargetId>,
    /// The sizes of the waves.
    pub waves: Vec<u32>,
    /// The most targets of each wave that are out of service at once.
    pub at_once: Vec<u32>,
    /// The targets that would be passed over now.
    pub as_wanted: Vec<TargetId>,
    pub excluded: Vec<ExcludedTarget>,
    /// The budgets that limit it, with their room.
    pub budgets: Vec<String>,
    /// The usual time of one target; none: too few such steps were timed.
    pub usual_target: Option<Duration>,
}

impl RolloutPreview {
    /// The usual time of the whole rollout, without failures and waits for people.
    pub fn usual_total(&self, pace: &Pace, gate: Duration) -> Option<Duration> {
        let one = self.usual_target? + gate;
        let soaks = u32::try_from(self.waves.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let lanes = self.at_once.iter().map(|at_once| (*at_once).max(1));
        let work: Duration =
            self.waves.iter().zip(lanes).map(|(size, lanes)| one * size.div_ceil(lanes)).sum();
        Some(work + Duration::from_secs(pace.soak_seconds) * soaks)
    }
}

/// A budget that limits a rollout.
#[derive(Debug, Clone)]
pub struct LimitingBudget {
    pub budget: Budget,
    /// How many machines of each domain may be unavailable, and how many are.
    pub domains: BTreeMap<String, (u64, u64)>,
    /// The domains of the targets that count in the budget.
    pub members: BTreeMap<MachineId, BTreeSet<String>>,
}

impl LimitingBudget {
    /// The most of these targets that the budget lets be out of service at once.
    fn at_once(&self, targets: &[TargetId]) -> u64 {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut unlimited = 0;
        for target in targets {
            match target.machine().and_then(|machine| self.members.get(&machine)) {
                None => unlimited += 1,
                Some(domains) => {
                    domains.iter().for_each(|one| *counts.entry(one).or_default() += 1);
                }
            }
        }
        let allowed = |domain: &str| self.domains.get(domain).map_or(0, |(allowed, _)| *allowed);
        let limited: u64 = counts.iter().map(|(domain, count)| allowed(domain).min(*count)).sum();
        unlimited + limited
    }

    /// Such as `budget gpu: at most 5% per rack of labels.role=gpu; 40 targets in 4 domains, nothing
    /// is left in 1 of them`.
    pub fn describe(&self) -> String {
        let full = self.domains.values().filter(|(allowed, used)| used >= allowed).count();
        let Self { budget, domains, members } = self;
        let (settings, targets, domains) = (budget.describe(), members.len(), domains.len());
        let id = &budget.id;
        let left = format!("nothing is left in {full} of them");
        format!("budget {id}: {settings}; {targets} targets in {domains} domains, {left}")
    }
}

/// The most targets of each wave that are out of service at once.
pub fn most_at_once(
    waves: &[u32],
    targets: &[TargetId],
    pace: &Pace,
    budgets: &[LimitingBudget],
) -> Vec<u32> {
    let mut left = targets;
    let most = |size: &u32| {
        let size = usize::try_from(*size).unwrap_or(usize::MAX).min(left.len());
        let (wave, later) = left.split_at(size);
        left = later;
        let in_flight = pace.max_in_flight.unwrap_or(u32::MAX);
        let limits = budgets.iter().map(|budget| budget.at_once(wave));
        let most = limits.min().unwrap_or(u64::MAX).min(wave.len() as u64);
        u32::try_from(most).unwrap_or(u32::MAX).min(in_flight)
    };
    waves.iter().map(most).collect()
}

/// Why a machine that matches the filter is no target; none: it is one.
pub fn exclusion(run_type: RunType, machine: &Machine) -> Option<String> {
    for flag in [ConditionType::Retired, ConditionType::Rma] {
        if machine.is(flag) {
            return Some(format!("it is flagged {}", flag.as_str()));
        }
    }
    match machine.phase {
        Phase::FactoryReady if run_type == RunType::Onboard => None,
        Phase::Ready if run_type == RunType::Onboard => {
            Some("it is in phase READY: a machine in service is not onboarded".into())
        }
        Phase::FactoryReady => Some("it is in phase FACTORY_READY: it was never in service".into()),
        Phase::Ready | Phase::Maintenance => None,
    }
}

/// Objects with their labels and ids in the order of a rollout: by the value of a label, then by
/// id. Those without the label come last.
pub fn ordered<T>(
    mut objects: Vec<T>,
    label: Option<&str>,
    key: impl Fn(&T) -> (&Labels, &str),
) -> Vec<T> {
    objects.sort_by_cached_key(|object| {
        let (labels, id) = key(object);
        let value = label.and_then(|label| labels.get(label));
        (label.is_some() && value.is_none(), value.cloned(), id.to_string())
    });
    objects
}

/// The place of a machine in the order of a rollout.
pub fn machine_key(machine: &Machine) -> (&Labels, &str) {
    (&machine.labels, machine.id.as_str())
}

/// The rows of targets, at the places from `first` on.
pub fn plan_targets(targets: &[TargetId], first: u32, now: Timestamp) -> Vec<RolloutTarget> {
    let rows = (first..).zip(targets);
    rows.map(|(position, target)| RolloutTarget::new(target.clone(), position, now)).collect()
}
