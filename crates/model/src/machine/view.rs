//! The two derived views of a machine, computed on read and never stored.
//!
//! Each view is an ordered list of rules; the first rule whose guard holds gives the value. The
//! lists are data: the store builds its SQL from them, so the rules exist only once.

use super::{Machine, Phase};
use crate::condition::ConditionType::{
    self, InCustomerCluster, NeedsIntervention, Provisioned, Retired, Rma,
};

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
    // The onboarding of a node installs an image and leaves the phase as it is.
    (Guard::Is(Provisioned), EffectiveState::Idle),
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
