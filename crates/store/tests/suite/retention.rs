//! Retention: removable rows are deleted completely and in small batches, other rows stay, and the
//! newest deleted event is recorded.

use crate::harness::{Db, at, ended, event, machine, run};
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, RunId};
use model::run::{Run, Workflow};
use model::time::Timestamp;
use store::{
    AgedEvent, ClaimOutcome, Cursor, EndedRun, EndedRunPosition, EventPosition, MAX_ROWS_PER_BATCH,
    NewEvent, NewLog, Options, RemovedRows, RunSettlement, WatchedKind,
};

on_both!(
    a_run_is_deleted_completely,
    runs_that_a_gate_reads_are_kept,
    a_long_log_is_deleted_in_batches,
    logs_are_deleted_before_their_runs,
    ended_runs_come_in_order,
    a_reopened_run_has_not_ended,
    the_newest_event_of_a_machine_stays,
    events_of_a_deleted_machine_are_deleted,
    the_last_run_of_a_deleted_machine_expires,
    the_deleted_events_mark_never_goes_back,
    a_list_by_phase_does_not_depend_on_the_index,
);

fn id(name: &str) -> RunId {
    RunId::trusted(name)
}

fn later() -> Timestamp {
    at(1_000_000)
}

async fn end_run(db: &Db, name: &str, host: &str, seconds: i64) -> Run {
    let mut run = ended(run(name, host), Workflow::Completed);
    run.spec.created_at = at(seconds);
    db.insert_run(&run, None).await.unwrap();
    run
}

async fn log(db: &Db, run: &str, lines: i64) {
    let run = id(run);
    let piece = |n: i64| NewLog {
        start: n * 4,
        ts: at(1),
        step: "one".into(),
        attempt: 1,
        stream: "stdout",
        data: b"abc\n".to_vec(),
    };
    let pieces: Vec<_> = (0..lines).map(piece).collect();
    db.write(tx!([run, pieces], |tx| tx.append_log(&run, &pieces))).await.unwrap();
}

async fn log_end(db: &Db, run: &str) -> i64 {
    let run = id(run);
    db.read(tx!([run], |tx| tx.log_end(&run).await)).await.unwrap()
}

/// Other tests on the same server may hold back the horizon, and events that are not final stay.
async fn remove(db: &Db, runs: &[&str]) -> RemovedRows {
    db.events(count_events(db).await).await;
    let runs: Vec<RunId> = runs.iter().map(|run| id(run)).collect();
    db.write(tx!([runs], |tx| tx.remove_runs(&runs).await)).await.unwrap()
}

async fn count_events(db: &Db) -> usize {
    let mut count = 0;
    for object in ["m-1", "m-2", "op-1", "op-2", "op-3", "op-4"] {
        count += db.read(tx!([], |tx| tx.history(object, 0, 1_000).await)).await.unwrap().len();
    }
    count
}

async fn ended_runs(
    db: &Db,
    before: Timestamp,
    after: EndedRunPosition,
    limit: i64,
) -> Vec<EndedRun> {
    db.read(tx!([after], |tx| tx.ended_runs(before, &after, limit).await)).await.unwrap()
}

async fn known(db: &Db, run: &str) -> bool {
    let run = id(run);
    db.read(tx!([run], |tx| tx.run(&run).await)).await.unwrap().is_some()
}

async fn removed(db: &Db, kind: WatchedKind) -> Cursor {
    db.read(tx!([], |tx| tx.newest_removed_event(&[kind]).await)).await.unwrap()
}

async fn a_run_is_deleted_completely(db: Db) {
    db.add_machine("m-1").await;
    let old = end_run(&db, "op-1", "m-1", 10).await;
    log(&db, "op-1", 3).await;
    end_run(&db, "op-2", "m-1", 20).await;
    let last = db.events(3).await[1].cursor;
    assert_eq!(removed(&db, WatchedKind::Run).await, Cursor::default());
    let gone = remove(&db, &["op-1", "op-2", "op-nobody"]).await;
    assert_eq!(gone, RemovedRows { runs: 1, events: 1, logs: 3 }, "the latest stays");
    assert!(!known(&db, "op-1").await && known(&db, "op-2").await);
    assert_eq!(db.read(tx!([], |tx| tx.history("op-1", 0, 9).await)).await.unwrap().len(), 0);
    assert_eq!(log_end(&db, "op-1").await, 0);
    assert_eq!(removed(&db, WatchedKind::Run).await, last, "the newest deleted event is recorded");
    let again = remove(&db, &["op-1", "op-2"]).await;
    assert!(again.is_empty(), "{again:?}");
    // Its request id can be used again.
    let mut newer = run("op-3", "m-1");
    newer.spec.request_id = old.spec.request_id;
    db.insert_run(&newer, None).await.unwrap();
}

async fn runs_that_a_gate_reads_are_kept(db: Db) {
    // An active run with a newer one on its machine, and an ended run that is claimed.
    db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    db.insert_run(&run("op-1", "m-1"), None).await.unwrap();
    let mut newer = ended(run("op-2", "m-1"), Workflow::Completed);
    newer.spec.created_at = at(9);
    db.insert_run(&newer, None).await.unwrap();
    let claimed = ended(run("op-3", "m-2"), Workflow::Completed);
    db.insert_run(&claimed, Some("replica-a")).await.unwrap();
    let mut newer = ended(run("op-4", "m-2"), Workflow::Completed);
    newer.spec.created_at = at(9);
    db.insert_run(&newer, None).await.unwrap();
    let gone = remove(&db, &["op-1", "op-2", "op-3", "op-4"]).await;
    assert!(gone.is_empty(), "{gone:?}");
    let found = ended_runs(&db, later(), EndedRunPosition::default(), 9).await;
    let spare: Vec<_> = found.iter().map(|run| (run.id.as_str(), run.superseded)).collect();
    assert_eq!(spare, [("op-3", true), ("op-2", false), ("op-4", false)]);
}

async fn a_long_log_is_deleted_in_batches(db: Db) {
    db.add_machine("m-1").await;
    end_run(&db, "op-1", "m-1", 10).await;
    end_run(&db, "op-2", "m-1", 20).await;
    let lines = MAX_ROWS_PER_BATCH * 2 + 7;
    log(&db, "op-1", lines).await;
    for _ in 0..2 {
        let gone = remove(&db, &["op-1"]).await;
        assert_eq!(gone, RemovedRows { logs: MAX_ROWS_PER_BATCH as u64, ..RemovedRows::default() });
        assert!(known(&db, "op-1").await, "the row is deleted last");
        assert_eq!(log_end(&db, "op-1").await, lines * 4, "the oldest chunks are deleted first");
    }
    let gone = remove(&db, &["op-1"]).await;
    assert_eq!(gone, RemovedRows { runs: 1, events: 1, logs: 7 });
    assert!(!known(&db, "op-1").await);
}

async fn logs_are_deleted_before_their_runs(db: Db) {
    db.add_machine("m-1").await;
    end_run(&db, "op-1", "m-1", 10).await;
    log(&db, "op-1", 5).await;
    let runs = [id("op-1"), id("op-2")];
    db.add_machine("m-2").await;
    db.insert_run(&run("op-2", "m-2"), None).await.unwrap();
    log(&db, "op-2", 5).await;
    let sizes = tx!([], |tx| {
        let end = EndedRunPosition { at: at(1_000_000), id: String::new() };
        tx.log_sizes(&end, 10).await
    });
    let position = EndedRunPosition { at: at(10), id: "op-1".into() };
    assert_eq!(db.read(sizes).await.unwrap(), [(position, 20)]);
    assert!(ended_runs(&db, later(), EndedRunPosition::default(), 9).await[0].logged);
    let gone = db.write(tx!([runs], |tx| tx.remove_logs(&runs).await)).await.unwrap();
    assert_eq!(
        gone,
        RemovedRows { logs: 5, ..RemovedRows::default() },
        "the log of the active run stays"
    );
    assert!(known(&db, "op-1").await);
    assert!(!ended_runs(&db, later(), EndedRunPosition::default(), 9).await[0].logged);
    assert_eq!((log_end(&db, "op-1").await, log_end(&db, "op-2").await), (0, 20));
}

async fn ended_runs_come_in_order(db: Db) {
    db.add_machine("m-1").await;
    for (name, seconds) in [("op-3", 10), ("op-1", 20), ("op-2", 20), ("op-4", 30)] {
        end_run(&db, name, "m-1", seconds).await;
    }
    let (mut observed, mut after) = (Vec::new(), EndedRunPosition::default());
    loop {
        let page = ended_runs(&db, at(30), after, 2).await;
        let Some(last) = page.last() else { break };
        after = last.position();
        observed.extend(page.into_iter().map(|run| run.id.to_string()));
    }
    assert_eq!(observed, ["op-3", "op-1", "op-2"]);
    for (newer, expected) in [(0, Some(30)), (1, Some(20)), (3, Some(10)), (4, None)] {
        let behind = db.read(tx!([], |tx| tx.nth_newest_run_end(newer).await)).await.unwrap();
        assert_eq!(behind, expected.map(at), "{newer}");
    }
}

async fn a_reopened_run_has_not_ended(db: Db) {
    let first = db.add_run("op-1").await;
    let claimed = db.claim("a", at(10), 1).await.remove(0);
    let done = ended(first, Workflow::FailedRetryable);
    let (epoch, wakes) = (claimed.epoch, claimed.wakes_requested);
    let settle = RunSettlement {
        run: done,
        epoch,
        wakes_handled: wakes,
        claim: ClaimOutcome::Release(None),
        now: at(77),
    };
    db.settle(&settle).await.unwrap();
    let found = ended_runs(&db, later(), EndedRunPosition::default(), 9).await;
    assert_eq!(found[0].position(), EndedRunPosition { at: at(77), id: "op-1".into() });
    let run = db.run(&id("op-1")).await;
    db.update_unclaimed(&run, Workflow::Running).await;
    assert_eq!(ended_runs(&db, later(), EndedRunPosition::default(), 9).await, []);
}

async fn change_machine(db: &Db, name: &str, times: i64) {
    let name = MachineId::trusted(name);
    for n in 1..=times {
        let change = tx!([name], |tx| {
            let mut machine = tx.machine_locked(&name).await?.unwrap();
            let event = NewEvent { at: at(n * 10), ..event() };
            tx.update_machine(&mut machine, &event)
        });
        db.write(change).await.unwrap();
    }
}

async fn aged(db: &Db, before: Timestamp) -> Vec<AgedEvent> {
    let after = EventPosition::default();
    db.read(tx!([], |tx| tx.aged_events(before, after, 100).await)).await.unwrap()
}

async fn remove_events(db: &Db, before: Timestamp) -> RemovedRows {
    let upto = aged(db, before).await.last().unwrap().position;
    let after = EventPosition::default();
    db.write(tx!([], |tx| tx.remove_events(after, upto).await)).await.unwrap()
}

async fn versions(db: &Db, object: &'static str) -> Vec<i64> {
    let events = db.read(tx!([], |tx| tx.history(object, 0, 100).await)).await.unwrap();
    events.into_iter().map(|event| event.version).collect()
}

async fn the_newest_event_of_a_machine_stays(db: Db) {
    db.add_machine("m-1").await;
    db.add_machine("m-2").await;
    end_run(&db, "op-1", "m-2", 3).await;
    change_machine(&db, "m-1", 5).await;
    let all = db.events(8).await;
    let spare: Vec<_> = aged(&db, later()).await.iter().map(|event| event.removable).collect();
    assert_eq!(
        spare,
        [true, false, true, true, true, true, false],
        "events of runs are not listed"
    );
    assert_eq!(
        remove_events(&db, at(30)).await,
        RemovedRows { events: 3, ..RemovedRows::default() }
    );
    assert_eq!(versions(&db, "m-1").await, [4, 5, 6]);
    assert_eq!(versions(&db, "m-2").await, [1], "its only event stays");
    assert_eq!(versions(&db, "op-1").await, [1], "events of a run are deleted with the run");
    assert_eq!(removed(&db, WatchedKind::Machine).await, all[4].cursor);
    assert_eq!(
        removed(&db, WatchedKind::Run).await,
        Cursor::default(),
        "a watch of runs has missed nothing"
    );
    remove_events(&db, later()).await;
    assert_eq!(versions(&db, "m-1").await, [6]);
    change_machine(&db, "m-1", 1).await;
    assert_eq!(versions(&db, "m-1").await, [6, 7], "versions continue");
    let behind = db.read(tx!([], |tx| tx.nth_newest_event_time(1).await)).await.unwrap();
    assert_eq!(behind, Some(at(50)));
}

/// By SQL, because the store cannot delete machines.
async fn delete_machine(db: &Db, name: &str) {
    let statement = format!("DELETE FROM machines WHERE id = '{name}'");
    db.execute_sql(&statement, &statement).await;
}

async fn events_of_a_deleted_machine_are_deleted(db: Db) {
    db.add_machine("m-1").await;
    change_machine(&db, "m-1", 2).await;
    db.events(3).await;
    delete_machine(&db, "m-1").await;
    assert_eq!(remove_events(&db, at(15)).await.events, 2);
    assert_eq!(versions(&db, "m-1").await, [3], "by age like the others");
    assert_eq!(remove_events(&db, later()).await.events, 1);
}

async fn the_last_run_of_a_deleted_machine_expires(db: Db) {
    db.add_machine("m-1").await;
    end_run(&db, "op-1", "m-1", 10).await;
    let mut on_rack = ended(run("op-2", "m-1"), Workflow::Completed);
    on_rack.spec.target = model::target::TargetId::parse("rack-1").unwrap();
    db.insert_run(&on_rack, None).await.unwrap();
    assert!(remove(&db, &["op-1", "op-2"]).await.is_empty(), "the latest runs stay");
    delete_machine(&db, "m-1").await;
    assert_eq!(remove(&db, &["op-1", "op-2"]).await.runs, 1);
    assert!(!known(&db, "op-1").await && known(&db, "op-2").await);
}

/// Holds even if no newer event is left: a new watch starts after everything that was deleted.
async fn the_deleted_events_mark_never_goes_back(db: Db) {
    db.add_machine("m-1").await;
    end_run(&db, "op-1", "m-1", 10).await;
    end_run(&db, "op-2", "m-1", 20).await;
    end_run(&db, "op-3", "m-1", 30).await;
    // The last event belongs to an old run.
    let run = db.run(&id("op-2")).await;
    db.update_unclaimed(&run, Workflow::Reconciled).await;
    let last = db.events(5).await[4].cursor;
    assert_eq!(remove(&db, &["op-2"]).await.runs, 1);
    assert_eq!(removed(&db, WatchedKind::Run).await, last);
    assert_eq!(remove(&db, &["op-1"]).await.runs, 1);
    assert_eq!(removed(&db, WatchedKind::Run).await, last);
    let horizon = db.read(tx!([], |tx| tx.horizon().await)).await.unwrap();
    assert!(horizon >= last, "{horizon} {last}");
}

async fn a_list_by_phase_does_not_depend_on_the_index(db: Db) {
    db.add_machines((0..20).map(|n| machine(&format!("m-{n}"))).collect()).await;
    for n in 0..20 {
        let workflow = Workflow::ALL[n % Workflow::ALL.len()];
        let fresh = run(&format!("op-{n:02}"), &format!("m-{n}"));
        let mut run = if workflow.ended() { ended(fresh, workflow) } else { fresh };
        run.progress.workflow = workflow;
        db.insert_run(&run, None).await.unwrap();
    }
    let everything = db.read(tx!([], |tx| tx.runs(&Filter::default(), None, 99).await)).await;
    let everything = everything.unwrap().runs;
    assert_eq!(everything.len(), 20);
    for text in [
        "phase=FAILED",
        "phase=SUCCEEDED",
        "phase in (FAILED, CANCELED)",
        "phase in (FAILED, RUNNING)",
        "phase in (PENDING, RUNNING)",
        "phase!=FAILED",
        "workflow_state=completed",
        "workflow_state=compensating",
        "phase=FAILED AND machine_id=m-3",
        "phase=RUNNING AND phase=FAILED",
    ] {
        let filter = Filter::parse(text, FilterSubject::Run).unwrap();
        let matches = |run: &&Run| filter.matches(model::filter::FilterItem::Run(run, None));
        let expected: Vec<Run> = everything.iter().filter(matches).cloned().collect();
        let found = db.read(tx!([filter], |tx| tx.runs(&filter, None, 99).await)).await.unwrap();
        assert_eq!(found.runs, expected, "{text}");
        let before = expected.first().map(|run| run.spec.id.to_string());
        let rest = tx!([filter, before], |tx| tx.runs(&filter, before.as_deref(), 99).await);
        let rest = db.read(rest).await.unwrap();
        assert_eq!(rest.runs.len(), expected.len().saturating_sub(1), "{text}");
    }
}

mod unfinished {
    use super::*;

    on_postgres!(events_that_are_not_final_are_kept);

    /// A watch may still be before it.
    async fn events_that_are_not_final_are_kept(db: Db) {
        db.add_machine("m-1").await;
        end_run(&db, "op-1", "m-1", 10).await;
        end_run(&db, "op-2", "m-1", 20).await;
        db.events(3).await;
        let Options::Postgres { url, .. } = &db.options else { panic!("not PostgreSQL") };
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
        change_machine(&db, "m-1", 1).await;
        end_run(&db, "op-3", "m-1", 30).await;
        let runs = vec![id("op-1"), id("op-2")];
        let gone = db.write(tx!([runs], |tx| tx.remove_runs(&runs).await)).await.unwrap();
        assert_eq!(gone.runs, 2, "they are from before the open transaction");
        end_run(&db, "op-4", "m-1", 40).await;
        let runs = vec![id("op-3")];
        let gone = db.write(tx!([runs], |tx| tx.remove_runs(&runs).await)).await.unwrap();
        assert!(gone.is_empty(), "{gone:?}");
        assert_eq!(remove_events(&db, later()).await.events, 1, "the first, not the second");
        client.batch_execute("COMMIT").await.unwrap();
    }
}
