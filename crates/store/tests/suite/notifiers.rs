//! Notifiers, the writes of their deliveries, and dead letters.

use crate::harness::{Db, at, event};
use model::notify::{
    DeadLetter, Delivery, Notice, NoticeKind, Notifier, NotifierSpec, NotifyFormat,
};
use std::collections::BTreeSet;
use store::{
    ClaimedKind, Cursor, DeadLetterQuery, NotifierClaim, Result, StoreError, StoredNotifier,
    notifier_key, notifier_of,
};

on_both!(
    a_notifier_begins_at_the_present_and_has_a_history,
    a_delivery_is_written_under_the_claim_only,
    a_change_wakes_the_holder_of_the_claim,
    dead_letters_are_replayed_and_deleted,
);

fn notifier(name: &str) -> Notifier {
    let spec = NotifierSpec {
        url: "https://h/in".into(),
        credential: "hook".into(),
        format: NotifyFormat::CloudEvents,
        kinds: BTreeSet::from(NoticeKind::ALL),
        filter: "labels.env=prod".into(),
        source: "/farrier".into(),
        max_attempts: 3,
    };
    Notifier::new(name, spec, at(1))
}

async fn insert(db: &Db, name: &str) -> Result<Notifier> {
    let new = notifier(name);
    let insert = tx!([new], |tx| {
        let mut new = new.clone();
        tx.insert_notifier(&mut new, &event()).await?;
        Ok(new)
    });
    db.write(insert).await
}

async fn get(db: &Db, name: &'static str) -> Option<StoredNotifier> {
    db.read(tx!([], |tx| tx.notifier(name).await)).await.unwrap()
}

fn claim(name: &str, epoch: i64) -> NotifierClaim {
    NotifierClaim { name: name.into(), epoch, now: at(20) }
}

async fn a_notifier_begins_at_the_present_and_has_a_history(db: Db) {
    db.add_machine("m-1").await;
    let new = insert(&db, "ops").await.unwrap();
    let stored = get(&db, "ops").await.unwrap();
    assert_eq!(stored.notifier, new);
    assert!(stored.position > Cursor::default(), "the machine was registered before");
    assert_eq!(insert(&db, "ops").await, Err(StoreError::Conflict));
    assert_eq!(get(&db, "other").await, None);
    insert(&db, "chat").await.unwrap();
    let list = |after: &'static str, limit| tx!([], |tx| tx.notifiers(after, limit).await);
    let names = |found: Vec<StoredNotifier>| {
        found.into_iter().map(|one| one.notifier.name).collect::<Vec<_>>()
    };
    assert_eq!(names(db.read(list("", 9)).await.unwrap()), ["chat", "ops"]);
    assert_eq!(names(db.read(list("chat", 9)).await.unwrap()), ["ops"]);
    assert_eq!(names(db.read(list("", 1)).await.unwrap()), ["chat"]);
    assert_eq!(db.read(tx!([], |tx| tx.count_notifiers().await)).await, Ok(2));

    let paused = Notifier { paused: true, ..new.clone() };
    let update = tx!([paused], |tx| {
        let mut paused = paused.clone();
        tx.update_notifier(&mut paused, "paused", &event())?;
        Ok(paused)
    });
    let paused = db.write(update).await.unwrap();
    assert_eq!((paused.version, paused.paused), (2, true));
    let stale = tx!([new], |tx| tx.update_notifier(&mut new.clone(), "changed", &event()));
    assert_eq!(db.write(stale).await, Err(StoreError::Conflict));
    db.write(tx!([paused], |tx| tx.delete_notifier(&paused, &event()))).await.unwrap();
    assert_eq!(get(&db, "ops").await, None);
    let history = db.read(tx!([], |tx| tx.history("notifier/ops", 0, 9).await)).await.unwrap();
    let words: Vec<&str> = history.iter().map(|one| one.state.as_str()).collect();
    assert_eq!(words, ["created", "paused", "removed"]);
    assert_eq!(insert(&db, "ops").await.unwrap().version, 4, "its history continues");
    assert_eq!(notifier_of(&notifier_key("ops")), "ops");
}

async fn a_delivery_is_written_under_the_claim_only(db: Db) {
    insert(&db, "ops").await.unwrap();
    let claimed = db.claim("a", at(10), 9).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].kind, ClaimedKind::Notifier);
    let (position, delivery) =
        (Cursor { tx: 0, seq: 7 }, Delivery { delivered: 3, ..Delivery::default() });
    let settle = |epoch| {
        let (claim, delivery) = (claim("ops", epoch), delivery.clone());
        tx!([claim, delivery], |tx| tx.settle_delivery(&claim, position, &delivery))
    };
    assert_eq!(db.write(settle(2)).await, Err(StoreError::Conflict));
    db.write(settle(1)).await.unwrap();
    let stored = get(&db, "ops").await.unwrap();
    assert_eq!((stored.position, stored.notifier.delivery.delivered), (position, 3));
    let key = notifier_key("ops");
    db.write(tx!([key], |tx| tx.release_unhandled(&key, 1, at(30)))).await.unwrap();
    assert_eq!(db.write(settle(1)).await, Err(StoreError::Conflict), "it is not claimed");
    db.claim("b", at(40), 9).await;
    assert_eq!(db.write(settle(1)).await, Err(StoreError::Conflict), "another has it");
    db.write(settle(2)).await.unwrap();
}

async fn a_change_wakes_the_holder_of_the_claim(db: Db) {
    let new = insert(&db, "ops").await.unwrap();
    db.claim("a", at(10), 9).await;
    let wakes = |epoch| tx!([], |tx| tx.notifier_wakes("ops", epoch).await);
    assert_eq!(db.read(wakes(1)).await, Ok(Some(1)));
    assert_eq!(db.read(wakes(2)).await, Ok(None));
    let handle = |wakes| {
        let claim = claim("ops", 1);
        tx!([claim], |tx| tx.handle_notifier_wakes(&claim, wakes))
    };
    let unhandled = || tx!([], |tx| tx.unhandled_wakes("a").await);
    db.write(handle(1)).await.unwrap();
    assert_eq!(db.read(unhandled()).await, Ok(Vec::new()));
    let update = tx!([new], |tx| tx.update_notifier(&mut new.clone(), "changed", &event()));
    db.write(update).await.unwrap();
    assert_eq!(db.read(unhandled()).await, Ok(vec![notifier_key("ops")]));
    db.write(handle(2)).await.unwrap();
    assert_eq!(db.read(unhandled()).await, Ok(Vec::new()));
}

fn letter(id: &str) -> DeadLetter {
    DeadLetter {
        id: 0,
        notice: Notice::test("ops", id, at(5)),
        attempts: 3,
        problem: "500".into(),
        failed_at: at(6),
        replaying: false,
    }
}

async fn dead_letters_are_replayed_and_deleted(db: Db) {
    let ops = insert(&db, "ops").await.unwrap();
    insert(&db, "chat").await.unwrap();
    for (name, id) in [("ops", "a"), ("ops", "b"), ("chat", "c"), ("ops", "d")] {
        let one = letter(id);
        db.write(tx!([one], |tx| tx.insert_dead_letter(name, &one))).await.unwrap();
    }
    let list =
        |name: &'static str, after, limit| tx!([], |tx| tx.dead_letters(name, after, limit).await);
    let all = db.read(list("ops", 0, 9)).await.unwrap();
    let ids: Vec<i64> = all.iter().map(|one| one.id).collect();
    assert_eq!(all[1], DeadLetter { id: ids[1], ..letter("b") });
    assert_eq!(ids.len(), 3);
    assert_eq!(db.read(list("ops", ids[0], 1)).await.unwrap()[0].id, ids[1]);
    let count = |name: &'static str| tx!([], |tx| tx.count_dead_letters(name).await);
    assert_eq!(db.read(count("chat")).await, Ok(1));

    let next = || tx!([], |tx| tx.next_replay("ops").await);
    assert_eq!(db.read(next()).await, Ok(None));
    let replay = |ids: Vec<i64>| {
        let query = DeadLetterQuery { notifier: "ops".into(), ids };
        tx!([query], |tx| tx.replay_dead_letters(&query, at(50)).await)
    };
    assert_eq!(db.write(replay(vec![ids[2], ids[1]])).await, Ok(2));
    let first = db.read(next()).await.unwrap().unwrap();
    assert_eq!((first.id, first.attempts, first.replaying), (ids[1], 0, true));
    let failed =
        DeadLetter { attempts: 3, problem: "again".into(), replaying: false, ..first.clone() };
    db.write(tx!([failed], |tx| tx.update_dead_letter(&failed))).await.unwrap();
    assert_eq!(db.read(next()).await.unwrap().unwrap().id, ids[2]);
    let sent = ids[2];
    db.write(tx!([], |tx| tx.delete_dead_letter(sent))).await.unwrap();
    assert_eq!(db.read(next()).await, Ok(None));
    assert_eq!(db.write(replay(Vec::new())).await, Ok(2));

    let discard = |ids: Vec<i64>| {
        let query = DeadLetterQuery { notifier: "ops".into(), ids };
        tx!([query], |tx| tx.discard_dead_letters(&query).await)
    };
    assert_eq!(db.write(discard(vec![ids[0], 999])).await, Ok(1));
    db.write(tx!([ops], |tx| tx.delete_notifier(&ops, &event()))).await.unwrap();
    assert_eq!(db.read(count("ops")).await, Ok(0));
    assert_eq!(db.read(count("chat")).await, Ok(1), "those of another notifier stay");
}
