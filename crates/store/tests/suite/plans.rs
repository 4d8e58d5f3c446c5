//! Plans of operators.

use crate::harness::{Db, at};
use model::id::PlanId;
use model::plan::{Plan, RunType, default_plan};
use store::StoreError;

on_both!(plans_are_kept_and_listed);

async fn plans_are_kept_and_listed(db: Db) {
    let plan = |id: &str| Plan {
        id: PlanId::trusted(id),
        built_in: false,
        default_for: None,
        ..default_plan(RunType::Reimage).unwrap()
    };
    for id in ["plan-c", "plan-a", "plan-b"] {
        let plan = plan(id);
        db.write(tx!([plan], |tx| tx.insert_plan(&plan, at(1)).await)).await.unwrap();
    }
    let id = PlanId::trusted("plan-b");
    assert_eq!(db.read(tx!([id], |tx| tx.plan(&id).await)).await, Ok(Some(plan("plan-b"))));
    let nobody = PlanId::trusted("plan-x");
    assert_eq!(db.read(tx!([nobody], |tx| tx.plan(&nobody).await)).await, Ok(None));

    let mut changed = plan("plan-b");
    changed.steps.truncate(1);
    let again = tx!([changed], |tx| tx.insert_plan(&changed, at(2)).await);
    assert_eq!(db.write(again).await, Err(StoreError::Conflict));
    assert_eq!(db.read(tx!([id], |tx| tx.plan(&id).await)).await, Ok(Some(plan("plan-b"))));

    let list = |after: &'static str, limit| tx!([], |tx| tx.plans(after, limit).await);
    let names = |plans: Vec<Plan>| plans.iter().map(|one| one.id.to_string()).collect::<Vec<_>>();
    let (first, next) = db.read(list("", 2)).await.unwrap();
    assert_eq!(names(first.complete().unwrap()), ["plan-a", "plan-b"]);
    assert_eq!(next.as_deref(), Some("plan-b"));
    let (last, next) = db.read(list("plan-b", 2)).await.unwrap();
    assert_eq!((names(last.complete().unwrap()), next), (vec!["plan-c".to_string()], None));
}
