//! Counts and percentages: the sizes of batches, and the number of failures that stop a rollout.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The largest count that a request may name.
pub const MAX_COUNT: u32 = 100_000;
const BATCHES: &str = "write 10, 5%, linear:1+2 or exponential:1x2";
const LIMITS: &str = "write 3 or 2%";

/// The sizes of the batches of a rollout, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BatchSize {
    Count(u32),
    /// Of all targets, rounded down, and at least one.
    Percent(u32),
    /// The first batch, and by how many targets each one is larger than the one before.
    Linear {
        first: u32,
        more: u32,
    },
    /// The first batch, and how many times as large each one is as the one before.
    Exponential {
        first: u32,
        factor: u32,
    },
}

impl BatchSize {
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::invalid(field, format!("is {}", shown(text)), BATCHES);
        let pair = |rest: &str, sign: char| {
            let (first, second) = rest.split_once(sign)?;
            Some((count(first)?, count(second)?))
        };
        let parsed = if let Some(rest) = text.strip_prefix("linear:") {
            pair(rest, '+').map(|(first, more)| Self::Linear { first, more })
        } else if let Some(rest) = text.strip_prefix("exponential:") {
            let grows = |(first, factor)| Self::Exponential { first, factor };
            pair(rest, 'x').filter(|(_, factor)| *factor > 1).map(grows)
        } else if let Some(number) = text.strip_suffix('%') {
            percent(number).map(Self::Percent)
        } else {
            count(text).map(Self::Count)
        };
        parsed.ok_or_else(wrong)
    }

    /// The size of a batch, counted from 0, of a rollout with `total` targets.
    pub fn size(self, batch: u32, total: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part_of(percent, total),
            Self::Linear { first, more } => first.saturating_add(more.saturating_mul(batch)),
            Self::Exponential { first, factor } => {
                first.saturating_mul(factor.saturating_pow(batch))
            }
        }
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Linear { first, more } => write!(f, "linear:{first}+{more}"),
            Self::Exponential { first, factor } => write!(f, "exponential:{first}x{factor}"),
        }
    }
}

/// The number of failed targets that pauses a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FailureLimit {
    Count(u32),
    /// Of all targets, rounded down, and at least one.
    Percent(u32),
}

impl FailureLimit {
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let parsed = match text.strip_suffix('%') {
            Some(number) => percent(number).map(Self::Percent),
            None => count(text).map(Self::Count),
        };
        parsed.ok_or_else(|| Refusal::invalid(field, format!("is {}", shown(text)), LIMITS))
    }

    /// The limit of a rollout with `total` targets.
    pub fn of(self, total: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part_of(percent, total),
        }
    }
}

impl fmt::Display for FailureLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

macro_rules! stored_as_text {
    ($($name:ident),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = Refusal;

            fn try_from(text: String) -> Result<Self, Refusal> {
                Self::parse("stored value", &text)
            }
        }
    )*};
}
stored_as_text!(BatchSize, FailureLimit);

fn count(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.filter(|number| (1..=MAX_COUNT).contains(number))
}

fn percent(text: &str) -> Option<u32> {
    count(text).filter(|percent| *percent <= 100)
}

/// This part of `total`, rounded down, and at least one.
fn part_of(percent: u32, total: u32) -> u32 {
    let part = u64::from(percent) * u64::from(total) / 100;
    u32::try_from(part).unwrap_or(u32::MAX).max(1)
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}
