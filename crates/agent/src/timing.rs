//! Timeouts and intervals. They are in one place because the protocol defines them, and because
//! tests shorten them.

use crate::http::Timeouts;
use crate::status::DeployStatus;
use std::time::Duration;
use wire::deploy::Stage;

#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The first pause after a failure; each further pause is longer by the same amount.
    pub pause: Duration,
    pub longest_pause: Duration,
    /// The interval of reports during the work.
    pub report: Duration,
    /// The interval of reports while waiting for the command to reboot.
    pub wait: Duration,
    /// The interval of reports after a failure.
    pub failed: Duration,
    /// The timeout of the whole answer to a claim or a report.
    pub answer: Duration,
    pub timeouts: Timeouts,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(5),
            report: Duration::from_secs(1),
            wait: Duration::from_secs(2),
            failed: Duration::from_secs(5),
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
            report: Duration::from_millis(10),
            wait: Duration::from_millis(20),
            failed: Duration::from_millis(50),
            answer: Duration::from_secs(5),
            timeouts: Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(1) },
        }
    }

    pub fn between(&self, stage: Stage) -> Duration {
        match stage {
            Stage::Writing | Stage::Installing => self.report,
            Stage::Installed => self.wait,
            Stage::Failed => self.failed,
        }
    }
}

/// Linear backoff: pauses grow after each failure and start over after a success.
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(timing: &Timing) -> Self {
        Self::between(timing.pause, timing.longest_pause)
    }

    pub fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }

    pub fn pause(&mut self, status: &DeployStatus) {
        status.pause(self.next_delay());
    }

    /// The next pause.
    pub fn next_delay(&mut self) -> Duration {
        let now = self.next;
        self.next = (now + self.first).min(self.longest);
        now
    }
}
