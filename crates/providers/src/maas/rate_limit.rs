//! The rate limit of one region: a number of requests in flight and a number of starts per second.
//! A region is one process on one database, and overload slows down every user of MAAS.

use crate::governor::Priority;
use crate::governor::priority_semaphore::{Permit, PrioritySemaphore};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub(super) struct RateLimiter {
    gate: PrioritySemaphore,
    /// The time between two starts.
    start_interval: Duration,
    /// The earliest start of the next request.
    next: Mutex<Instant>,
}

impl RateLimiter {
    /// At least one request may be in flight. `per_second` zero: no limit on starts.
    pub fn new(at_once: usize, per_second: u32) -> Self {
        let start_interval = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Self {
            gate: PrioritySemaphore::new(at_once.max(1)),
            start_interval,
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a slot and a start time. Dropping the permit releases the slot.
    pub async fn acquire(&self, priority: Priority) -> Permit {
        let pass = self.gate.acquire(priority).await;
        sleep_until(self.reserve_start(Instant::now())).await;
        pass
    }

    /// Reserves the next start time. Unused start times do not accumulate.
    fn reserve_start(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let time = (*next).max(now);
        *next = time + self.start_interval;
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_are_spaced_and_do_not_accumulate() {
        let pace = RateLimiter::new(8, 10);
        let start = Instant::now();
        let after = |at: Instant| at.duration_since(start).as_millis();
        assert_eq!([0, 100, 200].map(|_| after(pace.reserve_start(start))), [0, 100, 200]);
        let later = start + Duration::from_secs(5);
        assert_eq!([0, 1].map(|_| after(pace.reserve_start(later))), [5_000, 5_100]);
        let unheld = RateLimiter::new(8, 0);
        assert_eq!([0, 1].map(|_| after(unheld.reserve_start(start))), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_above_the_limit_waits() {
        let pace = RateLimiter::new(2, 0);
        let first = pace.acquire(Priority::Operator).await;
        let _second = pace.acquire(Priority::Operator).await;
        let wait = Duration::from_secs(60);
        assert!(tokio::time::timeout(wait, pace.acquire(Priority::Operator)).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(wait, pace.acquire(Priority::Operator)).await.is_ok());
    }
}
