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
