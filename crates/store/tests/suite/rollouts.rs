//! The targets of rollouts: what is due, what is next, and what changes many of them at once.

use crate::harness::{Db, at, event};
use model::id::{MachineId, RolloutId, RunId};
use model::lifecycle::Lifecycle;
use model::plan::{Params, RunType};
use model::rollout::{
    OnConflict, Pace, Rollout, RolloutEditor, RolloutOperation, RolloutSpec, RolloutStage,
    RolloutTarget, RolloutTurnInput, TargetStage, TargetState, plan_targets,
};
use store::StoreError;

on_both!(
    targets_are_stored_as_they_are,
    a_turn_finds_what_is_due_and_what_is_next,
    one_rollout_works_on_a_machine,
    many_targets_change_at_once,
    failures_are_grouped_by_fault,
    a_removed_rollout_takes_its_targets_along,
);

const TARGETS: u32 = 250;

fn id(name: &str) -> RolloutId {
    RolloutId::trusted(name)
}

fn rollout(name: &str) -> Rollout {
    let operation =
        RolloutOperation { run_type: RunType::Reboot, plan_id: None, params: Params::new() };
    let spec = RolloutSpec {
        operation,
        filter: String::new(),
        pace: Pace::default(),
        gate: None,
        start_at: None,
        order_label: None,
        on_conflict: OnConflict::Wait,
    };
    let editor =
        RolloutEditor { user: "ada".into(), groups: Vec::new(), token_id: None, is_user: true };
    let request = (format!("request of {name}"), TARGETS);
    let mut rollout = Rollout::new(&id(name), spec, editor, request, at(0));
    (rollout.stage, rollout.wave, rollout.wave_end) = (RolloutStage::Running, 1, 10);
    rollout
}

/// A rollout on the machines m-000, m-001, …
async fn add(db: &Db, name: &str) -> Rollout {
    let rollout = rollout(name);
    let insert = tx!([rollout], |tx| {
        let mut rollout = rollout;
        tx.insert_record(&mut rollout, &event()).await?;
        let machines: Vec<MachineId> =
            (0..TARGETS).map(|number| MachineId::trusted(format!("m-{number:03}"))).collect();
        tx.insert_rollout_targets(&rollout.id(), &plan_targets(&machines, at(0)))?;
        tx.insert_rollout_request(&rollout.request_id, &rollout.id())?;
        Ok(rollout)
    });
    db.write(insert).await.unwrap()
}

async fn all(db: &Db, name: &str) -> Vec<RolloutTarget> {
    let id = id(name);
    db.read(tx!([id], |tx| tx.rollout_targets(&id, None, None, 1_000).await)).await.unwrap()
}

async fn write(db: &Db, name: &str, target: &RolloutTarget) -> Result<(), StoreError> {
    let id = id(name);
    db.write(tx!([id, target], |tx| tx.update_rollout_target(&id, &target))).await
}

fn states(targets: &[RolloutTarget], state: TargetState) -> usize {
    targets.iter().filter(|one| one.state == state).count()
}

async fn targets_are_stored_as_they_are(db: Db) {
    add(&db, "ro-1").await;
    let stored = all(&db, "ro-1").await;
    assert_eq!(stored.len(), TARGETS as usize);
    assert!((0..).zip(&stored).all(|(position, one)| one.position == position));
    let changed = RolloutTarget {
        wave: 3,
        state: TargetState::Failed,
        stage: Some(TargetStage::Operation),
        attempt: 2,
        run: Some(RunId::trusted("op-1")),
        fault: "bmc-unreachable".into(),
        reason: "no answer".into(),
        was_in_maintenance: Some(true),
        since: at(5),
        refused_since: Some(at(4)),
        due_at: Some(at(6)),
        ..stored[7].clone()
    };
    write(&db, "ro-1", &changed).await.unwrap();
    let (ro, machine) = (id("ro-1"), changed.machine.clone());
    let found = db.read(tx!([ro, machine], |tx| tx.rollout_target(&ro, &machine).await));
    assert_eq!(found.await.unwrap(), Some(changed.clone()));
    let failed = Some(TargetState::Failed);
    let found = db.read(tx!([ro], |tx| tx.rollout_targets(&ro, failed, None, 9).await)).await;
    assert_eq!(found.unwrap(), std::slice::from_ref(&changed));
    let found = db.read(tx!([ro], |tx| tx.rollout_targets(&ro, None, Some(247), 9).await)).await;
    assert_eq!(found.unwrap().len(), 2);
    let unknown = RolloutTarget { machine: MachineId::trusted("m-none"), ..changed };
    assert!(matches!(write(&db, "ro-1", &unknown).await, Err(StoreError::Conflict)));
    let request = "request of ro-1";
    let found = db.read(tx!([], |tx| tx.rollout_of_request(request).await)).await.unwrap();
    assert_eq!(found, Some(id("ro-1")));
}

async fn a_turn_finds_what_is_due_and_what_is_next(db: Db) {
    let mut one = add(&db, "ro-1").await;
    let work = async |db: &Db, rollout: &Rollout, now: i64| {
        let rollout = rollout.clone();
        db.read(tx!([rollout], |tx| tx.rollout_work(&rollout, at(now)).await)).await.unwrap()
    };
    let open = RolloutTurnInput { wave_open: true, due_now: true, next_due: None };
    assert_eq!(work(&db, &one, 1).await, open);
    let stored = all(&db, "ro-1").await;
    // The first waits, the second is at work, the third is at its gate; the rest of the wave ends.
    db.add_machine("m-001").await;
    let run = db.add_run("op-1").await;
    let waiting =
        RolloutTarget { state: TargetState::Waiting, due_at: Some(at(20)), ..stored[0].clone() };
    let at_work = RolloutTarget {
        state: TargetState::Active,
        stage: Some(TargetStage::Operation),
        run: Some(run.spec.id.clone()),
        ..stored[1].clone()
    };
    let at_gate = RolloutTarget {
        state: TargetState::Active,
        stage: Some(TargetStage::Gate),
        due_at: Some(at(30)),
        ..stored[2].clone()
    };
    for target in [&waiting, &at_work, &at_gate] {
        write(&db, "ro-1", target).await.unwrap();
    }
    for target in &stored[3..10] {
        let done = target.clone().ended(TargetState::Done, "", at(1));
        write(&db, "ro-1", &done).await.unwrap();
    }
    (one.counts.active, one.counts.waiting) = (2, 1);
    for (now, due_now) in [(19, false), (20, true), (30, true)] {
        let found = work(&db, &one, now).await;
        assert_eq!((found.wave_open, found.due_now), (true, due_now), "{now}");
        assert_eq!(found.next_due, Some(at(20)));
    }
    // While nothing may start, only the active targets count.
    let paused = one.paused("lunch", "ada", at(1));
    let found = work(&db, &paused, 25).await;
    assert_eq!((found.due_now, found.next_due), (false, Some(at(30))));
    let (ro, next) = (id("ro-1"), one.clone());
    let due = db.read(tx!([ro], |tx| tx.due_rollout_targets(&ro, at(30), 9).await)).await.unwrap();
    assert_eq!(due, [at_gate]);
    let found = db.read(tx!([next], |tx| tx.next_rollout_targets(&next, at(20), 9).await)).await;
    assert_eq!(found.unwrap(), [waiting]);
    one.wave_end = 12;
    let next = one.clone();
    let found = db.read(tx!([next], |tx| tx.next_rollout_targets(&next, at(9), 1).await)).await;
    assert_eq!(found.unwrap(), stored[10..11]);
    // A run that is gone, or has ended, makes its target due.
    let gone = RolloutTarget { run: Some(RunId::trusted("op-gone")), ..at_work };
    write(&db, "ro-1", &gone).await.unwrap();
    let due = db.read(tx!([ro], |tx| tx.due_rollout_targets(&ro, at(1), 9).await)).await.unwrap();
    assert_eq!(due, [gone]);
}

async fn one_rollout_works_on_a_machine(db: Db) {
    add(&db, "ro-1").await;
    add(&db, "ro-2").await;
    let first = all(&db, "ro-1").await.remove(0);
    let active = RolloutTarget { state: TargetState::Active, ..first };
    write(&db, "ro-1", &active).await.unwrap();
    let (two, machine) = (id("ro-2"), active.machine.clone());
    let other = db.read(tx!([two, machine], |tx| tx.other_rollout_on(&machine, &two).await));
    assert_eq!(other.await.unwrap(), Some(id("ro-1")));
    let one = id("ro-1");
    let other = db.read(tx!([one, machine], |tx| tx.other_rollout_on(&machine, &one).await));
    assert_eq!(other.await.unwrap(), None);
    // The index keeps it, whatever two replicas have read before.
    assert!(write(&db, "ro-2", &active).await.is_err());
    let machines = vec![MachineId::trusted("m-none"), machine];
    let open = db.read(tx!([machines], |tx| tx.open_rollout_target(&machines).await)).await;
    assert_eq!(open.unwrap().map(|(machine, _)| machine), Some(active.machine));
}

async fn many_targets_change_at_once(db: Db) {
    add(&db, "ro-1").await;
    for (number, state) in
        [(0, TargetState::Failed), (1, TargetState::Failed), (2, TargetState::Waiting)]
    {
        let target = all(&db, "ro-1").await.remove(number);
        let target = RolloutTarget { due_at: Some(at(9)), ..target.ended(state, "why", at(1)) };
        write(&db, "ro-1", &target).await.unwrap();
    }
    let active = RolloutTarget { state: TargetState::Active, ..all(&db, "ro-1").await.remove(3) };
    write(&db, "ro-1", &active).await.unwrap();
    let ro = id("ro-1");
    let retry = db.write(tx!([ro], |tx| tx.retry_failed_targets(&ro, at(2)).await));
    assert_eq!(retry.await.unwrap(), 2);
    let first = all(&db, "ro-1").await.remove(0);
    assert_eq!((first.state, first.attempt), (TargetState::Pending, 2));
    assert_eq!((first.reason.as_str(), first.due_at), ("", None));
    let look = db.write(tx!([ro], |tx| tx.look_at_active_targets(&ro, at(3)).await));
    assert_eq!(look.await.unwrap(), 1);
    let skip = db.write(tx!([ro], |tx| tx.skip_unbegun_targets(&ro, "aborted", at(4)).await));
    assert_eq!(skip.await.unwrap(), u64::from(TARGETS) - 1);
    let after = all(&db, "ro-1").await;
    assert_eq!(states(&after, TargetState::Skipped), TARGETS as usize - 1);
    assert_eq!(after[3].due_at, Some(at(3)));
}

async fn failures_are_grouped_by_fault(db: Db) {
    add(&db, "ro-1").await;
    for (number, fault) in [(0, "slow"), (1, "lost"), (2, "lost"), (3, "")] {
        let target = all(&db, "ro-1").await.remove(number);
        let reason = format!("failure {number}");
        let target = target.ended(TargetState::Failed, &reason, at(1));
        write(&db, "ro-1", &RolloutTarget { fault: fault.into(), ..target }).await.unwrap();
    }
    let ro = id("ro-1");
    let groups = db.read(tx!([ro], |tx| tx.rollout_failures(&ro).await)).await.unwrap();
    let shown: Vec<_> =
        groups.iter().map(|one| (one.fault.as_str(), one.count, one.reason.as_str())).collect();
    assert_eq!(shown, [("lost", 2, "failure 1"), ("", 1, "failure 3"), ("slow", 1, "failure 0")]);
}

async fn a_removed_rollout_takes_its_targets_along(db: Db) {
    let one = add(&db, "ro-1").await;
    add(&db, "ro-2").await;
    assert_eq!(one.state_name(), "Running");
    db.write(tx!([one], |tx| tx.remove_record(&one, &event()))).await.unwrap();
    assert!(all(&db, "ro-1").await.is_empty());
    assert_eq!(all(&db, "ro-2").await.len(), TARGETS as usize);
    let request = "request of ro-1";
    let found = db.read(tx!([], |tx| tx.rollout_of_request(request).await)).await.unwrap();
    assert_eq!(found, None);
}
