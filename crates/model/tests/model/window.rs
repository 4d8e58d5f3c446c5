//! Windows and freezes: weekly windows in time zones, and who may start when.

use model::gate::{Gate, Overrides, RACK_MAINTENANCE};
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec};
use model::refusal::Reason;
use model::time::Timestamp;
use model::window::{
    HoldsFor, StartCheck, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows,
    WindowState,
};

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

/// Friday, November 20, 2026, 12:00.
const NOON: &str = "2026-11-20T12:00";

fn id(word: &str) -> StartRuleId {
    let (kind, name) = word.split_once(':').expect(word);
    StartRuleId::trusted(StartRuleKind::parse(kind).expect(kind), name)
}

/// A rule for everything: `window:NAME` with its weekly windows, or `freeze:NAME` until a time.
fn rule(word: &str, filter: &str, when: &str) -> StartRule {
    let id = id(word);
    let terms = match id.kind {
        StartRuleKind::Window => StartTerms::Open(weekly(when)),
        StartRuleKind::Freeze => {
            StartTerms::Frozen { until: utc(when), reason: "end of the year".into() }
        }
    };
    StartRule {
        id,
        filter: filter.into(),
        holds_for: HoldsFor::Everything,
        terms,
        created_by: "ada".into(),
        created_at: utc(NOON),
        updated_at: utc(NOON),
        version: 1,
    }
}

/// A machine with the label `env`.
fn machine(name: &str, env: &str) -> Machine {
    let labels = Labels::from([("env".into(), env.into())]);
    Machine::new(MachineId::trusted(name), MachineSpec::default(), labels, utc(NOON))
}

fn check(machines: &[Machine], rules: &[StartRule], by_rollout: bool) -> StartCheck {
    StartCheck::new(machines, rules, by_rollout, utc(NOON)).expect("filters")
}

/// A machine that only this gate holds back.
pub fn closed(gate: Gate) -> StartCheck {
    let rule = match gate == Gate::Window {
        true => rule("window:night", "", "daily 02:00-05:00 UTC"),
        false => rule("freeze:all", "", "2026-12-01T00:00"),
    };
    check(&[machine("m-1", "prod")], &[rule], false)
}

/// A machine is open if no window selects it or one that does is open, and no freeze selects it.
#[test]
fn a_machine_is_open_by_its_windows_and_freezes() {
    const OPEN: &str = "Fri 10:00-14:00 UTC";
    const CLOSED: &str = "Sat 02:00-05:00 UTC";
    for (rules, refused) in [
        (vec![], None),
        (vec![rule("window:a", "", OPEN)], None),
        (vec![rule("window:a", "", CLOSED)], Some("window:a")),
        (vec![rule("window:a", "labels.env=prod", CLOSED)], Some("window:a")),
        (vec![rule("window:a", "labels.env=test", CLOSED)], None),
        (vec![rule("window:a", "", CLOSED), rule("window:b", "", OPEN)], None),
        (
            vec![rule("window:a", "", CLOSED), rule("window:b", "labels.env=test", OPEN)],
            Some("window:a"),
        ),
        // The one that opens first is named.
        (
            vec![rule("window:a", "", "Sun 02:00-05:00 UTC"), rule("window:b", "", CLOSED)],
            Some("window:b"),
        ),
        (vec![rule("freeze:f", "", "2026-11-20T12:01")], Some("freeze:f")),
        (vec![rule("freeze:f", "", NOON)], None),
        (vec![rule("freeze:f", "labels.env=test", "2026-12-01T00:00")], None),
        (
            vec![rule("window:a", "", OPEN), rule("freeze:f", "", "2026-12-01T00:00")],
            Some("freeze:f"),
        ),
    ] {
        let found = check(&[machine("m-1", "prod")], &rules, false);
        let refusal = found.refuse("it", &Overrides::default());
        let gate = refusal.as_ref().and_then(model::refusal::Refusal::gate_word);
        assert_eq!(gate.as_deref(), refused, "{rules:?}");
        if let Some(refusal) = refusal {
            let frozen = refused.is_some_and(|word| word.starts_with("freeze"));
            let reason = if frozen { Reason::Frozen } else { Reason::OutsideWindow };
            assert_eq!(refusal.reason, reason);
        }
    }
}

#[test]
fn a_rule_for_rollouts_holds_back_nothing_else() {
    let machines = [machine("m-1", "prod")];
    for (word, when) in [("window:a", "Sat 02:00-05:00 UTC"), ("freeze:f", "2026-12-01T00:00")] {
        let rules = [StartRule { holds_for: HoldsFor::Rollouts, ..rule(word, "", when) }];
        let refuses = |by_rollout| {
            check(&machines, &rules, by_rollout).refuse("it", &Overrides::default()).is_some()
        };
        assert_eq!((refuses(true), refuses(false)), (true, false), "{word}");
    }
    // A window for rollouts does not open a machine to others, and one for everything does.
    let closed = rule("window:a", "", "Sat 02:00-05:00 UTC");
    let open = rule("window:b", "", "Fri 10:00-14:00 UTC");
    let rules = [closed, StartRule { holds_for: HoldsFor::Rollouts, ..open }];
    let refuses = |by_rollout| {
        check(&machines, &rules, by_rollout).refuse("it", &Overrides::default()).is_some()
    };
    assert_eq!((refuses(true), refuses(false)), (false, true));
}

#[test]
fn a_refusal_says_when_it_opens_and_names_all_that_hold_back() {
    let rules = [
        rule("window:night", "labels.env=prod", "daily 02:00-05:00 Europe/Berlin"),
        rule("freeze:year-end", "labels.env=test", "2027-01-02T00:00"),
    ];
    let machines = [machine("m-1", "prod"), machine("m-2", "test"), machine("m-3", "prod")];
    let found = check(&machines, &rules, false);
    let refusal = found.refuse("REBOOT of rack-1", &Overrides::default()).unwrap();
    assert_eq!(
        refusal.message,
        "REBOOT of rack-1 cannot start now: window night (daily 02:00-05:00 Europe/Berlin) is \
         closed until Sat 2026-11-21 02:00 Europe/Berlin (2026-11-21T01:00:00Z) (on m-1, m-3); \
         freeze year-end holds until Sat 2027-01-02 00:00 UTC: end of the year (on m-2) \
         (gate window:night)"
    );
    assert_eq!(
        refusal.next_command.as_deref(),
        Some(
            "farrier window get night   # or repeat it with --override \
             window:night,freeze:year-end --reason …"
        )
    );

    let one = Overrides::of(&[], "fire").and_rule(&id("window:night"));
    let refusal = found.refuse("it", &one).unwrap();
    assert_eq!(refusal.gate_word().as_deref(), Some("freeze:year-end"));
    assert!(refusal.next_command.unwrap().contains("window:night,freeze:year-end"));
    let both = one.clone().and_rule(&id("freeze:year-end"));
    assert_eq!(found.refuse("it", &both), None);
    assert_eq!(
        found.history_notes(&one.and_rule(&id("window:other")), "ada"),
        "gate window:night overridden by ada: fire; \
         gate window:other named by ada, and it did not refuse: fire"
    );
}

#[test]
fn one_named_window_of_several_is_enough() {
    let rules =
        [rule("window:a", "", "Sat 02:00-05:00 UTC"), rule("window:b", "", "Sun 02:00-05:00 UTC")];
    let found = check(&[machine("m-1", "prod")], &rules, false);
    for (named, refuses) in [("window:a", false), ("window:b", false), ("window:c", true)] {
        let overrides = Overrides::of(&[], "fire").and_rule(&id(named));
        assert_eq!(found.refuse("it", &overrides).is_some(), refuses, "{named}");
    }
}

#[test]
fn a_dry_run_names_every_rule_that_selects() {
    let rules = [
        rule("window:a", "", "Fri 10:00-14:00 UTC"),
        rule("window:b", "labels.env=test", "Sat 02:00-05:00 UTC"),
        rule("freeze:f", "", "2026-12-01T00:00"),
    ];
    let overrides = ["window:a", "window:b", "freeze:f"]
        .iter()
        .fold(Overrides::of(&[], "fire"), |all, word| all.and_rule(&id(word)));
    let found = check(&[machine("m-1", "prod")], &rules, false);
    let open = "window a (Fri 10:00-14:00 UTC) is open until Fri 2026-11-20 14:00 UTC";
    let frozen = "freeze f holds until Tue 2026-12-01 00:00 UTC: end of the year";
    assert_eq!(
        found.describe(&Overrides::default()),
        [open.to_string(), format!("{frozen}; it refuses")]
    );
    assert_eq!(
        found.describe(&overrides),
        [
            format!("{open}; the override names it, and it does not refuse"),
            format!("{frozen}; it refuses, and the override passes it"),
            "window b is named by the override, and holds for none of the machines".to_string(),
        ]
    );
}

#[test]
fn an_override_names_windows_and_freezes_and_is_stored() {
    let parse = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Overrides::parse(&words, "fire", RACK_MAINTENANCE)
    };
    let all = parse(&["window:night", "freeze:f", "budget:b", "health"]).unwrap();
    assert_eq!(all.words(), ["health", "budget:b", "window:night", "freeze:f"]);
    let mut params = model::plan::Params::new();
    all.store_in(&mut params);
    assert_eq!(Overrides::of_params(&params), all);
    let stored = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Overrides>(&stored).unwrap(), all);
    assert_eq!(all.only(&[Gate::Window]).words(), ["window:night"]);
    assert_eq!(all.without_approval(), all);
    for (word, says) in [
        ("window", "names no window; write window:NAME, with a name from `farrier window list`"),
        ("freeze:", "gate_override.gates[0] is required"),
        ("freeze:a b", "contains ' '"),
    ] {
        let refusal = parse(&[word]).unwrap_err();
        assert!(refusal.message.contains(says), "{word}: {refusal}");
    }
}

#[test]
fn a_rule_is_checked_before_it_is_stored() {
    let now = utc(NOON);
    let freeze = |until: &str, reason: &str| {
        let terms = StartTerms::Frozen { until: utc(until), reason: reason.into() };
        StartRule { terms, ..rule("freeze:f", "", "2026-12-01T00:00") }
    };
    for (rule, field) in [
        (rule("window:a", "phase=READY", "daily 02:00-05:00 UTC"), Some("window.filter")),
        (rule("window:a", "labels.env", "daily 02:00-05:00 UTC"), None),
        (rule("freeze:f", "condition.Reachable=true", "2026-12-01T00:00"), Some("freeze.filter")),
        (freeze(NOON, "why"), Some("freeze.until")),
        (freeze("2028-11-20T12:00", "why"), Some("freeze.until")),
        (freeze("2026-11-20T12:01", "  "), Some("freeze.reason")),
        (freeze("2026-11-20T12:01", " why "), None),
    ] {
        let case = format!("{rule:?}");
        match rule.checked(now) {
            Ok(_) => assert_eq!(field, None, "{case}"),
            Err(refusal) => assert_eq!(refusal.field.as_deref(), field, "{case}"),
        }
    }
}
