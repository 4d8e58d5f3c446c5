//! The delivery of notices: attempts, backoff, and when a notice becomes a dead letter.

use super::notice::Notice;
use crate::retry::Backoff;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The waits between the attempts. They grow with the failures in a row of the receiver, so a
/// receiver that is down is asked seldom.
const BACKOFF: Backoff =
    Backoff { initial: Duration::from_secs(1), max: Duration::from_secs(10 * 60) };
/// The longest wait that a receiver may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// The number of dead letters of one notifier. With more, its notices are retried until an operator
/// replays or discards some.
pub const MAX_DEAD_LETTERS: i64 = 10_000;

/// The state of the deliveries of one notifier.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivery {
    /// The notices of the next event that are sent, or are dead letters.
    pub done: usize,
    /// The failed attempts at the next notice.
    pub attempts: u32,
    /// The failures in a row, also of several notices.
    pub failures: u32,
    /// No attempt is made before this time.
    pub not_before: Option<Timestamp>,
    pub failing_since: Option<Timestamp>,
    /// The last failure; empty after a success.
    pub problem: String,
    /// The command that removes its cause, if it is known.
    pub repair: Option<String>,
    pub delivered: u64,
    pub last_delivered_at: Option<Timestamp>,
    /// The time when events were found deleted before this notifier had read them.
    pub missed_at: Option<Timestamp>,
}

/// The reason why a notice was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendFailure {
    pub message: String,
    /// The command that removes the cause, if it is known.
    pub repair: Option<String>,
    /// The wait that the receiver asks for.
    pub retry_after: Option<Duration>,
}

/// A notice that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: i64,
    pub notice: Notice,
    /// The attempts since it was made, or since it was last replayed.
    pub attempts: u32,
    pub problem: String,
    pub failed_at: Timestamp,
    /// It is being sent again.
    pub replaying: bool,
}

/// The outcomes that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeOutcome {
    Delivered,
    /// An attempt failed.
    Failed,
    /// The notice became a dead letter.
    Dead,
}

impl NoticeOutcome {
    pub const ALL: [Self; 3] = [Self::Delivered, Self::Failed, Self::Dead];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    Retry,
    /// The notice becomes a dead letter.
    GiveUp,
}

/// `attempts` includes the failed one; `letters` are the dead letters that there are.
pub const fn after_failure(attempts: u32, max_attempts: u32, letters: i64) -> AfterFailure {
    if attempts >= max_attempts && letters < MAX_DEAD_LETTERS {
        AfterFailure::GiveUp
    } else {
        AfterFailure::Retry
    }
}

impl Delivery {
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// After a notice was accepted.
    #[must_use]
    pub fn succeeded(&self, now: Timestamp) -> Self {
        Self {
            done: self.done,
            delivered: self.delivered + 1,
            last_delivered_at: Some(now),
            missed_at: self.missed_at,
            ..Self::default()
        }
    }

    /// After an attempt that failed. `seed` spreads the retries of several notifiers.
    #[must_use]
    pub fn failed(&self, failure: &SendFailure, seed: &str, now: Timestamp) -> Self {
        let failures = self.failures.saturating_add(1);
        let asked_for = failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        Self {
            failures,
            not_before: Some(now + BACKOFF.delay(failures, seed).max(asked_for)),
            failing_since: self.failing_since.or(Some(now)),
            problem: failure.message.clone(),
            repair: failure.repair.clone(),
            ..self.clone()
        }
    }

    /// After a change by an operator: the next attempt is made at once.
    #[must_use]
    pub fn retried_now(&self) -> Self {
        Self { not_before: None, ..self.clone() }
    }
}
