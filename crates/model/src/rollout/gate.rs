//! The gate after a target: a condition that must hold for some time before the target is done.

use crate::condition::ConditionType;
use crate::machine::Machine;
use crate::refusal::Refusal;
use crate::rollout::pace::check_seconds;
use crate::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The longest wait before a condition is read again.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// `condition.InCustomerCluster=true for 5m`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionGate {
    pub condition: ConditionType,
    pub status: bool,
    /// How long the condition must have had this status, in seconds.
    pub hold_seconds: u64,
}

/// What a gate says about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateVerdict {
    Open,
    /// It is to be read again at this time.
    Closed {
        look_at: Timestamp,
        reason: String,
    },
}

impl ConditionGate {
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        check_seconds(&format!("{field}.hold_seconds"), self.hold_seconds, 0)
    }

    /// `since`: when the operations on the machine ended. What held before does not count.
    pub fn judge(&self, machine: &Machine, since: Timestamp, now: Timestamp) -> GateVerdict {
        let hold = Duration::from_secs(self.hold_seconds);
        let known = machine.conditions.get(self.condition);
        let look = now + LOOK_INTERVAL;
        match known.filter(|known| known.status == self.status) {
            None => GateVerdict::Closed { look_at: look, reason: format!("waits until {self}") },
            Some(known) => match known.last_transition.max(since) + hold {
                open if open <= now => GateVerdict::Open,
                open => GateVerdict::Closed {
                    look_at: open.min(look),
                    reason: format!("waits {} until {self}", format_duration(open.since(now))),
                },
            },
        }
    }
}

impl fmt::Display for ConditionGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "condition.{}={}", self.condition.as_str(), self.status)?;
        match self.hold_seconds {
            0 => Ok(()),
            seconds => write!(f, " for {}", format_duration(Duration::from_secs(seconds))),
        }
    }
}
