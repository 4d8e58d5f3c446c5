//! The approval policy, and requests that wait for a second person.

use crate::harness::{Db, at};
use model::access::{Permission, PermissionSet};
use model::approval::{Approval, ApprovalPolicy, ApprovalState};
use model::id::{ApprovalId, RunId};
use std::time::Duration;
use store::StoreError;

on_both!(
    the_policy_is_replaced,
    approvals_are_found_decided_and_used_once,
    a_request_that_waits_is_filed_once,
    old_approvals_are_deleted_and_a_break_glass_stays,
);

fn approval(id: &str, digest: &str) -> Approval {
    Approval {
        id: ApprovalId::trusted(id),
        requester: "ada".into(),
        request: "REIMAGE".into(),
        request_id: "r-1".into(),
        targets: vec!["m-1".into(), "m-2".into()],
        permissions: PermissionSet::of(&[Permission::Destroy, Permission::Execute]),
        plan: vec!["step 1".into(), "two\nlines".into()],
        digest: digest.into(),
        stored: ApprovalState::Pending,
        created_at: at(1),
        expires_at: at(100),
        decided_by: String::new(),
        decided_at: None,
        comment: String::new(),
        reason: String::new(),
        operations: Vec::new(),
    }
}

async fn insert(db: &Db, new: Approval) -> Result<(), StoreError> {
    db.write(tx!([new], |tx| tx.insert_approval(&new))).await
}

async fn get(db: &Db, id: &str) -> Option<Approval> {
    let id = ApprovalId::trusted(id);
    db.read(tx!([id], |tx| tx.approval(&id).await)).await.unwrap()
}

async fn the_policy_is_replaced(db: Db) {
    let read = || tx!([], |tx| tx.approval_policy().await);
    assert_eq!(db.read(read()).await, Ok(ApprovalPolicy::default()));
    for classes in
        [PermissionSet::of(&[Permission::Power, Permission::Destroy]), PermissionSet::EMPTY]
    {
        let policy = ApprovalPolicy { classes, lifetime: Duration::from_secs(600) };
        db.write(tx!([policy], |tx| tx.set_approval_policy(&policy))).await.unwrap();
        assert_eq!(db.read(read()).await, Ok(policy));
    }
}

async fn approvals_are_found_decided_and_used_once(db: Db) {
    let first = approval("apr-1", "a");
    insert(&db, first.clone()).await.unwrap();
    assert_eq!(get(&db, "apr-1").await, Some(first.clone()));
    assert_eq!(get(&db, "apr-x").await, None);
    let other = Approval { request_id: "r-2".into(), ..approval("apr-2", "b") };
    insert(&db, other).await.unwrap();
    let foreign = Approval { requester: "bob".into(), ..approval("apr-3", "a") };
    insert(&db, foreign).await.unwrap();
    let find = |digest: &'static str, request_id: &'static str| {
        tx!([], |tx| tx.approvals_of_request("ada", digest, request_id).await)
    };
    for (digest, request_id, expected) in [
        ("a", "r-1", &["apr-1"][..]),
        ("a", "r-2", &["apr-2", "apr-1"]),
        ("x", "r-1", &["apr-1"]),
        ("x", "", &[]),
    ] {
        let found = db.read(find(digest, request_id)).await.unwrap();
        let ids: Vec<&str> = found.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, expected, "{digest} {request_id}");
    }

    // It can be used only after it was approved, and once.
    let (id, runs) = (ApprovalId::trusted("apr-1"), vec![RunId::trusted("op-1")]);
    let used = || tx!([id, runs], |tx| tx.use_approval(&id, &runs));
    assert_eq!(db.write(used()).await, Err(StoreError::Conflict));
    let approved = Approval {
        stored: ApprovalState::Approved,
        expires_at: at(200),
        decided_by: "bob".into(),
        decided_at: Some(at(50)),
        comment: "fine".into(),
        ..first
    };
    let decide = || tx!([approved], |tx| tx.decide_approval(ApprovalState::Pending, &approved));
    db.write(decide()).await.unwrap();
    assert_eq!(get(&db, "apr-1").await, Some(approved.clone()));
    assert_eq!(db.write(decide()).await, Err(StoreError::Conflict));
    db.write(used()).await.unwrap();
    let after = get(&db, "apr-1").await.unwrap();
    assert_eq!((after.stored, after.operations), (ApprovalState::Used, vec!["op-1".to_string()]));
    assert_eq!(db.write(used()).await, Err(StoreError::Conflict));

    let list = |open: bool, before: Option<&'static str>, limit| {
        tx!([], |tx| tx.approvals(open, before, limit).await)
    };
    let ids = |found: Vec<Approval>| found.iter().map(|one| one.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(db.read(list(true, None, 9)).await.unwrap()), ["apr-3", "apr-2"]);
    assert_eq!(ids(db.read(list(false, None, 2)).await.unwrap()), ["apr-3", "apr-2"]);
    assert_eq!(ids(db.read(list(false, Some("apr-2"), 9)).await.unwrap()), ["apr-1"]);
}

async fn a_request_that_waits_is_filed_once(db: Db) {
    insert(&db, approval("apr-1", "a")).await.unwrap();
    assert_eq!(insert(&db, approval("apr-2", "a")).await, Err(StoreError::Conflict));
    let count = || tx!([], |tx| tx.count_pending_approvals("ada").await);
    assert_eq!(db.read(count()).await, Ok(1));
    db.write(tx!([], |tx| tx.expire_approvals("ada", at(99)).await)).await.unwrap();
    assert_eq!(db.read(count()).await, Ok(1));
    db.write(tx!([], |tx| tx.expire_approvals("bob", at(100)).await)).await.unwrap();
    assert_eq!(db.read(count()).await, Ok(1));
    db.write(tx!([], |tx| tx.expire_approvals("ada", at(100)).await)).await.unwrap();
    assert_eq!(db.read(count()).await, Ok(0));
    assert_eq!(get(&db, "apr-1").await.unwrap().stored, ApprovalState::Expired);
    insert(&db, approval("apr-2", "a")).await.unwrap();
}

async fn old_approvals_are_deleted_and_a_break_glass_stays(db: Db) {
    for (id, state) in [
        ("apr-1", ApprovalState::Used),
        ("apr-2", ApprovalState::BreakGlass),
        ("apr-3", ApprovalState::Pending),
    ] {
        insert(&db, Approval { stored: state, ..approval(id, id) }).await.unwrap();
    }
    let unreviewed = db.read(tx!([], |tx| tx.unreviewed_approvals(9).await)).await.unwrap();
    assert_eq!(unreviewed.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["apr-2"]);
    let remove = |before: i64, limit| tx!([], |tx| tx.remove_approvals(at(before), limit).await);
    let removable = |before: i64| tx!([], |tx| tx.has_removable_approvals(at(before)).await);
    assert_eq!(db.read(removable(100)).await, Ok(false));
    assert_eq!(db.read(removable(101)).await, Ok(true));
    assert_eq!(db.write(remove(100, 9)).await, Ok(0));
    assert_eq!(db.write(remove(101, 1)).await, Ok(1));
    assert_eq!(db.write(remove(101, 9)).await, Ok(1));
    assert_eq!(db.write(remove(101, 9)).await, Ok(0));
    assert!(get(&db, "apr-2").await.is_some());
    assert_eq!(db.read(removable(101)).await, Ok(false));
}
