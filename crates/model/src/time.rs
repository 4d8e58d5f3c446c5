//! Time as a value. The model never reads a clock; the caller passes the current time.

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use std::time::Duration;

/// Microseconds since 1970, UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The resolution of a timestamp.
    pub const TICK: Duration = Duration::from_micros(1);

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    pub const fn as_millis(self) -> i64 {
        self.0 / 1_000
    }

    /// The time from `earlier` to `self`; zero when the clock stepped back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Formats a duration in its two largest units: `3d 4h`, `2h 5m`, `4m 32s`, `12s`, `350ms`.
pub fn format_duration(duration: Duration) -> String {
    const DAY: u64 = 24 * 3_600;
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..DAY => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        DAY.. => format!("{}d {}h", seconds / DAY, seconds % DAY / 3_600),
    }
}
