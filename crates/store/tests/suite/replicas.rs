//! Replicas: a live replica keeps its claims; those of a dead one are released.

use crate::harness::{Db, at};
use model::filter::{Filter, FilterSubject};
use store::{Replica, ReplicaHeartbeat, ReplicaStatus, Result, StoreError};

on_both!(
    a_restarted_replica_releases_its_old_claims,
    a_replica_that_was_replaced_cannot_renew,
    only_dead_replicas_expire,
    a_deregistered_replica_releases_its_claims,
    a_claim_shows_the_name_of_its_replica,
    replicas_are_listed_with_their_claims,
);

fn replica(name: &str, incarnation: &str) -> Replica {
    Replica { name: name.into(), incarnation: incarnation.into() }
}

async fn register(db: &Db, replica: &Replica, expires: i64) -> u64 {
    db.write(tx!([replica], |tx| tx.register_replica(&replica, "1.2.3", at(10), at(expires)).await))
        .await
        .unwrap()
}

async fn renew(db: &Db, replica: &Replica, expires: i64) -> Result<()> {
    db.write(tx!([replica], |tx| tx.renew_lease(&replica, at(expires - 10), at(expires)).await))
        .await
}

async fn heartbeats(db: &Db) -> Vec<ReplicaHeartbeat> {
    db.read(tx!([], |tx| tx.replica_heartbeats().await)).await.unwrap()
}

async fn expire(db: &Db, heartbeat: &ReplicaHeartbeat, now: i64) -> bool {
    db.write(tx!([heartbeat], |tx| tx.expire_replica(&heartbeat, at(now)).await)).await.unwrap()
}

async fn claims_of(db: &Db, owner: &'static str) -> usize {
    db.read(tx!([], |tx| tx.claimed_by(owner).await)).await.unwrap().len()
}

async fn three_runs(db: &Db) {
    for id in ["op-1", "op-2", "op-3"] {
        db.add_run(id).await;
    }
}

async fn a_restarted_replica_releases_its_old_claims(db: Db) {
    three_runs(&db).await;
    assert_eq!(register(&db, &replica("a", "a-1"), 20).await, 0);
    register(&db, &replica("b", "b-1"), 20).await;
    assert_eq!(db.claim("a-1", at(10), 2).await.len(), 2);
    assert_eq!(db.claim("b-1", at(10), 2).await.len(), 1);
    assert_eq!(register(&db, &replica("a", "a-2"), 20).await, 2);
    assert_eq!((claims_of(&db, "a-1").await, claims_of(&db, "b-1").await), (0, 1));
    let again = db.claim("a-2", at(10), 10).await;
    assert_eq!(again.iter().map(|one| one.epoch).collect::<Vec<_>>(), [2, 2]);
}

async fn a_replica_that_was_replaced_cannot_renew(db: Db) {
    let (old, new) = (replica("a", "a-1"), replica("a", "a-2"));
    assert_eq!(renew(&db, &old, 30).await, Err(StoreError::Conflict), "it is not registered");
    register(&db, &old, 20).await;
    assert_eq!(renew(&db, &old, 30).await, Ok(()));
    register(&db, &new, 20).await;
    assert_eq!(renew(&db, &old, 40).await, Err(StoreError::Conflict));
    assert_eq!(renew(&db, &new, 40).await, Ok(()));
}

async fn only_dead_replicas_expire(db: Db) {
    three_runs(&db).await;
    let (dead, alive) = (replica("dead", "dead-1"), replica("alive", "alive-1"));
    register(&db, &dead, 20).await;
    register(&db, &alive, 20).await;
    db.claim("dead-1", at(10), 2).await;
    db.claim("alive-1", at(10), 2).await;
    let [seen_alive, seen_dead] = heartbeats(&db).await.try_into().unwrap();
    renew(&db, &alive, 30).await.unwrap();
    assert!(!expire(&db, &seen_alive, 21).await, "it has sent a heartbeat since");
    assert!(expire(&db, &seen_dead, 21).await);
    assert!(!expire(&db, &seen_dead, 21).await, "it has expired already");
    let left = heartbeats(&db).await;
    assert_eq!(left, [ReplicaHeartbeat { replica: alive, expires_at: at(30) }]);
    assert_eq!((claims_of(&db, "dead-1").await, claims_of(&db, "alive-1").await), (0, 1));
    assert_eq!(renew(&db, &dead, 40).await, Err(StoreError::Conflict));
    assert_eq!(db.claim("alive-1", at(21), 10).await.len(), 2, "due at once");
}

async fn a_deregistered_replica_releases_its_claims(db: Db) {
    three_runs(&db).await;
    let (leaving, staying) = (replica("a", "a-1"), replica("b", "b-1"));
    register(&db, &leaving, 20).await;
    register(&db, &staying, 20).await;
    db.claim("a-1", at(10), 2).await;
    db.claim("b-1", at(10), 2).await;
    let freed = db.write(tx!([leaving], |tx| tx.deregister_replica(&leaving, at(12)).await)).await;
    assert_eq!(freed, Ok(2));
    assert_eq!((claims_of(&db, "a-1").await, claims_of(&db, "b-1").await), (0, 1));
    assert_eq!(heartbeats(&db).await, [ReplicaHeartbeat { replica: staying, expires_at: at(20) }]);
    assert_eq!(db.claim("b-1", at(11), 10).await, []);
    assert_eq!(db.claim("b-1", at(12), 10).await.len(), 2);
}

async fn a_claim_shows_the_name_of_its_replica(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let holder = || tx!([id], |tx| tx.claiming_replica(&id).await);
    assert_eq!(db.read(holder()).await, Ok(None));
    register(&db, &replica("rack7", "rack7-x1"), 20).await;
    db.claim("rack7-x1", at(10), 1).await;
    assert_eq!(db.read(holder()).await, Ok(Some("rack7".into())));
}

async fn replicas_are_listed_with_their_claims(db: Db) {
    three_runs(&db).await;
    for name in ["a", "b"] {
        register(&db, &replica(name, &format!("{name}-1")), 20).await;
    }
    assert_eq!(db.claim("a-1", at(10), 2).await.len(), 2);
    renew(&db, &replica("a", "a-1"), 30).await.unwrap();
    let filtered = async |text: &str, after: &'static str, limit: i64| {
        let filter = Filter::parse(text, FilterSubject::Replica).unwrap();
        db.read(tx!([filter], |tx| tx.replicas(&filter, after, limit).await)).await.unwrap()
    };
    let listed = async |after: &'static str, limit: i64| filtered("", after, limit).await;
    let status = |name: &str, heartbeat: i64, expires: i64, claims: i64| ReplicaStatus {
        replica: replica(name, &format!("{name}-1")),
        version: "1.2.3".into(),
        started_at: at(10),
        heartbeat_at: Some(at(heartbeat)),
        expires_at: at(expires),
        claims,
    };
    assert_eq!(listed("", 9).await, [status("a", 20, 30, 2), status("b", 10, 20, 0)]);
    assert_eq!(listed("", 1).await, [status("a", 20, 30, 2)]);
    assert_eq!(listed("a", 9).await, [status("b", 10, 20, 0)]);
    assert_eq!(filtered("name!=a", "", 1).await, [status("b", 10, 20, 0)]);
    assert_eq!(filtered("incarnation=a-1 AND version=1.2.3", "", 9).await.len(), 1);
    assert!(filtered("version=2", "", 9).await.is_empty());
}
