//! Dry runs: a transaction runs completely, returns its result, and writes nothing.

use crate::harness::{Db, at, event, machine};
use model::id::{MachineId, ObjectId};
use model::refusal::{Reason, Refusal};
use store::{Signal, StoreError};

on_both!(
    a_dry_run_has_a_result_and_leaves_nothing,
    the_database_checks_a_dry_run,
    a_dry_run_does_not_affect_concurrent_writes,
);

async fn a_dry_run_has_a_result_and_leaves_nothing(db: Db) {
    db.add_run("op-1").await;
    let mut bus = db.store.bus().listen();
    // Uses another object, because the wake-up signal of the first run may arrive late.
    let (more, woken) = (machine("m-2"), ObjectId::trusted("op-2"));
    // It reads its own writes, as the real request would.
    let work = tx!([more, woken], |tx| {
        tx.insert_machine(&more, &event())?;
        tx.wake(&woken, at(1))?;
        tx.machine(&more.id).await
    });
    let observed = db.dry_run(work).await.unwrap();
    assert_eq!(observed.map(|machine| machine.id), Some(MachineId::trusted("m-2")));
    let found = db.read(tx!([more], |tx| tx.machine(&more.id).await)).await;
    assert_eq!(found, Ok(None));
    while let Ok(signal) = bus.try_recv() {
        assert_ne!(signal, Signal::Wake(woken.clone()));
    }
    // The id that a dry run inserted is free for the real request.
    db.write(tx!([more], |tx| tx.insert_machine(&more, &event()))).await.unwrap();
    // A machine, its run, and the machine of the real request.
    let reported: Vec<_> = db.events(3).await.into_iter().map(|event| event.object_id).collect();
    assert_eq!(reported.iter().filter(|id| *id == "m-2").count(), 1, "{reported:?}");
}

async fn the_database_checks_a_dry_run(db: Db) {
    let known = machine("m-1");
    let insert = || tx!([known], |tx| tx.insert_machine(&known, &event()));
    db.write(insert()).await.unwrap();
    // The conflict is in the last write, so only the end of the transaction can detect it.
    assert_eq!(db.dry_run(insert()).await, Err(StoreError::Conflict));
    let refused = tx!([], |_tx| Err::<(), _>(Refusal::new(Reason::NotReady, "not now").into()));
    let answer = db.dry_run(refused).await;
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
}

async fn a_dry_run_does_not_affect_concurrent_writes(db: Db) {
    let (one, two) = (machine("m-1"), machine("m-2"));
    // On SQLite, concurrent transactions share a commit.
    let (stored, tried) = tokio::join!(
        db.write(tx!([one], |tx| tx.insert_machine(&one, &event()))),
        db.dry_run(tx!([two], |tx| tx.insert_machine(&two, &event()))),
    );
    stored.unwrap();
    tried.unwrap();
    let found = db.read(tx!([one], |tx| tx.machine(&one.id).await)).await.unwrap();
    assert!(found.is_some());
    assert_eq!(db.read(tx!([two], |tx| tx.machine(&two.id).await)).await, Ok(None));
}
