//! Snapshots: a list as of a cursor, from which a watch continues without gaps or
//! repetitions.

use crate::harness::{Db, at, event, machine, run, within_timeout};
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, RunId};
use model::lifecycle::RecordHeader;
use model::machine::{Labels, Machine, Phase};
use model::rack::{Rack, RackSpec};
use model::run::{Run, Workflow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{Cursor, EventObject, MachinePage, RunPage, WatchedKind};
use tokio::sync::watch;

on_both!(
    a_snapshot_and_its_watch_have_no_gaps,
    a_snapshot_shows_the_past,
    a_snapshot_undoes_all_later_changes,
    a_snapshot_of_machines_shows_the_past,
    a_snapshot_of_records_shows_the_past,
    an_event_of_an_older_version_has_no_snapshot,
    an_event_that_cannot_be_read_stops_no_other,
    what_was_deleted_at_a_cursor_is_not_in_its_snapshot,
);

async fn horizon(db: &Db) -> Cursor {
    db.read(tx!([], |tx| tx.horizon().await)).await.unwrap()
}

async fn page(db: &Db, filter: &Filter, before: Option<String>, limit: i64, at: Cursor) -> RunPage {
    let page =
        tx!([filter, before], |tx| tx.runs_as_of(&filter, before.as_deref(), limit, at).await);
    db.read(page).await.unwrap()
}

/// A cursor after everything that was written so far.
async fn settled_horizon(db: &Db, events: usize) -> Cursor {
    let last = db.events(events).await.pop().unwrap().cursor;
    let at = horizon(db).await;
    assert!(at >= last);
    at
}

async fn a_snapshot_shows_the_past(db: Db) {
    let one = db.add_run("op-1").await;
    let two = db.add_run("op-2").await;
    let one_then = db.update_unclaimed(&one, Workflow::Running).await;
    let at = settled_horizon(&db, 5).await;
    let one = db.update_unclaimed(&one_then, Workflow::Completed).await;
    db.update_unclaimed(&two, Workflow::Running).await;
    db.add_run("op-3").await;

    let everything = Filter::default();
    let observed = page(&db, &everything, None, 10, at).await;
    assert_eq!(observed.runs, [two.clone(), one_then], "newest first, without later runs");
    assert_eq!(observed.next, None);
    let first = page(&db, &everything, None, 2, at).await;
    assert_eq!((first.runs, first.next.as_deref()), (vec![two], Some("op-2")));
    let now = settled_horizon(&db, 9).await;
    let running = Filter::parse("phase=SUCCEEDED", FilterSubject::Run).unwrap();
    assert_eq!(page(&db, &running, None, 10, now).await.runs, [one]);
}

async fn a_snapshot_undoes_all_later_changes(db: Db) {
    let then = db.add_run("op-1").await;
    let at = settled_horizon(&db, 2).await;
    let mut run = then.clone();
    for _ in 0..100 {
        run = db.update_unclaimed(&run, Workflow::Running).await;
    }
    assert_eq!(page(&db, &Filter::default(), None, 10, at).await.runs, [then]);
}

/// Changes a machine and returns it as it is then.
async fn change(db: &Db, id: &str, phase: Phase) -> Machine {
    let id = MachineId::trusted(id);
    let change = tx!([id], |tx| {
        let mut machine = tx.machine(&id).await?.expect("the machine exists");
        machine.phase = phase;
        tx.update_machine(&mut machine, &event())?;
        Ok(machine)
    });
    db.write(change).await.unwrap()
}

async fn machines(db: &Db, after: Option<&'static str>, limit: i64, at: Cursor) -> MachinePage {
    let all = Filter::default();
    db.read(tx!([all], |tx| tx.machines_as_of(&all, after, limit, at).await)).await.unwrap()
}

async fn a_snapshot_of_machines_shows_the_past(db: Db) {
    let same = db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    let then = change(&db, "m-2", Phase::Ready).await;
    let deleted = db.add_machine("m-3").await;
    let at = settled_horizon(&db, 4).await;
    change(&db, "m-2", Phase::Maintenance).await;
    change(&db, "m-2", Phase::Ready).await;
    db.write(tx!([deleted], |tx| tx.delete_machine(&deleted, &event()))).await.unwrap();
    db.add_machine("m-4").await;
    let page = machines(&db, None, 10, at).await;
    assert_eq!((page.machines, page.next), (vec![same.clone(), then.clone()], None));
    let page = machines(&db, None, 1, at).await;
    assert_eq!((page.machines, page.next.as_deref()), (vec![same], Some("m-1")));
    assert_eq!(machines(&db, Some("m-1"), 10, at).await.machines, [then]);
}

async fn a_snapshot_of_records_shows_the_past(db: Db) {
    let rack = |id: &str| {
        let head = RecordHeader::new(id, Labels::new(), at(1));
        Rack::new(head, RackSpec::default())
    };
    let insert = |rack: Rack| {
        tx!([rack], |tx| {
            let mut rack = rack;
            tx.insert_record(&mut rack, &event()).await?;
            Ok(rack)
        })
    };
    let then = db.write(insert(rack("rack-1"))).await.unwrap();
    let before = settled_horizon(&db, 1).await;
    let changed = then.clone();
    let update = tx!([changed], |tx| {
        let mut rack = changed;
        rack.topology_changed = true;
        tx.update_record(&mut rack, &event())?;
        Ok(rack)
    });
    let now = db.write(update).await.unwrap();
    db.write(insert(rack("rack-2"))).await.unwrap();
    let all = Filter::default();
    let page = tx!([all], |tx| tx.records_as_of::<Rack>(&all, None, 10, before).await);
    assert_eq!(db.read(page).await.unwrap().records, [then]);
    let events = db.events(3).await;
    let Some(EventObject::Rack(found)) = &events[1].object else { panic!("{:?}", events[1]) };
    assert_eq!(**found, now);
}

/// A watch refuses such an event, and its snapshot leaves the object to the event that follows.
async fn an_event_of_an_older_version_has_no_snapshot(db: Db) {
    let same = db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    let at = settled_horizon(&db, 2).await;
    let empty = "UPDATE events SET body = ''";
    db.execute_sql(empty, empty).await;
    let changed = change(&db, "m-2", Phase::Ready).await;
    assert_eq!(machines(&db, None, 10, at).await.machines, [same]);
    let events = db.events(3).await;
    assert!(events[..2].iter().all(|one| one.object.is_none()));
    assert!(matches!(&events[2].object, Some(EventObject::Machine(found)) if **found == changed));
    assert_eq!(events[0].kind, Some(WatchedKind::Machine));
}

async fn an_event_that_cannot_be_read_stops_no_other(db: Db) {
    db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    let newer = "UPDATE events SET body = '{}' WHERE object_id = 'm-1'";
    db.execute_sql(newer, newer).await;
    let events = db.events(2).await;
    assert!(events[0].object.is_none());
    assert!(matches!(&events[1].object, Some(EventObject::Machine(_))));
}

async fn what_was_deleted_at_a_cursor_is_not_in_its_snapshot(db: Db) {
    let first = db.add_machine("m-1").await;
    let delete = tx!([first], |tx| tx.delete_machine(&first, &event()));
    db.write(delete).await.unwrap();
    let at = settled_horizon(&db, 2).await;
    let again = Machine { version: 3, ..first.clone() };
    let insert = tx!([again], |tx| tx.insert_machine(&again, &event()));
    db.write(insert).await.unwrap();
    assert_eq!(machines(&db, None, 10, at).await.machines, []);
}

const WRITERS: usize = 4;
const RUNS_EACH: usize = 10;
const RUNS: usize = WRITERS * RUNS_EACH;
const CHANGES: usize = 5;
const WRITES: usize = RUNS * CHANGES;
const WATCHERS: usize = 8;

/// Creates and changes runs. In the middle it waits for `go_on`.
async fn write_runs(
    db: Db,
    writer: usize,
    written: Arc<watch::Sender<usize>>,
    mut go_on: watch::Receiver<bool>,
) {
    for n in 0..RUNS_EACH {
        if n == RUNS_EACH / 2 {
            within_timeout("the permission to continue", go_on.wait_for(|open| *open))
                .await
                .unwrap();
        }
        let (id, host) = (format!("op-{writer}-{n:02}"), format!("m-{writer}-{n}"));
        let mut run = run(&id, &host);
        db.insert_run(&run, None).await.unwrap();
        written.send_modify(|count| *count += 1);
        for change in 1..CHANGES {
            let last = change == CHANGES - 1;
            run = db
                .update_unclaimed(&run, if last { Workflow::Completed } else { Workflow::Running })
                .await;
            written.send_modify(|count| *count += 1);
        }
    }
}

/// The runs that a watch has seen.
#[derive(Default)]
struct WatchedRuns {
    in_snapshot: BTreeMap<RunId, i64>,
    after: BTreeMap<RunId, Vec<i64>>,
}

impl WatchedRuns {
    fn ended(&self, id: &RunId) -> bool {
        let snapshot = self.in_snapshot.get(id);
        let last = self.after.get(id).and_then(|versions| versions.last()).or(snapshot);
        last == Some(&(CHANGES as i64))
    }

    fn ids(&self) -> BTreeSet<&RunId> {
        self.in_snapshot.keys().chain(self.after.keys()).collect()
    }
}

/// Takes a snapshot and continues from its cursor until every run has ended.
async fn watch_runs(db: Db) -> WatchedRuns {
    let at = horizon(&db).await;
    let mut observed = WatchedRuns::default();
    let mut before = None;
    loop {
        let page = page(&db, &Filter::default(), before, 7, at).await;
        for Run { spec, version, .. } in page.runs {
            let twice = observed.in_snapshot.insert(spec.id, version);
            assert_eq!(twice, None, "it is in the snapshot twice");
        }
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    let mut cursor = at;
    let all = async {
        while observed.ids().iter().filter(|id| observed.ended(id)).count() < RUNS {
            for event in db.events_after(cursor, 11).await {
                cursor = event.cursor;
                if let Some(EventObject::Run(run)) = event.object {
                    observed.after.entry(run.spec.id.clone()).or_default().push(event.version);
                }
            }
            tokio::task::yield_now().await;
        }
    };
    within_timeout("all runs to end", all).await;
    observed
}

async fn a_snapshot_and_its_watch_have_no_gaps(db: Db) {
    let host = |w| (0..RUNS_EACH).map(move |n| machine(&format!("m-{w}-{n}")));
    db.add_machines((0..WRITERS).flat_map(host).collect()).await;
    let (written, mut count) = watch::channel(0);
    let (written, (open, go_on)) = (Arc::new(written), watch::channel(false));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_runs(db.clone(), writer, Arc::clone(&written), go_on.clone()));
    }
    // Watches start at different times, measured in the number of writes.
    let mut watchers = tokio::task::JoinSet::new();
    for watcher in 0..WATCHERS {
        let time = watcher * WRITES / WATCHERS;
        if time > WRITES / 2 && !*open.borrow() {
            // Everything written so far is final, so a new watch finds it in its snapshot.
            db.events(RUNS + WRITES / 2).await;
            watchers.spawn(watch_runs(db.clone()));
            open.send_replace(true);
        }
        within_timeout("more writes", count.wait_for(|count| *count >= time)).await.unwrap();
        watchers.spawn(watch_runs(db.clone()));
    }
    writers.join_all().await;
    let mut snapshots = Vec::new();
    for observed in watchers.join_all().await {
        snapshots.push(observed.in_snapshot.len());
        assert_eq!(observed.ids().len(), RUNS);
        for (id, versions) in &observed.after {
            let first = observed.in_snapshot.get(id).map_or(1, |version| version + 1);
            let expected: Vec<_> = (first..=CHANGES as i64).collect();
            assert_eq!(*versions, expected, "{id} after {:?}", observed.in_snapshot.get(id));
        }
    }
    assert!(snapshots.iter().any(|count| *count >= RUNS / 2), "{snapshots:?}");
}
