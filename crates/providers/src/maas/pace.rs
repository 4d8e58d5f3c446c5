//! The rate limit of one region: a number of requests in flight and a number of starts per second.
//! A region is one process on one database, and overload slows down every user of MAAS.

use crate::governor::Priority;
use crate::governor::gate::{Gate, Pass};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub(super) struct Pace {
    gate: Gate,
    /// The time between two starts.
    apart: Duration,
    /// The earliest start of the next request.
    next: Mutex<Instant>,
}

impl Pace {
    /// At least one request may be in flight. `per_second` zero: no limit on starts.
    pub fn new(at_once: usize, per_second: u32) -> Self {
        let apart = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Self { gate: Gate::new(at_once.max(1)), apart, next: Mutex::new(Instant::now()) }
    }

    /// Waits for a slot and a start time. Dropping the pass releases the slot.
    pub async fn turn(&self, priority: Priority) -> Pass {
        let pass = self.gate.pass(priority).await;
        sleep_until(self.moment(Instant::now())).await;
        pass
    }

    /// Reserves the next start time. Unused start times do not accumulate.
    fn moment(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = (*next).max(now);
        *next = moment + self.apart;
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn moments_are_apart_and_not_saved_up() {
        let pace = Pace::new(8, 10);
        let start = Instant::now();
        let after = |at: Instant| at.duration_since(start).as_millis();
        assert_eq!([0, 100, 200].map(|_| after(pace.moment(start))), [0, 100, 200]);
        let later = start + Duration::from_secs(5);
        assert_eq!([0, 1].map(|_| after(pace.moment(later))), [5_000, 5_100]);
        let unheld = Pace::new(8, 0);
        assert_eq!([0, 1].map(|_| after(unheld.moment(start))), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_finds_no_place_waits() {
        let pace = Pace::new(2, 0);
        let first = pace.turn(Priority::Operator).await;
        let _second = pace.turn(Priority::Operator).await;
        let wait = Duration::from_secs(60);
        assert!(tokio::time::timeout(wait, pace.turn(Priority::Operator)).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(wait, pace.turn(Priority::Operator)).await.is_ok());
    }
}
