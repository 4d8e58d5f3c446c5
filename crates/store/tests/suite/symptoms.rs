//! Objects whose rows show trouble.

use crate::harness::{Db, at, event, machine, set_condition};
use model::condition::ConditionType;
use model::device::DeviceReachability;
use model::effect::EffectKey;
use model::id::RunId;
use model::lifecycle::{DeviceFailure, DeviceSpec, RecordHeader};
use model::machine::{
    ChangeKind, DiskWrite, FailedChange, FailedChanges, Labels, Machine, NetworkBoot, Phase,
};
use model::switch::{Switch, SwitchState};
use store::{MachineSymptom, RecordSymptom};

on_both!(machines_are_found_by_symptom, records_are_found_by_symptom,);

async fn found(db: &Db, symptom: MachineSymptom, limit: usize) -> (Vec<String>, bool) {
    let page = db.read(tx!([], |tx| tx.machines_with_symptom(symptom, limit).await)).await.unwrap();
    (page.machines.iter().map(|one| one.id.to_string()).collect(), page.next.is_some())
}

async fn machines_are_found_by_symptom(db: Db) {
    let ready = |id: &str, condition: Option<(ConditionType, bool)>| {
        let mut machine = Machine { phase: Phase::Ready, ..machine(id) };
        if let Some((condition, status)) = condition {
            set_condition(&mut machine, condition, status);
        }
        machine
    };
    let lost = Some((ConditionType::Reachable, false));
    let empty = Some((ConditionType::Provisioned, false));
    let key = EffectKey::trusted("op-1/repave/1");
    let write = DiskWrite {
        key,
        content: "ubuntu-2204".into(),
        percent: None,
        outcome_unknown: false,
        before: None,
    };
    let boot = NetworkBoot { armed_by: RunId::trusted("op-1"), since: at(1) };
    let run = RunId::trusted("op-1");
    let failed = FailedChange { kind: ChangeKind::Network, run, since: at(1), wanted_power: None };
    let mut changes = FailedChanges::default();
    changes.insert(failed);
    db.add_machines(vec![
        ready("m-never", None),
        ready("m-up", Some((ConditionType::Reachable, true))),
        ready("m-bmc", Some((ConditionType::BmcReachable, false))),
        ready("m-lost-1", lost),
        ready("m-lost-2", lost),
        Machine { phase: Phase::Maintenance, ..ready("m-meant", lost) },
        ready("m-failed", Some((ConditionType::NeedsIntervention, true))),
        ready("m-solved", Some((ConditionType::NeedsIntervention, false))),
        Machine { open_disk_write: Some(write), ..ready("m-half", None) },
        ready("m-empty", empty),
        Machine { phase: Phase::Maintenance, ..ready("m-empty-out", empty) },
        ready("m-imaged", Some((ConditionType::Provisioned, true))),
        Machine { phase: Phase::FactoryReady, ..ready("m-out-of-use", empty) },
        Machine { network_boot: Some(boot), ..ready("m-netboot", None) },
        Machine { failed_changes: changes, ..ready("m-not-changed", None) },
        ready("m-not-installed", None),
    ])
    .await;
    // As an older version has stored it.
    let older = r#"{"spec":{},"conditions":{},"failed_imaging":{"run":"op-2","since":5}}"#;
    let older = format!("UPDATE machines SET body = '{older}' WHERE id = 'm-not-installed'");
    db.execute_sql(&older, &older).await;
    for (symptom, expected) in [
        (MachineSymptom::NeedsIntervention, &["m-failed"][..]),
        (MachineSymptom::OpenDiskWrite, &["m-half"]),
        (MachineSymptom::NoSystem, &["m-empty", "m-empty-out"]),
        (MachineSymptom::FailedChange, &["m-not-changed", "m-not-installed"]),
        (MachineSymptom::NetworkBoot, &["m-netboot"]),
        (MachineSymptom::Unreachable, &["m-lost-1", "m-lost-2"]),
        (MachineSymptom::BmcUnreachable, &["m-bmc"]),
    ] {
        let expected = expected.iter().map(ToString::to_string).collect();
        assert_eq!(found(&db, symptom, 9).await, (expected, false), "{symptom:?}");
    }
    let first = vec!["m-lost-1".to_string()];
    assert_eq!(found(&db, MachineSymptom::Unreachable, 1).await, (first, true));
    // A body that is no JSON fails no query.
    let broken = "UPDATE machines SET body = 'x' WHERE id = 'm-up'";
    db.execute_sql(broken, broken).await;
    assert_eq!(found(&db, MachineSymptom::OpenDiskWrite, 9).await.0, ["m-half"]);
}

async fn records_are_found_by_symptom(db: Db) {
    let switch = |id: &str, state: SwitchState, reachable: Option<bool>| {
        let new = Switch::new(RecordHeader::new(id, Labels::new(), at(0)), DeviceSpec::default());
        let seen = |reachable| DeviceReachability { reachable, message: "no".into(), at: at(1) };
        Switch { state, observed: reachable.map(seen), ..new }
    };
    let cause = DeviceFailure { message: "no".into(), run: None, code: String::new() };
    for one in [
        switch("sw-1", SwitchState::Ready, None),
        switch("sw-2", SwitchState::Ready, Some(true)),
        switch("sw-3", SwitchState::Ready, Some(false)),
        switch("sw-4", SwitchState::Error { cause }, None),
        switch("sw-5", SwitchState::Validating, None),
    ] {
        let insert = tx!([one], |tx| {
            let mut one = one;
            tx.insert_record(&mut one, &event()).await
        });
        db.write(insert).await.unwrap();
    }
    for (symptom, limit, expected, more) in [
        (RecordSymptom::InState(&["Error"]), 9, &["sw-4"][..], false),
        (RecordSymptom::InState(&["Error", "Validating"]), 9, &["sw-4", "sw-5"], false),
        (RecordSymptom::InState(&["Error", "Validating"]), 1, &["sw-4"], true),
        (RecordSymptom::Unreachable, 9, &["sw-3"], false),
    ] {
        let read = tx!([], |tx| tx.records_with_symptom::<Switch>(symptom, limit).await);
        let page = db.read(read).await.unwrap();
        let ids: Vec<&str> = page.records.iter().map(|one| one.head.id.as_str()).collect();
        assert_eq!((ids, page.next.is_some()), (expected.to_vec(), more), "{symptom:?}");
    }
}
