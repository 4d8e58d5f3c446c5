//! The two derived views of a machine, computed on read and never stored.
//!
//! Each view is an ordered list of rules; the first rule whose guard holds gives the value. The
//! lists are data: the store builds its SQL from them, so the rules exist only once.

use super::{Machine, Phase};
use crate::condition::ConditionType::{self, InCustomerCluster, NeedsIntervention, Retired, Rma};

/// The current activity of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffectiveState {
    New,
    Idle,
    Busy,
    Maintenance,
    Attention,
    Blocked,
}

/// The place of the machine in its lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LifecycleState {
    FactoryReady,
    Ready,
    Provisioning,
    InService,
    Maintenance,
    Rma,
    Retired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The condition is true.
    Is(ConditionType),
    /// An operation is active.
    Active,
    PhaseIs(Phase),
    Always,
}

pub type Rules<V> = &'static [(Guard, V)];

pub const EFFECTIVE: Rules<EffectiveState> = &[
    (Guard::Is(Retired), EffectiveState::Blocked),
    (Guard::Is(Rma), EffectiveState::Blocked),
    (Guard::Is(NeedsIntervention), EffectiveState::Attention),
    (Guard::Active, EffectiveState::Busy),
    (Guard::PhaseIs(Phase::Maintenance), EffectiveState::Maintenance),
    (Guard::PhaseIs(Phase::FactoryReady), EffectiveState::New),
    (Guard::Always, EffectiveState::Idle),
];

pub const LIFECYCLE: Rules<LifecycleState> = &[
    (Guard::Active, LifecycleState::Provisioning),
    (Guard::Is(Rma), LifecycleState::Rma),
    (Guard::Is(Retired), LifecycleState::Retired),
    (Guard::PhaseIs(Phase::Maintenance), LifecycleState::Maintenance),
    (Guard::Is(InCustomerCluster), LifecycleState::InService),
    (Guard::PhaseIs(Phase::FactoryReady), LifecycleState::FactoryReady),
    (Guard::Always, LifecycleState::Ready),
];

impl Guard {
    pub fn holds(self, machine: &Machine) -> bool {
        match self {
            Self::Is(condition) => machine.is(condition),
            Self::Active => machine.active_run.is_some(),
            Self::PhaseIs(phase) => machine.phase == phase,
            Self::Always => true,
        }
    }
}

fn decide<V: Copy>(rules: Rules<V>, machine: &Machine, otherwise: V) -> V {
    rules.iter().find(|(guard, _)| guard.holds(machine)).map_or(otherwise, |(_, value)| *value)
}

impl Machine {
    pub fn effective_state(&self) -> EffectiveState {
        decide(EFFECTIVE, self, EffectiveState::Idle)
    }

    pub fn lifecycle_state(&self) -> LifecycleState {
        decide(LIFECYCLE, self, LifecycleState::Ready)
    }
}

impl EffectiveState {
    pub const ALL: [Self; 6] =
        [Self::New, Self::Idle, Self::Busy, Self::Maintenance, Self::Attention, Self::Blocked];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Idle => "IDLE",
            Self::Busy => "BUSY",
            Self::Maintenance => "MAINTENANCE",
            Self::Attention => "ATTENTION",
            Self::Blocked => "BLOCKED",
        }
    }
}

impl LifecycleState {
    pub const ALL: [Self; 7] = [
        Self::FactoryReady,
        Self::Ready,
        Self::Provisioning,
        Self::InService,
        Self::Maintenance,
        Self::Rma,
        Self::Retired,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FactoryReady => "FACTORY_READY",
            Self::Ready => "READY",
            Self::Provisioning => "PROVISIONING",
            Self::InService => "IN_SERVICE",
            Self::Maintenance => "MAINTENANCE",
            Self::Rma => "RMA",
            Self::Retired => "RETIRED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ConditionObservation;
    use crate::id::{MachineId, RunId};
    use crate::machine::{Labels, MachineSpec};
    use crate::time::Timestamp;

    fn machine(phase: Phase, active: bool, set: &[ConditionType]) -> Machine {
        let at = Timestamp::default();
        let mut machine =
            Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at);
        machine.phase = phase;
        machine.active_run = active.then(|| RunId::trusted("op-1"));
        for condition in set {
            machine.learn(&[ConditionObservation::new(*condition, true, "test")], at);
        }
        machine
    }

    /// The tables of the documents, written out by hand, against every combination.
    #[test]
    fn every_combination_follows_the_documents() {
        let flags = [Retired, Rma, NeedsIntervention, InCustomerCluster];
        for phase in Phase::ALL {
            for active in [false, true] {
                for mask in 0..16_u32 {
                    let on = |index: usize| mask & (1 << index) != 0;
                    let set: Vec<_> = (0..4).filter(|&i| on(i)).map(|i| flags[i]).collect();
                    let machine = machine(phase, active, &set);
                    let effective = if on(0) || on(1) {
                        "BLOCKED"
                    } else if on(2) {
                        "ATTENTION"
                    } else if active {
                        "BUSY"
                    } else {
                        match phase {
                            Phase::Maintenance => "MAINTENANCE",
                            Phase::FactoryReady => "NEW",
                            Phase::Ready => "IDLE",
                        }
                    };
                    let lifecycle = if active {
                        "PROVISIONING"
                    } else if on(1) {
                        "RMA"
                    } else if on(0) {
                        "RETIRED"
                    } else if phase == Phase::Maintenance {
                        "MAINTENANCE"
                    } else if on(3) {
                        "IN_SERVICE"
                    } else if phase == Phase::FactoryReady {
                        "FACTORY_READY"
                    } else {
                        "READY"
                    };
                    let case = format!("{phase:?} active={active} {set:?}");
                    assert_eq!(machine.effective_state().as_str(), effective, "{case}");
                    assert_eq!(machine.lifecycle_state().as_str(), lifecycle, "{case}");
                }
            }
        }
    }
}
