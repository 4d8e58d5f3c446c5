//! Settling: a decision is written completely under the claim, or not at all.

use crate::harness::{Db, at, event, settle_of};
use model::machine::Phase;
use model::run::{Run, Workflow};
use store::{ClaimOutcome, ClaimedObject, Result, RunSettlement, StoreError};

on_both!(
    a_settle_writes_the_run_and_keeps_the_claim,
    a_settle_releases_until_its_due_time,
    an_ended_run_releases_its_machine,
    a_moved_version_refuses_the_whole_transaction,
    a_moved_epoch_refuses_the_whole_transaction,
    a_freed_owner_refuses_the_whole_transaction,
    an_unclaimed_update_raises_the_version,
);

async fn claimed_run(db: &Db) -> (Run, ClaimedObject) {
    let mut run = db.add_run("op-1").await;
    run.progress.workflow = Workflow::Running;
    let claimed = db.claim("a", at(10), 1).await.remove(0);
    (run, claimed)
}

/// A worker's commit: the machine, the run, and the events of both.
async fn commit(db: &Db, settle: &RunSettlement, machine_first: bool) -> Result<()> {
    let settle = settle.clone();
    let commit = tx!([settle], |tx| {
        let id = &settle.run.spec.target.machine().expect("a machine");
        let mut machine = tx.machine_locked(id).await?.expect("the machine exists");
        machine.phase = Phase::Maintenance;
        if machine_first {
            tx.update_machine(&mut machine, &event())?;
        }
        let version = tx.settle(&settle)?.version;
        tx.append_run_event(&Run { version, ..settle.run.clone() }, &event())?;
        if !machine_first {
            tx.update_machine(&mut machine, &event())?;
        }
        let line = store::NewLog {
            start: 0,
            ts: at(1),
            step: "one".into(),
            attempt: 1,
            stream: "stdout",
            data: b"hello".to_vec(),
        };
        tx.append_log(&settle.run.spec.id, &[line])
    });
    db.write(commit).await
}

/// Checks that a commit is refused and writes nothing, wherever in it the run is written.
async fn is_refused(db: &Db, settle: &RunSettlement, events: usize) {
    let before = db.run(&settle.run.spec.id).await;
    for machine_first in [true, false] {
        assert_eq!(commit(db, settle, machine_first).await, Err(StoreError::Conflict));
    }
    let id = settle.run.spec.id.clone();
    assert_eq!(db.run(&id).await, before);
    let machine = db.machine(&settle.run.spec.target.machine().unwrap()).await;
    assert_eq!((machine.phase, machine.version), (Phase::FactoryReady, 1));
    assert_eq!(db.read(tx!([id], |tx| tx.log_end(&id).await)).await, Ok(0));
    // The next event must be the next write.
    db.add_machine("m-after").await;
    assert_eq!(db.events(events + 1).await[events].object_id, "m-after");
}

async fn a_settle_writes_the_run_and_keeps_the_claim(db: Db) {
    let (run, claimed) = claimed_run(&db).await;
    let settle = settle_of(&run, &claimed, ClaimOutcome::Keep);
    commit(&db, &settle, false).await.unwrap();
    let id = run.spec.id.clone();
    let claim = db.read(tx!([id], |tx| tx.run_with_claim(&id).await)).await.unwrap().unwrap();
    assert_eq!(claim.run, Run { version: 2, ..run.clone() });
    assert_eq!((claim.epoch, claim.owner.as_deref()), (1, Some("a")));
    // The next settle continues from there.
    let next = RunSettlement { run: claim.run, ..settle };
    assert_eq!(db.settle(&next).await.map(|settled| settled.version), Ok(3));
    let words: Vec<_> = db.events(4).await.into_iter().map(|one| one.state).collect();
    assert_eq!(words[1..3], ["pending", "running"]);
}

async fn a_settle_releases_until_its_due_time(db: Db) {
    let (run, claimed) = claimed_run(&db).await;
    db.settle(&settle_of(&run, &claimed, ClaimOutcome::Release(Some(at(90))))).await.unwrap();
    assert_eq!(db.claim("b", at(89), 1).await, []);
    assert_eq!(db.claim("b", at(90), 1).await[0].epoch, 2);
}

async fn an_ended_run_releases_its_machine(db: Db) {
    let (mut run, claimed) = claimed_run(&db).await;
    run.progress.workflow = Workflow::Completed;
    db.settle(&settle_of(&run, &claimed, ClaimOutcome::Release(None))).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.next_due().await)).await, Ok(None));
    let next = crate::harness::run("op-2", run.spec.target.as_str());
    db.insert_run(&next, None).await.unwrap();
}

async fn a_moved_version_refuses_the_whole_transaction(db: Db) {
    let (run, claimed) = claimed_run(&db).await;
    db.update_unclaimed(
        &Run { progress: db.run(&run.spec.id).await.progress, ..run.clone() },
        Workflow::Pending,
    )
    .await;
    is_refused(&db, &settle_of(&run, &claimed, ClaimOutcome::Keep), 3).await;
    // Decided again on the stored version, it is written.
    let run = Run { version: 2, ..run };
    commit(&db, &settle_of(&run, &claimed, ClaimOutcome::Keep), true).await.unwrap();
}

async fn a_moved_epoch_refuses_the_whole_transaction(db: Db) {
    let (run, claimed) = claimed_run(&db).await;
    let id = run.spec.id.clone();
    let back = tx!([id], |tx| tx.release_unhandled(&id.object(), 1, at(10)));
    db.write(back).await.unwrap();
    assert_eq!(db.claim("b", at(10), 1).await[0].epoch, 2);
    is_refused(&db, &settle_of(&run, &claimed, ClaimOutcome::Keep), 2).await;
}

async fn a_freed_owner_refuses_the_whole_transaction(db: Db) {
    let (run, claimed) = claimed_run(&db).await;
    let id = run.spec.id.clone();
    let back = tx!([id], |tx| tx.release_unhandled(&id.object(), 1, at(10)));
    db.write(back).await.unwrap();
    is_refused(&db, &settle_of(&run, &claimed, ClaimOutcome::Release(None)), 2).await;
    assert_eq!(db.claim("b", at(10), 1).await.len(), 1, "it is still due");
}

async fn an_unclaimed_update_raises_the_version(db: Db) {
    let run = db.add_run("op-1").await;
    let reported = db.update_unclaimed(&run, Workflow::Running).await;
    assert_eq!((reported.version, db.run(&run.spec.id).await), (2, reported.clone()));
    let stale = tx!([run], |tx| tx.update_unclaimed(&run, at(60)));
    assert_eq!(db.write(stale).await, Err(StoreError::Conflict));
    assert_eq!(db.run(&run.spec.id).await, reported);
}
