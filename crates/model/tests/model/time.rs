//! Timestamps and durations as text.

use model::time::{Timestamp, format_duration};
use std::time::Duration;

#[test]
fn a_clock_that_steps_back_gives_zero() {
    let now = Timestamp::from_millis(10);
    assert_eq!(now.since(Timestamp::from_millis(20)), Duration::ZERO);
    assert_eq!(now.since(Timestamp::from_millis(4)), Duration::from_millis(6));
}

#[test]
fn durations_are_spoken() {
    for (millis, message) in [
        (0, "0ms"),
        (350, "350ms"),
        (12_900, "12s"),
        (59_999, "59s"),
        (272_000, "4m 32s"),
        (3_600_000, "1h 0m"),
        (7_500_000, "2h 5m"),
        (86_399_999, "23h 59m"),
        (86_400_000, "1d 0h"),
        (273_600_000, "3d 4h"),
    ] {
        assert_eq!(format_duration(Duration::from_millis(millis)), message);
    }
}

#[test]
fn times_are_read_as_rfc_3339_writes_them() {
    for (text, micros) in [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2000-02-29T12:30:15.25Z", 951_827_415_250_000),
        ("2026-11-17T21:45:00.1234567Z", 1_794_951_900_123_456),
        ("2100-03-01", 4_107_542_400_000_000_i64),
    ] {
        assert_eq!(Timestamp::parse(text), Some(Timestamp::from_micros(micros)), "{text}");
    }
    for wrong in [
        "",
        "2026",
        "2026-1-01",
        "2026-13-01",
        "2026-00-10",
        "2100-02-29",
        "2026-01-32",
        "2026-01-01T",
        "2026-01-01T12:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T12:00:00",
        "2026-01-01T12:00:00+01:00",
        "2026-01-01T12:00:00.Z",
        "2026-01-01T12:00:00.5xZ",
        "+026-01-01",
        "yesterday",
    ] {
        assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
    }
}
