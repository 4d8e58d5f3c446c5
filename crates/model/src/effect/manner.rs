//! How power is to be switched off, where a step or a run says so: politely and for how long, and whether what does not
//! listen is cut off. What is left open is as the provider is configured.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// The longest a shutdown may be waited for.
pub const MAX_GRACEFUL_SECONDS: u32 = 3_600;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Manner {
    /// How long the machine has to shut down when it is asked to. 0: it is not asked, but cut off at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graceful_seconds: Option<u32>,
    /// Whether a machine that does not shut down is cut off. If not, that is a fault, and its power stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

impl Manner {
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

    fn manner(graceful_seconds: Option<u32>, force: Option<bool>) -> Manner {
        Manner { graceful_seconds, force }
    }

    #[test]
    fn only_what_can_be_meant_is_taken() {
        let at = |word: &str| format!("step.{word}");
        for good in [
            Manner::CONFIGURED,
            manner(Some(0), None),
            manner(Some(0), Some(true)),
            manner(Some(MAX_GRACEFUL_SECONDS), Some(false)),
        ] {
            assert_eq!(good.check(at), Ok(()), "{good:?}");
        }
        for bad in [manner(Some(MAX_GRACEFUL_SECONDS + 1), None), manner(Some(0), Some(false))] {
            let refusal = bad.check(at).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("step.graceful_seconds"), "{bad:?}");
        }
        let refusal = manner(None, Some(true)).check_absent(at, "has no use").unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("step.force"));
        assert_eq!(Manner::CONFIGURED.check_absent(at, "has no use"), Ok(()));
    }

    #[test]
    fn what_is_said_first_counts() {
        let first = manner(Some(5), None);
        assert_eq!(first.or(manner(Some(9), Some(false))), manner(Some(5), Some(false)));
        assert_eq!(Manner::CONFIGURED.or(first), first);
    }
}
