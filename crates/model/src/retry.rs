//! Retry delays. The jitter is derived from the key, so the delay is a pure function and a thousand
//! runs that failed together do not retry together.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The delay after failure number `failures` (from 1). It doubles up to `most`; its second half
    /// is jitter derived from `seed`.
    pub fn delay(self, failures: u32, seed: &str) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let full = self.initial.saturating_mul(1 << doublings).min(self.max);
        let half = full / 2;
        let share = fnv1a(seed, failures) % 1_000;
        half + half * u32::try_from(share).unwrap_or(0) / 1_000
    }
}

/// FNV-1a: small, stable across versions, and good enough to spread load. Not for security.
pub fn fnv1a(seed: &str, salt: u32) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ u64::from(salt);
    seed.bytes()
        .fold(start, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
