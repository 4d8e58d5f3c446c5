//! Machines: written and read completely, and changed only at the latest version.

use crate::harness::{Db, at, event, machine, set_condition};
use model::condition::ConditionType;
use model::id::{MachineId, RackId, RunId};
use model::machine::{Machine, MachineSpec, Phase};
use model::refusal::{Reason, Refusal};
use store::{EventObject, REMOVED, StoreError};

on_both!(
    every_field_comes_back,
    an_id_is_unique,
    an_old_version_changes_nothing,
    racing_updates_are_all_applied,
    a_refusal_writes_nothing,
    odd_texts_survive,
    concurrent_lookups_get_their_own_machine,
    a_deleted_machine_leaves_its_history,
);

fn full(id: &str) -> Machine {
    let mut machine = machine(id);
    machine.labels = [("env".to_string(), "prod".to_string())].into();
    machine.spec = MachineSpec {
        ssh_endpoint: "10.0.0.7:22".into(),
        bmc_endpoint: "https://10.1.0.7".into(),
        target_cluster_ref: "cluster-a".into(),
        mac_addresses: vec!["aa:bb:cc:dd:ee:ff".into()],
        provider: "sim".into(),
        serial: "S-1".into(),
        customer_id: "c-9".into(),
        bmc_credential: "bmc".into(),
        ssh_credential: "hosts".into(),
        root_disk: "serial:S1".into(),
        rack: Some(model::id::RackId::trusted("rack-1")),
        slot: Some(7),
        node_name: "n1.example".into(),
        height_u: Some(2),
        feeds: vec![model::id::PowerShelfId::trusted("ps-1")],
    };
    machine.phase = Phase::Maintenance;
    machine.active_run = Some(RunId::trusted("op-1"));
    set_condition(&mut machine, ConditionType::Reachable, true);
    set_condition(&mut machine, ConditionType::Drained, false);
    machine
}

async fn every_field_comes_back(db: Db) {
    let mut machine = full("m-1");
    db.add_machines(vec![machine.clone()]).await;
    assert_eq!(db.machine(&machine.id).await, machine);
    let id = machine.id.clone();
    let locked = db.write(tx!([id], |tx| tx.machine_locked(&id).await)).await.unwrap();
    assert_eq!(locked.as_ref(), Some(&machine));
    assert_eq!(db.read(tx!([], |tx| tx.count_machines().await)).await, Ok(1));

    let machine_before = machine.clone();
    machine.phase = Phase::Ready;
    machine.active_run = None;
    set_condition(&mut machine, ConditionType::Reachable, false);
    let changed = tx!([machine], |tx| {
        let mut machine = machine;
        tx.update_machine(&mut machine, &event())?;
        Ok(machine)
    });
    let written = db.write(changed).await.unwrap();
    assert_eq!((written.version, written.updated_at), (2, at(1)));
    assert_eq!(db.machine(&machine.id).await, written);
    assert_eq!(Machine { version: 1, updated_at: at(0), ..written.clone() }, machine);

    let nobody = MachineId::trusted("m-2");
    assert_eq!(db.read(tx!([nobody], |tx| tx.machine(&nobody).await)).await, Ok(None));
    let events = db.events(2).await;
    let reported: Vec<_> = events.iter().map(|one| (one.version, one.state.as_str())).collect();
    assert_eq!(reported, [(1, "BUSY"), (2, "IDLE")]);
    for (event, expected) in events.iter().zip([&machine_before, &written]) {
        assert!(matches!(&event.object, Some(EventObject::Machine(found)) if **found == *expected));
    }
}

async fn a_deleted_machine_leaves_its_history(db: Db) {
    let machine = full("m-1");
    db.add_machines(vec![machine.clone()]).await;
    let stale = Machine { version: 9, ..machine.clone() };
    let delete = |one: Machine| tx!([one], |tx| tx.delete_machine(&one, &event()));
    assert_eq!(db.write(delete(stale)).await, Err(StoreError::Conflict));
    assert_eq!(db.machine(&machine.id).await, machine);
    db.write(delete(machine.clone())).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.count_machines().await)).await, Ok(0));
    let last = db.read(tx!([], |tx| tx.last_event("m-1").await)).await.unwrap().unwrap();
    assert_eq!((last.version, last.state.as_str()), (2, REMOVED));
    assert!(db.read(tx!([], |tx| tx.last_event("m-2").await)).await.unwrap().is_none());
    // A machine of the same id continues the history.
    let version = db.read(tx!([], |tx| tx.last_version("m-1").await)).await.unwrap() + 1;
    db.add_machines(vec![Machine { version, ..machine.clone() }]).await;
    let events = db.events(3).await;
    let versions: Vec<_> = events.iter().map(|one| (one.version, one.is_deletion())).collect();
    assert_eq!(versions, [(1, false), (2, true), (3, false)]);
    let Some(EventObject::Machine(was)) = &events[1].object else { panic!("{:?}", events[1]) };
    assert_eq!((was.spec.clone(), was.version), (machine.spec, 2), "the machine as it was");
}

/// More lookups than one statement reads: many of one machine, of unknown machines, of a damaged
/// row, and some whose callers are dropped.
async fn concurrent_lookups_get_their_own_machine(db: Db) {
    let id = |n: usize| MachineId::trusted(format!("m-{n}"));
    let stands = |n: usize| {
        let mut one = machine(&format!("m-{n}"));
        one.spec.rack = matches!(n, 7 | 8).then(|| RackId::trusted("rack-1"));
        one
    };
    db.add_machines((0..300).map(stands).collect()).await;
    let damage = "UPDATE machines SET body = '{' WHERE id = 'm-7'";
    db.execute_sql(damage, damage).await;
    let mut requested = Vec::new();
    for n in (0..600).chain(0..20) {
        let store = db.store.clone();
        let task = tokio::spawn(async move { (n, store.machine(&id(n)).await) });
        match n % 10 {
            9 => task.abort(),
            _ => requested.push(task),
        }
    }
    for task in requested {
        match task.await.unwrap() {
            (7, found) => assert!(matches!(found, Err(StoreError::Corrupt(_))), "{found:?}"),
            (n, found) => {
                let found = found.unwrap().map(|machine| machine.id);
                assert_eq!(found, (n < 300).then(|| id(n)));
            }
        }
    }
    let together = db.read(tx!([], |tx| tx.machines_in_rack(&RackId::trusted("rack-1")).await));
    let together = together.await.unwrap().into_iter();
    let readable: Vec<_> = together.map(|(id, found)| (id.to_string(), found.is_ok())).collect();
    assert_eq!(readable, [("m-7".to_string(), false), ("m-8".to_string(), true)]);
    // A lookup after a change sees the change.
    let mut changed = db.machine(&id(0)).await;
    for _ in 0..20 {
        let next = tx!([changed], |tx| {
            let mut machine = changed;
            tx.update_machine(&mut machine, &event())?;
            Ok(machine)
        });
        changed = db.write(next).await.unwrap();
        assert_eq!(db.store.machine(&changed.id).await, Ok(Some(changed.clone())));
    }
}

async fn an_id_is_unique(db: Db) {
    let first = db.add_machine("m-1").await;
    let second = Machine { phase: Phase::Maintenance, ..first.clone() };
    let insert = tx!([second], |tx| tx.insert_machine(&second, &event()));
    assert_eq!(db.write(insert).await, Err(StoreError::Conflict));
    assert_eq!(db.machine(&first.id).await, first);
    db.events(1).await;
}

async fn an_old_version_changes_nothing(db: Db) {
    let machine = db.add_machine("m-1").await;
    for (phase, expected) in
        [(Phase::Ready, Ok(())), (Phase::Maintenance, Err(StoreError::Conflict))]
    {
        let stale = Machine { phase, ..machine.clone() };
        let update = tx!([stale], |tx| tx.update_machine(&mut stale.clone(), &event()));
        assert_eq!(db.write(update).await, expected);
    }
    let stored = db.machine(&machine.id).await;
    assert_eq!((stored.phase, stored.version), (Phase::Ready, 2));
    // Two events: the failed update wrote none.
    db.add_machine("m-2").await;
    assert_eq!(db.events(3).await[2].object_id, "m-2");
}

async fn racing_updates_are_all_applied(db: Db) {
    const WRITERS: usize = 8;
    const EACH: usize = 10;
    let id = db.add_machine("m-1").await.id;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (db, id) = (db.clone(), id.clone());
        tasks.spawn(async move {
            for turn in 0..EACH {
                let key = format!("w{writer}.{turn}");
                let add = || {
                    tx!([id, key], |tx| {
                        let mut machine = tx.machine(&id).await?.expect("the machine exists");
                        machine.labels.insert(key, "x".into());
                        tx.update_machine(&mut machine, &event())
                    })
                };
                // After a conflict, read the machine again.
                while let Err(error) = db.write(add()).await {
                    assert_eq!(error, StoreError::Conflict);
                }
            }
        });
    }
    tasks.join_all().await;
    let machine = db.machine(&id).await;
    assert_eq!(machine.labels.len(), WRITERS * EACH);
    assert_eq!(machine.version, 1 + (WRITERS * EACH) as i64);
    let versions: Vec<_> = db.events(1 + WRITERS * EACH).await;
    assert!(versions.windows(2).all(|pair| pair[0].version + 1 == pair[1].version));
}

async fn a_refusal_writes_nothing(db: Db) {
    let refusal = Refusal::new(Reason::NotReady, "not now");
    let (new, message) = (machine("m-1"), refusal.clone());
    let refused = tx!([new, message], |tx| {
        tx.insert_machine(&new, &event())?;
        assert!(tx.machine(&new.id).await?.is_some(), "a transaction sees its own writes");
        Err::<(), _>(message.into())
    });
    assert_eq!(db.write(refused).await, Err(StoreError::Refused(refusal)));
    assert_eq!(db.read(tx!([], |tx| tx.count_machines().await)).await, Ok(0));
    db.add_machine("m-2").await;
    assert_eq!(db.events(1).await[0].object_id, "m-2");
}

async fn odd_texts_survive(db: Db) {
    let odd = ["", "'; DROP TABLE machines; --", "\"\\\"", "ä☃\u{1F600}", "%_$1?1", "null", "{}"];
    let mut machine = machine("m-1");
    for (index, text) in odd.iter().enumerate() {
        machine.labels.insert(format!("k{index}"), (*text).to_string());
    }
    machine.spec.serial = odd.concat();
    db.add_machines(vec![machine.clone()]).await;
    assert_eq!(db.machine(&machine.id).await, machine);
}
