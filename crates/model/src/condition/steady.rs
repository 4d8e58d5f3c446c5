//! Steadiness: one look proves little, and a condition that flaps helps nobody.
//!
//! What is worse than what is known is believed after so many looks in a row, and what is better after so many. What was never
//! known is believed at the first look, and so is what is seen after somebody has changed the machine on purpose. A reason
//! alone has to be seen as often as bad news, so that a device that words its trouble differently each time is not an event each time.
//! The counts are kept by whoever looks and may be lost: then it takes a few looks more.

use super::{Condition, ConditionType, Conditions, Evidence};
use std::collections::BTreeMap;

/// How many looks in a row it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steadiness {
    /// For bad news.
    pub down_after: u32,
    /// For good news.
    pub up_after: u32,
}

impl Default for Steadiness {
    fn default() -> Self {
        Self { down_after: 3, up_after: 2 }
    }
}

/// What a look comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing in particular.
    Routine,
    /// Somebody has changed the machine on purpose, such as a run that ended.
    Deliberate,
}

/// How often in a row something else was seen than is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Streak {
    status: bool,
    looks: u32,
}

/// What was seen of one machine and is not believed yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Doubts(BTreeMap<ConditionType, Streak>);

impl ConditionType {
    /// The status that is bad news. None where neither is: what a person or a run decides is no flapping.
    pub const fn bad_news(self) -> Option<bool> {
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

impl Doubts {
    /// Of what was seen, what is believed now. The rest is counted.
    pub fn sift(
        &mut self,
        known: &Conditions,
        seen: Vec<Evidence>,
        moment: Moment,
        steadiness: Steadiness,
    ) -> Vec<Evidence> {
        let mut believed = Vec::new();
        for one in seen {
            let before = self.0.remove(&one.condition).unwrap_or_default();
            match weigh(known.get(one.condition), &one, before, moment, steadiness) {
                Weighed::Known => {}
                Weighed::Believed => believed.push(one),
                Weighed::Doubted(streak) => {
                    self.0.insert(one.condition, streak);
                }
            }
        }
        believed
    }

    /// Whether something else was seen of a condition than is known.
    pub fn about(&self, condition: ConditionType) -> bool {
        self.0.contains_key(&condition)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Weighed {
    /// It says nothing new.
    Known,
    Believed,
    Doubted(Streak),
}

fn weigh(
    known: Option<&Condition>,
    seen: &Evidence,
    before: Streak,
    moment: Moment,
    steadiness: Steadiness,
) -> Weighed {
    let Some(known) = known else { return Weighed::Believed };
    if known.status == seen.status && known.reason == seen.reason {
        return Weighed::Known;
    }
    let needed = match (moment, seen.condition.bad_news()) {
        (Moment::Deliberate, _) | (Moment::Routine, None) => return Weighed::Believed,
        (Moment::Routine, Some(bad)) if seen.status != bad && known.status == bad => {
            steadiness.up_after
        }
        (Moment::Routine, Some(_)) => steadiness.down_after,
    };
    let row = if before.status == seen.status { before.looks } else { 0 };
    let looks = row.saturating_add(1);
    if looks >= needed {
        return Weighed::Believed;
    }
    Weighed::Doubted(Streak { status: seen.status, looks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use ConditionType::{Degraded, Drained, Reachable};
    use Moment::{Deliberate, Routine};

    const AT: Timestamp = Timestamp::from_millis(1);

    /// Looks one after the other; which of them changed what is known.
    fn story(
        condition: ConditionType,
        first: Option<(bool, &str)>,
        looks: &[(bool, &str, Moment)],
    ) -> Vec<bool> {
        let mut known = Conditions::default();
        if let Some((status, reason)) = first {
            known.learn(&Evidence::new(condition, status, reason), AT);
        }
        let mut doubts = Doubts::default();
        let mut changed = Vec::new();
        for (status, reason, moment) in looks {
            let seen = vec![Evidence::new(condition, *status, *reason)];
            let believed = doubts.sift(&known, seen, *moment, Steadiness::default());
            changed.push(!believed.is_empty());
            for one in believed {
                assert!(known.learn(&one, AT), "what is believed is news");
                assert!(!doubts.about(condition));
            }
        }
        changed
    }

    #[test]
    fn bad_news_takes_three_looks_in_a_row_and_good_news_two() {
        let (up, down) = ((true, "ok", Routine), (false, "no", Routine));
        for (first, looks, expected) in [
            (None, vec![down], vec![true]),
            (None, vec![up, up], vec![true, false]),
            (Some((true, "ok")), vec![down, down, down, down], vec![false, false, true, false]),
            (Some((true, "ok")), vec![down, down, up, down, down], vec![false; 5]),
            (Some((false, "no")), vec![up, up, up], vec![false, true, false]),
            (Some((false, "no")), vec![up, down, up, down], vec![false; 4]),
            (Some((true, "ok")), vec![(false, "no", Deliberate)], vec![true]),
            (Some((false, "no")), vec![(true, "ok", Deliberate), down], vec![true, false]),
        ] {
            assert_eq!(story(Reachable, first, &looks), expected, "{first:?} {looks:?}");
        }
    }

    #[test]
    fn what_is_bad_differs() {
        let ill = (true, "Fan 1", Routine);
        let well = (false, "Healthy", Routine);
        assert_eq!(story(Degraded, Some((false, "Healthy")), &[ill; 3]), [false, false, true]);
        assert_eq!(story(Degraded, Some((true, "Fan 1")), &[well; 2]), [false, true]);
        // Nobody cordons a node by accident.
        let cordoned = (true, "Cordoned", Routine);
        assert_eq!(story(Drained, Some((false, "Schedulable")), &[cordoned]), [true]);
    }

    #[test]
    fn a_reason_alone_is_not_news_each_time() {
        let (slow, gone) = ((false, "Silent", Routine), (false, "refused", Routine));
        let first = Some((false, "Silent"));
        assert_eq!(story(Reachable, first, &[gone, slow, gone, slow, gone]), [false; 5]);
        assert_eq!(story(Reachable, first, &[gone; 3]), [false, false, true]);
        // Words that are never the same still are told now and then.
        let fresh: Vec<_> = ["a", "b", "c", "d"].map(|words| (false, words, Routine)).into();
        assert_eq!(story(Reachable, first, &fresh), [false, false, true, false]);
    }
}
