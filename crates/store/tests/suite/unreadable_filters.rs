//! A row that cannot be decoded fails no list: every filter field of every list, in every order,
//! beside one unreadable row of each kind.

use crate::harness::{Db, machine, run};
use crate::unreadable::with_bad_rows;
use model::filter::FilterSubject;
use model::lifecycle::Lifecycle;
use model::node::Node;
use model::order::Selection;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::site::Site;
use model::switch::Switch;
use store::Result;

on_both!(
    machines_are_listed_with_every_filter_and_order,
    runs_are_listed_with_every_filter_and_order,
    records_are_listed_with_every_filter_and_order,
    other_lists_are_filtered_by_every_field,
);

/// A machine whose labels are no JSON. The triggers that index labels would refuse it.
const NO_LABELS: &str = "INSERT INTO machines (id, version, phase, holds, active_run, provider, \
     labels, body, created_at, updated_at) \
     VALUES ('bad-labels', 1, 'READY', 0, NULL, 'sim', '{', '{', 0, 0);";

async fn damaged(db: &Db) {
    with_bad_rows(db).await;
    let mut labeled = machine("m-3");
    labeled.labels.insert("env".into(), "prod".into());
    db.add_machines(vec![labeled]).await;
    db.insert_run(&run("op-good", "m-3"), None).await.unwrap();
    let on_sqlite = format!("DROP TRIGGER machines_labels_new; {NO_LABELS}");
    let on_postgres = format!(
        "ALTER TABLE machines DISABLE TRIGGER USER; {NO_LABELS} \
         ALTER TABLE machines ENABLE TRIGGER USER;"
    );
    db.execute_sql(&on_sqlite, &on_postgres).await;
}

/// The part of a refusal after these words, split at commas.
fn words_after(refusal: &str, words: &str) -> Vec<String> {
    let line = refusal.lines().next().unwrap_or_default();
    let (_, listed) = line.split_once(words).unwrap_or_else(|| panic!("{words:?} in {refusal}"));
    listed.split(", ").map(String::from).collect()
}

/// A filter for each field and each comparison. The parser itself names fields, values and orders.
fn filters(subject: FilterSubject) -> Vec<String> {
    let parse = |text: &str| Selection::parse(text, "", subject);
    let refusal = parse("nosuch=1").unwrap_err();
    let mut texts = vec![String::new()];
    for field in words_after(&refusal.message, "the fields are ") {
        let field = field.replace("labels.KEY", "labels.env");
        let field = field.replace("condition.TYPE", "condition.Reachable");
        if field == "created_at" {
            texts.extend(["created_at>=1970-01-01".into(), "created_at<2040-01-01".into()]);
            continue;
        }
        let values = match parse(&format!("{field}=prod")) {
            Ok(_) => vec!["prod".to_string()],
            Err(refusal) => words_after(&refusal.message, "is none of "),
        };
        for value in values {
            texts.push(format!("{field}={value}"));
            texts.push(format!("{field}!={value}"));
            texts.push(format!("{field} not in ({value}, {value})"));
        }
        if field.starts_with("labels.") {
            texts.push(field);
        }
    }
    texts
}

fn orders(subject: FilterSubject) -> Vec<String> {
    let refusal = Selection::parse("", "nosuch", subject).unwrap_err();
    let fields = words_after(&refusal.message, "the fields are ");
    let directions = fields.iter().flat_map(|field| [field.clone(), format!("{field} desc")]);
    std::iter::once(String::new()).chain(directions).collect()
}

fn selections(subject: FilterSubject) -> Vec<(String, Selection)> {
    let mut all = Vec::new();
    for filter in filters(subject) {
        for order in orders(subject) {
            let selection = Selection::parse(&filter, &order, subject).unwrap();
            all.push((format!("{filter} ordered by {order:?}"), selection));
        }
    }
    all
}

async fn machines_are_listed_with_every_filter_and_order(db: Db) {
    damaged(&db).await;
    for (text, selection) in selections(FilterSubject::Machine) {
        let list = tx!([selection], |tx| tx.selected_machines(&selection, None, 99).await);
        let page = db.read(list).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        if selection.filter.terms.is_empty() {
            assert_eq!((page.machines.len(), page.unreadable.len()), (4, 2), "{text}");
        }
    }
    for (text, found) in [("labels.env=prod", 1), ("labels.env!=prod", 3), ("labels.env", 1)] {
        let selection = Selection::parse(text, "created_at", FilterSubject::Machine).unwrap();
        let list = tx!([selection], |tx| tx.selected_machines(&selection, None, 99).await);
        assert_eq!(db.read(list).await.unwrap().machines.len(), found, "{text}");
    }
}

async fn runs_are_listed_with_every_filter_and_order(db: Db) {
    damaged(&db).await;
    for (text, selection) in selections(FilterSubject::Run) {
        let list = tx!([selection], |tx| tx.selected_runs(&selection, None, 99).await);
        db.read(list).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    for (text, found) in [("initiator=alice", 1), ("initiator!=alice", 0), ("initiator=bob", 0)] {
        let selection = Selection::parse(text, "", FilterSubject::Run).unwrap();
        let list = tx!([selection], |tx| tx.selected_runs(&selection, None, 99).await);
        assert_eq!(db.read(list).await.unwrap().runs.len(), found, "{text}");
    }
}

async fn listed_records<R: Lifecycle>(db: &Db, subject: FilterSubject) {
    for (text, selection) in selections(subject) {
        let list = tx!([selection], |tx| tx.selected_records::<R>(&selection, None, 99).await);
        let page = db.read(list).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        // A filter by rack is part of the query; the other fields are in the body.
        let named = selection.filter.rack().is_none();
        assert_eq!(page.unreadable.len(), usize::from(named), "{text}");
    }
}

async fn records_are_listed_with_every_filter_and_order(db: Db) {
    damaged(&db).await;
    listed_records::<Rack>(&db, FilterSubject::Rack).await;
    listed_records::<Switch>(&db, FilterSubject::Switch).await;
    listed_records::<PowerShelf>(&db, FilterSubject::PowerShelf).await;
    listed_records::<Node>(&db, FilterSubject::Node).await;
    listed_records::<Site>(&db, FilterSubject::Site).await;
}

/// The number of rows that a filtered list leaves out.
async fn left_out(db: &Db, subject: FilterSubject, text: &str) -> Result<usize> {
    let filter = Selection::parse(text, "", subject).unwrap().filter;
    let list = tx!([filter, subject], |tx| Ok(match subject {
        FilterSubject::Health => tx.health_list(&filter, "", 9).await?.unreadable.len(),
        FilterSubject::Firmware => tx.firmware_list(&filter, "", 9).await?.unreadable.len(),
        FilterSubject::Image => tx.images(&filter, "", 9).await?.unreadable.len(),
        FilterSubject::Credential => tx.credentials(&filter, "", 9).await?.unreadable.len(),
        FilterSubject::Identity => tx.identities(&filter, "", 9).await?.unreadable.len(),
        other => panic!("{other:?} has no list here"),
    }));
    db.read(list).await
}

async fn other_lists_are_filtered_by_every_field(db: Db) {
    damaged(&db).await;
    let always = [FilterSubject::Health, FilterSubject::Firmware, FilterSubject::Image];
    let typed = [FilterSubject::Credential, FilterSubject::Identity];
    for subject in always.into_iter().chain(typed) {
        // PostgreSQL checks the types of columns.
        let expected = usize::from(always.contains(&subject) || db.is_sqlite());
        for text in filters(subject) {
            let count = left_out(&db, subject, &text).await;
            let by_column = text.starts_with("hardware_type=");
            let expected = if by_column { 0 } else { expected };
            assert_eq!(count, Ok(expected), "{subject:?} {text}");
        }
    }
}
