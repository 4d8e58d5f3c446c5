//! Dry runs: the work is run whole, its answer is what it would have been, and nothing is left of it.

use crate::harness::{Db, at, event, machine};
use model::id::{MachineId, ObjectId};
use model::refusal::Refusal;
use store::{Signal, StoreError};

on_both!(
    what_is_rehearsed_is_answered_and_leaves_nothing,
    the_database_has_its_say_in_a_rehearsal,
    what_is_written_beside_a_rehearsal_stays,
);

async fn what_is_rehearsed_is_answered_and_leaves_nothing(db: Db) {
    db.add_run("op-1").await;
    let mut bus = db.store.bus().listen();
    // Nobody else ever wakes it: what the run above is woken with may be heard late.
    let (more, woken) = (machine("m-2"), ObjectId::trusted("op-2"));
    // It sees what it has written itself, as the real request would.
    let work = tx!([more, woken], |tx| {
        tx.insert_machine(&more, &event())?;
        tx.wake(&woken, at(1))?;
        tx.machine(&more.id).await
    });
    let seen = db.store.rehearsal().write(work).await.unwrap();
    assert_eq!(seen.map(|machine| machine.id), Some(MachineId::trusted("m-2")));
    let found = db.read(tx!([more], |tx| tx.machine(&more.id).await)).await;
    assert_eq!(found, Ok(None));
    while let Ok(signal) = bus.try_recv() {
        assert_ne!(signal, Signal::Wake(woken.clone()));
    }
    // What a rehearsal has taken is free for who means it.
    db.write(tx!([more], |tx| tx.insert_machine(&more, &event()))).await.unwrap();
    // A machine, its run, and the machine that was meant.
    let told: Vec<_> = db.events(3).await.into_iter().map(|event| event.object_id).collect();
    assert_eq!(told.iter().filter(|id| *id == "m-2").count(), 1, "{told:?}");
}

async fn the_database_has_its_say_in_a_rehearsal(db: Db) {
    let known = machine("m-1");
    let insert = || tx!([known], |tx| tx.insert_machine(&known, &event()));
    db.write(insert()).await.unwrap();
    // It is the last thing that is written, so that only the end of the transaction can tell.
    assert_eq!(db.store.rehearsal().write(insert()).await, Err(StoreError::Conflict));
    let refused = tx!([], |_tx| Err::<(), _>(Refusal::precondition("NOT_NOW", "not now").into()));
    let answer = db.store.rehearsal().write(refused).await;
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
}

async fn what_is_written_beside_a_rehearsal_stays(db: Db) {
    let rehearsal = db.store.rehearsal();
    let (one, two) = (machine("m-1"), machine("m-2"));
    // On SQLite they share a commit when they come at once.
    let (kept, rehearsed) = tokio::join!(
        db.write(tx!([one], |tx| tx.insert_machine(&one, &event()))),
        rehearsal.write(tx!([two], |tx| tx.insert_machine(&two, &event()))),
    );
    kept.unwrap();
    rehearsed.unwrap();
    let found = db.read(tx!([one], |tx| tx.machine(&one.id).await)).await.unwrap();
    assert!(found.is_some());
    assert_eq!(db.read(tx!([two], |tx| tx.machine(&two.id).await)).await, Ok(None));
}
