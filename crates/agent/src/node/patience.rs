//! How long a piece of work may still take: until its deadline, and until somebody says stop. Whatever waits asks here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How soon an order to stop is noticed.
const TICK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    Stopped,
    Late,
}

#[derive(Clone, Copy)]
pub struct Patience<'a> {
    until: Instant,
    stop: &'a AtomicBool,
}

impl<'a> Patience<'a> {
    pub fn new(time: Duration, stop: &'a AtomicBool) -> Self {
        let now = Instant::now();
        // A time that no clock can hold is as good as a year.
        let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(31_536_000));
        Self { until, stop }
    }

    /// The same, with less time for a part of the work.
    pub fn at_most(self, time: Duration) -> Self {
        let shorter = Self::new(time, self.stop);
        Self { until: self.until.min(shorter.until), stop: self.stop }
    }

    pub fn check(&self) -> Result<(), Halt> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Halt::Stopped);
        }
        if Instant::now() >= self.until { Err(Halt::Late) } else { Ok(()) }
    }

    /// Waits so long, or until there is no more patience.
    pub fn sleep(&self, time: Duration) -> Result<(), Halt> {
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
    fn patience_ends_by_order_and_by_time() {
        let stop = AtomicBool::new(false);
        let long = Patience::new(Duration::MAX, &stop);
        assert_eq!(long.sleep(Duration::from_millis(1)), Ok(()));
        assert_eq!(long.at_most(Duration::ZERO).sleep(Duration::MAX), Err(Halt::Late));
        let short = Patience::new(Duration::ZERO, &stop);
        assert_eq!(short.at_most(Duration::MAX).check(), Err(Halt::Late));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(long.sleep(Duration::MAX), Err(Halt::Stopped));
        assert_eq!(short.check(), Err(Halt::Stopped), "an order is the better reason");
    }
}
