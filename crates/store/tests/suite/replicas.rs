//! Replicas: a live replica keeps its claims; those of a dead one are released.

use crate::harness::{Db, at};
use store::{Replica, ReplicaHeartbeat, Result, StoreError};

on_both!(
    a_restarted_replica_takes_back_its_own,
    a_replica_that_was_replaced_cannot_renew,
    only_the_dead_are_buried,
    who_resigns_gives_everything_back,
    a_holder_is_known_by_its_name,
);

fn replica(name: &str, incarnation: &str) -> Replica {
    Replica { name: name.into(), incarnation: incarnation.into() }
}

async fn enlist(db: &Db, replica: &Replica, expires: i64) -> u64 {
    db.write(tx!([replica], |tx| tx.register_replica(&replica, at(10), at(expires)).await))
        .await
        .unwrap()
}

async fn renew(db: &Db, replica: &Replica, expires: i64) -> Result<()> {
    db.write(tx!([replica], |tx| tx.renew(&replica, at(expires)).await)).await
}

async fn pulses(db: &Db) -> Vec<ReplicaHeartbeat> {
    db.read(tx!([], |tx| tx.replica_heartbeats().await)).await.unwrap()
}

async fn bury(db: &Db, pulse: &ReplicaHeartbeat, now: i64) -> bool {
    db.write(tx!([pulse], |tx| tx.expire_replica(&pulse, at(now)).await)).await.unwrap()
}

async fn held(db: &Db, owner: &'static str) -> usize {
    db.read(tx!([], |tx| tx.claimed_by(owner).await)).await.unwrap().len()
}

async fn three_runs(db: &Db) {
    for id in ["op-1", "op-2", "op-3"] {
        db.add_run(id).await;
    }
}

async fn a_restarted_replica_takes_back_its_own(db: Db) {
    three_runs(&db).await;
    assert_eq!(enlist(&db, &replica("a", "a-1"), 20).await, 0);
    enlist(&db, &replica("b", "b-1"), 20).await;
    assert_eq!(db.claim("a-1", at(10), 2).await.len(), 2);
    assert_eq!(db.claim("b-1", at(10), 2).await.len(), 1);
    assert_eq!(enlist(&db, &replica("a", "a-2"), 20).await, 2);
    assert_eq!((held(&db, "a-1").await, held(&db, "b-1").await), (0, 1));
    let again = db.claim("a-2", at(10), 10).await;
    assert_eq!(again.iter().map(|one| one.epoch).collect::<Vec<_>>(), [2, 2]);
}

async fn a_replica_that_was_replaced_cannot_renew(db: Db) {
    let (old, new) = (replica("a", "a-1"), replica("a", "a-2"));
    assert_eq!(renew(&db, &old, 30).await, Err(StoreError::Conflict), "it is not registered");
    enlist(&db, &old, 20).await;
    assert_eq!(renew(&db, &old, 30).await, Ok(()));
    enlist(&db, &new, 20).await;
    assert_eq!(renew(&db, &old, 40).await, Err(StoreError::Conflict));
    assert_eq!(renew(&db, &new, 40).await, Ok(()));
}

async fn only_the_dead_are_buried(db: Db) {
    three_runs(&db).await;
    let (dead, alive) = (replica("dead", "dead-1"), replica("alive", "alive-1"));
    enlist(&db, &dead, 20).await;
    enlist(&db, &alive, 20).await;
    db.claim("dead-1", at(10), 2).await;
    db.claim("alive-1", at(10), 2).await;
    let [seen_alive, seen_dead] = pulses(&db).await.try_into().unwrap();
    renew(&db, &alive, 30).await.unwrap();
    assert!(!bury(&db, &seen_alive, 21).await, "it has sent a heartbeat since");
    assert!(bury(&db, &seen_dead, 21).await);
    assert!(!bury(&db, &seen_dead, 21).await, "it has expired already");
    let left = pulses(&db).await;
    assert_eq!(left, [ReplicaHeartbeat { replica: alive, beat: at(30) }]);
    assert_eq!((held(&db, "dead-1").await, held(&db, "alive-1").await), (0, 1));
    assert_eq!(renew(&db, &dead, 40).await, Err(StoreError::Conflict));
    assert_eq!(db.claim("alive-1", at(21), 10).await.len(), 2, "due at once");
}

async fn who_resigns_gives_everything_back(db: Db) {
    three_runs(&db).await;
    let (leaving, staying) = (replica("a", "a-1"), replica("b", "b-1"));
    enlist(&db, &leaving, 20).await;
    enlist(&db, &staying, 20).await;
    db.claim("a-1", at(10), 2).await;
    db.claim("b-1", at(10), 2).await;
    let freed = db.write(tx!([leaving], |tx| tx.deregister_replica(&leaving, at(12)).await)).await;
    assert_eq!(freed, Ok(2));
    assert_eq!((held(&db, "a-1").await, held(&db, "b-1").await), (0, 1));
    assert_eq!(pulses(&db).await, [ReplicaHeartbeat { replica: staying, beat: at(20) }]);
    assert_eq!(db.claim("b-1", at(11), 10).await, []);
    assert_eq!(db.claim("b-1", at(12), 10).await.len(), 2);
}

async fn a_holder_is_known_by_its_name(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let holder = || tx!([id], |tx| tx.holder(&id).await);
    assert_eq!(db.read(holder()).await, Ok(None));
    enlist(&db, &replica("rack7", "rack7-x1"), 20).await;
    db.claim("rack7-x1", at(10), 1).await;
    assert_eq!(db.read(holder()).await, Ok(Some("rack7".into())));
}
