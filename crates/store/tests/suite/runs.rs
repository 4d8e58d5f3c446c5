//! Runs: one for each request id, and one active run on each machine.

use crate::harness::{Db, at, ended, run};
use model::id::RunId;
use model::run::{Run, Workflow};
use store::{EventObject, StoreError};

on_both!(
    a_run_is_found_by_every_key,
    a_request_makes_one_run,
    a_machine_has_one_active_run,
    racing_starts_make_one_run,
    a_run_may_be_enqueued_claimed,
    active_runs_are_counted_by_phase,
);

async fn a_run_is_found_by_every_key(db: Db) {
    let run = db.add_run("op-1").await;
    assert_eq!(db.run(&run.spec.id).await, run);
    let (machine, request) = (run.spec.target.clone(), run.spec.request_id.clone());
    let by_request = tx!([machine, request], |tx| tx.run_of_request(&machine, &request).await);
    assert_eq!(db.read(by_request).await, Ok(Some(run.clone())));
    let latest = tx!([machine], |tx| tx.latest_run(&machine).await);
    assert_eq!(db.read(latest).await, Ok(Some(run.clone())));
    let id = run.spec.id.clone();
    let claimed = db.read(tx!([id], |tx| tx.run_with_claim(&id).await)).await.unwrap().unwrap();
    assert_eq!(claimed.run, run);
    assert_eq!((claimed.epoch, claimed.wakes_requested, claimed.owner), (0, 1, None));

    let nobody = RunId::trusted("op-2");
    assert_eq!(db.read(tx!([nobody], |tx| tx.run(&nobody).await)).await, Ok(None));
    assert_eq!(db.read(tx!([nobody], |tx| tx.run_with_claim(&nobody).await)).await, Ok(None));
    let nothing = tx!([machine], |tx| tx.run_of_request(&machine, "req-2").await);
    assert_eq!(db.read(nothing).await, Ok(None));
    let reported = db.events(2).await.pop().unwrap();
    assert_eq!((reported.object_id.as_str(), reported.state.as_str()), ("op-1", "pending"));
    let Some(EventObject::Run(found)) = &reported.object else { panic!("{reported:?}") };
    assert_eq!(**found, run);
}

async fn a_request_makes_one_run(db: Db) {
    let first = ended(run("op-1", "m-1"), Workflow::Completed);
    db.add_machine("m-1").await;
    db.insert_run(&first, None).await.unwrap();
    let mut second = run("op-2", "m-1");
    second.spec.request_id = first.spec.request_id.clone();
    assert_eq!(db.insert_run(&second, None).await, Err(StoreError::Conflict));
    // The same request id on another machine is another request.
    db.add_machine("m-2").await;
    second.spec.target = model::target::TargetId::from_key("m-2");
    db.insert_run(&second, None).await.unwrap();
    assert_eq!(db.events(4).await.len(), 4);
}

async fn a_machine_has_one_active_run(db: Db) {
    let first = db.add_run("op-1").await;
    let machine = first.spec.target.as_str();
    let second = run("op-2", machine);
    assert_eq!(db.insert_run(&second, None).await, Err(StoreError::Conflict));
    // Once the first run has ended, the machine is free.
    let first = db.update_unclaimed(&first, Workflow::Cancelled).await;
    db.insert_run(&second, None).await.unwrap();
    // After that the first run cannot be reopened.
    let mut reopened = first.clone();
    reopened.progress.workflow = Workflow::Running;
    let reopen = tx!([reopened], |tx| tx.update_unclaimed(&reopened, at(60)));
    assert_eq!(db.write(reopen).await, Err(StoreError::Conflict));
    assert_eq!(db.run(&first.spec.id).await, first);
    let host = first.spec.target.clone();
    let latest = db.read(tx!([host], |tx| tx.latest_run(&host).await)).await.unwrap();
    assert_eq!(latest.as_ref(), Some(&second));
    let both = db.read(tx!([host], |tx| tx.latest_runs(&host, 5).await)).await.unwrap();
    assert_eq!(both, [second, first]);
}

async fn racing_starts_make_one_run(db: Db) {
    db.add_machine("m-1").await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let db = db.clone();
        tasks.spawn(async move { db.insert_run(&run(&format!("op-{number}"), "m-1"), None).await });
    }
    let results = tasks.join_all().await;
    let won = results.iter().filter(|result| result.is_ok()).count();
    let lost = results.iter().filter(|result| **result == Err(StoreError::Conflict)).count();
    assert_eq!((won, lost), (1, 39), "{results:?}");
    // The losing requests wrote nothing.
    assert_eq!(db.events(2).await[1].state, "pending");
    db.add_machine("m-2").await;
    assert_eq!(db.events(3).await[2].object_id, "m-2");
}

async fn a_run_may_be_enqueued_claimed(db: Db) {
    db.add_machine("m-1").await;
    let born = run("op-1", "m-1");
    db.insert_run(&born, Some("replica-a")).await.unwrap();
    assert_eq!(db.claim("replica-b", at(100), 10).await, []);
    let claimed = db.read(tx!([], |tx| tx.claimed_by("replica-a").await)).await.unwrap();
    assert_eq!(claimed, [(born.spec.id.object(), 1)]);
    let id = born.spec.id.clone();
    let holder = db.read(tx!([id], |tx| tx.claiming_replica(&id).await)).await.unwrap();
    assert_eq!(holder.as_deref(), Some("replica-a"));
}

async fn active_runs_are_counted_by_phase(db: Db) {
    for id in ["op-1", "op-2", "op-3"] {
        db.add_run(id).await;
    }
    let run: Run = db.run(&RunId::trusted("op-1")).await;
    db.update_unclaimed(&run, Workflow::Running).await;
    let run = db.run(&RunId::trusted("op-2")).await;
    db.update_unclaimed(&run, Workflow::Completed).await;
    let mut counts = db.read(tx!([], |tx| tx.phase_counts().await)).await.unwrap();
    counts.sort();
    assert_eq!(counts, [("PENDING".to_string(), 1), ("RUNNING".to_string(), 1)]);
}
