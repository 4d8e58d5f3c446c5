//! Filters as text: terms, and errors that point at a character.

use model::condition::ConditionType;
use model::filter::{Filter, FilterField, FilterSubject, FilterTerm, FilterValues, MAX_TERMS};

#[test]
fn terms_are_read() {
    let text = r#"phase=ready AND labels.env in (prod, "a \"b\"") and condition.Reachable != true"#;
    let filter = Filter::parse(text, FilterSubject::Machine).unwrap();
    let value = |text: &str| text.to_string();
    assert_eq!(
        filter.terms,
        [
            FilterTerm { field: FilterField::Phase, negated: false, values: vec![value("READY")] },
            FilterTerm {
                field: FilterField::Label("env".into()),
                negated: false,
                values: vec![value("prod"), value("a \"b\"")]
            },
            FilterTerm {
                field: FilterField::Condition(ConditionType::Reachable),
                negated: true,
                values: vec![value("true")]
            },
        ]
    );
    assert_eq!(Filter::parse("  ", FilterSubject::Run).unwrap(), Filter::default());
    assert_eq!(
        Filter::parse("type=REPAVE", FilterSubject::Run).unwrap().terms[0].values,
        ["REIMAGE"]
    );
}

#[test]
fn a_field_has_the_name_that_json_prints() {
    for (subject, name, earlier) in [
        (FilterSubject::Machine, "rack_id=rack-7", "rack=rack-7"),
        (FilterSubject::Switch, "rack_id=rack-7", "rack=rack-7"),
        (FilterSubject::PowerShelf, "rack_id=rack-7", "rack=rack-7"),
        (FilterSubject::Run, "rack_id=rack-7", "rack=rack-7"),
        (FilterSubject::Run, "operation_id=op-1", "run_id=op-1"),
        (FilterSubject::Run, "target_id=rack-7", "machine_id=rack:rack-7"),
        (FilterSubject::Run, "target_id=sw-1", "machine_id=switch:sw-1"),
        (FilterSubject::Run, "target_id=ps-1", "machine_id=power_shelf:ps-1"),
        (FilterSubject::Run, "target_id=web-7", "machine_id=web-7"),
    ] {
        let parse = |text| Filter::parse(text, subject).unwrap();
        assert_eq!(parse(name), parse(earlier), "{name}");
    }
}

#[test]
fn times_are_compared() {
    for (text, field, micros) in [
        ("created_at>=1970-01-02", FilterField::CreatedFrom, 86_400_000_000),
        ("created_at < 1970-01-01T00:00:01.5Z", FilterField::CreatedBefore, 1_500_000),
        ("created_at>=\"1969-12-31T23:59:59Z\"", FilterField::CreatedFrom, -1_000_000_i64),
    ] {
        let filter = Filter::parse(text, FilterSubject::Run).unwrap();
        let values = vec![micros.to_string()];
        assert_eq!(filter.terms, [FilterTerm { field, negated: false, values }], "{text}");
    }
    for (text, position) in
        [("created_at=1970-01-01", 11), ("created_at>1970-01-01", 11), ("created_at>=soon", 13)]
    {
        let refusal = Filter::parse(text, FilterSubject::Run).unwrap_err();
        assert!(refusal.message.contains(&format!("at character {position}:")), "{refusal}");
    }
}

#[test]
fn errors_point_at_the_character() {
    let table = [
        ("colour=red", 1),
        ("phase=READY AND colour=red", 17),
        ("phase=GREEN", 7),
        ("phase", 6),
        ("phase=", 7),
        ("phase==READY", 7),
        ("phase in READY", 10),
        ("phase in (READY", 16),
        ("phase in (READY MAINTENANCE)", 17),
        ("phase=READY OR phase=MAINTENANCE", 13),
        ("phase=READY AND", 16),
        ("condition.Happy=true", 11),
        ("condition.Reachable=maybe", 21),
        ("labels.=x", 1),
        ("labels.env=\"prod", 12),
        ("labels.env=\"a\u{0}\"", 12),
        ("labels.ä=ü AND phase=☃", 22),
    ];
    for (text, position) in table {
        let refusal = Filter::parse(text, FilterSubject::Machine).unwrap_err();
        let expected = format!("at character {position}:");
        assert!(refusal.message.contains(&expected), "{text}: {refusal}");
        assert_eq!(refusal.field.as_deref(), Some("filter"));
    }
}

#[test]
fn the_caret_stands_under_the_character() {
    let refusal = Filter::parse("phase=READY AND colour=red", FilterSubject::Machine).unwrap_err();
    let lines: Vec<&str> = refusal.message.lines().collect();
    assert_eq!(lines[1], "  phase=READY AND colour=red");
    assert_eq!(lines[2].find('^'), Some(2 + 16));
}

#[test]
fn a_million_characters_are_refused_in_a_line() {
    let refusal = Filter::parse(&"x".repeat(1_000_000), FilterSubject::Run).unwrap_err();
    assert!(refusal.message.len() < 100, "{refusal}");
    let many = vec!["machine_id=a"; MAX_TERMS + 1].join(" AND ");
    assert!(Filter::parse(&many, FilterSubject::Run).is_err());
}

#[test]
fn named_fields_are_checked_like_the_others() {
    use FilterSubject as S;
    let table = [
        (S::Health, "colour=red", "the fields are id, kind, source, classification, alert, target"),
        (S::Health, "kind=site", "is none of machine, switch, power_shelf, rack"),
        (S::Firmware, "available=maybe", "is none of true, false"),
        (S::FirmwareHistory, "device_type=rack", "is none of machine, switch, power_shelf"),
        (S::Image, "kind=zip", "is none of raw, qcow2, tar, kernel, iso"),
        (S::Credential, "kind=key", "is none of password, ssh-key, kubeconfig, maas-key"),
        (S::Identity, "host=a", "the fields are peer"),
        (S::History, "cause=me", "is none of request, engine, probe, admin"),
        (S::Replica, "state=up", "the fields are name, version, incarnation"),
        (S::SimFault, "verb=run", "is none of perform, follow, get_status, observe, stop"),
        (S::SimFault, "action=melt", "is none of fail, hang, drop, garbage, slow, twice"),
        (S::SimEffect, "prefix=op-1", "the fields are key, run_id, step, machine, effect"),
        (
            S::ComponentFirmware,
            "labels.a=b",
            "the fields are device_id, device_type, hardware_type",
        ),
    ];
    for (subject, text, expected) in table {
        let refusal = Filter::parse(text, subject).unwrap_err();
        assert!(refusal.message.contains(expected), "{text}: {refusal}");
        assert_eq!(refusal.field.as_deref(), Some("filter"));
    }
    let filter = Filter::parse("KIND=raw", S::Image);
    assert!(filter.is_err(), "field names must be exact");
    let filter = Filter::parse("kind in (RAW, qcow2)", S::Image).unwrap();
    assert_eq!(filter.terms[0].values, ["raw", "qcow2"]);
    assert_eq!(filter.named_value("kind"), None, "two values");
    let filter = Filter::parse("name!=a AND name=b", S::Image).unwrap();
    assert_eq!(filter.named_value("name"), Some("b"));
}

/// An item with several values of one field, and none of another.
struct Item;

impl FilterValues for Item {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "classification" => vec!["a".into(), "b".into()],
            _ => Vec::new(),
        }
    }
}

#[test]
fn a_list_matches_when_one_of_its_values_does() {
    for (text, expected) in [
        ("classification=a", true),
        ("classification in (b, c)", true),
        ("classification=c", false),
        ("classification!=a", false),
        ("classification not in (c, d)", true),
        ("source=a", false),
        ("source!=a", true),
        ("classification=a AND source=a", false),
    ] {
        let filter = Filter::parse(text, FilterSubject::Health).unwrap();
        assert_eq!(filter.matches_values(&Item), expected, "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}") {
        let _ = Filter::parse(&text, FilterSubject::Machine);
        let _ = Filter::parse(&format!("phase={text}"), FilterSubject::Run);
        let _ = Filter::parse(&format!("labels.x in ({text}"), FilterSubject::Machine);
    }
}

/// The three intents select by phase, the other lifecycle states by lifecycle state.
#[test]
fn a_phase_takes_all_lifecycle_states() {
    use model::filter::FilterItem;
    use model::id::{MachineId, RunId};
    use model::machine::{Labels, Machine, MachineSpec, Phase};
    use model::time::Timestamp;
    let now = Timestamp::default();
    let mut busy =
        Machine::new(MachineId::trusted("m"), MachineSpec::default(), Labels::new(), now);
    busy.phase = Phase::Ready;
    busy.active_run = Some(RunId::trusted("op-1"));
    let mut idle = busy.clone();
    idle.active_run = None;
    for (text, of_busy, of_idle) in [
        ("phase=READY", true, true),
        ("phase=PROVISIONING", true, false),
        ("phase in (PROVISIONING, MAINTENANCE)", true, false),
        ("phase!=PROVISIONING", false, true),
        ("phase not in (PROVISIONING, READY)", false, false),
        ("phase=IN_SERVICE", false, false),
    ] {
        let filter = Filter::parse(text, FilterSubject::Machine).unwrap();
        let matches = |machine| filter.matches(FilterItem::Machine(machine));
        assert_eq!((matches(&busy), matches(&idle)), (of_busy, of_idle), "{text}");
    }
}
