//! Windows and freezes as people type them.

use crate::api_cli::Terminal;

/// Lines are split at spaces, so a tab separates the parts of a window.
const NIGHT: &str = "daily\t02:00-05:00\tEurope/Berlin";

/// Every command of `farrier window` and `farrier freeze`.
pub fn typed(person: &Terminal) {
    for (line, word) in [
        ("window create w --open daily", "write it as"),
        ("window create w --open daily\t02:00-05:00\tEurope/Berln", "Europe/Berlin?"),
        ("window create w --open daily\t02:00-05:00\tUTC --filter phase=READY", "window.filter"),
        ("window create w --open daily\t02:00-05:00\tUTC --for all", "rollouts, everything"),
        ("window create op-1 --open daily\t02:00-05:00\tUTC", "window.window_id"),
        ("window get w", "farrier window list"),
        ("window update w --for everything", "farrier window list"),
        ("window delete w", "farrier window list"),
        ("freeze create f --until soon --reason why", "write it in UTC"),
        ("freeze create f --until 2020-01-01 --reason why", "freeze.until"),
        ("freeze end f", "farrier freeze list"),
    ] {
        let message = person.line(line, 2);
        assert!(message.contains(word), "{line}: {message}");
    }
    windows(person);
    freezes(person);
}

fn windows(person: &Terminal) {
    let create = format!("window create typed --filter labels.env=none --open {NIGHT}");
    person.check_dry_run(&create, "window list", &["window typed would be created", "Berlin"]);
    for _ in 0..2 {
        assert!(person.line(&create, 0).contains("window typed is created"));
    }
    let message = person.line("window create typed --open daily\t01:00-02:00\tUTC", 2);
    assert!(message.contains("exists already"), "{message}");
    person.formats("window list", "typed");
    person.formats("window list --filter holds_for=rollouts", "typed");
    person.formats("window get typed", "daily 02:00-05:00 Europe/Berlin");
    let message = person.line("window list --filter colour=red", 2);
    assert!(message.contains("name, holds_for"), "{message}");
    let message = person.line("window update typed", 2);
    assert!(message.contains("changes nothing"), "{message}");
    let change = "window update typed --for everything";
    person.check_dry_run(change, "window get typed", &["window typed would be changed"]);
    let message = person.line(&format!("{change} --expected-version 99"), 2);
    assert!(message.contains("version"), "{message}");
    assert!(person.line(change, 0).contains("window typed is changed"));
    let history = person.line("history window/typed", 0);
    let words = "daily 02:00-05:00 Europe/Berlin, for rollouts on labels.env=none";
    assert!(history.contains(words), "{history}");
    person.check_dry_run("window delete typed", "window get typed", &["would be deleted"]);
    assert!(person.line("window delete typed", 0).contains("window typed is deleted"));
}

/// A freeze refuses a machine of its filter; an override passes it.
fn freezes(person: &Terminal) {
    person.line("machine register frozen-1 --provider sim", 0);
    person.line("machine update frozen-1 --label freeze=typed", 0);
    let freeze = |until: &str| {
        format!("freeze create typed --filter labels.freeze=typed --until {until} --reason audit")
    };
    let message = person.line(&freeze("2999-01-01"), 2);
    assert!(message.contains("name a time within"), "{message}");
    let tomorrow = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    let create = freeze(&tomorrow.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    person.check_dry_run(&create, "freeze list", &["freeze typed would be created", "audit"]);
    assert!(person.line(&create, 0).contains("freeze typed is created"));
    person.formats("freeze list", "typed");
    person.formats("freeze list --filter name=typed", "frozen");

    for line in ["enter-maintenance frozen-1", "enter-maintenance frozen-1 --dry-run"] {
        let message = person.line(line, 2);
        for word in ["freeze typed holds until", "audit", "gate freeze:typed", "freeze list"] {
            assert!(message.contains(word), "{line}: {message}");
        }
    }
    let passed = "enter-maintenance frozen-1 --override freeze:typed --reason fire";
    let dry = person.line(&format!("{passed} --dry-run"), 0);
    assert!(dry.contains("it refuses, and the override passes it"), "{dry}");
    person.line(passed, 0);
    let history = person.line("history frozen-1", 0);
    assert!(history.contains("gate freeze:typed overridden by"), "{history}");
    person.line("exit-maintenance frozen-1", 0);

    person.check_dry_run("freeze end typed", "freeze list", &["freeze typed would be ended"]);
    assert!(person.line("freeze end typed", 0).contains("freeze typed is ended"));
    person.line("enter-maintenance frozen-1", 0);
    person.line("exit-maintenance frozen-1", 0);
}
