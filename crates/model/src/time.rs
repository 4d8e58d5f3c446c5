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

    /// Reads a time in UTC as RFC 3339 writes it, `2026-01-31T12:00:00.5Z`, or a date alone.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00Z"));
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let time = time.strip_suffix('Z')?;
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
        let fits = (1..=12).contains(&month)
            && (1..=days_of_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        let digits = fraction.bytes().all(|byte| byte.is_ascii_digit()) && !fraction.is_empty();
        if !fits || !digits {
            return None;
        }
        let micros: i64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        let seconds =
            (days_since_1970(year, month, day) * 24 + hour) * 3_600 + minute * 60 + second;
        Some(Self(seconds * 1_000_000 + micros))
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

/// The three numbers of a date or a time of day, each with its number of digits.
fn numbers(text: &str, separator: char, lengths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut found = [0; 3];
    for (number, length) in found.iter_mut().zip(lengths) {
        let part = parts.next()?;
        let digits = part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = if digits { part.parse().ok()? } else { return None };
    }
    parts.next().is_none().then_some(found)
}

const fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// The days from 1970-01-01 to a date of the Gregorian calendar.
const fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_of_years =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    days_of_years + (153 * month + 2) / 5 + day - 1 - 719_468
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
