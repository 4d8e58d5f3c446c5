//! Lists in every order: a row that does not change appears exactly once and in order, with equal
//! times, with every page size, and while other rows are written between the pages.

use crate::harness::{Db, Dice, at, ended, event, machine, run};
use model::filter::FilterSubject;
use model::id::MachineId;
use model::lifecycle::RecordHeader;
use model::machine::Labels;
use model::order::Selection;
use model::rack::{Rack, RackSpec};
use model::run::Workflow;
use store::{Enqueue, NewEvent};

on_both!(
    machines_are_paged_in_every_order,
    runs_are_paged_in_every_order,
    records_are_paged_in_every_order,
);

const ROWS: usize = 23;
/// Few different times, so that many rows have the same one.
const TIMES: usize = 4;

fn at_time(seconds: usize) -> NewEvent {
    NewEvent { at: at(seconds as i64), ..event() }
}

/// The expected ids: by time and id, reversed if descending.
fn sorted(mut rows: Vec<(usize, String)>, descending: bool) -> Vec<String> {
    rows.sort();
    if descending {
        rows.reverse();
    }
    rows.into_iter().map(|(_, id)| id).collect()
}

async fn machines_are_paged_in_every_order(db: Db) {
    let mut dice = Dice::new(7);
    let (mut created, mut updated, mut by_id) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ROWS {
        let id = format!("m-{:03}", dice.roll(500) * 2 + number % 2 * 1_000);
        if by_id.iter().any(|(_, known)| *known == id) {
            continue;
        }
        let (born, changed) = (dice.roll(TIMES), TIMES + dice.roll(TIMES));
        let mut one = machine(&id);
        (one.created_at, one.updated_at) = (at(born as i64), at(changed as i64));
        db.add_machines(vec![one]).await;
        created.push((born, id.clone()));
        updated.push((changed, id.clone()));
        by_id.push((0, id));
    }
    let table = [("created_at", created), ("updated_at", updated), ("machine_id", by_id.clone())];
    for (field, rows) in table {
        for (direction, descending) in [("", false), ("desc", true)] {
            let order = format!("{field} {direction}");
            let selected = Selection::parse("", &order, FilterSubject::Machine).unwrap();
            for size in [1, 2, 5, 1_000] {
                let (mut observed, mut after, mut number) = (Vec::new(), None::<String>, 0);
                loop {
                    let page = tx!([selected, after], |tx| {
                        tx.selected_machines(&selected, after.as_deref(), size).await
                    });
                    let page = db.read(page).await.unwrap();
                    assert!(page.machines.len() as i64 <= size);
                    observed.extend(page.machines.into_iter().map(|one| one.id.to_string()));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                    // A foreign row comes, changes and goes between the pages.
                    number += 1;
                    disturb(&db, &format!("x-{number:03}"), dice.roll(TIMES * 3)).await;
                }
                observed.retain(|id| id.starts_with("m-"));
                assert_eq!(observed, sorted(rows.clone(), descending), "{order} by {size}");
            }
        }
    }
}

/// Creates a machine, changes it, and deletes it every second time.
async fn disturb(db: &Db, id: &str, time: usize) {
    let machine_id = MachineId::trusted(id);
    let work = tx!([machine_id], |tx| {
        let mut one = match tx.machine_locked(&machine_id).await? {
            Some(one) => one,
            None => {
                let mut one = machine(machine_id.as_str());
                one.version = tx.last_version(machine_id.as_str()).await? + 1;
                (one.created_at, one.updated_at) = (at(time as i64), at(time as i64));
                tx.insert_machine(&one, &at_time(time))?;
                one
            }
        };
        tx.update_machine(&mut one, &at_time(time + 1))?;
        if time.is_multiple_of(2) {
            tx.delete_machine(&one, &at_time(time + 2))?;
        }
        Ok(())
    });
    db.write(work).await.unwrap();
}

async fn runs_are_paged_in_every_order(db: Db) {
    db.add_machine("m-1").await;
    let mut dice = Dice::new(11);
    let (mut created, mut finished) = (Vec::new(), Vec::new());
    for number in 0..ROWS {
        let id = format!("op-{number:03}");
        let mut one = ended(run(&id, "m-1"), Workflow::Completed);
        one.spec.request_id = format!("request {number}");
        // A run that has ended when it is inserted ended when it was created. Its id gives its age.
        let end = 100 + dice.roll(TIMES);
        one.spec.created_at = at(end as i64);
        let insert = tx!([one], |tx| tx.insert_run(&one, Enqueue::Now, &at_time(end)));
        db.write(insert).await.unwrap();
        created.push((number, id.clone()));
        finished.push((end, id));
    }
    let active = run("op-999", "m-1");
    db.insert_run(&active, None).await.unwrap();
    for (order, rows, descending) in [
        ("finished_at", finished.clone(), false),
        ("finished_at desc", finished, true),
        ("created_at", [created.clone(), vec![(ROWS, "op-999".into())]].concat(), false),
        ("created_at desc", [created, vec![(ROWS, "op-999".into())]].concat(), true),
    ] {
        for filter in ["", "machine_id=m-1"] {
            let selected = Selection::parse(filter, order, FilterSubject::Run).unwrap();
            for size in [1, 3, 1_000] {
                let (mut observed, mut after) = (Vec::new(), None::<String>);
                loop {
                    let page = tx!([selected, after], |tx| {
                        tx.selected_runs(&selected, after.as_deref(), size).await
                    });
                    let page = db.read(page).await.unwrap();
                    observed.extend(page.runs.into_iter().map(|one| one.spec.id.to_string()));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(observed, sorted(rows.clone(), descending), "{order} by {size}");
            }
        }
    }
}

async fn records_are_paged_in_every_order(db: Db) {
    let mut dice = Dice::new(13);
    let (mut created, mut updated, mut by_id) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ROWS {
        let id = format!("rack-{number:03}");
        let (born, changed) = (dice.roll(TIMES), TIMES + dice.roll(TIMES));
        let head = RecordHeader::new(&id, Labels::new(), at(born as i64));
        let one = Rack::new(head, RackSpec::default());
        let work = tx!([one], |tx| {
            let mut one = one;
            tx.insert_record(&mut one, &at_time(born)).await?;
            tx.update_record(&mut one, &at_time(changed))
        });
        db.write(work).await.unwrap();
        created.push((born, id.clone()));
        updated.push((changed, id.clone()));
        by_id.push((0, id));
    }
    for (field, rows) in [("created_at", created), ("updated_at", updated), ("rack_id", by_id)] {
        for (direction, descending) in [("", false), ("desc", true)] {
            let order = format!("{field} {direction}");
            let filter = "rack_id!=rack-003";
            let selected = Selection::parse(filter, &order, FilterSubject::Rack).unwrap();
            let mut expected = sorted(rows.clone(), descending);
            expected.retain(|id| id != "rack-003");
            for size in [1, 4, 1_000] {
                let (mut observed, mut after) = (Vec::new(), None::<String>);
                loop {
                    let page = tx!([selected, after], |tx| {
                        tx.selected_records::<Rack>(&selected, after.as_deref(), size).await
                    });
                    let page = db.read(page).await.unwrap();
                    observed.extend(page.records.into_iter().map(|one| one.head.id));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(observed, expected, "{order} by {size}");
            }
        }
    }
}
