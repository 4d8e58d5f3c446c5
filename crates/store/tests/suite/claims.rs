//! Claims: a due object is claimed by exactly one worker, under its own epoch, and becomes due
//! again when it is released or woken.

use crate::harness::{Db, at, run, settle_of, within_timeout};
use model::id::RunId;
use model::run::Workflow;
use std::collections::HashSet;
use std::sync::Arc;
use store::{ClaimOutcome, ClaimedKind, ClaimedObject};
use tokio::sync::Notify;

on_both!(
    a_claim_moves_the_epoch,
    objects_that_are_not_due_are_not_claimed,
    racing_claimers_never_share,
    the_longest_due_comes_first,
    a_wake_during_work_makes_it_due_again,
    a_handled_wake_does_not_make_it_due,
    an_idle_object_is_due_when_woken,
    a_release_of_an_old_claim_changes_nothing,
    an_unhandled_release_sets_the_due_time,
);

fn only(claimed: Vec<ClaimedObject>) -> ClaimedObject {
    let [one] = <[ClaimedObject; 1]>::try_from(claimed).expect("exactly one");
    one
}

async fn next_due(db: &Db) -> Option<model::time::Timestamp> {
    db.read(tx!([], |tx| tx.next_due().await)).await.unwrap()
}

async fn release(db: &Db, claimed: &ClaimedObject, due: Option<model::time::Timestamp>) {
    let claimed = claimed.clone();
    let release = tx!([claimed], |tx| tx.release(
        &claimed.id,
        claimed.epoch,
        claimed.wakes_requested,
        due,
        at(20)
    ));
    db.write(release).await.unwrap();
}

async fn wake(db: &Db, id: &RunId) {
    db.write(tx!([id], |tx| tx.wake(&id.object(), at(15)))).await.unwrap();
}

async fn a_claim_moves_the_epoch(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let first = only(db.claim("a", at(10), 10).await);
    assert_eq!(
        first,
        ClaimedObject { id: id.object(), kind: ClaimedKind::Run, epoch: 1, wakes_requested: 1 }
    );
    assert_eq!(db.claim("b", at(10), 10).await, [], "it is claimed");
    let claimed = db.read(tx!([id], |tx| tx.run_with_claim(&id).await)).await.unwrap().unwrap();
    assert_eq!((claimed.epoch, claimed.owner.as_deref()), (1, Some("a")));
    release(&db, &first, Some(at(10))).await;
    assert_eq!(only(db.claim("b", at(10), 10).await).epoch, 2);
    assert_eq!(db.run(&id).await.version, 1, "a claim is no change of the run");
}

async fn objects_that_are_not_due_are_not_claimed(db: Db) {
    db.add_run("op-1").await;
    assert_eq!(db.claim("a", at(-1), 10).await, [], "it is due when it is created");
    assert_eq!(next_due(&db).await, Some(at(0)));
    let claimed = only(db.claim("a", at(0), 10).await);
    assert_eq!(next_due(&db).await, None);
    release(&db, &claimed, Some(at(30))).await;
    assert_eq!(next_due(&db).await, Some(at(30)));
    assert_eq!(db.claim("a", at(29), 10).await, []);
    assert_eq!(only(db.claim("a", at(30), 10).await).epoch, 2);
}

async fn racing_claimers_never_share(db: Db) {
    const RUNS: usize = 120;
    let machines = (0..RUNS).map(|n| crate::harness::machine(&format!("m-{n}"))).collect();
    db.add_machines(machines).await;
    for n in 0..RUNS {
        db.insert_run(&run(&format!("op-{n}"), &format!("m-{n}")), None).await.unwrap();
    }
    for round in 1..=2 {
        let mut tasks = tokio::task::JoinSet::new();
        for owner in ["a", "b", "c", "d", "e", "f"] {
            let db = db.clone();
            tasks.spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let some = db.claim(owner, at(100), 7).await;
                    assert!(some.len() <= 7, "more than the limit");
                    if some.is_empty() {
                        return (owner, mine);
                    }
                    mine.extend(some);
                }
            });
        }
        let all = tasks.join_all().await;
        let ids: HashSet<_> = all.iter().flat_map(|(_, mine)| mine).map(|one| &one.id).collect();
        assert_eq!(ids.len(), RUNS);
        for (owner, mine) in &all {
            assert!(mine.iter().all(|one| one.epoch == round), "{owner}: {mine:?}");
            let claim = db.read(tx!([owner], |tx| tx.claimed_by(owner).await)).await.unwrap();
            assert_eq!(claim.len(), mine.len(), "{owner}");
        }
        assert_eq!(all.iter().map(|(_, mine)| mine.len()).sum::<usize>(), RUNS);
        for claimed in all.iter().flat_map(|(_, mine)| mine) {
            release(&db, claimed, Some(at(0))).await;
        }
    }
}

async fn the_longest_due_comes_first(db: Db) {
    for id in ["op-1", "op-2", "op-3"] {
        db.add_run(id).await;
    }
    let due = [("op-1", at(30)), ("op-2", at(10)), ("op-3", at(20))];
    for claimed in db.claim("a", at(5), 10).await {
        let then = due.iter().find(|(id, _)| *id == claimed.id.as_str()).unwrap().1;
        release(&db, &claimed, Some(then)).await;
    }
    assert_eq!(next_due(&db).await, Some(at(10)));
    for expected in ["op-2", "op-3", "op-1"] {
        assert_eq!(only(db.claim("a", at(100), 1).await).id.as_str(), expected);
    }
}

async fn a_wake_during_work_makes_it_due_again(db: Db) {
    let run = db.add_run("op-1").await;
    let id = run.spec.id.clone();
    // Neither a release nor a settle may lose the wake-up.
    let claimed = only(db.claim("a", at(10), 1).await);
    wake(&db, &id).await;
    assert_eq!(db.claim("b", at(100), 1).await, [], "a wake-up does not end a claim");
    let woken = db.read(tx!([], |tx| tx.unhandled_wakes("a").await)).await.unwrap();
    assert_eq!(woken, [id.object()]);
    release(&db, &claimed, None).await;
    assert_eq!(next_due(&db).await, Some(at(20)), "the wake-up makes it due at once");

    let claimed = only(db.claim("a", at(100), 1).await);
    assert_eq!(claimed.wakes_requested, 2);
    wake(&db, &id).await;
    let far = ClaimOutcome::Release(Some(at(9_000)));
    db.settle(&settle_of(&run, &claimed, far)).await.unwrap();
    assert_eq!(next_due(&db).await, Some(at(20)));
    assert_eq!(only(db.claim("a", at(100), 1).await).wakes_requested, 3);
}

async fn a_handled_wake_does_not_make_it_due(db: Db) {
    let run = db.add_run("op-1").await;
    let mut claimed = only(db.claim("a", at(10), 1).await);
    wake(&db, &run.spec.id).await;
    // The worker has read the run again and has handled the wake-up.
    claimed.wakes_requested += 1;
    db.settle(&settle_of(&run, &claimed, ClaimOutcome::Keep)).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.unhandled_wakes("a").await)).await.unwrap(), []);
    release(&db, &claimed, Some(at(9_000))).await;
    assert_eq!(next_due(&db).await, Some(at(9_000)));
}

async fn an_idle_object_is_due_when_woken(db: Db) {
    let run = db.add_run("op-1").await;
    let claimed = only(db.claim("a", at(10), 1).await);
    release(&db, &claimed, None).await;
    assert_eq!(next_due(&db).await, None);
    wake(&db, &run.spec.id).await;
    assert_eq!(next_due(&db).await, Some(at(15)));
    let claimed = only(db.claim("a", at(100), 1).await);
    release(&db, &claimed, None).await;
    // An update without a claim wakes the run, too.
    db.update_unclaimed(&run, Workflow::Running).await;
    assert_eq!(next_due(&db).await, Some(at(50)));
}

async fn a_release_of_an_old_claim_changes_nothing(db: Db) {
    let run = db.add_run("op-1").await;
    let old = only(db.claim("a", at(10), 1).await);
    release(&db, &old, Some(at(10))).await;
    let new = only(db.claim("b", at(10), 1).await);
    release(&db, &old, None).await;
    let id = run.spec.id;
    let back = tx!([id], |tx| tx.release_unhandled(&id.object(), 1, at(10)));
    db.write(back).await.unwrap();
    let claimed = db.read(tx!([id], |tx| tx.run_with_claim(&id).await)).await.unwrap().unwrap();
    assert_eq!((claimed.epoch, claimed.owner.as_deref()), (new.epoch, Some("b")));
}

async fn an_unhandled_release_sets_the_due_time(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let claimed = only(db.claim("a", at(10), 1).await);
    let back = tx!([id], |tx| tx.release_unhandled(&id.object(), claimed.epoch, at(70)));
    db.write(back).await.unwrap();
    assert_eq!(next_due(&db).await, Some(at(70)));
    let again = only(db.claim("b", at(70), 1).await);
    assert_eq!((again.epoch, again.wakes_requested), (2, 1), "no wake-up was handled");
}

/// A claim that is not committed yet does not block other claims.
mod skipping {
    use super::*;

    on_postgres!(a_row_that_is_being_claimed_is_skipped);

    async fn a_row_that_is_being_claimed_is_skipped(db: Db) {
        for n in 0..5 {
            db.add_run(&format!("op-{n}")).await;
        }
        let (took, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = tx!([took, go_on], |tx| {
            let mine = tx.claim_due("slow", at(10), 2).await?;
            took.notify_one();
            go_on.notified().await;
            Ok(mine)
        });
        let slow = tokio::spawn({
            let db = db.clone();
            async move { db.write(slow).await.unwrap() }
        });
        within_timeout("the slow claim", took.notified()).await;
        let quick = db.claim("quick", at(10), 10).await;
        assert_eq!(quick.len(), 3, "unlocked rows are claimed without waiting");
        go_on.notify_one();
        let slow = within_timeout("the slow claim", slow).await.unwrap();
        let ids: HashSet<_> = slow.iter().chain(&quick).map(|one| &one.id).collect();
        assert_eq!(ids.len(), 5);
    }
}
