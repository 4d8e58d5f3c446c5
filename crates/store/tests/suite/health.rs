//! Health reports: stored by object and source, with their summary in the object.

use crate::harness::{Db, at};
use model::filter::{Filter, FilterSubject};
use model::health::{Alert, AlertCounts, Alerts, HealthSummary, ReportChange};
use model::id::MachineId;
use model::lifecycle::{DeviceSpec, RecordHeader};
use model::machine::Labels;
use model::power_shelf::PowerShelf;
use model::target::{TargetId, TargetKind};
use store::{NewEvent, StoreError};

on_both!(
    reports_change_their_object_in_one_commit,
    reports_are_deleted_with_their_record,
    lists_are_filtered_and_paged,
    alerts_are_counted_by_kind,
);

fn alerts(all: &[(&str, &[&str])]) -> Alerts {
    let alert = |classes: &[&str]| Alert {
        component: "fan-1".into(),
        message: "it stands still".into(),
        classes: classes.iter().map(ToString::to_string).collect(),
        since: at(1),
    };
    all.iter().map(|(id, classes)| (id.to_string(), alert(classes))).collect()
}

fn report_event(message: &str) -> NewEvent {
    NewEvent { message: message.into(), ..crate::harness::event() }
}

fn on(id: &str) -> TargetId {
    TargetId::parse(id).unwrap()
}

async fn add_machine(db: &Db, id: &str) -> TargetId {
    db.add_machine(id).await;
    on(id)
}

async fn add_shelf(db: &Db, id: &str) -> TargetId {
    let shelf = PowerShelf::new(RecordHeader::new(id, Labels::new(), at(1)), DeviceSpec::default());
    db.write(tx!([shelf], |tx| {
        let mut shelf = shelf;
        tx.insert_record(&mut shelf, &report_event("created")).await
    }))
    .await
    .unwrap();
    on(id)
}

async fn merge(db: &Db, object: &TargetId, source: &'static str, all: Alerts) {
    let event = report_event(&ReportChange::Merge(all.clone()).said(source));
    db.write(tx!([object, all, event], |tx| tx.merge_health(&object, source, &all, &event).await))
        .await
        .unwrap();
}

async fn history(db: &Db, object: &TargetId) -> Vec<String> {
    let id = object.to_string();
    let found = db.read(tx!([id], |tx| tx.history(&id, 0, 100).await)).await.unwrap();
    found.into_iter().map(|event| event.message).collect()
}

async fn health_of(db: &Db, id: &str) -> HealthSummary {
    let id = MachineId::trusted(id);
    db.read(tx!([id], |tx| tx.machine(&id).await)).await.unwrap().unwrap().health
}

async fn reports_change_their_object_in_one_commit(db: Db) {
    let one = add_machine(&db, "m-1").await;
    merge(&db, &one, "site", alerts(&[("fan", &["prevent-allocations"])])).await;
    merge(&db, &one, "site", alerts(&[("psu", &[])])).await;
    // A repeated report changes nothing.
    merge(&db, &one, "site", alerts(&[("psu", &[])])).await;
    merge(&db, &one, "vendor", alerts(&[("fan", &["prevent-state-changes"])])).await;
    let found = db.read(tx!([one], |tx| tx.health(&one).await)).await.unwrap();
    let ids = |source: &str| found[source].alerts.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        (ids("site"), ids("vendor")),
        (vec!["fan".into(), "psu".into()], vec!["fan".into()])
    );
    let stored = health_of(&db, "m-1").await;
    assert_eq!(stored, HealthSummary::of(&found));
    assert_eq!(stored.allocations_blocked_by.map(|bar| bar.source), Some("site".to_string()));
    assert_eq!(stored.alerts, 3);

    let exactly = alerts(&[("nic", &[])]);
    db.write(tx!([one, exactly], |tx| {
        tx.replace_health(&one, "site", &exactly, &report_event("replaced")).await
    }))
    .await
    .unwrap();
    assert_eq!(health_of(&db, "m-1").await.allocations_blocked_by, None);
    for source in ["site", "vendor", "nobody"] {
        db.write(tx!([one], |tx| tx.remove_health(&one, source, &report_event("removed")).await))
            .await
            .unwrap();
    }
    assert!(health_of(&db, "m-1").await.is_clear());
    assert!(db.read(tx!([one], |tx| tx.health(&one).await)).await.unwrap().is_empty());
    assert_eq!(
        history(&db, &one).await,
        [
            "because",
            "site reports fan: it stands still",
            "site reports psu: it stands still",
            "vendor reports fan: it stands still",
            "replaced",
            "removed",
            "removed",
        ]
    );

    let nobody = on("m-9");
    let none = alerts(&[("fan", &[])]);
    let refused = db.write(tx!([nobody, none], |tx| tx
        .merge_health(&nobody, "s", &none, &report_event("x"))
        .await));
    assert!(matches!(refused.await, Err(StoreError::Refused(_))));
}

async fn reports_are_deleted_with_their_record(db: Db) {
    let shelf = add_shelf(&db, "ps-1").await;
    merge(&db, &shelf, "site", alerts(&[("fan", &["prevent-state-changes"])])).await;
    assert_eq!(history(&db, &shelf).await, ["created", "site reports fan: it stands still"]);
    let stored =
        db.read(tx!([], |tx| tx.record::<PowerShelf>("ps-1").await)).await.unwrap().unwrap();
    assert!(stored.head.health.state_changes.is_some());
    db.write(tx!([stored], |tx| tx.remove_record(&stored, &report_event("removed"))))
        .await
        .unwrap();
    assert!(db.read(tx!([shelf], |tx| tx.health(&shelf).await)).await.unwrap().is_empty());
}

async fn lists_are_filtered_and_paged(db: Db) {
    for n in 0..5 {
        let one = add_machine(&db, &format!("m-{n}")).await;
        merge(&db, &one, "site", alerts(&[("fan", if n % 2 == 0 { &["odd"] } else { &[] })])).await;
        merge(&db, &one, "vendor", alerts(&[("psu", &["prevent-allocations"])])).await;
    }
    let shelf = add_shelf(&db, "ps-1").await;
    merge(&db, &shelf, "site", alerts(&[("fan", &[])])).await;
    let list = async |text: &str, after: &str, limit: usize| {
        let filter = Filter::parse(text, FilterSubject::Health).unwrap();
        let after = after.to_string();
        let work = tx!([filter, after], |tx| tx.health_list(&filter, &after, limit).await);
        let found = db.read(work).await.unwrap().complete().unwrap();
        found.iter().map(|(object, _)| object.key()).collect::<Vec<_>>()
    };
    assert_eq!(list("", "", 3).await, ["m-0", "m-1", "m-2"]);
    assert_eq!(list("", "m-2", 9).await, ["m-3", "m-4", "power_shelf:ps-1"]);
    assert_eq!(list("source=site AND classification=odd", "", 9).await, ["m-0", "m-2", "m-4"]);
    assert_eq!(list("source=vendor", "m-3", 9).await, ["m-4"]);
    assert!(list("source=vendor AND classification=odd", "", 9).await.is_empty());

    for (id, there) in [("m-1", true), ("m-7", false), ("ps-1", true), ("sw-1", false)] {
        let object = on(id);
        assert_eq!(
            db.read(tx!([object], |tx| tx.target_exists(&object).await)).await,
            Ok(there),
            "{id}"
        );
    }
    let requested = [on("m-1"), on("m-7"), on("ps-1")];
    let among =
        db.read(tx!([requested], |tx| tx.health_of_objects(&requested).await)).await.unwrap();
    assert_eq!(among.keys().map(TargetId::key).collect::<Vec<_>>(), ["m-1", "power_shelf:ps-1"]);
    assert_eq!(among[&on("m-1")].len(), 2);
}

async fn alerts_are_counted_by_kind(db: Db) {
    assert!(db.read(tx!([], |tx| tx.health_tally().await)).await.unwrap().is_empty());
    for n in 0..2 {
        let one = add_machine(&db, &format!("m-{n}")).await;
        merge(&db, &one, "site", alerts(&[("a", &["prevent-allocations"]), ("b", &[])])).await;
    }
    let shelf = add_shelf(&db, "ps-1").await;
    merge(&db, &shelf, "site", alerts(&[("a", &["suppress-external-alerting"])])).await;
    let mut tally = db.read(tx!([], |tx| tx.health_tally().await)).await.unwrap();
    tally.sort_by_key(|(kind, _)| *kind);
    let machines = AlertCounts { prevent_allocations: 2, other: 2, ..AlertCounts::default() };
    let shelves = AlertCounts { suppressed: 1, ..AlertCounts::default() };
    assert_eq!(tally, [(TargetKind::Machine, machines), (TargetKind::PowerShelf, shelves)]);
}
