//! Signals: listeners receive the signals of committed transactions, and no others.

use crate::harness::{Db, at, event, machine, settle_of, within_timeout};
use model::refusal::{Reason, Refusal};
use model::run::Workflow;
use std::time::Duration;
use store::{ClaimOutcome, NewLog, Signal};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

on_both!(a_commit_sends_signals, a_refused_write_sends_no_signals);

fn line() -> NewLog {
    let (step, data) = ("one".into(), b"hello".to_vec());
    NewLog { start: 0, ts: at(1), step, attempt: 1, stream: "stdout", data }
}

/// The signals received so far. On PostgreSQL those of other stores arrive with a delay.
fn received(bus: &mut Receiver<Signal>) -> Vec<Signal> {
    let mut all = Vec::new();
    loop {
        match bus.try_recv() {
            Ok(signal) => all.push(signal),
            Err(TryRecvError::Empty) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn a_commit_sends_signals(db: Db) {
    let mut bus = db.store.bus().listen();
    let run = db.add_run("op-1").await;
    let id = run.spec.id.clone();
    let signals = received(&mut bus);
    assert!(signals.contains(&Signal::Event) && signals.contains(&Signal::Work), "{signals:?}");
    let run = db.update_unclaimed(&run, Workflow::Running).await;
    assert!(received(&mut bus).contains(&Signal::Wake(id.object())));
    db.write(tx!([id], |tx| tx.append_log(&id, &[line()]))).await.unwrap();
    assert!(received(&mut bus).contains(&Signal::Log(id.clone())));
    // The end of a run signals its log.
    let claimed = db.claim("a", at(100), 1).await.remove(0);
    let mut run = run;
    run.progress.workflow = Workflow::Completed;
    received(&mut bus);
    db.settle(&settle_of(&run, &claimed, ClaimOutcome::Release(None))).await.unwrap();
    assert!(received(&mut bus).contains(&Signal::Log(id)));
}

async fn a_refused_write_sends_no_signals(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let mut bus = db.store.bus().listen();
    let more = machine("m-2");
    let refused = tx!([more, id], |tx| {
        tx.insert_machine(&more, &event())?;
        tx.wake(&id.object(), at(1))?;
        Err::<(), _>(Refusal::new(Reason::NotReady, "not now").into())
    });
    db.write(refused).await.unwrap_err();
    db.write(tx!([id], |tx| tx.append_log(&id, &[line()]))).await.unwrap();
    let signals = received(&mut bus);
    assert!(signals.contains(&Signal::Log(id.clone())), "{signals:?}");
    assert!(!signals.contains(&Signal::Wake(id.object())), "{signals:?}");
}

mod replicas {
    use super::*;

    on_postgres!(signals_reach_another_store);

    /// Repeats the write until a signal arrives, because a new store starts to listen with a delay.
    async fn signals_reach_another_store(db: Db) {
        let run = db.add_run("op-1").await;
        let other = db.open_another().await;
        let desired = [
            Signal::Log(run.spec.id.clone()),
            Signal::Wake(run.spec.id.object()),
            Signal::Event,
            Signal::Work,
        ];
        // The signals that a new listener publishes once must not count.
        let mut bus = other.store.bus().listen();
        let id = run.spec.id.clone();
        let first = async {
            while !received(&mut bus).contains(&Signal::Log(id.clone())) {
                db.write(tx!([id], |tx| tx.append_log(&id, &[line()]))).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within_timeout("the first signal", first).await;
        for signal in desired {
            let mut bus = other.store.bus().listen();
            let message = async {
                while !received(&mut bus).contains(&signal) {
                    db.write(tx!([id], |tx| tx.append_log(&id, &[line()]))).await.unwrap();
                    let run = db.run(&id).await;
                    db.update_unclaimed(&run, Workflow::Running).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            within_timeout(&format!("{signal:?}"), message).await;
        }
    }
}
