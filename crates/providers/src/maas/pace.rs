//! How much one region is asked: so many requests at once, and so many in a second. A region is one process with a
//! database behind it, and everybody who works with MAAS waits when it is swamped.

use crate::governor::Priority;
use crate::governor::gate::{Gate, Pass};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub(super) struct Pace {
    gate: Gate,
    /// The time between two beginnings.
    apart: Duration,
    /// When the next one may begin.
    next: Mutex<Instant>,
}

impl Pace {
    /// Places for at least one request. Zero in a second means that they are not held apart.
    pub fn new(at_once: usize, per_second: u32) -> Self {
        let apart = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Self { gate: Gate::new(at_once.max(1)), apart, next: Mutex::new(Instant::now()) }
    }

    /// Waits for a place and a moment. The place is given back when the pass is dropped.
    pub async fn turn(&self, priority: Priority) -> Pass {
        let pass = self.gate.pass(priority).await;
        sleep_until(self.moment(Instant::now())).await;
        pass
    }

    /// The moment of whoever asks now, and everybody else's is later. Moments that nobody took are not saved up.
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
