//! What is kept for the hardware: notes of orders, sealed credentials, and who a device was when it was met.

use crate::harness::{Db, at, event};
use model::effect::Key;
use model::id::RunId;
use store::{CredentialRow, IdentityRow, LockoutRow, NoteRow, StoreError};

on_both!(
    a_key_begins_once_whoever_comes_first,
    a_barred_key_never_begins,
    credentials_have_versions_that_never_repeat,
    a_device_is_met_once,
    the_latest_refusal_counts,
);

fn key(attempt: u32) -> Key {
    Key::new(&RunId::trusted("op-1"), "reboot", attempt)
}

fn begun(body: &str) -> NoteRow {
    NoteRow { barred: false, body: body.into() }
}

fn bar() -> NoteRow {
    NoteRow { barred: true, body: "null".into() }
}

async fn a_key_begins_once_whoever_comes_first(db: Db) {
    let mut racing = Vec::new();
    for n in 0..20 {
        let note = begun(&n.to_string());
        let work = tx!([note], |tx| tx.begin_note(&key(1), &note, at(1)).await);
        racing.push(tokio::spawn(db.write(work)));
    }
    let mut first = 0;
    let mut seen = Vec::new();
    for one in racing {
        match one.await.unwrap().unwrap() {
            None => first += 1,
            Some(before) => seen.push(before),
        }
    }
    assert_eq!(first, 1);
    let kept = db.read(tx!([], |tx| tx.note(&key(1)).await)).await.unwrap().unwrap();
    assert!(seen.iter().all(|before| *before == kept), "{seen:?}");
    // Who believes that it still says something else changes nothing.
    for (before, changed) in [("old", false), (kept.body.as_str(), true), (&kept.body, false)] {
        let before = before.to_string();
        let amend = tx!([before], |tx| tx.amend_note(&key(1), &before, "new", at(2)).await);
        assert_eq!(db.write(amend).await, Ok(changed), "{before}");
    }
    assert_eq!(db.read(tx!([], |tx| tx.note(&key(1)).await)).await, Ok(Some(begun("new"))));
    assert_eq!(db.read(tx!([], |tx| tx.note(&key(2)).await)).await, Ok(None));
}

async fn a_barred_key_never_begins(db: Db) {
    let barred = db.write(tx!([], |tx| tx.begin_note(&key(1), &bar(), at(1)).await)).await;
    assert_eq!(barred, Ok(None));
    let late = tx!([], |tx| tx.begin_note(&key(1), &begun("late"), at(2)).await);
    assert_eq!(db.write(late).await, Ok(Some(bar())));
    let amended = db.write(tx!([], |tx| tx.amend_note(&key(1), "null", "late", at(3)).await)).await;
    assert_eq!(amended, Ok(false));
    // What has begun is not barred any more: whoever stops it is told what it is.
    db.write(tx!([], |tx| tx.begin_note(&key(2), &begun("b"), at(1)).await)).await.unwrap();
    let stop = tx!([], |tx| tx.begin_note(&key(2), &bar(), at(2)).await);
    assert_eq!(db.write(stop).await, Ok(Some(begun("b"))));
}

fn credential(version: i64) -> CredentialRow {
    CredentialRow {
        name: "bmc".into(),
        kind: "password".into(),
        login: "root".into(),
        sealed: vec![0, 159, 146, 150],
        version,
        updated_at: at(version),
    }
}

async fn credentials_have_versions_that_never_repeat(db: Db) {
    let put = |version: i64, read_at| {
        tx!([], |tx| tx.put_credential(&credential(version), read_at, &event()).await)
    };
    assert_eq!(db.write(put(1, None)).await, Ok(()));
    assert_eq!(db.write(put(1, None)).await, Err(StoreError::Conflict));
    assert_eq!(db.write(put(2, Some(1))).await, Ok(()));
    assert_eq!(db.write(put(2, Some(1))).await, Err(StoreError::Conflict));
    let read = db.read(tx!([], |tx| tx.credential("bmc").await)).await;
    assert_eq!(read, Ok(Some(credential(2))));
    assert_eq!(db.read(tx!([], |tx| tx.credentials("bmc", 9).await)).await, Ok(vec![]));
    assert_eq!(db.read(tx!([], |tx| tx.credentials("", 9).await)).await, Ok(vec![credential(2)]));

    let gone = tx!([], |tx| tx.delete_credential("bmc", 2, &event()).await);
    db.write(gone).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.credential("bmc").await)).await, Ok(None));
    let last = db.read(tx!([], |tx| tx.last_credential_version("bmc").await)).await;
    assert_eq!(last, Ok(3));
    assert_eq!(db.write(put(4, None)).await, Ok(()));
}

async fn a_device_is_met_once(db: Db) {
    let met = |identity: &str| IdentityRow {
        peer: "https://10.0.0.5".into(),
        identity: identity.into(),
        first_seen: at(1),
    };
    for (shown, known) in [("a", "a"), ("a", "a"), ("b", "a")] {
        let met = met(shown);
        let answer = db.write(tx!([met], |tx| tx.meet(&met).await)).await;
        assert_eq!(answer.as_deref(), Ok(known));
    }
    let all = db.read(tx!([], |tx| tx.identities("", 9).await)).await;
    assert_eq!(all, Ok(vec![met("a")]));
    for found in [true, false] {
        let forget = tx!([], |tx| tx.forget_identity("https://10.0.0.5").await);
        assert_eq!(db.write(forget).await, Ok(found));
    }
    let anew = met("b");
    assert_eq!(db.write(tx!([anew], |tx| tx.meet(&anew).await)).await.as_deref(), Ok("b"));
}

async fn the_latest_refusal_counts(db: Db) {
    let refused = |version| LockoutRow {
        peer: "https://10.0.0.5".into(),
        credential: "bmc".into(),
        version,
        said: "401".into(),
        since: at(version),
    };
    for version in [1, 2] {
        let row = refused(version);
        db.write(tx!([row], |tx| tx.lock_out(&row).await)).await.unwrap();
    }
    let known = db.read(tx!([], |tx| tx.lockout("https://10.0.0.5").await)).await;
    assert_eq!(known, Ok(Some(refused(2))));
    for found in [true, false] {
        let unlocked = db.write(tx!([], |tx| tx.unlock("https://10.0.0.5").await)).await;
        assert_eq!(unlocked, Ok(found));
    }
}
