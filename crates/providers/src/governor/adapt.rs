//! The limit of concurrent calls to all BMCs: it grows slowly while calls succeed and callers wait,
//! and is halved when many calls fail.
//!
//! One dead BMC says nothing about the others, and its circuit breaker opens soon. Many failures at
//! once point to something shared (a switch, a jump host, our own network), and more calls make
//! that worse.

/// The number of answers that are evaluated together.
const WINDOW: u32 = 64;
/// One failure in this many answers is tolerated.
const BEARABLE: u32 = 4;
/// The lower limit: with fewer calls a recovery would not be noticed.
const LEAST: usize = 8;

#[derive(Debug)]
pub struct Width {
    most: usize,
    now: usize,
    seen: u32,
    failed: u32,
}

impl Width {
    /// Starts at a quarter of the maximum.
    pub fn new(most: usize) -> Self {
        let most = most.max(LEAST);
        Self { most, now: (most / 4).max(LEAST), seen: 0, failed: 0 }
    }

    pub fn now(&self) -> usize {
        self.now
    }

    /// Records one answer. Returns the new limit when a window is full and the limit changes.
    pub fn learn(&mut self, failed: bool, crowded: bool) -> Option<usize> {
        self.seen += 1;
        self.failed += u32::from(failed);
        if self.seen < WINDOW {
            return None;
        }
        let bad = self.failed * BEARABLE > self.seen;
        (self.seen, self.failed) = (0, 0);
        let new = match (bad, crowded) {
            (true, _) => (self.now / 2).max(LEAST),
            (false, true) => (self.now + self.now / 4).min(self.most),
            (false, false) => self.now,
        };
        (new != self.now).then(|| {
            self.now = new;
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(width: &mut Width, failures: u32, crowded: bool) -> usize {
        for n in 0..WINDOW {
            width.learn(n < failures, crowded);
        }
        width.now()
    }

    #[test]
    fn it_grows_while_all_is_well_and_halves_when_it_is_not() {
        let mut width = Width::new(256);
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
        assert_eq!(Width::new(1).now(), LEAST);
    }
}
