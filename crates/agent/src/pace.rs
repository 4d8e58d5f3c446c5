//! How long things take and how often they are said. In one place, because the protocol names these times, and so that tests need not wait.

use crate::http::Limits;
use crate::status::Status;
use std::time::Duration;
use wire::deploy::Stage;

#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The first pause after something did not work; each further one is longer by as much.
    pub pause: Duration,
    pub longest_pause: Duration,
    /// Between two reports while the work goes on.
    pub report: Duration,
    /// The same while it waits to be told to reboot.
    pub wait: Duration,
    /// The same after it failed.
    pub failed: Duration,
    /// For a whole answer to a claim or a report.
    pub answer: Duration,
    pub limits: Limits,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(5),
            report: Duration::from_secs(1),
            wait: Duration::from_secs(2),
            failed: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            limits: Limits { connect: Duration::from_secs(5), silence: Duration::from_secs(30) },
        }
    }
}

impl Pace {
    /// The same order of things, a hundred times as fast.
    pub fn for_tests() -> Self {
        Self {
            pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(50),
            report: Duration::from_millis(10),
            wait: Duration::from_millis(20),
            failed: Duration::from_millis(50),
            answer: Duration::from_secs(5),
            limits: Limits { connect: Duration::from_secs(5), silence: Duration::from_secs(1) },
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

/// Pauses that grow while nothing works, and begin again once something did.
pub struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    pub fn new(pace: &Pace) -> Self {
        Self::between(pace.pause, pace.longest_pause)
    }

    pub fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    pub fn worked(&mut self) {
        self.next = self.first;
    }

    pub fn take(&mut self, status: &Status) {
        status.pause(self.step());
    }

    /// How long the next pause is.
    pub fn step(&mut self) -> Duration {
        let now = self.next;
        self.next = (now + self.first).min(self.longest);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_again() {
        let mut pauses = Pauses::new(&Pace::default());
        let seconds: Vec<u64> = (0..7).map(|_| pauses.step().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 3, 4, 5, 5, 5]);
        pauses.worked();
        assert_eq!(pauses.step().as_secs(), 1);
    }
}
