//! Rollouts: batches, gates, sequences, and the decisions about targets and waves.

mod targets;
mod waves;
mod windows;

use crate::support::at;
use model::condition::{ConditionObservation, ConditionType};
use model::id::{MachineId, RolloutId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{IMAGE_REF, Params, RunType};
use model::rollout::{
    BatchSize, ConditionGate, FailureLimit, GateVerdict, OnConflict, Pace, Rollout, RolloutEditor,
    RolloutOperation, RolloutPreview, RolloutSpec, exclusion, ordered,
};
use std::time::Duration;

pub(crate) fn machine(id: &str, phase: Phase) -> Machine {
    let id = MachineId::trusted(id);
    Machine { phase, ..Machine::new(id, MachineSpec::default(), Labels::new(), at(0)) }
}

pub(crate) fn rollout(total: u32, pace: Pace) -> Rollout {
    let params = Params::from([(IMAGE_REF.to_string(), "debian-12".to_string())]);
    let operation = RolloutOperation { run_type: RunType::Reimage, plan_id: None, params };
    let spec = RolloutSpec {
        operation,
        filter: "labels.role=gpu".into(),
        pace,
        gate: None,
        start_at: None,
        order_label: None,
        on_conflict: OnConflict::Wait,
    };
    let editor =
        RolloutEditor { user: "ada".into(), groups: Vec::new(), token_id: None, is_user: true };
    Rollout::new(&RolloutId::trusted("ro-1"), spec, editor, ("request".into(), total), at(0))
}

#[test]
fn batches_are_parsed_sized_and_written_as_they_came() {
    for (text, total, sizes) in [
        ("10", 100, [10, 10, 10, 10]),
        ("5%", 100, [5, 5, 5, 5]),
        ("5%", 119, [5, 5, 5, 5]),
        ("5%", 120, [6, 6, 6, 6]),
        ("1%", 7, [1, 1, 1, 1]),
        ("100%", 7, [7, 7, 7, 7]),
        ("linear:1+2", 100, [1, 3, 5, 7]),
        ("exponential:1x2", 100, [1, 2, 4, 8]),
        ("exponential:3x10", 100, [3, 30, 300, 3_000]),
    ] {
        let batch = BatchSize::parse("batch", text).unwrap();
        let found: Vec<u32> = (0..4).map(|number| batch.size(number, total)).collect();
        assert_eq!(found, sizes, "{text} of {total}");
        assert_eq!(batch.to_string(), text);
        let stored = serde_json::to_string(&batch).unwrap();
        assert_eq!(stored, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<BatchSize>(&stored).unwrap(), batch);
    }
    assert_eq!(BatchSize::Exponential { first: 9, factor: 9 }.size(u32::MAX, 1), u32::MAX);
    for wrong in [
        "",
        "0",
        "-1",
        "0%",
        "101%",
        "5 %",
        "%",
        "1.5",
        "+5",
        "linear:",
        "linear:1",
        "linear:0+1",
        "linear:1+0",
        "exponential:1x1",
        "exponential:2",
        "square:1",
        "100001",
    ] {
        let refusal = BatchSize::parse("pace.batch", wrong).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("pace.batch"), "{wrong}");
        assert!(refusal.message.contains("linear:1+2"), "{refusal}");
    }
}

#[test]
fn failure_limits_are_counts_or_parts_of_all_targets() {
    for (text, total, limit) in
        [("3", 10, 3), ("2%", 100, 2), ("2%", 199, 3), ("2%", 10, 1), ("100%", 10, 10)]
    {
        let parsed = FailureLimit::parse("stop_after", text).unwrap();
        assert_eq!(parsed.of(total), limit, "{text} of {total}");
        assert_eq!(parsed.to_string(), text);
    }
    for wrong in ["", "0", "0%", "101%", "three", "linear:1+2"] {
        let refusal = FailureLimit::parse("stop_after", wrong).unwrap_err();
        assert!(refusal.message.contains("write 3 or 2%"), "{refusal}");
    }
}

#[test]
fn waves_are_the_canary_and_then_batches() {
    let pace = |canary, batch: &str| Pace {
        canary,
        batch: BatchSize::parse("batch", batch).unwrap(),
        ..Pace::default()
    };
    for (pace, total, waves) in [
        (pace(0, "4"), 10, vec![4, 4, 2]),
        (pace(1, "4"), 10, vec![1, 4, 4, 1]),
        (pace(20, "4"), 10, vec![10]),
        (pace(2, "exponential:1x2"), 20, vec![2, 1, 2, 4, 8, 3]),
        (pace(1, "50%"), 5, vec![1, 2, 2]),
        (pace(0, "1"), 0, vec![]),
    ] {
        assert_eq!(pace.waves(total), waves, "{pace:?}");
        let mut end = 0;
        for (begun, size) in (0..).zip(&waves) {
            assert_eq!(pace.waves_left(begun, end, total) as usize, waves.len() - begun as usize);
            end += size;
        }
    }
}

#[test]
fn a_pace_names_its_wrong_field_and_its_changes() {
    for (pace, field) in [
        (Pace { canary: 100_001, ..Pace::default() }, "pace.canary"),
        (Pace { max_in_flight: Some(0), ..Pace::default() }, "pace.max_in_flight"),
        (Pace { soak_seconds: u64::MAX, ..Pace::default() }, "pace.soak_seconds"),
        (Pace { target_deadline_seconds: 0, ..Pace::default() }, "pace.target_deadline_seconds"),
    ] {
        assert_eq!(pace.check("pace").unwrap_err().field.as_deref(), Some(field));
    }
    Pace::default().check("pace").unwrap();
    let after = Pace { max_in_flight: Some(5), soak_seconds: 60, ..Pace::default() };
    let changed = Pace::default().differences(&after);
    assert_eq!(changed, ["max_in_flight - → 5", "soak 0s → 60s"]);
}

#[test]
fn a_gate_counts_only_what_held_after_the_target() {
    let gate = ConditionGate {
        condition: ConditionType::InCustomerCluster,
        status: true,
        hold_seconds: 60,
    };
    assert_eq!(gate.to_string(), "condition.InCustomerCluster=true for 1m 0s");
    let mut machine = machine("m-1", Phase::Ready);
    let closed = |machine: &Machine, now| match gate.judge(machine, at(100), at(now)) {
        GateVerdict::Closed { look_at, .. } => look_at,
        GateVerdict::Open => panic!("open at {now}"),
    };
    // Never observed, then false.
    assert_eq!(closed(&machine, 100), at(110));
    let observe = |machine: &mut Machine, status, now| {
        let seen = ConditionObservation::new(ConditionType::InCustomerCluster, status, "why");
        machine.learn(&[seen], at(now));
    };
    observe(&mut machine, true, 20);
    // It held long before the target ended; that does not count.
    assert_eq!(closed(&machine, 159), at(160));
    assert_eq!(gate.judge(&machine, at(100), at(160)), GateVerdict::Open);
    observe(&mut machine, false, 150);
    assert_eq!(closed(&machine, 160), at(170));
    observe(&mut machine, true, 155);
    assert_eq!(closed(&machine, 160), at(170));
    assert_eq!(gate.judge(&machine, at(100), at(215)), GateVerdict::Open);
}

#[test]
fn flagged_and_unused_machines_are_no_targets() {
    let flagged = |flag| {
        let mut machine = machine("m-1", Phase::Ready);
        machine.learn(&[ConditionObservation::new(flag, true, "why")], at(1));
        machine
    };
    for (machine, reason) in [
        (machine("m-1", Phase::Ready), None),
        (machine("m-1", Phase::Maintenance), None),
        (machine("m-1", Phase::FactoryReady), Some("FACTORY_READY")),
        (flagged(ConditionType::Retired), Some("Retired")),
        (flagged(ConditionType::Rma), Some("RMA")),
        (flagged(ConditionType::Degraded), None),
    ] {
        let found = exclusion(&machine);
        assert_eq!(found.is_some(), reason.is_some(), "{machine:?}");
        assert!(found.unwrap_or_default().contains(reason.unwrap_or_default()));
    }
}

#[test]
fn targets_are_ordered_by_label_and_id() {
    let labelled = |id: &str, zone: Option<&str>| {
        let mut machine = machine(id, Phase::Ready);
        machine.labels.extend(zone.map(|zone| ("zone".to_string(), zone.to_string())));
        machine
    };
    let all = || {
        vec![
            labelled("m-4", None),
            labelled("m-3", Some("a")),
            labelled("m-2", Some("b")),
            labelled("m-1", Some("b")),
        ]
    };
    let ids = |label| -> Vec<String> {
        ordered(all(), label).into_iter().map(|machine| machine.id.to_string()).collect()
    };
    assert_eq!(ids(Some("zone")), ["m-3", "m-1", "m-2", "m-4"]);
    assert_eq!(ids(None), ["m-1", "m-2", "m-3", "m-4"]);
}

#[test]
fn the_usual_time_counts_lanes_gates_and_soaks() {
    let one = Duration::from_secs(100);
    let preview =
        RolloutPreview { waves: vec![1, 10], usual_target: Some(one), ..RolloutPreview::default() };
    let pace = Pace { max_in_flight: Some(4), soak_seconds: 600, ..Pace::default() };
    // One canary, three rounds of at most four, and one soak between the waves.
    let total = preview.usual_total(&pace, Duration::from_secs(20)).unwrap();
    assert_eq!(total, Duration::from_secs(4 * 120 + 600));
    let unknown = RolloutPreview { usual_target: None, ..preview };
    assert_eq!(unknown.usual_total(&pace, Duration::ZERO), None);
}
