//! Events: one order of all events, in which no event can appear behind a reader.

use crate::harness::{Db, Dice, TIMEOUT, at, event, machine, within_timeout};
use model::id::MachineId;
use model::run::Workflow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Cursor, Event, EventObject, StoreError};
use tokio::sync::{Notify, watch};

on_both!(
    events_say_who_what_and_why,
    a_reader_resumes_from_any_cursor,
    readers_miss_nothing_while_many_write,
    history_is_by_object,
    a_cursor_goes_through_text,
);

async fn events_say_who_what_and_why(db: Db) {
    let run = db.add_run("op-1").await;
    db.update_unclaimed(&run, Workflow::Running).await;
    let reported = db.events(3).await.pop().unwrap();
    assert_eq!((reported.object_id.as_str(), reported.version, reported.ts), ("op-1", 2, at(1)));
    assert_eq!((reported.state.as_str(), reported.cause.as_str()), ("running", "engine"));
    assert_eq!((reported.actor.as_str(), reported.message.as_str()), ("test", "because"));
    assert_eq!(reported.decided_by, "here");
    let Some(EventObject::Run(found)) = &reported.object else { panic!("{reported:?}") };
    assert_eq!(**found, db.run(&run.spec.id).await);
}

async fn a_reader_resumes_from_any_cursor(db: Db) {
    for n in 0..20 {
        db.add_machine(&format!("m-{n}")).await;
    }
    let names =
        |events: &[Event]| events.iter().map(|one| one.object_id.clone()).collect::<Vec<_>>();
    let all = db.events(20).await;
    assert_eq!(names(&all), (0..20).map(|n| format!("m-{n}")).collect::<Vec<_>>());
    assert!(all.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
    for (index, from) in all.iter().enumerate() {
        let rest = db.events_after(from.cursor, 100).await;
        assert_eq!(names(&rest), names(&all[index + 1..]));
        assert_eq!(db.events_after(from.cursor, 3).await.len(), 3.min(19 - index));
    }
}

async fn history_is_by_object(db: Db) {
    let mut run = db.add_run("op-1").await;
    db.add_run("op-2").await;
    for workflow in [Workflow::Running, Workflow::Compensating, Workflow::Cancelled] {
        run = db.update_unclaimed(&run, workflow).await;
    }
    let history = |after, limit| tx!([], |tx| tx.history("op-1", after, limit).await);
    let words = |events: Vec<Event>| events.into_iter().map(|one| one.state).collect::<Vec<_>>();
    let all = words(db.read(history(0, 10)).await.unwrap());
    assert_eq!(all, ["pending", "running", "compensating", "cancelled"]);
    assert_eq!(words(db.read(history(1, 2)).await.unwrap()), ["running", "compensating"]);
    assert_eq!(words(db.read(history(4, 10)).await.unwrap()), Vec::<String>::new());
}

async fn a_cursor_goes_through_text(db: Db) {
    db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    let events = db.events(2).await;
    let cursor = Cursor::parse(&events[0].cursor.to_string()).unwrap();
    assert_eq!(db.events_after(cursor, 10).await[0].object_id, "m-2");
    for bad in ["", "1", "1.", ".1", "a.b", "-1.2", "1.-2", "1.2.3", "99999999999999999999.1"] {
        assert_eq!(Cursor::parse(bad), None, "{bad:?}");
    }
}

const WRITERS: usize = 8;
const TURNS: usize = 30;
const OBJECTS: usize = 12;

/// Each transaction changes up to three objects; some transactions are slow.
async fn write_much(db: Db, writer: usize) -> usize {
    let mut dice = Dice::new(writer as u64);
    let mut written = 0;
    for turn in 0..TURNS {
        let count = 1 + dice.roll(3);
        // In one order, to avoid deadlocks.
        let mut ids: Vec<_> = (0..count).map(|_| dice.roll(OBJECTS)).collect();
        ids.sort_unstable();
        ids.dedup();
        let pause = if db.is_sqlite() { 0 } else { dice.roll(4) as u64 };
        let change = || {
            tx!([ids], |tx| {
                for id in &ids {
                    let id = MachineId::trusted(format!("m-{id}"));
                    let mut machine = tx.machine_locked(&id).await?.expect("the machine exists");
                    machine.labels.insert("turn".into(), format!("{writer}.{turn}"));
                    tx.update_machine(&mut machine, &event())?;
                    if pause > 0 {
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                    }
                }
                Ok(ids.len())
            })
        };
        loop {
            match db.write(change()).await {
                Ok(count) => {
                    written += count;
                    break;
                }
                Err(error) => assert_eq!(error, StoreError::Conflict),
            }
        }
    }
    written
}

/// Reads until all written events have arrived, `limit` at a time.
async fn read_all(db: Db, limit: i64, mut written: watch::Receiver<Option<usize>>) -> Vec<Event> {
    let mut observed: Vec<Event> = Vec::new();
    let started = std::time::Instant::now();
    loop {
        let known = *written.borrow_and_update();
        // Resumes from the cursor's text each time, as a client that reconnects does.
        let cursor = observed.last().map(|one| one.cursor.to_string()).unwrap_or("0.0".into());
        let more = db.events_after(Cursor::parse(&cursor).unwrap(), limit).await;
        observed.extend(more);
        if known.is_some_and(|count| observed.len() >= count) {
            return observed;
        }
        assert!(started.elapsed() < TIMEOUT, "{} of {known:?} events", observed.len());
        tokio::task::yield_now().await;
    }
}

async fn readers_miss_nothing_while_many_write(db: Db) {
    db.add_machines((0..OBJECTS).map(|n| machine(&format!("m-{n}"))).collect()).await;
    let (total, written) = watch::channel(None);
    let mut readers = tokio::task::JoinSet::new();
    for limit in [1, 7, 500] {
        readers.spawn(read_all(db.clone(), limit, written.clone()));
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_much(db.clone(), writer));
    }
    let count: usize = writers.join_all().await.into_iter().sum();
    total.send(Some(OBJECTS + count)).unwrap();
    let call = |events: &[Event]| -> Vec<_> {
        events.iter().map(|one| (one.object_id.clone(), one.version)).collect()
    };
    let all = within_timeout("the readers", readers.join_all()).await;
    let last = call(&db.events(OBJECTS + count).await);
    for observed in &all {
        assert_eq!(observed.len(), OBJECTS + count, "each exactly once");
        assert!(observed.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
        assert_eq!(call(observed), last, "all readers see the same order");
        let mut versions: HashMap<&str, i64> = HashMap::new();
        for one in observed {
            let before = versions.insert(&one.object_id, one.version).unwrap_or(0);
            assert_eq!(one.version, before + 1, "{} out of order", one.object_id);
        }
    }
}

/// Cases with concurrent writers.
mod concurrent {
    use super::*;

    on_postgres!(
        events_that_are_not_final_are_not_shown,
        an_object_changes_in_the_order_of_its_versions,
    );

    /// A transaction that changes `first`, waits, and then changes `second`.
    async fn change_two_slowly(
        db: &Db,
        first: &str,
        second: &str,
    ) -> (tokio::task::JoinHandle<()>, Arc<Notify>) {
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let ids = [MachineId::trusted(first), MachineId::trusted(second)];
        let slow = tx!([begun, go_on, ids], |tx| {
            for (index, id) in ids.iter().enumerate() {
                let mut machine = tx.machine_locked(id).await?.expect("the machine exists");
                machine.labels.insert("by".into(), "slow".into());
                tx.update_machine(&mut machine, &event())?;
                if index == 0 {
                    begun.notify_one();
                    go_on.notified().await;
                }
            }
            Ok(())
        });
        let task = tokio::spawn({
            let db = db.clone();
            async move { db.write(slow).await.unwrap() }
        });
        within_timeout("the slow transaction", begun.notified()).await;
        (task, go_on)
    }

    async fn change(db: &Db, id: &str) {
        let id = MachineId::trusted(id);
        let change = tx!([id], |tx| {
            let mut machine = tx.machine(&id).await?.expect("the machine exists");
            tx.update_machine(&mut machine, &event())
        });
        db.write(change).await.unwrap();
    }

    async fn events_that_are_not_final_are_not_shown(db: Db) {
        db.add_machines(vec![machine("m-1"), machine("m-2"), machine("m-3")]).await;
        let cursor = db.events(3).await[2].cursor;
        let (slow, go_on) = change_two_slowly(&db, "m-1", "m-2").await;
        change(&db, "m-3").await;
        // A reader that saw the quick transaction now would never see the slow one.
        assert_eq!(db.events_after(cursor, 10).await.len(), 0);
        let held_back = || db.read(tx!([], |tx| tx.has_held_back_events().await));
        assert!(held_back().await.unwrap());
        let horizon = db.read(tx!([], |tx| tx.horizon().await)).await.unwrap();
        go_on.notify_one();
        within_timeout("the slow transaction", slow).await.unwrap();
        let names: Vec<_> = db.events(6).await.drain(3..).map(|one| one.object_id).collect();
        assert_eq!(names, ["m-1", "m-2", "m-3"]);
        assert_eq!(db.events_after(horizon, 10).await.len(), 3, "the horizon was not past it");
        assert!(!held_back().await.unwrap(), "the events are final");
    }

    /// The slow transaction begins before the quick one and ends after it: its change of the second
    /// machine is the later one and must come later in the order of events.
    async fn an_object_changes_in_the_order_of_its_versions(db: Db) {
        db.add_machines(vec![machine("m-1"), machine("m-2")]).await;
        let (slow, go_on) = change_two_slowly(&db, "m-1", "m-2").await;
        change(&db, "m-2").await;
        go_on.notify_one();
        within_timeout("the slow transaction", slow).await.unwrap();
        let events = db.events(5).await;
        let versions: Vec<_> =
            events.iter().filter(|one| one.object_id == "m-2").map(|one| one.version).collect();
        assert_eq!(versions, [1, 2, 3]);
    }
}
