//! Times as people read them. The clock is a value; all times shown are UTC, so that two people on a
//! call read the same digits.

use maud::{Markup, html};
use model::time::{Timestamp, spoken};
use std::time::Duration;

/// `2026-01-30 10:00:01 UTC`.
pub(super) fn absolute(at: Timestamp) -> String {
    calendar(at, "%Y-%m-%d %H:%M:%S UTC")
}

/// `10:00:01`, for lines of a log.
pub(super) fn time_of_day(at: Timestamp) -> String {
    calendar(at, "%H:%M:%S")
}

/// A time outside of the calendar's years, 1 to 9999, is drawn as its last moment.
fn calendar(at: Timestamp, format: &str) -> String {
    let at = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::MAX);
    at.strftime(format).to_string()
}

pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    match now.since(at) {
        passed if passed < Duration::from_secs(1) => "just now".into(),
        passed => format!("{} ago", spoken(passed)),
    }
}

/// A relative time that says the absolute one when pointed at, and to programs.
pub(super) fn stamp(at: Timestamp, now: Timestamp) -> Markup {
    let iso = calendar(at, "%Y-%m-%dT%H:%M:%SZ");
    html! { time datetime=(iso) title=(absolute(at)) { (ago(at, now)) } }
}

/// How long something took, or takes so far; a dash when it has not begun.
pub(super) fn lasted(from: Option<Timestamp>, to: Option<Timestamp>, now: Timestamp) -> String {
    match from {
        Some(from) => spoken(to.unwrap_or(now).since(from)),
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
    fn times_are_told_in_the_calendar() {
        for (seconds, said) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_769_767_201, "2026-01-30 10:00:01 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(absolute(at(seconds)), said);
        }
    }

    #[test]
    fn what_passed_is_told_in_two_units() {
        let now = at(1_000_000);
        for (seconds, said) in [
            (0, "just now"),
            (12, "12s ago"),
            (272, "4m 32s ago"),
            (7_500, "2h 5m ago"),
            (273_600, "3d 4h ago"),
            (-5, "just now"),
        ] {
            assert_eq!(ago(at(1_000_000 - seconds), now), said);
        }
        assert_eq!(lasted(None, None, now), "–");
        assert_eq!(lasted(Some(at(999_988)), None, now), "12s");
        assert_eq!(lasted(Some(at(10)), Some(at(10)), now), "0ms");
    }
}
