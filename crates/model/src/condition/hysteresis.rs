//! Hysteresis: a condition changes only after several consecutive probes agree, so it does not
//! flap.
//!
//! A condition turns bad after `down_after` probes in a row and good again after `up_after`. The
//! first observation of an unknown condition is accepted at once, and so is the first observation
//! after a deliberate change of the machine. While a machine starts after such a change, a good
//! observation is expected and accepted at once. A new reason with the same status needs
//! `down_after` probes, so a device that words the same error differently each time does not cause
//! an event each time. The counts live in the poller's memory; losing them costs a few more probes.

use super::{Condition, ConditionObservation, ConditionType, Conditions};
use std::collections::BTreeMap;

/// The numbers of consecutive probes that change a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HysteresisLimits {
    /// To turn bad.
    pub bad_after: u32,
    /// To turn good.
    pub good_after: u32,
}

impl Default for HysteresisLimits {
    fn default() -> Self {
        Self { bad_after: 3, good_after: 2 }
    }
}

/// The situation before a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeContext {
    /// No change of the machine is known.
    Routine,
    /// A deliberate change of the machine, such as the end of a run.
    AfterChange,
    /// The time after a deliberate change in which a device may still be starting.
    Settling,
}

/// Consecutive probes that differ from the known condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ProbeStreak {
    status: bool,
    looks: u32,
}

/// Observations of one machine that differ from its known conditions and are not accepted yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PendingObservations(BTreeMap<ConditionType, ProbeStreak>);

impl ConditionType {
    /// The status that means trouble. None where neither does: an operator or a run sets such a
    /// condition, so it does not flap.
    pub const fn bad_status(self) -> Option<bool> {
        match self {
            Self::Reachable | Self::BmcReachable | Self::InCustomerCluster => Some(false),
            Self::Degraded => Some(true),
            Self::Provisioned
            | Self::Drained
            | Self::NeedsIntervention
            | Self::OperationCanceled
            | Self::Rma
            | Self::Retired => None,
        }
    }
}

impl PendingObservations {
    /// Returns the observations that are accepted now, and counts the others.
    pub fn accept_confirmed(
        &mut self,
        known: &Conditions,
        observed: Vec<ConditionObservation>,
        time: ProbeContext,
        steadiness: HysteresisLimits,
    ) -> Vec<ConditionObservation> {
        let mut believed = Vec::new();
        for one in observed {
            let before = self.0.remove(&one.condition).unwrap_or_default();
            match weigh(known.get(one.condition), &one, before, time, steadiness) {
                Acceptance::Known => {}
                Acceptance::Believed => believed.push(one),
                Acceptance::Doubted(streak) => {
                    self.0.insert(one.condition, streak);
                }
            }
        }
        believed
    }

    /// True if the last probe of this condition differed from the known condition.
    pub fn is_pending(&self, condition: ConditionType) -> bool {
        self.0.contains_key(&condition)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Acceptance {
    /// The observation is already known.
    Known,
    Believed,
    Doubted(ProbeStreak),
}

fn weigh(
    known: Option<&Condition>,
    observed: &ConditionObservation,
    before: ProbeStreak,
    time: ProbeContext,
    steadiness: HysteresisLimits,
) -> Acceptance {
    let Some(known) = known else { return Acceptance::Believed };
    if known.status == observed.status && known.reason == observed.reason {
        return Acceptance::Known;
    }
    let is_recovery = |bad| observed.status != bad && known.status == bad;
    let needed = match (time, observed.condition.bad_status()) {
        (ProbeContext::AfterChange, _) | (ProbeContext::Routine | ProbeContext::Settling, None) => {
            return Acceptance::Believed;
        }
        (ProbeContext::Settling, Some(bad)) if is_recovery(bad) => return Acceptance::Believed,
        (ProbeContext::Routine, Some(bad)) if is_recovery(bad) => steadiness.good_after,
        (ProbeContext::Routine | ProbeContext::Settling, Some(_)) => steadiness.bad_after,
    };
    let row = if before.status == observed.status { before.looks } else { 0 };
    let probes = row.saturating_add(1);
    if probes >= needed {
        return Acceptance::Believed;
    }
    Acceptance::Doubted(ProbeStreak { status: observed.status, looks: probes })
}
