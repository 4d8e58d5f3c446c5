//! The orders of lists: what is read, and what is refused.

use model::filter::FilterSubject as Subject;
use model::order::{ListOrder, OrderField, TimePosition};

#[test]
fn orders_are_read() {
    use OrderField::{CreatedAt, FinishedAt, Id, UpdatedAt};
    let some = |field, descending| Some(ListOrder { field, descending });
    for (subject, text, expected) in [
        (Subject::Machine, "", None),
        (Subject::Machine, "  ", None),
        (Subject::Machine, "machine_id", None),
        (Subject::Machine, "machine_id asc", None),
        (Subject::Machine, "machine_id desc", some(Id, true)),
        (Subject::Machine, " created_at  DESC ", some(CreatedAt, true)),
        (Subject::Machine, "updated_at", some(UpdatedAt, false)),
        (Subject::Run, "created_at desc", None),
        (Subject::Run, "created_at", some(CreatedAt, false)),
        (Subject::Run, "finished_at desc", some(FinishedAt, true)),
        (Subject::Rack, "rack_id desc", some(Id, true)),
        (Subject::Node, "updated_at desc", some(UpdatedAt, true)),
        (Subject::FirmwareHistory, "at desc", None),
        (Subject::FirmwareHistory, "at", some(CreatedAt, false)),
        (Subject::History, "ts", None),
        (Subject::History, "ts desc", some(CreatedAt, true)),
        (Subject::Image, "", None),
    ] {
        assert_eq!(ListOrder::parse(text, subject).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn unknown_orders_are_refused_with_the_fields() {
    for (subject, text, expected) in [
        (Subject::Machine, "rack", "the fields are machine_id, created_at, updated_at"),
        (Subject::Machine, "created_at down", "\"machine_id desc\""),
        (Subject::Machine, "created_at desc, machine_id", "use one field"),
        (Subject::Machine, "created_at,machine_id", "use one field"),
        (Subject::Run, "updated_at", "the fields are created_at, finished_at"),
        (Subject::Switch, "rack_id", "the fields are switch_id, created_at, updated_at"),
        (Subject::Image, "name", "leave it out"),
    ] {
        let refusal = ListOrder::parse(text, subject).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("order_by"));
        assert!(refusal.message.contains(expected), "{text}: {refusal}");
    }
    let long = "x".repeat(100_000);
    assert!(ListOrder::parse(&long, Subject::Run).unwrap_err().message.len() < 300);
}

#[test]
fn positions_are_read_as_they_are_written() {
    let position = TimePosition { micros: -7, id: "rack:rack-1".into() };
    assert_eq!(TimePosition::parse(&position.to_text()), Ok(position));
    for text in ["", "m-1", "x m-1", "1"] {
        let refusal = TimePosition::parse(text).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("page_token"), "{text:?}");
    }
}
