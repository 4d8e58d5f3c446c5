//! The writer: concurrent transactions, of which a failed one does not affect the others.

use crate::harness::{Db, event, machine, within_timeout};
use model::machine::Phase;
use model::refusal::{Reason, Refusal};
use store::{Result, StoreError};

on_both!(
    a_refused_transaction_does_not_affect_its_group,
    a_panic_does_not_stop_the_writer,
    a_canceled_request_is_atomic,
    reads_are_consistent,
);

async fn a_refused_transaction_does_not_affect_its_group(db: Db) {
    const PIECES: usize = 300;
    db.add_machine("m-taken").await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..PIECES {
        let db = db.clone();
        tasks.spawn(async move {
            let name = format!("m-{number:03}");
            let (own, other) = (machine(&name), machine("m-taken"));
            let piece = tx!([own, other], |tx| {
                tx.insert_machine(&own, &event())?;
                match number % 3 {
                    0 => Ok(()),
                    // The database refuses this one after its first write,
                    1 => tx.insert_machine(&other, &event()),
                    // and the body refuses this one.
                    _ => Err(Refusal::new(Reason::NotReady, "not now").into()),
                }
            });
            (number, db.write(piece).await)
        });
    }
    let mut stored = vec!["m-taken".to_string()];
    for (number, result) in tasks.join_all().await {
        match (number % 3, result) {
            (0, Ok(())) => stored.push(format!("m-{number:03}")),
            (1, Err(StoreError::Conflict)) => {}
            (2, Err(StoreError::Refused(refusal))) => {
                assert_eq!(refusal.reason.as_str(), "NOT_READY")
            }
            (_, other) => panic!("{number}: {other:?}"),
        }
    }
    let everything = model::filter::Filter::default();
    let page = tx!([everything], |tx| tx.machines(&everything, None, 1_000).await);
    let found = db.read(page).await.unwrap().machines;
    let mut found: Vec<_> = found.into_iter().map(|one| one.id.to_string()).collect();
    found.sort();
    stored.sort();
    assert_eq!(found, stored);
    let mut reported: Vec<_> =
        db.events(stored.len()).await.into_iter().map(|one| one.object_id).collect();
    reported.sort();
    assert_eq!(reported, stored);
}

async fn a_panic_does_not_stop_the_writer(db: Db) {
    let lost = machine("m-lost");
    let bad = tx!([lost], |tx| {
        tx.insert_machine(&lost, &event())?;
        assert!(lost.phase == Phase::Ready, "a panic on purpose");
        Ok(())
    });
    let task = tokio::spawn({
        let db = db.clone();
        async move { db.write(bad).await }
    });
    // On SQLite the writer reports the panic; on PostgreSQL the task itself panics.
    match within_timeout("the panic", task).await {
        Ok(result) => assert!(matches!(result, Err(StoreError::Corrupt(_))), "{result:?}"),
        Err(error) => assert!(error.is_panic() && !db.is_sqlite()),
    }
    for number in 0..20 {
        db.add_machine(&format!("m-{number}")).await;
    }
    assert_eq!(db.read(tx!([], |tx| tx.count_machines().await)).await, Ok(20));
    let panics: Result<()> = match db.is_sqlite() {
        true => {
            let bad = tx!([], |tx| {
                tx.count_machines().await?;
                panic!("on purpose, while reading")
            });
            db.read(bad).await
        }
        false => Err(StoreError::Corrupt(String::new())),
    };
    assert!(matches!(panics, Err(StoreError::Corrupt(_))), "{panics:?}");
    assert_eq!(db.read(tx!([], |tx| tx.count_machines().await)).await, Ok(20));
}

/// The caller may be dropped; its transaction is written completely or not at all.
async fn a_canceled_request_is_atomic(db: Db) {
    for number in 0..50 {
        let pair = [machine(&format!("m-{number}-a")), machine(&format!("m-{number}-b"))];
        let both = tx!([pair], |tx| {
            for one in &pair {
                tx.insert_machine(one, &event())?;
            }
            Ok(())
        });
        let requested = tokio::spawn({
            let db = db.clone();
            async move { db.write(both).await }
        });
        for _ in 0..number % 7 {
            tokio::task::yield_now().await;
        }
        requested.abort();
        let _ = requested.await;
    }
    // Once this is written, every earlier transaction has been written or has failed.
    db.add_machine("m-last").await;
    let everything = model::filter::Filter::default();
    let page = || tx!([everything], |tx| tx.machines(&everything, None, 1_000).await);
    let ids = async || {
        let found = db.read(page()).await.unwrap().machines;
        found.into_iter().map(|one| one.id.to_string()).collect::<Vec<_>>()
    };
    let found = ids().await;
    for number in 0..50 {
        let halves = ["a", "b"].map(|half| found.contains(&format!("m-{number}-{half}")));
        assert_eq!(halves[0], halves[1], "m-{number}");
    }
    assert!(found.contains(&"m-last".to_string()));
}

async fn reads_are_consistent(db: Db) {
    let id = db.add_machine("m-1").await.id;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writer = tokio::spawn({
        let (db, id) = (db.clone(), id.clone());
        async move {
            while !*stopped.borrow() {
                let change = tx!([id], |tx| {
                    let mut machine = tx.machine_locked(&id).await?.expect("the machine exists");
                    tx.update_machine(&mut machine, &event())
                });
                db.write(change).await.unwrap();
            }
        }
    });
    let mut versions = Vec::new();
    while versions.last().is_none_or(|version| *version < 50) {
        let twice = tx!([id], |tx| {
            let first = tx.machine(&id).await?.expect("the machine exists").version;
            let last = tx.history(id.as_str(), first - 1, 10).await?;
            Ok((first, last.iter().map(|one| one.version).collect::<Vec<_>>()))
        });
        let (version, history) = db.read(twice).await.unwrap();
        assert_eq!(history, [version], "the machine and its history are consistent");
        versions.push(version);
    }
    stop.send(true).unwrap();
    within_timeout("the writer", writer).await.unwrap();
    assert!(versions.is_sorted());
}
