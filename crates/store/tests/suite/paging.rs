//! Paging: a row that exists throughout appears exactly once, despite concurrent writes.

use crate::harness::{Db, Dice, ended, event, machine, run, within_timeout};
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, RunId};
use model::run::{Run, Workflow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

on_both!(machines_are_paged_while_others_write, runs_are_paged_while_others_write, pages_are_exact);

const ROWS: usize = 2_500;
const PAGE: i64 = 100;

fn machine_name(number: usize) -> String {
    // Every second number stays free for concurrent inserts.
    format!("m-{:05}", number * 2)
}

fn run_name(number: usize) -> String {
    format!("op-{:05}", number * 2)
}

async fn fill(db: &Db) {
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        db.add_machines(chunk.iter().map(|n| machine(&machine_name(*n))).collect()).await;
    }
}

/// Writes until it is stopped, and counts the writes.
fn spawn_writer<F, W>(stop: &Arc<AtomicBool>, write: F) -> watch::Receiver<usize>
where
    F: Fn(usize) -> W + Send + 'static,
    W: Future<Output = ()> + Send,
{
    let (count, counted) = watch::channel(0);
    let stop = Arc::clone(stop);
    tokio::spawn(async move {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            write(number).await;
            number += 1;
            count.send_replace(number);
        }
    });
    counted
}

/// Waits for one more write, so that every page reads a changed database.
async fn another_write(counted: &mut watch::Receiver<usize>) {
    counted.mark_unchanged();
    within_timeout("another write", counted.changed()).await.expect("the writer is running");
}

async fn machines_are_paged_while_others_write(db: Db) {
    fill(&db).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = db.clone();
    let mut counted = spawn_writer(&stop, move |number| {
        let db = writer.clone();
        async move {
            let mut dice = Dice::new(number as u64);
            // Inserts a row between the others, or changes an existing one.
            let fresh = machine(&format!("m-{:05}", dice.roll(ROWS) * 2 + 1));
            let old = MachineId::trusted(machine_name(dice.roll(ROWS)));
            let insert = tx!([fresh], |tx| {
                match tx.machine(&fresh.id).await? {
                    Some(_) => Ok(()),
                    None => tx.insert_machine(&fresh, &event()),
                }
            });
            db.write(insert).await.unwrap();
            let update = tx!([old], |tx| {
                let mut machine = tx.machine_locked(&old).await?.expect("the machine exists");
                machine.labels.insert("seen".into(), "again".into());
                tx.update_machine(&mut machine, &event())
            });
            db.write(update).await.unwrap();
        }
    });
    let everything = Filter::default();
    let (mut observed, mut after) = (Vec::new(), None::<String>);
    loop {
        another_write(&mut counted).await;
        let page =
            tx!([everything, after], |tx| tx.machines(&everything, after.as_deref(), PAGE).await);
        let page = db.read(page).await.unwrap();
        assert!(page.machines.len() as i64 <= PAGE);
        observed.extend(page.machines.into_iter().map(|one| one.id.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(observed.windows(2).all(|pair| pair[0] < pair[1]), "in order, none twice");
    let old: Vec<_> =
        observed.iter().filter(|id| id.ends_with(['0', '2', '4', '6', '8'])).collect();
    assert!(old.into_iter().eq((0..ROWS).map(machine_name).collect::<Vec<_>>().iter()));
    assert!(observed.len() > ROWS, "some concurrent inserts are listed, too");
}

async fn runs_are_paged_while_others_write(db: Db) {
    db.add_machine("m-1").await;
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        let runs: Vec<_> = chunk
            .iter()
            .map(|n| ended(run(&run_name(*n), "m-1"), Workflow::FailedRetryable))
            .collect();
        let insert = tx!([runs], |tx| {
            for run in &runs {
                tx.insert_run(run, store::Enqueue::Now, &event())?;
            }
            Ok(())
        });
        db.write(insert).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = db.clone();
    let mut counted = spawn_writer(&stop, move |number| {
        let db = writer.clone();
        async move {
            // New runs are inserted at the top; old runs change in place.
            let fresh = ended(run(&format!("op-9{number:05}"), "m-1"), Workflow::Completed);
            db.insert_run(&fresh, None).await.unwrap();
            let old = RunId::trusted(run_name(Dice::new(number as u64).roll(ROWS)));
            let old: Run = db.run(&old).await;
            db.update_unclaimed(&old, Workflow::FailedManualIntervention).await;
        }
    });
    let filter = Filter::parse("phase=FAILED", FilterSubject::Run).unwrap();
    let (mut observed, mut before) = (Vec::new(), None::<String>);
    loop {
        another_write(&mut counted).await;
        let page = tx!([filter, before], |tx| tx.runs(&filter, before.as_deref(), PAGE).await);
        let page = db.read(page).await.unwrap();
        observed.extend(page.runs.into_iter().map(|one| one.spec.id.to_string()));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(observed.iter().eq((0..ROWS).rev().map(run_name).collect::<Vec<_>>().iter()));
}

async fn pages_are_exact(db: Db) {
    db.add_machines((0..10).map(|n| machine(&format!("m-{n}"))).collect()).await;
    for (limit, lengths) in [(10, vec![10]), (5, vec![5, 5]), (4, vec![4, 4, 2]), (11, vec![10])] {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let filter = Filter::default();
            let page =
                tx!([filter, after], |tx| tx.machines(&filter, after.as_deref(), limit).await);
            let page = db.read(page).await.unwrap();
            found.push(page.machines.len());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, lengths, "{limit} at a time");
    }
}
