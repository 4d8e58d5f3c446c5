//! Disruption budgets: their members follow every change, also of concurrent transactions.

use crate::harness::{Db, Dice, at, event, machine, set_condition, within_timeout};
use model::budget::{Budget, FailureDomain, MaxUnavailable, Unavailability, unavailability};
use model::condition::ConditionType;
use model::filter::Filter;
use model::id::{BudgetId, MachineId, NodeId, PowerShelfId, RackId};
use model::machine::{Labels, Machine, Phase};
use model::node::{Node, NodeState};
use model::run::Workflow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{BudgetMember, DomainCount, StoreError};

on_both!(
    a_budget_is_stored_with_its_version_and_history,
    a_new_budget_counts_what_is_there,
    members_follow_every_change,
    an_ended_run_gives_its_machines_back,
    a_dry_run_of_a_budget_writes_nothing,
);

mod raced {
    use super::{
        a_budget_that_is_made_beside_changes_misses_none,
        of_two_that_take_the_last_machine_one_waits_and_counts_the_other,
    };

    on_postgres!(
        a_budget_that_is_made_beside_changes_misses_none,
        of_two_that_take_the_last_machine_one_waits_and_counts_the_other,
    );
}

pub fn budget(id: &str, filter: &str, max: &str, per: &str) -> Budget {
    Budget {
        id: BudgetId::trusted(id),
        filter: filter.into(),
        max_unavailable: MaxUnavailable::parse("max", max).unwrap(),
        per: FailureDomain::parse("per", per).unwrap(),
        created_at: at(0),
        updated_at: at(0),
        version: 0,
    }
}

pub fn in_service(id: &str, role: &str) -> Machine {
    let labels = Labels::from([("role".into(), role.into())]);
    Machine { phase: Phase::Ready, labels, ..machine(id) }
}

pub async fn add_budget(db: &Db, one: Budget) -> (Budget, Vec<DomainCount>) {
    let insert = tx!([one], |tx| {
        tx.lock_budgets().await?;
        let mut one = one;
        let counts = tx.insert_budget(&mut one, &event()).await?;
        Ok((one, counts))
    });
    db.write(insert).await.unwrap()
}

async fn counts(db: &Db, id: &str) -> Vec<(String, i64, i64)> {
    let id = BudgetId::trusted(id);
    let found = db.read(tx!([id], |tx| tx.count_budget(&id).await)).await.unwrap();
    found.into_iter().map(|one| (one.domain, one.total, one.unavailable)).collect()
}

async fn take(db: &Db, taker: &'static str, machines: &[&str]) {
    let ids: BTreeSet<MachineId> = machines.iter().map(|id| MachineId::trusted(*id)).collect();
    db.write(tx!([ids], |tx| tx.take_machines(taker, &ids))).await.unwrap();
}

async fn a_budget_is_stored_with_its_version_and_history(db: Db) {
    let (made, _) = add_budget(&db, budget("gpu", "labels.role=gpu", "5%", "labels.zone")).await;
    let id = made.id.clone();
    let read = || {
        let id = id.clone();
        db.read(tx!([id], |tx| tx.budget(&id).await))
    };
    assert_eq!(read().await.unwrap(), Some(made.clone()));
    let change = |max: &str, version: i64| {
        let max_unavailable = MaxUnavailable::parse("max", max).unwrap();
        let one = Budget { max_unavailable, version, ..made.clone() };
        let update = tx!([one], |tx| {
            tx.lock_budgets().await?;
            let mut one = one;
            tx.update_budget(&mut one, &event()).await?;
            Ok(one)
        });
        db.write(update)
    };
    assert_eq!(change("7", made.version + 5).await, Err(StoreError::Conflict));
    let changed = change("7", made.version).await.unwrap();
    assert_eq!(changed.version, made.version + 1);
    assert_eq!(read().await.unwrap(), Some(changed.clone()));
    let page = |filter: &str, after: &'static str| {
        let filter = Filter::parse(filter, model::filter::FilterSubject::Budget).unwrap();
        db.read(tx!([filter], |tx| tx.budgets(&filter, after, 9).await))
    };
    for (filter, after, found) in
        [("", "", 1), ("per=labels.zone", "", 1), ("per=rack", "", 0), ("", "gpu", 0)]
    {
        assert_eq!(page(filter, after).await.unwrap().items.len(), found, "{filter} {after}");
    }
    let gone = changed.clone();
    db.write(tx!([gone], |tx| tx.delete_budget(&gone, &event()))).await.unwrap();
    assert_eq!(read().await.unwrap(), None);
    let version = db.read(tx!([], |tx| tx.last_version("budget/gpu").await)).await.unwrap();
    assert_eq!(version, changed.version + 1);
    // One of the same name continues the history.
    let (again, _) = add_budget(&db, budget("gpu", "", "1", "")).await;
    assert_eq!(again.version, version + 1);
}

async fn a_new_budget_counts_what_is_there(db: Db) {
    let all = (0..2_345).map(|number| {
        let role = if number % 3 == 0 { "cpu" } else { "gpu" };
        let mut one = in_service(&format!("m-{number:05}"), role);
        one.spec.rack = Some(RackId::trusted(format!("rack-{}", number % 7)));
        if number % 100 == 1 {
            one.phase = Phase::Maintenance;
        }
        if number % 100 == 2 {
            one.phase = Phase::FactoryReady;
        }
        one
    });
    db.add_machines(all.collect()).await;
    take(&db, "op-1", &["m-00005", "m-00003"]).await;
    let (_, counts) = add_budget(&db, budget("gpu", "labels.role=gpu", "5%", "")).await;
    let gpu: Vec<i64> = (0..2_345).filter(|number| number % 3 != 0).collect();
    let counted = gpu.iter().filter(|number| *number % 100 != 2).count();
    let maintained = gpu.iter().filter(|number| *number % 100 == 1).count();
    let (total, unavailable) = (counts[0].total, counts[0].unavailable);
    assert_eq!((counts.len(), total, unavailable), (1, counted as i64, maintained as i64 + 1));
    let (_, racks) = add_budget(&db, budget("racks", "", "1", "rack")).await;
    assert_eq!(racks.len(), 7);
    assert_eq!(racks.iter().map(|one| one.total).sum::<i64>(), 2_345 - 24);
}

/// The members as they should be, from the machines that are stored and from what takes them.
async fn expected(
    db: &Db,
    budgets: &[Budget],
    taken: &BTreeMap<MachineId, BTreeSet<&'static str>>,
) -> Vec<BudgetMember> {
    let filter = Filter::default();
    let page = db.read(tx!([filter], |tx| tx.machines(&filter, None, 999).await)).await.unwrap();
    let mut members = Vec::new();
    for machine in page.machines {
        let id = machine.id.clone();
        let node = db.read(tx!([id], |tx| {
            let Some(node) = tx.live_node_of_machine(&id).await? else { return Ok(None) };
            tx.record::<Node>(node.as_str()).await
        }));
        let node = node.await.unwrap().map(|node| node.state);
        let taker = taken.get(&machine.id).and_then(|takers| takers.first()).copied();
        for one in budgets {
            for domain in one.rule().unwrap().domains(&machine) {
                members.push(BudgetMember {
                    machine: machine.id.clone(),
                    budget: one.id.clone(),
                    domain,
                    unavailable: unavailability(&machine, node, taker).is_some(),
                });
            }
        }
    }
    members.sort();
    members
}

async fn stored(db: &Db, machines: &[String]) -> Vec<BudgetMember> {
    let ids: BTreeSet<MachineId> = machines.iter().map(MachineId::trusted).collect();
    let mut found = db.read(tx!([ids], |tx| tx.budget_members(&ids).await)).await.unwrap();
    found.sort();
    found
}

/// Any change of a machine, its node or what takes it, also several in one transaction.
async fn members_follow_every_change(db: Db) {
    let names: Vec<String> = (0..6).map(|number| format!("m-{number}")).collect();
    let mut budgets = Vec::new();
    for (id, filter, per) in [
        ("all", "", ""),
        ("gpu", "labels.role=gpu", "rack"),
        ("fed", "labels.role in (gpu, cpu)", "feed"),
        ("zoned", "rack_id=rack-1", "labels.zone"),
    ] {
        budgets.push(add_budget(&db, budget(id, filter, "1", per)).await.0);
    }
    let mut taken: BTreeMap<MachineId, BTreeSet<&'static str>> = BTreeMap::new();
    let mut runs = [db.add_run("op-1").await, db.add_run("op-2").await];
    let mut dice = Dice::new(7);
    for step in 0..400 {
        let name = dice.pick(&names).clone();
        let id = MachineId::trusted(&name);
        let known = db.read(tx!([id], |tx| tx.machine(&id).await)).await.unwrap();
        let Some(mut machine) = known else {
            let again = in_service(&name, "gpu");
            let insert = tx!([again], |tx| {
                // The history of a deleted machine continues.
                let version = tx.last_version(again.id.as_str()).await? + 1;
                tx.insert_machine(&Machine { version, ..again }, &event())
            });
            db.write(insert).await.unwrap();
            continue;
        };
        let which = dice.roll(2);
        let taker = ["op-1", "op-2"][which];
        match dice.roll(8) {
            0 => {
                // What takes a machine that is deleted is not released, and counts nowhere.
                db.write(tx!([machine], |tx| tx.delete_machine(&machine, &event()))).await.unwrap();
            }
            1 => {
                take(&db, taker, &[&name]).await;
                taken.entry(id.clone()).or_default().insert(taker);
            }
            2 => {
                runs[which] = db.update_unclaimed(&runs[which], Workflow::Completed).await;
                taken.values_mut().for_each(|takers| takers.retain(|one| *one != taker));
            }
            3 => change_node(&db, &machine, &mut dice).await,
            _ => {
                for _ in 0..=dice.roll(2) {
                    change_machine(&mut machine, &mut dice);
                }
                let late = dice.coin();
                let update = tx!([machine], |tx| {
                    let mut machine = machine;
                    // One that was not read in the transaction is taken for changed.
                    if !late {
                        tx.machine_locked(&machine.id).await?;
                    }
                    tx.update_machine(&mut machine, &event())?;
                    tx.update_machine(&mut machine, &event())
                });
                db.write(update).await.unwrap();
            }
        }
        let expected = expected(&db, &budgets, &taken).await;
        assert_eq!(stored(&db, &names).await, expected, "step {step}");
        for one in &budgets {
            let own = expected.iter().filter(|member| member.budget == one.id);
            let mut domains: BTreeMap<String, (i64, i64)> = BTreeMap::new();
            for member in own {
                let count = domains.entry(member.domain.clone()).or_default();
                *count = (count.0 + 1, count.1 + i64::from(member.unavailable));
            }
            let found = counts(&db, one.id.as_str()).await;
            let domains: Vec<_> = domains.into_iter().map(|(name, (a, b))| (name, a, b)).collect();
            assert_eq!(found, domains, "step {step}");
        }
    }
}

fn change_machine(machine: &mut Machine, dice: &mut Dice) {
    match dice.roll(6) {
        0 => machine.phase = *dice.pick(&Phase::ALL),
        1 => set_condition(machine, ConditionType::Reachable, dice.coin()),
        2 => set_condition(machine, ConditionType::Rma, dice.coin()),
        3 => {
            let role = dice.pick(&["gpu", "cpu", "none"]).to_string();
            machine.labels.insert("role".into(), role);
        }
        4 => machine.spec.rack = dice.coin().then(|| RackId::trusted("rack-1")),
        _ => {
            let feeds = ["ps-1", "ps-2"].map(PowerShelfId::trusted);
            machine.spec.feeds = feeds[..dice.roll(3)].to_vec();
        }
    }
}

/// Attaches a node to the machine, changes its state, or detaches it.
async fn change_node(db: &Db, machine: &Machine, dice: &mut Dice) {
    let id = machine.id.clone();
    let live = db.read(tx!([id], |tx| tx.live_node_of_machine(&id).await)).await.unwrap();
    let Some(id) = live else {
        let id = NodeId::trusted(format!("node-{}", dice.roll(1_000_000)));
        let node = Node::new(&id, &machine.id, NodeState::Enrolling, at(0));
        let attach = tx!([node], |tx| {
            let mut node = node;
            tx.attach_node(&node.id(), &node.machine.clone(), None)?;
            tx.insert_record(&mut node, &event()).await
        });
        db.write(attach).await.unwrap();
        return;
    };
    let state = *dice.pick(&[NodeState::Active, NodeState::Offline, NodeState::Deleted]);
    let update = tx!([id], |tx| {
        let mut node = tx.record_locked::<Node>(id.as_str()).await?.ok_or(StoreError::Conflict)?;
        node.state = state;
        if state == NodeState::Deleted {
            tx.detach_node(&id)?;
        }
        tx.remove_record(&node, &event())?;
        tx.insert_record(&mut node, &event()).await
    });
    db.write(update).await.unwrap();
}

async fn an_ended_run_gives_its_machines_back(db: Db) {
    let run = db.add_run("op-1").await;
    db.add_machines(vec![in_service("m-2", "gpu"), in_service("m-3", "gpu")]).await;
    add_budget(&db, budget("gpu", "labels.role=gpu", "1", "")).await;
    take(&db, "op-1", &["m-2"]).await;
    take(&db, "op-1", &["m-2"]).await;
    assert_eq!(counts(&db, "gpu").await, [(String::new(), 2, 1)]);
    let named =
        db.read(tx!([], |tx| tx.unavailable_members((&BudgetId::trusted("gpu"), ""), 9).await));
    let named = named.await.unwrap();
    assert_eq!(named[0].machine.as_str(), "m-2");
    assert_eq!(named[0].why, Unavailability::TakenBy("op-1".into()));
    let run = db.update_unclaimed(&run, Workflow::Running).await;
    assert_eq!(counts(&db, "gpu").await, [(String::new(), 2, 1)]);
    db.update_unclaimed(&run, Workflow::Completed).await;
    assert_eq!(counts(&db, "gpu").await, [(String::new(), 2, 0)]);
}

async fn a_dry_run_of_a_budget_writes_nothing(db: Db) {
    db.add_machines(vec![in_service("m-1", "gpu")]).await;
    let one = budget("gpu", "", "1", "");
    let counted = db.dry_run(tx!([one], |tx| {
        tx.lock_budgets().await?;
        let mut one = one;
        tx.insert_budget(&mut one, &event()).await
    }));
    assert_eq!(counted.await.unwrap()[0].total, 1);
    assert_eq!(stored(&db, &["m-1".to_string()]).await, []);
    let count = db.read(tx!([], |tx| tx.count_budgets().await)).await.unwrap();
    assert_eq!(count, 0);
}

/// Machines are changed by other transactions before, while and after a budget is made. None of the
/// changes is lost.
async fn a_budget_that_is_made_beside_changes_misses_none(db: Db) {
    let names: Vec<String> = (0..40).map(|number| format!("m-{number}")).collect();
    db.add_machines(names.iter().map(|name| in_service(name, "cpu")).collect()).await;
    let changes = names.iter().enumerate().map(|(number, name)| {
        let (db, id) = (db.clone(), MachineId::trusted(name));
        tokio::spawn(async move {
            let mut dice = Dice::new(number as u64);
            for _ in 0..10 {
                let (role, phase) = (*dice.pick(&["gpu", "cpu"]), *dice.pick(&Phase::ALL));
                let pause = Duration::from_millis(dice.roll(5) as u64);
                let change = tx!([id], |tx| {
                    let found = tx.machine_locked(&id).await?;
                    let mut machine = found.ok_or(StoreError::Conflict)?;
                    machine.labels.insert("role".into(), role.into());
                    machine.phase = phase;
                    tx.update_machine(&mut machine, &event())?;
                    tokio::time::sleep(pause).await;
                    Ok(())
                });
                db.write(change).await.unwrap();
            }
        })
    });
    let changes: Vec<_> = changes.collect();
    let mut budgets = Vec::new();
    for (number, filter) in ["labels.role=gpu", "", "labels.role=cpu"].into_iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        budgets.push(add_budget(&db, budget(&format!("b-{number}"), filter, "1", "")).await.0);
    }
    for change in changes {
        within_timeout("the changes", change).await.unwrap();
    }
    let expected = expected(&db, &budgets, &BTreeMap::new()).await;
    assert!(!expected.is_empty());
    assert_eq!(stored(&db, &names).await, expected);
}

/// Both lock the members and the budget, count, and take one machine if nothing is taken.
async fn of_two_that_take_the_last_machine_one_waits_and_counts_the_other(db: Db) {
    let names = ["m-1", "m-2"];
    db.add_machines(names.iter().map(|name| in_service(name, "gpu")).collect()).await;
    let mut runs = [db.add_run("op-m-1").await, db.add_run("op-m-2").await];
    let (one, _) = add_budget(&db, budget("gpu", "labels.role=gpu", "1", "")).await;
    for round in 0..20 {
        let takers = names.map(|name| {
            let (db, id, budget) = (db.clone(), MachineId::trusted(name), one.id.clone());
            tokio::spawn(async move {
                db.write(tx!([id, budget], |tx| {
                    let own = BTreeSet::from([id.clone()]);
                    tx.budget_members_locked(&own).await?;
                    tx.budgets_locked(std::slice::from_ref(&budget)).await?;
                    let domain = BTreeSet::from([(budget.clone(), String::new())]);
                    let count = tx.count_domains(&domain).await?;
                    let free = count[0].unavailable == 0;
                    if free {
                        tx.take_machines(&format!("op-{id}"), &own)?;
                    }
                    Ok(free)
                }))
                .await
                .unwrap()
            })
        });
        let mut taken = 0;
        for taker in takers {
            taken += i32::from(within_timeout("both", taker).await.unwrap());
        }
        assert_eq!((taken, counts(&db, "gpu").await[0].2), (1, 1), "round {round}");
        for run in &mut runs {
            *run = db.update_unclaimed(run, Workflow::Completed).await;
        }
    }
}
