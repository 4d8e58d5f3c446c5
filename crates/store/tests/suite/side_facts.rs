//! Durations of steps and refused requests.

use crate::harness::{Db, at};
use model::id::{MachineId, RunId};
use model::machine::hardware::{HardwareSummary, RecordedHardware};
use model::refusal::RefusedRequest;
use model::why::MAX_SAMPLES;
use std::time::Duration;
use store::StepDuration;

on_both!(the_last_durations_are_kept_by_model, the_last_refused_request_is_kept,);

fn duration(machine: Option<&MachineId>, millis: i64) -> StepDuration {
    StepDuration {
        run: RunId::trusted(format!("op-{millis}")),
        machine: machine.cloned(),
        step: "plan-x/wipe".into(),
        ended_at: at(millis),
        duration: Duration::from_millis(millis.unsigned_abs()),
    }
}

async fn the_last_durations_are_kept_by_model(db: Db) {
    let id = db.add_machine("m-1").await.id;
    let summary = HardwareSummary { model: "DGX".into(), ..HardwareSummary::default() };
    let found = RecordedHardware { summary, inspected_at: at(1) };
    db.write(tx!([id, found], |tx| tx.record_hardware(&id, &found))).await.unwrap();
    let count = MAX_SAMPLES as i64 + 5;
    for millis in 1..=count {
        let one = duration(Some(&id), millis);
        db.write(tx!([one], |tx| tx.record_step_duration(&one).await)).await.unwrap();
    }
    let other = duration(None, 7);
    db.write(tx!([other], |tx| tx.record_step_duration(&other).await)).await.unwrap();
    let steps = ["plan-x/wipe", "plan-x/other"];
    let found = db.read(tx!([], |tx| tx.step_durations(&steps).await)).await.unwrap();
    let key = |model: &str| ("plan-x/wipe".to_string(), model.to_string());
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), [key(""), key("DGX")]);
    let mut kept = found[&key("DGX")].clone();
    kept.sort();
    assert_eq!((kept.len(), kept[0]), (MAX_SAMPLES, Duration::from_millis(6)));
}

async fn the_last_refused_request_is_kept(db: Db) {
    let refused = |millis: i64| RefusedRequest {
        at: at(millis),
        by: "bob".into(),
        request: "REIMAGE".into(),
        reason: "WRONG_PHASE".into(),
        message: format!("no {millis}"),
    };
    for (id, millis) in [("m-1", 10), ("m-1", 20), ("m-2", 5)] {
        let one = refused(millis);
        db.write(tx!([one], |tx| tx.record_refused_request(id, &one).await)).await.unwrap();
    }
    let read =
        async |id: &'static str| db.read(tx!([], |tx| tx.refused_request(id).await)).await.unwrap();
    assert_eq!(read("m-1").await, Some(refused(20)));
    let before = at(20);
    db.write(tx!([before], |tx| tx.expire_refused_requests(before).await)).await.unwrap();
    assert_eq!((read("m-1").await, read("m-2").await), (Some(refused(20)), None));
}
