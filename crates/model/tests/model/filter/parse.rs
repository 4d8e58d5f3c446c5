//! Filters as text: terms, and errors that point at a character.

use model::condition::ConditionType;
use model::filter::{Filter, FilterField, FilterSubject, FilterTerm, MAX_TERMS};

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

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}") {
        let _ = Filter::parse(&text, FilterSubject::Machine);
        let _ = Filter::parse(&format!("phase={text}"), FilterSubject::Run);
        let _ = Filter::parse(&format!("labels.x in ({text}"), FilterSubject::Machine);
    }
}
