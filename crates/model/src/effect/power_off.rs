//! The power-off policy of a step or run: how long a graceful shutdown may take, and whether the
//! power is then cut by force. An unset field means the provider's configuration.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// The limit of `graceful_seconds`.
pub const MAX_GRACEFUL_SECONDS: u32 = 3_600;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerOffPolicy {
    /// The time for a graceful shutdown of the machine. 0 cuts the power at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graceful_seconds: Option<u32>,
    /// If true, the power is cut when the graceful shutdown times out. If false, the timeout is a
    /// fault, and the power stays on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

impl PowerOffPolicy {
    /// The provider's configuration applies to all fields.
    pub const PROVIDER_DEFAULT: Self = Self { graceful_seconds: None, force: None };

    pub fn is_provider_default(&self) -> bool {
        *self == Self::PROVIDER_DEFAULT
    }

    /// Fills its unset fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            graceful_seconds: self.graceful_seconds.or(other.graceful_seconds),
            force: self.force.or(other.force),
        }
    }

    /// Refuses contradictory or excessive values. `at` makes the full field name from its last
    /// part.
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

    /// Refuses any set field, for steps that switch nothing off; `why` is the message.
    pub fn check_absent(self, at: impl Fn(&str) -> String, why: &str) -> Result<(), Refusal> {
        let message = [
            ("graceful_seconds", self.graceful_seconds.is_some()),
            ("force", self.force.is_some()),
        ];
        match message.into_iter().find(|(_, message)| *message) {
            Some((name, _)) => Err(Refusal::invalid(&at(name), why, "leave it out")),
            None => Ok(()),
        }
    }
}
