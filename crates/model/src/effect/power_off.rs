//! How a machine is switched off, where a step or a run says so: how long a graceful shutdown may take,
//! and whether a machine that does not shut down is cut off. An unset field means the provider's setting.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// The longest a shutdown may be waited for.
pub const MAX_GRACEFUL_SECONDS: u32 = 3_600;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerOffPolicy {
    /// How long a graceful shutdown may take. 0: the machine is cut off at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graceful_seconds: Option<u32>,
    /// Whether a machine that does not shut down is cut off. If not, it stays on, and that is a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

impl PowerOffPolicy {
    /// All is as the provider is configured.
    pub const CONFIGURED: Self = Self { graceful_seconds: None, force: None };

    pub fn is_configured(&self) -> bool {
        *self == Self::CONFIGURED
    }

    /// What it says itself, and where it is silent what the other says.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            graceful_seconds: self.graceful_seconds.or(other.graceful_seconds),
            force: self.force.or(other.force),
        }
    }

    /// Refuses what cannot be meant. `at` makes the name of a field from its last word.
    pub fn check(self, at: impl Fn(&str) -> String) -> Result<(), Refusal> {
        let field = at("graceful_seconds");
        match (self.graceful_seconds, self.force) {
            (Some(seconds), _) if seconds > MAX_GRACEFUL_SECONDS => Err(Refusal::invalid(
                &field,
                format!("is {seconds}"),
                format!("use 0 to {MAX_GRACEFUL_SECONDS}"),
            )),
            (Some(0), Some(false)) => Err(Refusal::invalid(
                &field,
                "is 0, which cuts the power at once, and force is false, which forbids that",
                "give the machine time to shut down, or leave force out",
            )),
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Refuses it where nothing is switched off.
    pub fn check_absent(self, at: impl Fn(&str) -> String, why: &str) -> Result<(), Refusal> {
        let said = [
            ("graceful_seconds", self.graceful_seconds.is_some()),
            ("force", self.force.is_some()),
        ];
        match said.into_iter().find(|(_, said)| *said) {
            Some((word, _)) => Err(Refusal::invalid(&at(word), why, "leave it out")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
        PowerOffPolicy { graceful_seconds, force }
    }

    #[test]
    fn only_what_can_be_meant_is_taken() {
        let at = |word: &str| format!("step.{word}");
        for good in [
            PowerOffPolicy::CONFIGURED,
            power_off(Some(0), None),
            power_off(Some(0), Some(true)),
            power_off(Some(MAX_GRACEFUL_SECONDS), Some(false)),
        ] {
            assert_eq!(good.check(at), Ok(()), "{good:?}");
        }
        for bad in
            [power_off(Some(MAX_GRACEFUL_SECONDS + 1), None), power_off(Some(0), Some(false))]
        {
            let refusal = bad.check(at).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("step.graceful_seconds"), "{bad:?}");
        }
        let refusal = power_off(None, Some(true)).check_absent(at, "has no use").unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("step.force"));
        assert_eq!(PowerOffPolicy::CONFIGURED.check_absent(at, "has no use"), Ok(()));
    }

    #[test]
    fn what_is_said_first_counts() {
        let first = power_off(Some(5), None);
        assert_eq!(first.or(power_off(Some(9), Some(false))), power_off(Some(5), Some(false)));
        assert_eq!(PowerOffPolicy::CONFIGURED.or(first), first);
    }
}
