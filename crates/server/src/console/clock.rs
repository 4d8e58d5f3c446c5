//! Times for human readers. All times are UTC, so that two people on a call read the same digits.

use maud::{Markup, html};
use model::time::{Timestamp, format_duration};
use std::time::Duration;

/// `2026-01-30 10:00:01 UTC`.
pub(super) fn format_utc(at: Timestamp) -> String {
    format_time(at, "%Y-%m-%d %H:%M:%S UTC")
}

/// `10:00:01`, for lines of a log.
pub(super) fn time_of_day(at: Timestamp) -> String {
    format_time(at, "%H:%M:%S")
}

/// A time beyond the year 9999, the last of the calendar, is shown as its last moment.
fn format_time(at: Timestamp, format: &str) -> String {
    let at = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::MAX);
    at.strftime(format).to_string()
}

pub(super) fn format_ago(at: Timestamp, now: Timestamp) -> String {
    match now.since(at) {
        passed if passed < Duration::from_secs(1) => "just now".into(),
        passed => format!("{} ago", format_duration(passed)),
    }
}

/// A relative time; the absolute one is its tooltip and its `datetime` attribute.
pub(super) fn relative_time(at: Timestamp, now: Timestamp) -> Markup {
    let iso = format_time(at, "%Y-%m-%dT%H:%M:%SZ");
    html! { time datetime=(iso) title=(format_utc(at)) { (format_ago(at, now)) } }
}

/// The duration so far or in total; a dash when it has not begun.
pub(super) fn format_elapsed(
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    now: Timestamp,
) -> String {
    match from {
        Some(from) => format_duration(to.unwrap_or(now).since(from)),
        None => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn times_are_formatted_as_utc_dates() {
        for (seconds, message) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_769_767_201, "2026-01-30 10:00:01 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(format_utc(at(seconds)), message);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let now = at(1_000_000);
        for (seconds, message) in [
            (0, "just now"),
            (12, "12s ago"),
            (272, "4m 32s ago"),
            (7_500, "2h 5m ago"),
            (273_600, "3d 4h ago"),
            (-5, "just now"),
        ] {
            assert_eq!(format_ago(at(1_000_000 - seconds), now), message);
        }
        assert_eq!(format_elapsed(None, None, now), "–");
        assert_eq!(format_elapsed(Some(at(999_988)), None, now), "12s");
        assert_eq!(format_elapsed(Some(at(10)), Some(at(10)), now), "0ms");
    }
}
