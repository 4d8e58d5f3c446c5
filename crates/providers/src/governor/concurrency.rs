//! The limit of concurrent calls to all BMCs: it grows slowly while calls succeed and callers wait,
//! and is halved when many calls fail.
//!
//! One dead BMC says nothing about the others, and its circuit breaker opens soon. Many failures at
//! once point to something shared (a switch, a jump host, our own network), and more calls make
//! that worse.

/// The number of answers that are evaluated together.
const WINDOW: u32 = 64;
/// One failure in this many answers is tolerated.
const TOLERATED_FAILURE_RATIO: u32 = 4;
/// The lower limit: with fewer calls a recovery would not be noticed.
const MIN_LIMIT: usize = 8;

#[derive(Debug)]
pub struct ConcurrencyLimit {
    max: usize,
    current: usize,
    answers: u32,
    failed: u32,
}

impl ConcurrencyLimit {
    /// Starts at a quarter of the maximum.
    pub fn new(most: usize) -> Self {
        let max = most.max(MIN_LIMIT);
        Self { max, current: (max / 4).max(MIN_LIMIT), answers: 0, failed: 0 }
    }

    pub fn now(&self) -> usize {
        self.current
    }

    /// Records one answer. Returns the new limit when a window is full and the limit changes.
    pub fn record(&mut self, failed: bool, crowded: bool) -> Option<usize> {
        self.answers += 1;
        self.failed += u32::from(failed);
        if self.answers < WINDOW {
            return None;
        }
        let bad = self.failed * TOLERATED_FAILURE_RATIO > self.answers;
        (self.answers, self.failed) = (0, 0);
        let new = match (bad, crowded) {
            (true, _) => (self.current / 2).max(MIN_LIMIT),
            (false, true) => (self.current + self.current / 4).min(self.max),
            (false, false) => self.current,
        };
        (new != self.current).then(|| {
            self.current = new;
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(width: &mut ConcurrencyLimit, failures: u32, crowded: bool) -> usize {
        for n in 0..WINDOW {
            width.record(n < failures, crowded);
        }
        width.now()
    }

    #[test]
    fn the_limit_grows_on_success_and_halves_on_failures() {
        let mut width = ConcurrencyLimit::new(256);
        for (failures, crowded, expected) in [
            (0, false, 64),
            (0, true, 80),
            (1, true, 100),
            (16, true, 125),
            (17, true, 62),
            (64, false, 31),
            (64, false, 15),
            (64, false, 8),
            (64, false, 8),
        ] {
            assert_eq!(window(&mut width, failures, crowded), expected, "{failures} {crowded}");
        }
        for _ in 0..40 {
            window(&mut width, 0, true);
        }
        assert_eq!(width.now(), 256);
        assert_eq!(ConcurrencyLimit::new(1).now(), MIN_LIMIT);
    }
}
