//! The hardware that inspections found.

use crate::harness::{Db, at};
use model::id::MachineId;
use model::machine::hardware::{HardwareSummary, RecordedHardware};

on_both!(the_latest_inspection_is_kept,);

fn recorded(model: &str, millis: i64) -> RecordedHardware {
    let summary = HardwareSummary { model: model.into(), ..HardwareSummary::default() };
    RecordedHardware { summary, inspected_at: at(millis) }
}

async fn record(db: &Db, id: &MachineId, found: RecordedHardware) {
    db.write(tx!([id, found], |tx| tx.record_hardware(&id, &found))).await.unwrap();
}

async fn the_latest_inspection_is_kept(db: Db) {
    let (one, two) = (db.add_machine("m-1").await.id, db.add_machine("m-2").await.id);
    record(&db, &one, recorded("first", 10)).await;
    record(&db, &two, recorded("other", 10)).await;
    record(&db, &one, recorded("second", 30)).await;
    record(&db, &one, recorded("late", 20)).await;
    let found = db.read(tx!([], |tx| tx.hardware_of(&["m-1", "m-9"]).await)).await.unwrap();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(one.clone(), recorded("second", 30))]);
    // It is not a change of the machine, and it goes with the machine.
    assert_eq!(db.machine(&one).await.version, 1);
    let gone = "DELETE FROM machines WHERE id = 'm-1'";
    db.execute_sql(&format!("PRAGMA foreign_keys = ON; {gone}"), gone).await;
    let found = db.read(tx!([], |tx| tx.hardware_of(&["m-1", "m-2"]).await)).await.unwrap();
    assert_eq!(found.into_keys().collect::<Vec<_>>(), [two]);
}
