//! The firmware catalogue, and the history of applied firmware.

use crate::harness::{Body, Db, REVERT_SINCE_13, at, event};
use model::filter::{Filter, FilterSubject};
use model::firmware::{AppliedFirmware, Firmware, FirmwareComponent, MAX_APPLIED};
use model::id::{FirmwareId, RunId};
use model::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use store::{AppliedPosition, AppliedQuery, StoreError};

on_both!(
    a_hardware_type_has_one_default,
    a_record_is_written_at_its_version,
    records_of_an_older_schema_get_the_version_of_their_last_event,
    firmware_is_listed_by_id,
    applied_firmware_is_written_once_and_the_oldest_is_deleted,
);

fn firmware(id: &str, hardware_type: &str, is_default: bool) -> Firmware {
    let component = FirmwareComponent {
        name: "BMC".into(),
        version: "2.1".into(),
        url: "https://files.example/x".into(),
        sha256: "ab".repeat(32),
    };
    Firmware {
        id: FirmwareId::trusted(id),
        hardware_type: hardware_type.into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, vec![component])]),
        is_default,
        available: true,
        created_at: at(1),
        version: 1,
    }
}

fn insert(one: Firmware) -> Body<Firmware> {
    tx!([one], |tx| {
        let mut one = one;
        tx.insert_firmware(&mut one, &event()).await?;
        Ok(one)
    })
}

fn update(one: Firmware) -> Body<Firmware> {
    tx!([one], |tx| {
        let mut one = one;
        tx.update_firmware(&mut one, &event())?;
        Ok(one)
    })
}

async fn a_hardware_type_has_one_default(db: Db) {
    db.write(insert(firmware("a", "x", true))).await.unwrap();
    db.write(insert(firmware("b", "y", true))).await.unwrap();
    db.write(insert(firmware("c", "x", false))).await.unwrap();
    for taken in [firmware("d", "x", true), firmware("a", "z", false)] {
        assert_eq!(db.write(insert(taken)).await, Err(StoreError::Conflict));
    }
    let second = firmware("c", "x", true);
    assert_eq!(db.write(update(second.clone())).await, Err(StoreError::Conflict));
    // The default changes in one transaction.
    let change = tx!([second], |tx| {
        let mut second = second;
        tx.update_firmware(&mut firmware("a", "x", false), &event())?;
        tx.update_firmware(&mut second, &event())?;
        Ok(second)
    });
    let second = db.write(change).await.unwrap();
    let default = db.read(tx!([], |tx| tx.default_firmware("x").await)).await;
    assert_eq!(default, Ok(Some(second.clone())));
    let gone = || tx!([second], |tx| tx.delete_firmware(&second, &event()));
    db.write(gone()).await.unwrap();
    assert_eq!(db.write(gone()).await, Err(StoreError::Conflict));
    assert_eq!(db.read(tx!([], |tx| tx.default_firmware("x").await)).await, Ok(None));
}

async fn a_record_is_written_at_its_version(db: Db) {
    let first = db.write(insert(firmware("a", "x", false))).await.unwrap();
    let second = db.write(update(first.clone())).await.unwrap();
    assert_eq!((first.version, second.version), (1, 2));
    let delete = |one: Firmware| tx!([one], |tx| tx.delete_firmware(&one, &event()));
    for written in [db.write(update(first.clone())).await.map(drop), db.write(delete(first)).await]
    {
        assert_eq!(written, Err(StoreError::Conflict));
    }
    db.write(delete(second)).await.unwrap();
    // A new record of the same id continues the history.
    let again = db.write(insert(firmware("a", "x", false))).await.unwrap();
    assert_eq!(again.version, 4);
}

async fn records_of_an_older_schema_get_the_version_of_their_last_event(db: Db) {
    let one = db.write(insert(firmware("a", "x", false))).await.unwrap();
    let one = db.write(update(one)).await.unwrap();
    db.write(insert(firmware("b", "x", false))).await.unwrap();
    let back = "DROP INDEX machines_created; DROP INDEX machines_updated; \
                DROP INDEX records_created; DROP INDEX records_updated; \
                ALTER TABLE firmware DROP COLUMN version; DELETE FROM events \
                WHERE object_id = 'firmware/b';";
    let on_sqlite = format!("{REVERT_SINCE_13} {back} PRAGMA user_version = 10");
    let on_postgres =
        format!("{REVERT_SINCE_13} {back} DELETE FROM schema_version WHERE version > 10");
    db.execute_sql(&on_sqlite, &on_postgres).await;
    let db = db.open_another().await;
    let list = tx!([], |tx| tx.firmware_list(&Filter::default(), "", 9).await);
    let found = db.read(list).await.unwrap().complete().unwrap();
    let versions: Vec<i64> = found.iter().map(|one| one.version).collect();
    assert_eq!(versions, [one.version, 1]);
}

async fn firmware_is_listed_by_id(db: Db) {
    for (id, hardware_type) in [("b", "x"), ("a", "y"), ("c", "x")] {
        db.write(insert(firmware(id, hardware_type, false))).await.unwrap();
    }
    for (of, after, expected) in [
        ("", "", vec!["a", "b"]),
        ("", "b", vec!["c"]),
        ("hardware_type=x", "", vec!["b", "c"]),
        ("hardware_type!=x", "", vec!["a"]),
        ("hardware_type=z", "", vec![]),
        ("hardware_type=x AND firmware_id in (a, c)", "", vec!["c"]),
        ("available=false", "", vec![]),
        ("is_default=false", "a", vec!["b", "c"]),
    ] {
        let filter = Filter::parse(of, FilterSubject::Firmware).unwrap();
        let list = tx!([filter], |tx| tx.firmware_list(&filter, after, 2).await);
        let found = db.read(list).await.unwrap().complete().unwrap();
        let ids: Vec<&str> = found.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, expected, "{of:?} after {after:?}");
    }
}

fn device(id: &str) -> TargetId {
    TargetId::parse(id).unwrap()
}

fn applied(device: &str, step: &str, second: i64) -> AppliedFirmware {
    AppliedFirmware {
        run: RunId::trusted("op-1"),
        step: step.into(),
        device: self::device(device),
        component: "BMC".into(),
        previous: "1.0".into(),
        version: "2.1".into(),
        changed: true,
        at: at(second),
    }
}

async fn applied_firmware_is_written_once_and_the_oldest_is_deleted(db: Db) {
    let insert = |one: AppliedFirmware| tx!([one], |tx| tx.insert_applied(&one));
    let other = applied("sw-1", "other", 1);
    db.write(insert(other.clone())).await.unwrap();
    for n in 0..MAX_APPLIED + 3 {
        let one = applied("m-1", &format!("s{n:04}"), n + 2);
        for _ in 0..2 {
            db.write(insert(one.clone())).await.unwrap();
        }
    }
    let list = |device: Option<TargetId>, before: Option<AppliedPosition>| {
        let query = AppliedQuery { device, after: before, ..AppliedQuery::default() };
        tx!([query], |tx| tx.applied(&query, 10_000).await)
    };
    let mine = db.read(list(Some(device("m-1")), None)).await.unwrap();
    assert_eq!(mine.len() as i64, MAX_APPLIED);
    assert_eq!(mine[0].step, format!("s{:04}", MAX_APPLIED + 2), "newest first");
    let position = AppliedPosition::of(&mine[9]);
    let rest = db.read(list(Some(device("m-1")), Some(position))).await.unwrap();
    assert_eq!(rest, mine[10..]);
    let all = db.read(list(None, None)).await.unwrap();
    assert_eq!((all.len() as i64, all.last()), (MAX_APPLIED + 1, Some(&other)));
    let after = Some(AppliedPosition::of(&mine[9]));
    let query = AppliedQuery {
        device: Some(device("m-1")),
        oldest_first: true,
        after,
        ..AppliedQuery::default()
    };
    let newer = db.read(tx!([query], |tx| tx.applied(&query, 10_000).await)).await.unwrap();
    assert_eq!(newer, mine[..9].iter().rev().cloned().collect::<Vec<_>>());
    for (text, expected) in [
        ("device_id=sw-1", 1),
        ("device_type=switch AND component=BMC AND version=2.1 AND changed=true", 1),
        ("device_type=machine", 2),
        ("operation_id!=op-1", 0),
        ("changed=false", 0),
    ] {
        let filter = Filter::parse(text, FilterSubject::FirmwareHistory).unwrap();
        let query = AppliedQuery { filter, ..AppliedQuery::default() };
        let found = db.read(tx!([query], |tx| tx.applied(&query, 2).await)).await.unwrap();
        assert_eq!(found.len(), expected, "{text}");
    }
}
