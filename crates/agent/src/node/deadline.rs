//! The limits of a piece of work: its deadline, a stop, and its lease. Every wait checks them here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval of checks for a stop.
const TICK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    Stopped,
    DeadlineExceeded,
    /// The lease was not renewed in time: Farrier may have given the task up.
    LeaseLost,
}

/// The lease of a task. It lapses by the clock, because the thread that renews it may hang in a
/// request. Once the work has seen it lapsed, it stays lapsed.
pub struct Lease {
    length: Duration,
    until: Mutex<Option<Instant>>,
}

impl Lease {
    pub fn new(length: Duration) -> Self {
        Self { length, until: Mutex::new(Some(Instant::now() + length)) }
    }

    /// Records a renewal by a request that was sent at `sent`.
    pub fn renewed(&self, sent: Instant) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = until.map(|_| sent + self.length);
    }

    fn check(&self) -> Result<(), Interrupt> {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = until.filter(|until| Instant::now() < *until);
        until.map(drop).ok_or(Interrupt::LeaseLost)
    }

    /// The work has noticed that the lease expired.
    pub fn was_lost(&self) -> bool {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    until: Instant,
    stop: &'a AtomicBool,
    lease: Option<&'a Lease>,
}

impl<'a> Deadline<'a> {
    pub fn new(time: Duration, stop: &'a AtomicBool) -> Self {
        let now = Instant::now();
        // A duration that overflows the clock becomes a year.
        let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(31_536_000));
        Self { until, stop, lease: None }
    }

    /// Adds a lease.
    pub fn with_lease(self, lease: &'a Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Shortens the deadline for a part of the work.
    pub fn at_most(self, time: Duration) -> Self {
        let shorter = Self::new(time, self.stop);
        Self { until: self.until.min(shorter.until), ..self }
    }

    pub fn check(&self) -> Result<(), Interrupt> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Interrupt::Stopped);
        }
        self.lease.map_or(Ok(()), Lease::check)?;
        if Instant::now() >= self.until { Err(Interrupt::DeadlineExceeded) } else { Ok(()) }
    }

    /// Waits for this time; fails as soon as a limit is reached.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupt> {
        let since = Instant::now();
        loop {
            self.check()?;
            let left = time.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(TICK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_end_by_stop_and_by_time() {
        let stop = AtomicBool::new(false);
        let long = Deadline::new(Duration::MAX, &stop);
        assert_eq!(long.sleep(Duration::from_millis(1)), Ok(()));
        assert_eq!(
            long.at_most(Duration::ZERO).sleep(Duration::MAX),
            Err(Interrupt::DeadlineExceeded)
        );
        let short = Deadline::new(Duration::ZERO, &stop);
        assert_eq!(short.at_most(Duration::MAX).check(), Err(Interrupt::DeadlineExceeded));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(long.sleep(Duration::MAX), Err(Interrupt::Stopped));
        assert_eq!(short.check(), Err(Interrupt::Stopped), "an order is the better reason");
    }

    #[test]
    fn lost_leases_stay_lost() {
        let (stop, lease) = (AtomicBool::new(false), Lease::new(Duration::from_secs(60)));
        let deadline = Deadline::new(Duration::MAX, &stop).with_lease(&lease);
        assert_eq!(deadline.at_most(Duration::MAX).check(), Ok(()));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        lease.renewed(long_ago);
        lease.renewed(Instant::now());
        assert_eq!(deadline.check(), Ok(()), "no interrupt");
        lease.renewed(long_ago);
        assert!(!lease.was_lost());
        assert_eq!(deadline.sleep(Duration::MAX), Err(Interrupt::LeaseLost));
        lease.renewed(Instant::now());
        assert_eq!(deadline.check(), Err(Interrupt::LeaseLost));
        assert!(lease.was_lost());
    }
}
