//! Timeouts and intervals of the node's agent. They are in one place, so that tests can shorten
//! them.

use crate::http::Timeouts;
use crate::random::random_bytes;
use crate::timing::Backoff;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The first pause after a failure; each further pause is longer by the same amount.
    pub pause: Duration,
    pub longest_pause: Duration,
    /// The retry interval of a node whose session is unknown.
    pub rare: Duration,
    /// The server keeps a request for a task open for this long.
    pub take_wait: Duration,
    /// The interval of health checks.
    pub health: Duration,
    /// The first heartbeat waits this long for the first health check.
    pub first_health: Duration,
    /// The interval of checks for processes on the GPUs.
    pub poll_interval: Duration,
    /// The timeout of a whole answer.
    pub answer: Duration,
    pub timeouts: Timeouts,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            rare: Duration::from_secs(300),
            take_wait: Duration::from_secs(30),
            health: Duration::from_secs(300),
            first_health: Duration::from_secs(10),
            poll_interval: Duration::from_secs(1),
            answer: Duration::from_secs(30),
            timeouts: Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(30) },
        }
    }
}

impl Timing {
    /// The same proportions, about a hundred times as fast.
    pub fn for_tests() -> Self {
        Self {
            pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(50),
            rare: Duration::from_millis(100),
            take_wait: Duration::ZERO,
            health: Duration::from_secs(3),
            first_health: Duration::from_secs(5),
            poll_interval: Duration::from_millis(20),
            answer: Duration::from_secs(5),
            timeouts: Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(5) },
        }
    }

    pub fn backoff(&self) -> Backoff {
        Backoff::between(self.pause, self.longest_pause)
    }
}

/// Jitter: between half of the time and all of it, so that a fleet which lost its controller does
/// not reconnect at once.
pub fn with_jitter(time: Duration) -> Duration {
    let share = random_bytes().map_or(u8::MAX, |bytes| bytes[0]);
    time / 2 + time / 2 * u32::from(share) / u32::from(u8::MAX)
}
