//! Records with a lifecycle: their queue rows, history, claims and pages.

use crate::harness::{Db, at, event, run, within_timeout};
use model::filter::{Filter, FilterSubject};
use model::id::{ObjectId, RackId, RunId};
use model::lifecycle::{DeviceSpec, Lifecycle, RecordHeader, SubjectId, SubjectKind};
use model::machine::Labels;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::run::{Run, Workflow};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::time::Duration;
use store::{
    ClaimedKind, ClaimedObject, EndedRunPosition, Enqueue, RecordClaim, RemovedRows, Result,
    StoreError,
};

on_both!(
    a_record_has_a_queue_row_and_a_history,
    an_id_is_unique,
    a_stale_version_changes_nothing,
    a_lost_claim_cannot_write,
    a_wake_during_a_turn_makes_it_due_again,
    a_record_is_idle_or_due_at_a_time,
    a_removed_record_keeps_its_history_and_frees_its_id,
    records_are_paged_and_filtered,
    records_and_runs_share_one_queue,
    unknown_kinds_are_not_claimed,
    active_runs_are_found_by_target,
    a_child_run_is_kept_while_its_parent_exists,
    a_run_is_kept_until_its_record_has_handled_its_end,
    the_events_of_a_removed_record_go,
    an_older_database_keeps_its_runs,
);

fn shelf(id: &str, rack: Option<&str>) -> PowerShelf {
    let mut head = RecordHeader::new(id, Labels::new(), at(0));
    head.rack = rack.map(RackId::trusted);
    PowerShelf::new(head, DeviceSpec::default())
}

async fn insert<R: Lifecycle>(db: &Db, record: R) -> Result<R> {
    let insert = tx!([record], |tx| {
        let mut record = record;
        tx.insert_record(&mut record, &event()).await?;
        Ok(record)
    });
    db.write(insert).await
}

async fn get(db: &Db, id: &'static str) -> Option<PowerShelf> {
    db.read(tx!([], |tx| tx.record::<PowerShelf>(id).await)).await.unwrap()
}

async fn update_and_enqueue(db: &Db, record: &PowerShelf) -> Result<PowerShelf> {
    let tell = tx!([record], |tx| {
        let mut record = record;
        tx.update_and_enqueue(&mut record, &event())?;
        Ok(record)
    });
    db.write(tell).await
}

fn claim_of(claimed: &ClaimedObject) -> RecordClaim {
    RecordClaim { epoch: claimed.epoch, wakes_handled: claimed.wakes_requested }
}

/// One turn of a record: it becomes ready, and its queue row is settled.
async fn turn(
    db: &Db,
    record: &PowerShelf,
    claim: RecordClaim,
    due: Option<Timestamp>,
) -> Result<()> {
    let turn = tx!([record], |tx| {
        let mut record = record;
        record.state = PowerShelfState::Ready;
        tx.update_record(&mut record, &event())?;
        tx.settle_record(&record, claim, due, at(20))
    });
    db.write(turn).await
}

async fn history(db: &Db, id: &'static str) -> Vec<(i64, String)> {
    let all = db.read(tx!([], |tx| tx.history(id, 0, 100).await)).await.unwrap();
    all.into_iter().map(|event| (event.version, event.state)).collect()
}

async fn a_record_has_a_queue_row_and_a_history(db: Db) {
    let record = insert(&db, shelf("ps-1", None)).await.unwrap();
    assert_eq!(get(&db, "ps-1").await, Some(record.clone()));
    let other_kind = db.read(tx!([], |tx| tx.record::<Switch>("ps-1").await)).await;
    assert_eq!(other_kind, Ok(None), "a shelf is no switch");
    let claimed = db.claim("a", at(5), 9).await.remove(0);
    assert_eq!(
        (claimed.id.as_str(), claimed.kind),
        ("ps-1", ClaimedKind::Record(SubjectKind::PowerShelf))
    );
    assert!(db.claim("b", at(5), 9).await.is_empty());
    turn(&db, &record, claim_of(&claimed), None).await.unwrap();
    let words: Vec<_> = history(&db, "ps-1").await;
    assert_eq!(words, [(1, "Initializing".to_string()), (2, "Ready".to_string())]);
    assert_eq!(get(&db, "ps-1").await.unwrap().head.version, 2);
    let counts = db.read(tx!([], |tx| tx.record_counts().await)).await.unwrap();
    assert_eq!(counts, [("power_shelf".to_string(), "Ready".to_string(), 1)]);
}

async fn an_id_is_unique(db: Db) {
    insert(&db, shelf("ps-1", None)).await.unwrap();
    assert_eq!(insert(&db, shelf("ps-1", None)).await.map(drop), Err(StoreError::Conflict));
    assert_eq!(history(&db, "ps-1").await.len(), 1);
}

async fn a_stale_version_changes_nothing(db: Db) {
    let first = insert(&db, shelf("ps-1", None)).await.unwrap();
    let mut changed = first.clone();
    changed.retry_requested = true;
    let second = update_and_enqueue(&db, &changed).await.unwrap();
    assert_eq!(update_and_enqueue(&db, &first).await.map(drop), Err(StoreError::Conflict));
    assert_eq!(get(&db, "ps-1").await, Some(second));
    assert_eq!(history(&db, "ps-1").await.len(), 2);
}

async fn a_lost_claim_cannot_write(db: Db) {
    let record = insert(&db, shelf("ps-1", None)).await.unwrap();
    let claimed = db.claim("a", at(5), 9).await.remove(0);
    let back = claimed.clone();
    db.write(tx!([back], |tx| tx.release_unhandled(&back.id, back.epoch, at(6)))).await.unwrap();
    let lost = turn(&db, &record, claim_of(&claimed), None).await;
    assert_eq!(lost, Err(StoreError::Conflict), "it is not claimed");
    let taken = db.claim("b", at(6), 9).await.remove(0);
    assert_eq!(taken.epoch, 2);
    assert_eq!(turn(&db, &record, claim_of(&claimed), None).await, Err(StoreError::Conflict));
    assert_eq!(get(&db, "ps-1").await, Some(record.clone()));
    assert_eq!(history(&db, "ps-1").await.len(), 1);
    let claim = |claimed: &ClaimedObject| {
        let (id, epoch) = (claimed.id.clone(), claimed.epoch);
        db.read(tx!([id], |tx| tx.is_claimed(&id, epoch).await))
    };
    assert_eq!((claim(&claimed).await, claim(&taken).await), (Ok(false), Ok(true)));
    turn(&db, &record, claim_of(&taken), None).await.unwrap();
    assert_eq!(claim(&taken).await, Ok(false));
}

async fn a_wake_during_a_turn_makes_it_due_again(db: Db) {
    let record = insert(&db, shelf("ps-1", None)).await.unwrap();
    let claimed = db.claim("a", at(5), 9).await.remove(0);
    let id = ObjectId::trusted("ps-1");
    db.write(tx!([id], |tx| tx.wake(&id, at(6)))).await.unwrap();
    turn(&db, &record, claim_of(&claimed), None).await.unwrap();
    let again = db.claim("a", at(20), 9).await.remove(0);
    assert_eq!((again.epoch, again.wakes_requested), (2, 2));
    let record = get(&db, "ps-1").await.unwrap();
    turn(&db, &record, claim_of(&again), None).await.unwrap();
    assert!(db.claim("a", at(1_000), 9).await.is_empty(), "the wake-up was handled");
}

async fn a_record_is_idle_or_due_at_a_time(db: Db) {
    let record = insert(&db, shelf("ps-1", None)).await.unwrap();
    let claimed = db.claim("a", at(5), 9).await.remove(0);
    turn(&db, &record, claim_of(&claimed), Some(at(90))).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.next_due().await)).await, Ok(Some(at(90))));
    assert!(db.claim("a", at(89), 9).await.is_empty());
    let claimed = db.claim("a", at(90), 9).await.remove(0);
    let record = get(&db, "ps-1").await.unwrap();
    turn(&db, &record, claim_of(&claimed), None).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.next_due().await)).await, Ok(None));
    // An update by a request makes the record due.
    update_and_enqueue(&db, &get(&db, "ps-1").await.unwrap()).await.unwrap();
    assert_eq!(db.claim("a", at(90), 9).await.len(), 1);
}

async fn remove(db: &Db, record: &PowerShelf) -> Result<()> {
    db.write(tx!([record], |tx| tx.remove_record(&record, &event()))).await
}

async fn a_removed_record_keeps_its_history_and_frees_its_id(db: Db) {
    let first = insert(&db, shelf("ps-1", None)).await.unwrap();
    let second = update_and_enqueue(&db, &first).await.unwrap();
    assert_eq!(remove(&db, &first).await, Err(StoreError::Conflict), "the version has moved");
    remove(&db, &second).await.unwrap();
    assert_eq!(get(&db, "ps-1").await, None);
    assert!(db.claim("a", at(100), 9).await.is_empty(), "nothing is left in the queue");
    let again = insert(&db, shelf("ps-1", None)).await.unwrap();
    assert_eq!(again.head.version, 4);
    let versions: Vec<i64> = history(&db, "ps-1").await.into_iter().map(|one| one.0).collect();
    assert_eq!(versions, [1, 2, 3, 4]);
    assert_eq!(history(&db, "ps-1").await[2].1, "removed");
}

async fn page(db: &Db, filter: &Filter, after: Option<&str>) -> (Vec<String>, Option<String>) {
    let (filter, after) = (filter.clone(), after.map(String::from));
    let read =
        tx!([filter, after], |tx| tx.records::<PowerShelf>(&filter, after.as_deref(), 2).await);
    let page = db.read(read).await.unwrap();
    (page.records.into_iter().map(|one| one.head.id).collect(), page.next)
}

async fn records_are_paged_and_filtered(db: Db) {
    for (id, rack, site) in [
        ("ps-3", Some("rack-1"), "x"),
        ("ps-1", Some("rack-1"), "x"),
        ("ps-2", Some("rack-2"), "y"),
        ("ps-4", Some("rack-1"), "y"),
        ("ps-5", None, "x"),
    ] {
        let mut one = shelf(id, rack);
        one.head.labels.insert("site".into(), site.into());
        insert(&db, one).await.unwrap();
    }
    insert(
        &db,
        Switch::new(RecordHeader::new("sw-1", Labels::new(), at(0)), DeviceSpec::default()),
    )
    .await
    .unwrap();
    let all = Filter::default();
    let parsed = |text: &str| Filter::parse(text, FilterSubject::PowerShelf).unwrap();
    let mut observed = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let (ids, next) = page(&db, &all, after.as_deref()).await;
        observed.extend(ids);
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(observed, ["ps-1", "ps-2", "ps-3", "ps-4", "ps-5"]);
    let in_rack = parsed("rack=rack-1");
    assert_eq!(
        page(&db, &in_rack, None).await,
        (vec!["ps-1".into(), "ps-3".into()], Some("ps-3".into()))
    );
    assert_eq!(page(&db, &in_rack, Some("ps-3")).await, (vec!["ps-4".into()], None));
    let labelled = parsed("labels.site=y");
    assert_eq!(page(&db, &labelled, None).await, (vec!["ps-2".into(), "ps-4".into()], None));
    assert_eq!(page(&db, &parsed("labels.none"), None).await, (Vec::new(), None));
    assert_eq!(page(&db, &parsed("labels.site"), None).await.0.len(), 2);
    let ready = parsed("state=ready");
    assert_eq!(page(&db, &ready, None).await, (Vec::new(), None));
    let rack = RackId::trusted("rack-1");
    let together = async || {
        let rack = rack.clone();
        let all = db.read(tx!([rack], |tx| tx.records_in_rack::<PowerShelf>(&rack).await)).await;
        let reported = |(id, found): (String, Result<PowerShelf>)| match found {
            Ok(shelf) => shelf.head.id,
            Err(StoreError::Corrupt(_)) => format!("{id} cannot be read"),
            Err(error) => panic!("{error}"),
        };
        all.unwrap().into_iter().map(reported).collect::<Vec<_>>()
    };
    assert_eq!(together().await, ["ps-1", "ps-3", "ps-4"]);
    let damage = "UPDATE records SET body = '{' WHERE id = 'ps-3'";
    db.execute_sql(damage, damage).await;
    assert_eq!(together().await, ["ps-1", "ps-3 cannot be read", "ps-4"]);
}

async fn records_and_runs_share_one_queue(db: Db) {
    let first = db.add_run("op-1").await;
    let mut late = shelf("ps-1", None);
    late.head.created_at = at(3);
    insert(&db, late).await.unwrap();
    let second = db.add_run("op-2").await;
    let woken = second.spec.id.object();
    db.write(tx!([woken], |tx| tx.wake(&woken, at(5)))).await.unwrap();
    for (id, kind) in [
        (first.spec.id.as_str(), ClaimedKind::Run),
        ("ps-1", ClaimedKind::Record(SubjectKind::PowerShelf)),
        (second.spec.id.as_str(), ClaimedKind::Run),
    ] {
        let claimed = db.claim("a", at(10), 1).await.remove(0);
        assert_eq!((claimed.id.as_str(), claimed.kind), (id, kind));
    }
    let claim = db.read(tx!([], |tx| tx.claimed_by("a").await)).await.unwrap();
    assert_eq!(claim.len(), 3);
}

async fn unknown_kinds_are_not_claimed(db: Db) {
    for (n, kind) in SubjectKind::ALL.into_iter().enumerate() {
        let subject = "INSERT INTO subjects (id, kind, version, epoch, due_at, wakes_asked, \
                       wakes_handled, phase, workflow, state, updated_at) VALUES ";
        let row = format!("('x-{n}', '{}', 1, 0, 1, 1, 0, '', '', '', 0)", kind.as_str());
        let foreign = format!("('y-{n}', 'not {}', 1, 0, 0, 1, 0, '', '', '', 0)", kind.as_str());
        let sql = format!("{subject} {row}, {foreign}");
        db.execute_sql(&sql, &sql).await;
    }
    let due = db.read(tx!([], |tx| tx.next_due().await)).await;
    assert_eq!(due, Ok(Some(Timestamp::from_micros(1))));
    let claimed = db.claim("a", at(5), 99).await;
    assert_eq!(claimed.len(), SubjectKind::ALL.len(), "exactly the known kinds");
    assert_eq!(db.read(tx!([], |tx| tx.next_due().await)).await, Ok(None));
}

fn on(id: &str, target: &TargetId, seconds: i64) -> Run {
    let mut run = run(id, "m-x");
    run.spec.target = target.clone();
    run.spec.created_at = at(seconds);
    run
}

async fn active_runs_are_found_by_target(db: Db) {
    let targets: Vec<TargetId> =
        ["ps-1", "ps-2", "ps-3"].map(|id| TargetId::new(TargetKind::PowerShelf, id)).to_vec();
    let (first, second) = (on("op-1", &targets[0], 5), on("op-2", &targets[1], 9));
    db.insert_run(&first, None).await.unwrap();
    db.insert_run(&second, None).await.unwrap();
    let twice = on("op-3", &targets[0], 10);
    assert_eq!(
        db.insert_run(&twice, None).await,
        Err(StoreError::Conflict),
        "another run holds the target"
    );
    // Several runs may be active on one rack.
    let rack = TargetId::new(TargetKind::Rack, "rack-1");
    for id in ["op-4", "op-5"] {
        db.insert_run(&on(id, &rack, 1), None).await.unwrap();
    }
    let claimed = db.read(tx!([targets], |tx| tx.active_runs_on(&targets).await)).await.unwrap();
    let claimed: Vec<_> = claimed.iter().map(|(key, id)| (key.as_str(), id.as_str())).collect();
    assert_eq!(claimed, [("power_shelf:ps-1", "op-1"), ("power_shelf:ps-2", "op-2")]);
    let newest = db.read(tx!([targets], |tx| tx.newest_run_at(&targets).await)).await;
    assert_eq!(newest, Ok(at(9)));
    let none = targets[2..].to_vec();
    let newest = db.read(tx!([none], |tx| tx.newest_run_at(&none).await)).await;
    assert_eq!(newest, Ok(Timestamp::default()));
    let of = tx!([targets], |tx| tx.runs_of_request(&targets, "req-op-2").await);
    let of: Vec<_> = db.read(of).await.unwrap().into_iter().map(|run| run.spec.id).collect();
    assert_eq!(of, [second.spec.id]);
}

async fn end(db: &Db, mut run: Run) -> RunId {
    run = crate::harness::ended(run, Workflow::Completed);
    db.insert_run(&run, None).await.unwrap();
    run.spec.id
}

/// Checks whether retention deletes a run. Retries, as other tests may hold back the horizon.
async fn check_deletion(db: &Db, run: &RunId, goes: bool) {
    let runs = vec![run.clone()];
    let try_once = || db.write(tx!([runs], |tx| tx.remove_runs(&runs).await));
    if !goes {
        assert_eq!(try_once().await, Ok(RemovedRows::default()), "{run} must stay");
        return;
    }
    let gone = async {
        while try_once().await.unwrap().runs == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within_timeout("the deletion of the run", gone).await;
}

async fn superseded(db: &Db, run: &RunId) -> bool {
    let all = tx!([], |tx| tx.ended_runs(at(10_000), &EndedRunPosition::default(), 99).await);
    let all = db.read(all).await.unwrap();
    all.iter().find(|one| one.id == *run).expect("it ended").superseded
}

async fn a_child_run_is_kept_while_its_parent_exists(db: Db) {
    let (rack, target) =
        (TargetId::new(TargetKind::Rack, "rack-1"), TargetId::new(TargetKind::Switch, "sw-1"));
    let parent = end(&db, on("op-1", &rack, 1)).await;
    let mut part = on("op-2", &target, 2);
    part.spec.parent_run = Some(parent.clone());
    let part = end(&db, part).await;
    end(&db, on("op-3", &target, 3)).await;
    assert!(!superseded(&db, &part).await, "its parent run exists");
    check_deletion(&db, &part, false).await;
    end(&db, on("op-4", &rack, 4)).await;
    check_deletion(&db, &parent, true).await;
    assert!(superseded(&db, &part).await);
    check_deletion(&db, &part, true).await;
}

async fn a_run_is_kept_until_its_record_has_handled_its_end(db: Db) {
    let record = insert(&db, shelf("ps-1", None)).await.unwrap();
    let target = TargetId::new(TargetKind::PowerShelf, "ps-1");
    let mut waited_for = on("op-1", &target, 1);
    waited_for.spec.reports_to = Some(SubjectId::new(SubjectKind::PowerShelf, "ps-1"));
    let waited_for = end(&db, waited_for).await;
    end(&db, on("op-2", &target, 2)).await;
    check_deletion(&db, &waited_for, false).await;
    let claimed = db.claim("a", at(5), 9).await;
    let claimed =
        claimed.iter().find(|one| one.kind != ClaimedKind::Run).expect("the shelf is due");
    check_deletion(&db, &waited_for, false).await;
    turn(&db, &record, claim_of(claimed), None).await.unwrap();
    let back = tx!([waited_for], |tx| {
        // Releases the ended runs that were claimed with it.
        for (id, epoch) in tx.claimed_by("a").await? {
            tx.release(&id, epoch, 1, None, at(6))?;
        }
        let _ = waited_for;
        Ok(())
    });
    db.write(back).await.unwrap();
    check_deletion(&db, &waited_for, true).await;
}

async fn the_events_of_a_removed_record_go(db: Db) {
    let stored = insert(&db, shelf("ps-1", None)).await.unwrap();
    let gone = insert(&db, shelf("ps-2", None)).await.unwrap();
    remove(&db, &gone).await.unwrap();
    db.events(3).await;
    let aged = tx!([], |tx| tx.aged_events(at(100), store::EventPosition::default(), 9).await);
    let aged = db.read(aged).await.unwrap();
    let spare: Vec<bool> = aged.iter().map(|event| event.removable).collect();
    assert_eq!(spare, [false, true, true], "the newest event of {stored:?} stays");
}

/// An older schema had another table of runs, for machines only.
async fn an_older_database_keeps_its_runs(db: Db) {
    let active = db.add_run("op-1").await;
    let done = db.add_run("op-2").await;
    let done = db.update_unclaimed(&done, Workflow::Completed).await;
    let db = db.revert_racks().await;
    assert_eq!(db.run(&active.spec.id).await, active);
    assert_eq!(db.run(&done.spec.id).await, done);
    let target = active.spec.target.clone();
    let again = tx!([target], |tx| tx.run_of_request(&target, "req-op-1").await);
    assert_eq!(db.read(again).await, Ok(Some(active.clone())));
    let mut second = run("op-3", active.spec.target.as_str());
    assert_eq!(
        db.insert_run(&second, None).await,
        Err(StoreError::Conflict),
        "another run still holds the target"
    );
    second.spec.target = done.spec.target.clone();
    db.insert_run(&second, None).await.unwrap();
    let targets = vec![active.spec.target];
    let claimed = db.read(tx!([targets], |tx| tx.active_runs_on(&targets).await)).await.unwrap();
    assert_eq!(claimed.into_values().collect::<Vec<_>>(), [active.spec.id]);
    insert(&db, shelf("ps-1", None)).await.unwrap();
}

mod together {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Notify;

    on_postgres!(a_parent_that_inserts_child_runs_is_locked);

    /// While a parent is locked to insert its child runs, claims skip it and updates wait.
    async fn a_parent_that_inserts_child_runs_is_locked(db: Db) {
        let parent = db.add_run("op-1").await;
        let (locked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let id = parent.spec.id.clone();
        let begin = {
            let (locked, go_on) = (Arc::clone(&locked), Arc::clone(&go_on));
            let id = id.clone();
            tx!([locked, go_on, id], |tx| {
                let claimed = tx.run_with_claim_locked(&id).await?.expect("the run exists");
                locked.notify_one();
                go_on.notified().await;
                let target = TargetId::new(TargetKind::Switch, "sw-1");
                let mut part = on("op-2", &target, 1);
                part.spec.parent_run = Some(claimed.run.spec.id);
                tx.insert_run(&part, Enqueue::WhenWoken, &event())
            })
        };
        let begun = tokio::spawn(db.write(begin));
        within_timeout("the lock", locked.notified()).await;
        assert!(db.claim("b", at(100), 9).await.is_empty(), "a claim skips the locked row");
        let telling = {
            let db = db.clone();
            tokio::spawn(async move { db.update_unclaimed(&parent, Workflow::Running).await })
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!telling.is_finished(), "it waits for the insert of the child runs");
        go_on.notify_one();
        begun.await.unwrap().unwrap();
        within_timeout("the update", telling).await.unwrap();
        let part = RunId::trusted("op-2");
        assert!(db.read(tx!([part], |tx| tx.run(&part).await)).await.unwrap().is_some());
    }
}
