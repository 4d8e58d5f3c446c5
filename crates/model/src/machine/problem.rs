//! Problems of a machine at rest that its effective state does not show: IDLE and MAINTENANCE
//! are what its operator intends, not what is observed.

use super::view::EffectiveState;
use super::{DiskWrite, FailedChange, Machine, NetworkBoot};
use crate::condition::{Condition, ConditionType, POWERED_OFF};
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineProblem<'a> {
    /// Its last disk write did not finish.
    UnfinishedDisk(&'a DiskWrite),
    /// It is in service or in maintenance, and its system was removed.
    NoSystem(&'a Condition),
    /// It is meant to be in service, and is off or does not answer.
    Unreachable(&'a Condition),
    /// It is meant to be in service, and its BMC does not answer or refuses the login.
    BmcUnreachable(&'a Condition),
    /// Its next boot may be from the network, although no operation holds it.
    NetworkBoot(&'a NetworkBoot),
    /// An operation that was to change it failed, and was not repaired since.
    FailedChange(&'a FailedChange),
}

impl Machine {
    /// The worst problem of a machine that no operation holds. A state that asks for an operator by
    /// itself has none.
    pub fn problem(&self) -> Option<MachineProblem<'_>> {
        let lost = |condition| self.conditions.get(condition).filter(|known| !known.status);
        let unfinished = self.open_disk_write.as_ref().map(MachineProblem::UnfinishedDisk);
        let boot = self.network_boot.as_ref().map(MachineProblem::NetworkBoot);
        let failed = self.failed_change().map(MachineProblem::FailedChange);
        let removed = self.removed_system().map(MachineProblem::NoSystem);
        match self.effective_state() {
            // Without a system it cannot answer, so that comes before its silence.
            EffectiveState::Idle => unfinished
                .or(removed)
                .or_else(|| lost(ConditionType::Reachable).map(MachineProblem::Unreachable))
                .or_else(|| lost(ConditionType::BmcReachable).map(MachineProblem::BmcUnreachable))
                .or(boot)
                .or(failed),
            // It may well be off, and it does not leave maintenance without a system.
            EffectiveState::Maintenance => unfinished.or(removed).or(boot).or(failed),
            // A machine that is out of use may well be off and without a system.
            EffectiveState::New => unfinished.or(boot).or(failed),
            EffectiveState::Busy | EffectiveState::Attention | EffectiveState::Blocked => None,
        }
    }

    /// The observation that the system was removed and no other was installed since. A machine that
    /// was never imaged here has none: it has the system that it came with.
    pub fn removed_system(&self) -> Option<&Condition> {
        let known = self.conditions.get(ConditionType::Provisioned);
        known.filter(|known| !known.status && self.open_disk_write.is_none())
    }

    /// True if the machine was observed, and no image was ever installed on it here: it has the
    /// system that it came with.
    pub fn is_never_imaged(&self) -> bool {
        let observed = self.conditions.iter().next().is_some();
        observed && self.conditions.get(ConditionType::Provisioned).is_none()
    }

    /// The time since which the problem lasts.
    pub fn problem_since(&self, problem: MachineProblem<'_>) -> Timestamp {
        match problem {
            MachineProblem::UnfinishedDisk(_) => {
                let known = self.conditions.get(ConditionType::Provisioned);
                known.map_or(self.updated_at, |known| known.last_transition)
            }
            MachineProblem::NoSystem(known)
            | MachineProblem::Unreachable(known)
            | MachineProblem::BmcUnreachable(known) => known.last_transition,
            MachineProblem::NetworkBoot(boot) => boot.since,
            MachineProblem::FailedChange(failed) => failed.since,
        }
    }
}

impl MachineProblem<'_> {
    /// A sentence about the machine, which it calls "it".
    pub fn describe(self) -> String {
        match self {
            Self::UnfinishedDisk(write) => {
                let how = if write.is_half_written() { "is" } else { "may be" };
                format!("its disk {how} half written: {}", write.describe_end(""))
            }
            Self::NoSystem(known) => {
                format!("it has no system; Provisioned is false: {}", known.reason)
            }
            Self::Unreachable(known) => {
                let what = match known.reason == POWERED_OFF {
                    true => "it is switched off",
                    false => "it does not answer",
                };
                format!("{what}; Reachable is false: {}", known.reason)
            }
            Self::BmcUnreachable(known) => {
                format!("its BMC cannot be used; BMCReachable is false: {}", known.reason)
            }
            Self::NetworkBoot(boot) => boot.describe(),
            Self::FailedChange(failed) => failed.describe(),
        }
    }

    /// A few words for a badge.
    pub const fn label(self) -> &'static str {
        match self {
            Self::UnfinishedDisk(_) => "half-written disk",
            Self::NoSystem(_) => "no system",
            Self::NetworkBoot(_) => "may boot from the network",
            Self::FailedChange(failed) => failed.kind.label(),
            Self::Unreachable(_) => "off or does not answer",
            Self::BmcUnreachable(_) => "BMC cannot be used",
        }
    }
}
