//! Windows and freezes: weekly windows in time zones, and who may start when.

use model::refusal::Reason;
use model::time::Timestamp;
use model::window::{WeeklyWindows, WindowState};

fn utc(text: &str) -> Timestamp {
    Timestamp::parse(&format!("{text}:00Z")).expect(text)
}

fn weekly(text: &str) -> WeeklyWindows {
    WeeklyWindows::parse("open", text).expect(text)
}

/// The window, the instant of UTC at which it opens, and the one at which it closes.
const OPENINGS: [(&str, &str, &str); 22] = [
    // Without a change of the clock.
    ("Sun 02:00-05:00 Europe/Berlin", "2026-03-22T01:00", "2026-03-22T04:00"),
    ("Sun 02:00-05:00 UTC", "2026-03-29T02:00", "2026-03-29T05:00"),
    ("Wed 00:00-01:00 Asia/Kolkata", "2026-11-17T18:30", "2026-11-17T19:30"),
    // Berlin has no 02:00 to 03:00 on March 29.
    ("Sun 02:00-05:00 Europe/Berlin", "2026-03-29T01:00", "2026-03-29T03:00"),
    ("Sun 02:30-05:00 Europe/Berlin", "2026-03-29T01:00", "2026-03-29T03:00"),
    ("Sun 01:00-02:30 Europe/Berlin", "2026-03-29T00:00", "2026-03-29T01:00"),
    ("Sat 23:00-03:00 Europe/Berlin", "2026-03-28T22:00", "2026-03-29T01:00"),
    // Berlin has 02:00 to 03:00 twice on October 25.
    ("Sun 02:00-05:00 Europe/Berlin", "2026-10-25T00:00", "2026-10-25T04:00"),
    ("Sun 02:00-02:30 Europe/Berlin", "2026-10-25T00:00", "2026-10-25T01:30"),
    ("Sun 00:00-02:00 Europe/Berlin", "2026-10-24T22:00", "2026-10-25T01:00"),
    ("Sun 03:00-04:00 Europe/Berlin", "2026-10-25T02:00", "2026-10-25T03:00"),
    // New York changes on other days, at another hour of UTC.
    ("Sun 02:00-04:00 America/New_York", "2026-03-08T07:00", "2026-03-08T08:00"),
    ("Sun 01:00-02:00 America/New_York", "2026-11-01T05:00", "2026-11-01T07:00"),
    // The clock of Lord Howe changes by half an hour.
    ("Sun 01:30-02:00 Australia/Lord_Howe", "2026-04-04T14:30", "2026-04-04T15:30"),
    ("Sun 02:00-03:00 Australia/Lord_Howe", "2026-10-03T15:30", "2026-10-03T16:00"),
    // Past midnight, a window belongs to the day on which it begins; also past the end of the week.
    ("Fri 22:00-04:00 UTC", "2026-11-20T22:00", "2026-11-21T04:00"),
    ("Sun 22:00-02:00 UTC", "2026-11-22T22:00", "2026-11-23T02:00"),
    ("Sun 22:00-24:00 Asia/Kolkata", "2026-11-22T16:30", "2026-11-22T18:30"),
    // Windows that touch or overlap close together.
    ("Sat,Sun 00:00-24:00 UTC", "2026-11-21T00:00", "2026-11-23T00:00"),
    ("Fri 20:00-23:00 UTC; Fri 22:00-01:00 UTC", "2026-11-20T20:00", "2026-11-21T01:00"),
    ("Fri 20:00-21:00 UTC; Fri 22:00-23:00 Europe/Berlin", "2026-11-20T20:00", "2026-11-20T22:00"),
    ("Fri-Mon 12:00-13:00 UTC", "2026-11-23T12:00", "2026-11-23T13:00"),
];

#[test]
fn a_window_is_one_interval_between_its_first_begin_and_its_last_end() {
    for (text, begin, end) in OPENINGS {
        let (windows, begin, end) = (weekly(text), utc(begin), utc(end));
        let case = format!("{text} at {begin:?}");
        match windows.state(begin - Timestamp::TICK) {
            WindowState::Closed(Some(opens)) => assert_eq!(opens.at, begin, "{case}"),
            other => panic!("{case}: {other:?} before"),
        }
        for now in [begin, end - Timestamp::TICK] {
            match windows.state(now) {
                WindowState::Open(Some(closes)) => assert_eq!(closes.at, end, "{case}"),
                other => panic!("{case}: {other:?} within"),
            }
        }
        assert!(!windows.is_open(end), "{case}: open at its end");
    }
}

#[test]
fn a_window_that_the_clock_leaves_out_opens_a_week_later() {
    let windows = weekly("Sun 02:15-02:45 Europe/Berlin");
    for now in ["2026-03-29T00:59", "2026-03-29T01:00", "2026-03-29T01:20"] {
        let WindowState::Closed(Some(opens)) = windows.state(utc(now)) else {
            panic!("open at {now}");
        };
        assert_eq!(opens.at, utc("2026-04-05T00:15"));
    }
}

#[test]
fn windows_without_a_gap_never_close() {
    for text in [
        "daily 00:00-24:00 UTC",
        "daily 00:00-24:00 America/New_York",
        "daily 00:00-12:00 UTC; daily 12:00-24:00 UTC",
        "daily 18:00-06:00 Europe/Berlin; daily 06:00-18:00 Europe/Berlin",
    ] {
        assert_eq!(weekly(text).state(utc("2026-03-28T12:00")), WindowState::Open(None), "{text}");
    }
    let but_one_hour = weekly("Mon-Sat 00:00-24:00 UTC; Sun 01:00-24:00 UTC");
    match but_one_hour.state(utc("2026-11-16T12:00")) {
        WindowState::Open(Some(closes)) => assert_eq!(closes.at, utc("2026-11-22T00:00")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_instant_is_shown_in_the_zone_of_the_window_and_in_utc() {
    let shown = |text: &str, now: &str| match weekly(text).state(utc(now)) {
        WindowState::Open(Some(at)) | WindowState::Closed(Some(at)) => at.to_string(),
        other => panic!("{other:?}"),
    };
    let text = "Mon-Fri 02:00-05:00 Europe/Berlin";
    assert_eq!(
        shown(text, "2026-11-20T12:00"),
        "Mon 2026-11-23 02:00 Europe/Berlin (2026-11-23T01:00:00Z)"
    );
    assert_eq!(
        shown(text, "2026-07-20T01:00"),
        "Mon 2026-07-20 05:00 Europe/Berlin (2026-07-20T03:00:00Z)"
    );
    assert_eq!(shown("daily 01:00-02:00 UTC", "2026-07-20T12:00"), "Tue 2026-07-21 01:00 UTC");
}

#[test]
fn a_window_is_written_in_one_way() {
    for (given, written) in [
        ("Mon-Fri 02:00-05:00 Europe/Berlin", "Mon-Fri 02:00-05:00 Europe/Berlin"),
        ("mon-sun 02:00-05:00 utc", "daily 02:00-05:00 UTC"),
        ("DAILY  02:00-05:00  europe/berlin", "daily 02:00-05:00 Europe/Berlin"),
        ("Sun,Sat 00:00-24:00 UTC", "Sat,Sun 00:00-24:00 UTC"),
        ("Sat-Sun 22:00-00:00 UTC", "Sat,Sun 22:00-24:00 UTC"),
        ("Fri-Mon 22:00-04:00 UTC", "Mon,Fri-Sun 22:00-04:00 UTC"),
        ("Mon,Wed-Thu,Fri 01:00-02:00 UTC", "Mon,Wed-Fri 01:00-02:00 UTC"),
        (
            "Mon 01:00-02:00 UTC;Tue 03:00-04:00 Asia/Kolkata",
            "Mon 01:00-02:00 UTC; Tue 03:00-04:00 Asia/Kolkata",
        ),
    ] {
        let windows = weekly(given);
        assert_eq!(windows.to_string(), written);
        assert_eq!(weekly(written), windows, "{written}");
        let stored = serde_json::to_string(&windows).unwrap();
        assert_eq!(serde_json::from_str::<WeeklyWindows>(&stored).unwrap(), windows);
    }
}

#[test]
fn a_malformed_window_is_refused_with_what_to_type() {
    for (text, says) in [
        ("Mon 02:00-05:00", "write it as 'Mon-Fri 02:00-05:00 Europe/Berlin'"),
        ("Mon 02:00 - 05:00 UTC", "not days, times and a time zone"),
        ("Mon 02:00-05:00 UTC;", "has \"\", which is not days"),
        ("Montag 02:00-05:00 UTC", "has \"Montag\" in \"Montag 02:00-05:00 UTC\""),
        ("Mon- 02:00-05:00 UTC", "has \"\" in"),
        ("Mon 2:00-05:00 UTC", "write 02:00-05:00"),
        ("Mon 02:00-24:01 UTC", "the latest end is 24:00"),
        ("Mon 24:00-05:00 UTC", "not two times of a day"),
        ("Mon 02:60-05:00 UTC", "not two times of a day"),
        ("Mon 02:00-02:00 UTC", "write 00:00-24:00 for a whole day"),
        ("Mon 02:00-05:00 Europe/Berln", "Europe/Berlin"),
        ("Mon 02:00-05:00 berlin", "Europe/Berlin"),
        ("Mon 02:00-05:00 CEST+x", "unknown time zone \"CEST+x\""),
        (&"Mon 02:00-05:00 UTC;".repeat(21), "has 22 windows; use at most 20"),
        (&"x".repeat(1_001), "is 1001 bytes long"),
    ] {
        let refusal = WeeklyWindows::parse("window.open", text).expect_err(text);
        assert_eq!(refusal.reason, Reason::FieldInvalid, "{text}");
        assert_eq!(refusal.field.as_deref(), Some("window.open"), "{text}");
        assert!(refusal.message.contains(says), "{text}: {refusal}");
    }
    let refusal = WeeklyWindows::parse("window.open", " ").expect_err("empty");
    assert_eq!(refusal.reason, Reason::FieldMissing);
}
