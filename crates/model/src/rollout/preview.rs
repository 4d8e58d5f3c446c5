//! The plan of a rollout: which machines become targets, in which order, in which waves.

use super::pace::Pace;
use super::sequence::RolloutTarget;
use crate::condition::ConditionType;
use crate::id::MachineId;
use crate::machine::{Machine, Phase};
use crate::time::Timestamp;
use std::time::Duration;

/// The most targets of one rollout.
pub const MAX_TARGETS: usize = 20_000;

/// A machine that matches the filter and is no target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedMachine {
    pub machine: MachineId,
    pub reason: String,
}

/// What a rollout would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutPreview {
    /// The targets in their order.
    pub targets: Vec<MachineId>,
    /// The sizes of the waves.
    pub waves: Vec<u32>,
    pub excluded: Vec<ExcludedMachine>,
    /// The usual time of one target; none: too few such steps were timed.
    pub usual_target: Option<Duration>,
}

impl RolloutPreview {
    /// The usual time of the whole rollout, without failures and waits for people.
    pub fn usual_total(&self, pace: &Pace, gate: Duration) -> Option<Duration> {
        let one = self.usual_target? + gate;
        let at_work = |size: u32| {
            let lanes = pace.max_in_flight.unwrap_or(size).min(size).max(1);
            one * size.div_ceil(lanes)
        };
        let soaks = u32::try_from(self.waves.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let work: Duration = self.waves.iter().map(|size| at_work(*size)).sum();
        Some(work + Duration::from_secs(pace.soak_seconds) * soaks)
    }
}

/// Why a machine that matches the filter is no target; none: it is one.
pub fn exclusion(machine: &Machine) -> Option<String> {
    for flag in [ConditionType::Retired, ConditionType::Rma] {
        if machine.is(flag) {
            return Some(format!("it is flagged {}", flag.as_str()));
        }
    }
    match machine.phase {
        Phase::FactoryReady => Some("it is in phase FACTORY_READY: it was never in service".into()),
        Phase::Ready | Phase::Maintenance => None,
    }
}

/// Machines in the order of a rollout: by the value of a label, then by id. Machines without the
/// label come last.
pub fn ordered(mut machines: Vec<Machine>, label: Option<&str>) -> Vec<Machine> {
    let rank = |machine: &Machine| {
        let value = label.and_then(|label| machine.labels.get(label));
        (label.is_some() && value.is_none(), value.cloned())
    };
    machines.sort_by_cached_key(|machine| (rank(machine), machine.id.clone()));
    machines
}

/// The rows of the targets of a new rollout.
pub fn plan_targets(machines: &[MachineId], now: Timestamp) -> Vec<RolloutTarget> {
    let rows = (0..).zip(machines);
    rows.map(|(position, machine)| RolloutTarget::new(machine.clone(), position, now)).collect()
}
