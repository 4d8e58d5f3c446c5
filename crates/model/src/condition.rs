//! Conditions: named true/false statements about a machine, each with a reason and the time of its
//! last change.

pub mod hysteresis;
pub mod poll_state;

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! conditions {
    ($($variant:ident = $name:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ConditionType { $(#[serde(rename = $name)] $variant,)* }

        impl ConditionType {
            pub const ALL: &'static [ConditionType] = &[$(ConditionType::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

conditions! {
    Reachable = "Reachable";
    BmcReachable = "BMCReachable";
    Provisioned = "Provisioned";
    InCustomerCluster = "InCustomerCluster";
    Drained = "Drained";
    Degraded = "Degraded";
    NeedsIntervention = "NeedsIntervention";
    OperationCanceled = "OperationCanceled";
    Rma = "RMA";
    Retired = "Retired";
}

impl ConditionType {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|condition| condition.as_str() == name)
    }

    /// Its bit in a condition set. Stored in databases: append, never reorder.
    pub const fn bit(self) -> i64 {
        1 << (self as i64)
    }
}

/// The reason of `Reachable` for a machine that is switched off.
pub const POWERED_OFF: &str = "PoweredOff";
/// The reason of `Reachable` for a machine that is known to be on and cannot be asked itself.
pub const POWERED_ON: &str = "PoweredOn";

/// One observation of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionObservation {
    pub condition: ConditionType,
    pub status: bool,
    /// One word or a short sentence.
    pub reason: String,
}

impl ConditionObservation {
    pub fn new(condition: ConditionType, status: bool, reason: impl Into<String>) -> Self {
        Self { condition, status, reason: reason.into() }
    }
}

/// The observation that this image is installed and its system answers.
pub fn imaged(image: &str) -> ConditionObservation {
    ConditionObservation::new(ConditionType::Provisioned, true, format!("Image:{image}"))
}

/// The reason of `InCustomerCluster` for a machine that is no member of its cluster.
pub const NOT_JOINED: &str = "NotJoined";
/// The reason of `Drained` for a machine that is in no cluster.
pub const NOT_IN_CLUSTER: &str = "NotInCluster";
/// The reason of `Drained` for a machine that is back in service.
pub const IN_SERVICE: &str = "InService";

/// Derives `Degraded`. A machine is degraded when its system or its BMC is unreachable, or when a
/// component is unhealthy. During an operation unreachability does not count, because the machine
/// may be rebooting. None when the observations do not tell.
pub fn derive_degraded(
    observed: &[ConditionObservation],
    parts: Option<&ConditionObservation>,
    worked_on: bool,
) -> Option<ConditionObservation> {
    use ConditionType::{BmcReachable, Degraded, Reachable};
    let mut reached =
        observed.iter().filter(|one| matches!(one.condition, Reachable | BmcReachable));
    let looked = reached.clone().next().is_some();
    let lost = reached.find(|one| !one.status);
    let ill = parts.filter(|parts| parts.status).cloned();
    match (lost, ill) {
        (Some(_), Some(ill)) if worked_on => Some(ill),
        (Some(_), None) if worked_on => None,
        (Some(lost), _) => {
            let reason = format!("{}:{}", lost.condition.as_str(), lost.reason);
            Some(ConditionObservation::new(Degraded, true, reason))
        }
        (None, Some(ill)) => Some(ill),
        (None, None) if looked || parts.is_some() => {
            Some(ConditionObservation::new(Degraded, false, "Healthy"))
        }
        (None, None) => None,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub status: bool,
    pub reason: String,
    /// The time when the status last changed; a new reason alone does not move it.
    pub last_transition: Timestamp,
}

/// All known conditions of one machine. A condition that was never observed is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conditions(BTreeMap<ConditionType, Condition>);

impl Conditions {
    pub fn is_true(&self, condition: ConditionType) -> bool {
        self.0.get(&condition).is_some_and(|known| known.status)
    }

    pub fn get(&self, condition: ConditionType) -> Option<&Condition> {
        self.0.get(&condition)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConditionType, &Condition)> {
        self.0.iter().map(|(condition, known)| (*condition, known))
    }

    /// Merges an observation; returns whether anything changed.
    pub fn observe(&mut self, observed: &ConditionObservation, now: Timestamp) -> bool {
        let known = self.0.get(&observed.condition);
        if known
            .is_some_and(|known| known.status == observed.status && known.reason == observed.reason)
        {
            return false;
        }
        let last_transition = match known {
            Some(known) if known.status == observed.status => known.last_transition,
            _ => now,
        };
        let condition =
            Condition { status: observed.status, reason: observed.reason.clone(), last_transition };
        self.0.insert(observed.condition, condition);
        true
    }

    /// Sets a condition back to what it was, with the time of its last change. None: it was not
    /// known.
    pub fn restore(&mut self, condition: ConditionType, before: Option<Condition>) {
        match before {
            Some(before) => self.0.insert(condition, before),
            None => self.0.remove(&condition),
        };
    }

    /// The conditions that are true, as a bit set for database queries.
    pub fn bits(&self) -> i64 {
        self.iter().filter(|(_, known)| known.status).map(|(condition, _)| condition.bit()).sum()
    }
}
