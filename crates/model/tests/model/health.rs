//! Health reports: how changes merge, what is refused, and which gates alerts close.

use model::filter::{Filter, FilterSubject};
use model::gate::{Gate, Overrides};
use model::health::{
    Alert, AlertClass, Alerts, HealthImpact, HealthReport, HealthSummary, MAX_ALERTS, MAX_CLASSES,
    MAX_SOURCES, ReportChange, Reports, apply, has_matching_alert,
};
use model::target::{TargetId, TargetKind};
use model::text;
use model::time::Timestamp;
use std::collections::BTreeSet;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn alert(message: &str, classes: &[&str], since: i64) -> Alert {
    Alert {
        component: String::new(),
        message: message.into(),
        classes: classes.iter().map(ToString::to_string).collect(),
        since: at(since),
    }
}

fn alerts(all: &[(&str, &str, i64)]) -> Alerts {
    all.iter().map(|(id, message, since)| (id.to_string(), alert(message, &[], *since))).collect()
}

fn ids(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(ToString::to_string).collect()
}

fn shown(reports: &Reports) -> Vec<String> {
    let report = |(source, report): (&String, &HealthReport)| {
        let alerts = report.alerts.iter();
        let alerts: Vec<String> = alerts
            .map(|(id, one)| format!("{id}={}@{}", one.message, one.since.as_millis() / 1_000))
            .collect();
        format!("{source}[{}]@{}", alerts.join(" "), report.updated_at.as_millis() / 1_000)
    };
    reports.iter().map(report).collect()
}

#[test]
fn each_change_touches_its_own_report_only() {
    let mut known = Reports::new();
    for (source, found) in
        [("a", [("x", "old", 1), ("y", "old", 2)]), ("b", [("x", "b", 3), ("z", "b", 3)])]
    {
        known.insert(source.into(), HealthReport { alerts: alerts(&found), updated_at: at(3) });
    }
    let b = "b[x=b@3 z=b@3]@3";
    let table: [(&str, ReportChange, &[&str]); 9] = [
        ("a", ReportChange::Merge(alerts(&[("x", "new", 9)])), &["a[x=new@1 y=old@2]@9", b]),
        (
            "a",
            ReportChange::Merge(alerts(&[("w", "new", 9)])),
            &["a[w=new@9 x=old@1 y=old@2]@9", b],
        ),
        // An unchanged alert changes nothing, not even the time.
        ("a", ReportChange::Merge(alerts(&[("x", "old", 9)])), &["a[x=old@1 y=old@2]@3", b]),
        ("a", ReportChange::Replace(alerts(&[("x", "new", 9)])), &["a[x=new@1]@9", b]),
        ("a", ReportChange::Replace(Alerts::new()), &[b]),
        ("a", ReportChange::Remove(ids(&["x", "nobody"])), &["a[y=old@2]@9", b]),
        ("a", ReportChange::Remove(ids(&["x", "y"])), &[b]),
        ("a", ReportChange::Remove(ids(&[])), &[b]),
        ("c", ReportChange::Remove(ids(&[])), &["a[x=old@1 y=old@2]@3", b]),
    ];
    for (source, change, expected) in table {
        let after = apply(&known, source, &change, at(9)).unwrap();
        assert_eq!(shown(&after), expected, "{change:?}");
        // Every change is idempotent.
        assert_eq!(apply(&after, source, &change, at(10)), Ok(after.clone()), "{change:?}");
    }
}

#[test]
fn what_is_too_much_is_named() {
    let many = |count: usize| -> Alerts {
        (0..count).map(|n| (format!("a{n}"), alert("m", &[], 0))).collect()
    };
    let with = |one: Alert| Alerts::from([("a".to_string(), one)]);
    let long = "x".repeat(text::MAX_LONG + 1);
    let words: Vec<String> = (0..=MAX_CLASSES).map(|n| format!("c{n}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let table = [
        (many(MAX_ALERTS), None),
        (many(MAX_ALERTS + 1), Some("alerts")),
        (Alerts::from([("A B".to_string(), alert("m", &[], 0))]), Some("alerts.id")),
        (with(alert("", &[], 0)), Some("alerts[a].message")),
        (with(alert(&long, &[], 0)), Some("alerts[a].message")),
        (with(alert("a\nb", &[], 0)), Some("alerts[a].message")),
        (with(alert("m", &["Not A Word"], 0)), Some("alerts[a].classifications")),
        (with(alert("m", &words, 0)), Some("alerts[a].classifications")),
        (
            with(Alert { component: "p".repeat(129), ..alert("m", &[], 0) }),
            Some("alerts[a].target"),
        ),
        (with(alert("m", &["anything", "prevent-allocations"], 0)), None),
    ];
    for (alerts, field) in table {
        let message = ReportChange::Merge(alerts.clone()).checked().err().and_then(|one| one.field);
        assert_eq!(message.as_deref(), field, "{alerts:?}");
        assert_eq!(
            ReportChange::Replace(alerts).checked().err().and_then(|one| one.field),
            message
        );
    }
    assert!(ReportChange::Remove(ids(&["A B"])).checked().is_err());

    let full: Reports =
        (0..MAX_SOURCES).map(|n| (format!("s{n}"), HealthReport::new(many(1)))).collect();
    let refusal = apply(&full, "one-more", &ReportChange::Merge(many(1)), at(1)).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("source"));
    assert!(apply(&full, "s0", &ReportChange::Merge(many(2)), at(1)).is_ok());
    let refusal =
        apply(&full, "s0", &ReportChange::Merge(many(MAX_ALERTS + 1)), at(1)).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("alerts"));
}

fn summary_of(classes: &[&[&str]]) -> HealthSummary {
    let report = |n: usize, classes: &&[&str]| {
        let one = alert("too hot", classes, n as i64);
        (format!("s{n}"), HealthReport::new([(format!("a{n}"), one)]))
    };
    HealthSummary::of(&classes.iter().enumerate().map(|(n, one)| report(n, one)).collect())
}

/// Rows: the alerts. Columns: may the object be changed, may workloads be placed on it.
#[test]
fn gates_by_classification() {
    let position = AlertClass::PreventAllocations.as_str();
    let change = AlertClass::PreventStateChanges.as_str();
    let silent = AlertClass::SuppressExternalAlerting.as_str();
    let table: [(&[&[&str]], bool, bool); 8] = [
        (&[], true, true),
        (&[&[]], true, true),
        (&[&["unknown-word"]], true, true),
        (&[&[silent]], true, true),
        (&[&[position]], true, false),
        (&[&[change]], false, false),
        (&[&["unknown-word"], &[position, silent]], true, false),
        (&[&[position], &[change]], false, false),
    ];
    let target = TargetId::new(TargetKind::Rack, "rack-1");
    for (classes, may_change, may_place) in table {
        let status = summary_of(classes);
        for (requested, open) in
            [(HealthImpact::Change, may_change), (HealthImpact::PlaceWorkloads, may_place)]
        {
            let permitted = |gates: &[Gate]| {
                let overrides = Overrides::of(gates, "fire");
                status.check_permitted(&target, "REBOOT", requested, &overrides)
            };
            let classification = permitted(&[]);
            assert_eq!(classification.is_ok(), open, "{classes:?} {requested:?}");
            assert_eq!(permitted(&[Gate::Health]), Ok(()));
            assert_eq!(permitted(&[Gate::InService]).is_ok(), open);
            if let Err(refusal) = classification {
                assert_eq!(refusal.reason.as_str(), "HEALTH_PREVENTS");
                assert!(refusal.message.contains("too hot"), "{refusal}");
                assert_eq!(refusal.gate, Some(Gate::Health));
                let next =
                    "farrier health get rack-1   # or repeat it with --override health --reason …";
                assert_eq!(refusal.next_command.as_deref(), Some(next));
            }
        }
    }
}

#[test]
fn the_oldest_alert_is_named_and_the_others_are_counted() {
    let position = AlertClass::PreventAllocations.as_str();
    let both = summary_of(&[&[], &[position], &[position]]);
    assert_eq!(both.allocations_blocked_by.as_ref().map(|bar| bar.alert.as_str()), Some("a1"));
    assert_eq!(
        both.messages(),
        ["nothing new is placed on it: s1 reports a1: too hot", "3 alerts are reported"]
    );
    assert_eq!(summary_of(&[&[position]]).messages().len(), 1);
    assert!(summary_of(&[]).is_clear());
}

#[test]
fn what_pages_somebody_is_counted_by_what_it_prevents() {
    let position = AlertClass::PreventAllocations.as_str();
    let change = AlertClass::PreventStateChanges.as_str();
    let silent = AlertClass::SuppressExternalAlerting.as_str();
    let all =
        [vec![], vec!["word"], vec![position], vec![position, change], vec![position, silent]];
    let report = HealthReport::new(
        all.iter().enumerate().map(|(n, classes)| (format!("a{n}"), alert("m", classes, 0))),
    );
    let tally = report.tally();
    assert_eq!(
        (tally.prevent_allocations, tally.prevent_state_changes, tally.other, tally.suppressed),
        (2, 1, 2, 1)
    );
}

#[test]
fn a_filter_finds_one_alert_that_is_all_of_it() {
    let of = |classes: &[&str]| HealthReport::new([("a".to_string(), alert("m", classes, 0))]);
    let reports = Reports::from([("s".to_string(), of(&["x"])), ("t".to_string(), of(&["y"]))]);
    let object = TargetId::parse("ps-1").unwrap();
    let table = [
        ("", true),
        ("source=s", true),
        ("source=u", false),
        ("classification=y", true),
        ("source=s AND classification=y", false),
        ("source=t AND classification=y", true),
        ("source!=s AND classification!=y", false),
        ("classification not in (x, y)", false),
        ("kind=power_shelf AND id=ps-1 AND alert=a AND target=\"\"", true),
        ("kind=rack", false),
    ];
    for (text, found) in table {
        let filter = Filter::parse(text, FilterSubject::Health).unwrap();
        assert_eq!(has_matching_alert(&filter, &object, &reports), found, "{text}");
    }
    assert!(!has_matching_alert(&Filter::default(), &object, &Reports::new()));
}
