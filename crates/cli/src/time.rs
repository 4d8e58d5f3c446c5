//! Parsing and formatting of times and durations.
//!
//! The clock and the time zone are values, so that tests can fix them; only `Clock::system` reads
//! the real ones.

use jiff::tz::TimeZone;
use model::time::format_duration;
use proto::Timestamp;
use std::time::Duration;

/// The current time and the time zone.
pub struct Clock {
    now: jiff::Timestamp,
    zone: TimeZone,
}

impl Clock {
    pub fn system() -> Self {
        Self { now: jiff::Timestamp::now(), zone: TimeZone::system() }
    }

    #[cfg(test)]
    pub fn fixed(seconds: i64) -> Self {
        Self { now: jiff::Timestamp::from_second(seconds).unwrap(), zone: TimeZone::UTC }
    }

    pub fn now(&self) -> model::time::Timestamp {
        model::time::Timestamp::from_micros(self.now.as_microsecond())
    }

    /// The time this long ago.
    pub fn before(&self, ago: Duration) -> Timestamp {
        let at = self.now.checked_sub(ago).unwrap_or(jiff::Timestamp::MIN);
        Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
    }

    /// `10:00:01`, for lines of a stream.
    pub fn time_of_day(&self, at: Option<&Timestamp>) -> String {
        self.zoned(at).map_or_else(|| "--:--:--".into(), |at| at.strftime("%H:%M:%S").to_string())
    }

    /// `2026-01-30 10:00:01 +00:00`, or a dash.
    pub fn absolute(&self, at: Option<&Timestamp>) -> String {
        self.zoned(at)
            .map_or_else(|| "-".into(), |at| at.strftime("%Y-%m-%d %H:%M:%S %:z").to_string())
    }

    /// `4m 32s ago`, or a dash.
    pub fn ago(&self, at: Option<&Timestamp>) -> String {
        match at.and_then(to_jiff) {
            Some(at) => format!("{} ago", format_duration(duration_between(at, self.now))),
            None => "-".into(),
        }
    }

    /// `in 12d`, `expired 4m 32s ago`, or a dash.
    pub fn expiry(&self, at: Option<&Timestamp>) -> String {
        match at.and_then(to_jiff) {
            Some(at) if at <= self.now => {
                format!("expired {} ago", format_duration(duration_between(at, self.now)))
            }
            Some(at) => format!("in {}", format_duration(duration_between(self.now, at))),
            None => "-".into(),
        }
    }

    /// The time from `from` to `to`, or to now if `to` is missing; a dash if it has not begun.
    pub fn elapsed(&self, from: Option<&Timestamp>, to: Option<&Timestamp>) -> String {
        match from.and_then(to_jiff) {
            Some(from) => {
                format_duration(duration_between(from, to.and_then(to_jiff).unwrap_or(self.now)))
            }
            None => "-".into(),
        }
    }

    fn zoned(&self, at: Option<&Timestamp>) -> Option<jiff::Zoned> {
        at.and_then(to_jiff).map(|at| at.to_zoned(self.zone.clone()))
    }
}

/// A time of the model as the API has it.
pub fn to_message(at: model::time::Timestamp) -> Timestamp {
    let micros = at.as_micros();
    Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or_default(),
    }
}

/// Converts a protobuf timestamp; none if it is out of range.
fn to_jiff(at: &Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::new(at.seconds, at.nanos).ok()
}

/// The time between two instants. Clocks that disagree give zero, not a negative time.
fn duration_between(from: jiff::Timestamp, to: jiff::Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// The longest duration that a user may type.
const MAX_DURATION: Duration = Duration::from_secs(30 * 86_400);

/// Parses `30s`, `5m`, `1h`, `1h30m` or `500ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 30s, 5m, 1h or 1h30m");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (number, tail) = split_digits(rest);
        let (unit, tail) = split_letters(tail);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit_ms = unit_ms(unit).ok_or_else(wrong)?;
        let part = number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    match total {
        Duration::ZERO => Err(format!("{text:?} is no time at all; write at least 1s")),
        total if total > MAX_DURATION => Err(format!("{text:?} is too long; use at most 30d")),
        total => Ok(total),
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn split_letters(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len()))
}

fn unit_ms(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_typed() {
        for (text, seconds) in
            [("30s", 30), ("5m", 300), ("1h", 3_600), ("1h30m", 5_400), ("2d", 172_800)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in
            ["", "5", "m", "5x", "-5m", "5 m", "1.5h", "0s", "31d", "99999999999999999999s", "5µ"]
        {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_relative_and_absolute() {
        let clock = Clock::fixed(1_769_767_273);
        let at = Timestamp { seconds: 1_769_767_201, nanos: 0 };
        assert_eq!(clock.time_of_day(Some(&at)), "10:00:01");
        assert_eq!(clock.absolute(Some(&at)), "2026-01-30 10:00:01 +00:00");
        assert_eq!(clock.ago(Some(&at)), "1m 12s ago");
        assert_eq!(clock.elapsed(Some(&at), None), "1m 12s");
        assert_eq!(clock.ago(None), "-");
        let absurd = Timestamp { seconds: i64::MAX, nanos: 0 };
        assert_eq!(clock.absolute(Some(&absurd)), "-");
    }
}
