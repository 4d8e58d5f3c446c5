//! Times for human readers. All times are UTC, so that two people on a call read the same digits.

use maud::{Markup, html};
use model::time::Timestamp;
use std::time::Duration;

const DAY_SECONDS: i64 = 86_400;

/// `2026-01-30 10:00:01 UTC`.
pub(super) fn format_utc(at: Timestamp) -> String {
    let (date, time) = date_and_time(at);
    format!("{date} {time} UTC")
}

/// `10:00:01`, for lines of a log.
pub(super) fn time_of_day(at: Timestamp) -> String {
    date_and_time(at).1
}

fn format_iso(at: Timestamp) -> String {
    let (date, time) = date_and_time(at);
    format!("{date}T{time}Z")
}

fn date_and_time(at: Timestamp) -> (String, String) {
    let seconds = at.as_micros().div_euclid(1_000_000);
    let (days, second) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years begin in
/// March, so that the leap day is the last of its year.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// `4m 32s`: the two largest units.
pub(super) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds == 0 => format!("{}ms", duration.subsec_millis()),
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        (_, _, _) => format!("{days}d {hours}h"),
    }
}

pub(super) fn format_ago(at: Timestamp, now: Timestamp) -> String {
    match now.since(at) {
        passed if passed < Duration::from_secs(1) => "just now".into(),
        passed => format!("{} ago", format_duration(passed)),
    }
}

/// A relative time; the absolute one is its tooltip and its `datetime` attribute.
pub(super) fn relative_time(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(format_iso(at)) title=(format_utc(at)) { (format_ago(at, now)) } }
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
        for (seconds, said) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_769_767_201, "2026-01-30 10:00:01 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(format_utc(at(seconds)), said);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let now = at(1_000_000);
        for (seconds, said) in [
            (0, "just now"),
            (12, "12s ago"),
            (272, "4m 32s ago"),
            (7_500, "2h 5m ago"),
            (273_600, "3d 4h ago"),
            (-5, "just now"),
        ] {
            assert_eq!(format_ago(at(1_000_000 - seconds), now), said);
        }
        assert_eq!(format_elapsed(None, None, now), "–");
        assert_eq!(format_elapsed(Some(at(999_988)), None, now), "12s");
        assert_eq!(format_elapsed(Some(at(10)), Some(at(10)), now), "0ms");
    }
}
