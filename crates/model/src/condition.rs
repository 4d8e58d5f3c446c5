//! Conditions: small signed statements about a machine, each with its reason and its last change.

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

    /// Its place in a set of bits. Stored in databases: append, never reorder.
    pub const fn bit(self) -> i64 {
        1 << (self as i64)
    }
}

/// What somebody saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub condition: ConditionType,
    pub status: bool,
    /// One word or short sentence.
    pub reason: String,
}

impl Evidence {
    pub fn new(condition: ConditionType, status: bool, reason: impl Into<String>) -> Self {
        Self { condition, status, reason: reason.into() }
    }
}

/// What a look at a machine says about its health, unless whoever looked judged that already: a machine
/// that cannot be reached in one way or the other is degraded.
pub fn health(seen: &[Evidence]) -> Option<Evidence> {
    use ConditionType::{BmcReachable, Degraded, Reachable};
    if seen.iter().any(|one| one.condition == Degraded) {
        return None;
    }
    let mut known = seen.iter().filter(|one| matches!(one.condition, Reachable | BmcReachable));
    known.clone().next()?;
    Some(match known.find(|one| !one.status) {
        Some(lost) => {
            let reason = format!("{}:{}", lost.condition.as_str(), lost.reason);
            Evidence::new(Degraded, true, reason)
        }
        None => Evidence::new(Degraded, false, "Healthy"),
    })
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub status: bool,
    pub reason: String,
    /// When the status last changed; a new reason alone does not move it.
    pub last_transition: Timestamp,
}

/// All that is known of one machine. A condition nobody has ever spoken of is absent.
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

    /// Takes in what was seen. True when anything changed.
    pub fn learn(&mut self, seen: &Evidence, now: Timestamp) -> bool {
        let known = self.0.get(&seen.condition);
        if known.is_some_and(|known| known.status == seen.status && known.reason == seen.reason) {
            return false;
        }
        let last_transition = match known {
            Some(known) if known.status == seen.status => known.last_transition,
            _ => now,
        };
        let condition =
            Condition { status: seen.status, reason: seen.reason.clone(), last_transition };
        self.0.insert(seen.condition, condition);
        true
    }

    /// The conditions that hold, as bits, for databases to select by.
    pub fn bits(&self) -> i64 {
        self.iter().filter(|(_, known)| known.status).map(|(condition, _)| condition.bit()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_transition_moves_with_the_status_only() {
        let mut known = Conditions::default();
        let at = Timestamp::from_millis;
        let seen = |status, reason: &str| Evidence::new(ConditionType::Reachable, status, reason);
        assert!(known.learn(&seen(true, "PingOK"), at(1)));
        assert!(!known.learn(&seen(true, "PingOK"), at(2)));
        assert!(known.learn(&seen(true, "SshOK"), at(3)));
        assert_eq!(known.get(ConditionType::Reachable).unwrap().last_transition, at(1));
        assert!(known.learn(&seen(false, "Timeout"), at(4)));
        assert_eq!(known.get(ConditionType::Reachable).unwrap().last_transition, at(4));
        assert_eq!(known.bits(), 0);
    }

    #[test]
    fn health_follows_from_what_can_be_reached() {
        use ConditionType::{BmcReachable, Degraded, Drained, Reachable};
        let saw = |condition, status| Evidence::new(condition, status, "why");
        let judged = |seen: &[Evidence]| health(seen).map(|one| (one.status, one.reason));
        assert_eq!(judged(&[]), None);
        assert_eq!(judged(&[saw(Drained, false)]), None);
        assert_eq!(judged(&[saw(Degraded, true), saw(Reachable, true)]), None);
        let well = [saw(Reachable, true), saw(BmcReachable, true)];
        assert_eq!(judged(&well), Some((false, "Healthy".into())));
        let lost = [saw(Reachable, true), saw(BmcReachable, false)];
        assert_eq!(judged(&lost), Some((true, "BMCReachable:why".into())));
    }

    #[test]
    fn bits_are_distinct_and_names_round_trip() {
        let all: i64 = ConditionType::ALL.iter().map(|condition| condition.bit()).sum();
        assert_eq!(all, (1 << ConditionType::ALL.len()) - 1);
        for condition in ConditionType::ALL {
            assert_eq!(ConditionType::parse(condition.as_str()), Some(*condition));
        }
    }
}
