//! Rows that cannot be decoded: lists leave them out and name them, decisions fail, and they can be
//! set aside and put back.

use crate::harness::{Db, event, machine};
use model::filter::Filter;
use model::id::MachineId;
use model::lifecycle::Lifecycle;
use model::machine::NodeName;
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::site::Site;
use model::switch::Switch;
use store::{RowKind, StoreError, UnreadableRow};

on_both!(
    lists_leave_unreadable_rows_out,
    a_decision_about_an_unreadable_row_names_it,
    rows_of_every_kind_are_set_aside_and_put_back,
    a_page_ends_at_an_unreadable_row,
    a_machine_that_was_set_aside_gives_its_node_name_back,
    what_identifies_an_unreadable_machine_is_read,
);

const UNREADABLE: &str = include_str!("../unreadable.sql");
/// PostgreSQL checks the types of columns, so these rows can only be wrong on SQLite.
const WRONG_TYPES: &str = "INSERT INTO credentials (name, kind, login, sealed, version, updated_at) \
     VALUES ('cred-bad', 'password', 'root', 'no blob', 1, 0); \
     INSERT INTO identities (peer, identity, first_seen) VALUES ('https://bad', 'x', 'never');";

pub async fn with_bad_rows(db: &Db) {
    db.add_machines(vec![machine("m-0"), machine("m-1"), machine("m-2")]).await;
    db.execute_sql(&format!("{UNREADABLE} {WRONG_TYPES}"), UNREADABLE).await;
}

/// The kinds that are unreadable in this database.
fn bad_kinds(db: &Db) -> Vec<RowKind> {
    let typed = |kind: &RowKind| matches!(kind, RowKind::Credential | RowKind::Identity);
    RowKind::ALL.into_iter().filter(|kind| db.is_sqlite() || !typed(kind)).collect()
}

async fn check(db: &Db) -> Vec<UnreadableRow> {
    let check = tx!([], |tx| {
        let mut found = Vec::new();
        for kind in RowKind::ALL {
            found.extend(tx.check_rows(kind, "").await?.unreadable);
        }
        Ok(found)
    });
    db.read(check).await.unwrap()
}

async fn bad_record<R: Lifecycle>(db: &Db, id: &str) {
    let page = db.read(tx!([], |tx| tx.records::<R>(&Filter::default(), None, 9).await));
    let page = page.await.unwrap();
    assert_eq!(page.records.len(), 0, "{id}");
    assert_eq!(page.unreadable[0].id, id);
    assert!(page.complete().is_err());
}

async fn lists_leave_unreadable_rows_out(db: Db) {
    with_bad_rows(&db).await;
    let all = Filter::default;
    let page = db.read(tx!([], |tx| tx.machines(&all(), None, 9).await)).await.unwrap();
    let ids: Vec<&str> = page.machines.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["m-0", "m-1", "m-2"]);
    assert_eq!(page.unreadable[0].kind, RowKind::Machine);
    assert_eq!(page.unreadable[0].id, "bad-machine");
    assert!(page.unreadable[0].problem.contains("EOF"), "{:?}", page.unreadable);
    let page = db.read(tx!([], |tx| tx.runs(&all(), None, 9).await)).await.unwrap();
    assert_eq!((page.runs.len(), page.unreadable[0].id.as_str()), (0, "op-bad"));
    let (plans, _) = db.read(tx!([], |tx| tx.plans("", 9).await)).await.unwrap();
    assert_eq!(plans.unreadable[0].id, "plan-bad");
    let images = db.read(tx!([], |tx| tx.images(&all(), "", 9).await)).await.unwrap();
    assert_eq!(images.unreadable[0].id, "image-bad");
    let firmware = db.read(tx!([], |tx| tx.firmware_list(&all(), "", 9).await)).await.unwrap();
    assert_eq!(firmware.unreadable[0].id, "fw-bad");
    let health = db.read(tx!([], |tx| tx.health_list(&all(), "", 9).await)).await.unwrap();
    assert_eq!(health.unreadable[0].id, "m-1/bad");
    let list = tx!([], |tx| tx.credentials(&all(), "", 9).await);
    let credentials = db.read(list).await.unwrap().unreadable;
    let list = tx!([], |tx| tx.identities(&all(), "", 9).await);
    let identities = db.read(list).await.unwrap().unreadable;
    let expected = usize::from(db.is_sqlite());
    assert_eq!((credentials.len(), identities.len()), (expected, expected));
    bad_record::<Rack>(&db, "rack-bad").await;
    bad_record::<Switch>(&db, "sw-bad").await;
    bad_record::<PowerShelf>(&db, "ps-bad").await;
    bad_record::<Node>(&db, "node-bad").await;
    bad_record::<Site>(&db, "site-bad").await;
    let hardware = db.read(tx!([], |tx| tx.hardware_of(&["m-1"]).await)).await.unwrap();
    assert!(hardware.is_empty());
}

async fn a_decision_about_an_unreadable_row_names_it(db: Db) {
    with_bad_rows(&db).await;
    let id = MachineId::trusted("bad-machine");
    let read = db.write(tx!([id], |tx| tx.machine_locked(&id).await)).await;
    let named = |read: StoreError, row: &str| match read {
        StoreError::Corrupt(message) => assert!(message.starts_with(row), "{message}"),
        other => panic!("{other:?}"),
    };
    named(read.unwrap_err(), "machine bad-machine: EOF");
    let read = db.store.machine(&MachineId::trusted("bad-machine")).await;
    named(read.unwrap_err(), "machine bad-machine: EOF");
    let read = db.read(tx!([], |tx| tx.record::<Rack>("rack-bad").await)).await;
    named(read.unwrap_err(), "rack rack-bad: EOF");
    let read = db.read(tx!([], |tx| tx.image("image-bad").await)).await;
    named(read.unwrap_err(), "image image-bad: EOF");
}

async fn rows_of_every_kind_are_set_aside_and_put_back(db: Db) {
    with_bad_rows(&db).await;
    let found = check(&db).await;
    let kinds: Vec<RowKind> = found.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, bad_kinds(&db));
    for row in &found {
        let set_aside = tx!([row], |tx| tx.set_aside(&row, "damaged", &event()).await);
        let moved = db.write(set_aside).await.unwrap();
        assert_eq!((moved.kind, &moved.id, moved.actor.as_str()), (row.kind, &row.id, "test"));
    }
    assert_eq!(check(&db).await, []);
    let aside = db.read(tx!([], |tx| tx.rows_set_aside().await)).await.unwrap();
    assert_eq!(aside.len(), found.len());
    for row in &aside {
        let put_back = tx!([row], |tx| tx.put_back(&row, &event()).await);
        assert_eq!(db.write(put_back).await, Ok(()), "{row:?}");
    }
    assert_eq!(check(&db).await, found, "every row is back as it was");
    assert_eq!(db.read(tx!([], |tx| tx.rows_set_aside().await)).await, Ok(vec![]));
    // The machine has a node again.
    let id = MachineId::trusted("m-0");
    let node = db.read(tx!([id], |tx| tx.live_node_of_machine(&id).await)).await.unwrap();
    assert_eq!(node.map(|id| id.to_string()).as_deref(), Some("node-bad"));
    // The place of a row may be taken.
    let row = found.into_iter().find(|row| row.kind == RowKind::Machine).unwrap();
    let aside = db.write(tx!([row], |tx| tx.set_aside(&row, "damaged", &event()).await));
    let aside = aside.await.unwrap();
    db.add_machine("bad-machine").await;
    let taken = db.write(tx!([aside], |tx| tx.put_back(&aside, &event()).await)).await;
    assert_eq!(taken, Err(StoreError::Conflict));
}

/// The next page starts after the unreadable row, and nothing is repeated or lost.
async fn a_page_ends_at_an_unreadable_row(db: Db) {
    with_bad_rows(&db).await;
    let (mut found, mut after, mut left_out) = (Vec::new(), None, 0);
    loop {
        let start: Option<String> = after.clone();
        let page = db.read(tx!([start], |tx| {
            tx.machines(&Filter::default(), start.as_deref(), 1).await
        }));
        let page = page.await.unwrap();
        found.extend(page.machines.into_iter().map(|one| one.id.to_string()));
        left_out += page.unreadable.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((found, left_out), (vec!["m-0".into(), "m-1".into(), "m-2".into()], 1));
}

async fn a_machine_that_was_set_aside_gives_its_node_name_back(db: Db) {
    with_bad_rows(&db).await;
    let name = NodeName { cluster: "c".into(), name: "n".into() };
    let give = |id: &str| {
        let (id, name) = (MachineId::trusted(id), name.clone());
        db.write(tx!([id, name], |tx| tx.write_node_name(&id, Some(&name))))
    };
    let owner = || {
        let name = name.clone();
        db.read(tx!([name], |tx| tx.machine_of_node_name(&name).await))
    };
    give("bad-machine").await.unwrap();
    let bad = check(&db).await.into_iter().find(|row| row.kind == RowKind::Machine).unwrap();
    let aside = db.write(tx!([bad], |tx| tx.set_aside(&bad, "damaged", &event()).await));
    let aside = aside.await.unwrap();
    assert_eq!(owner().await, Ok(None), "the name is free");
    let kept = db.read(tx!([], |tx| tx.node_name_set_aside("bad-machine").await)).await;
    assert_eq!(kept, Ok(Some(name.clone())));
    give("m-1").await.unwrap();
    let taken = db.write(tx!([aside], |tx| tx.put_back(&aside, &event()).await)).await;
    assert_eq!(taken, Err(StoreError::Conflict));
    let id = MachineId::trusted("m-1");
    db.write(tx!([id], |tx| tx.write_node_name(&id, None))).await.unwrap();
    db.write(tx!([aside], |tx| tx.put_back(&aside, &event()).await)).await.unwrap();
    assert_eq!(owner().await, Ok(Some(MachineId::trusted("bad-machine"))));
}

async fn what_identifies_an_unreadable_machine_is_read(db: Db) {
    with_bad_rows(&db).await;
    let body = r#"{"spec":{"serial":"S7","mac_addresses":["02:00:00:00:00:01",7],"bmc_endpoint":"10.0.0.7","provider":[]}}"#;
    let sql = format!("UPDATE machines SET body = '{body}' WHERE id = 'm-1'");
    db.execute_sql(&sql, &sql).await;
    let read = |id: &str| {
        let id = MachineId::trusted(id);
        db.read(tx!([id], |tx| tx.spec_of_unreadable_machine(&id).await))
    };
    let spec = read("m-1").await.unwrap();
    assert_eq!((spec.serial.as_str(), spec.bmc_endpoint.as_str()), ("S7", "10.0.0.7"));
    assert_eq!(spec.mac_addresses, ["02:00:00:00:00:01"]);
    assert_eq!(read("bad-machine").await.unwrap().serial, "");
}
