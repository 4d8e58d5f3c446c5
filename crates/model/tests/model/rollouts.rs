//! Rollouts: batches, gates, sequences, and the decisions about targets and waves.

mod targets;
mod waves;

use crate::support::at;
use model::budget::{Budget, FailureDomain, MaxUnavailable};
use model::condition::{ConditionObservation, ConditionType};
use model::id::{BudgetId, MachineId, RolloutId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{IMAGE_REF, Params, RunType};
use model::rollout::{
    BatchSize, ConditionGate, FailureLimit, GateVerdict, LimitingBudget, OnConflict, Pace, Rollout,
    RolloutEditor, RolloutOperation, RolloutPreview, RolloutSpec, RolloutStage, exclusion, machine_key,
    most_at_once, ordered,
};
use model::target::TargetId;
use std::collections::BTreeSet;
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
        include_new: false,
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
        (Pace { per: FailureDomain::Rack, ..Pace::default() }, "pace.per"),
        (Pace { soak_seconds: u64::MAX, ..Pace::default() }, "pace.soak_seconds"),
        (Pace { target_deadline_seconds: 0, ..Pace::default() }, "pace.target_deadline_seconds"),
    ] {
        assert_eq!(pace.check("pace").unwrap_err().field.as_deref(), Some(field));
    }
    Pace::default().check("pace").unwrap();
    let after = Pace { max_in_flight: Some(5), soak_seconds: 60, ..Pace::default() };
    let changed = Pace::default().differences(&after);
    assert_eq!(changed, ["max_in_flight - → 5", "soak 0s → 60s"]);
    let limited = Pace {
        max_unavailable: Some(MaxUnavailable::Percent(5)),
        per: FailureDomain::Rack,
        ..Pace::default()
    };
    limited.check("pace").unwrap();
    assert_eq!(Pace::default().differences(&limited), ["max_unavailable - → 5% per rack"]);
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
        let found = exclusion(RunType::Reboot, &machine);
        assert_eq!(found.is_some(), reason.is_some(), "{machine:?}");
        assert!(found.unwrap_or_default().contains(reason.unwrap_or_default()));
    }
    // An onboarding begins before a machine is in service.
    let onboarded = |phase| exclusion(RunType::Onboard, &machine("m-1", phase)).is_none();
    assert_eq!(
        [Phase::FactoryReady, Phase::Maintenance, Phase::Ready].map(onboarded),
        [true, true, false]
    );
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
        ordered(all(), label, machine_key).into_iter().map(|machine| machine.id.to_string()).collect()
    };
    assert_eq!(ids(Some("zone")), ["m-3", "m-1", "m-2", "m-4"]);
    assert_eq!(ids(None), ["m-1", "m-2", "m-3", "m-4"]);
}

#[test]
fn the_usual_time_counts_lanes_gates_and_soaks() {
    let one = Duration::from_secs(100);
    let preview = RolloutPreview {
        waves: vec![1, 10],
        at_once: vec![1, 4],
        usual_target: Some(one),
        ..RolloutPreview::default()
    };
    let pace = Pace { max_in_flight: Some(4), soak_seconds: 600, ..Pace::default() };
    // One canary, three rounds of at most four, and one soak between the waves.
    let total = preview.usual_total(&pace, Duration::from_secs(20)).unwrap();
    assert_eq!(total, Duration::from_secs(4 * 120 + 600));
    let unknown = RolloutPreview { usual_target: None, ..preview };
    assert_eq!(unknown.usual_total(&pace, Duration::ZERO), None);
}

#[test]
fn the_most_at_once_is_what_the_pace_and_every_budget_allow() {
    let machines: Vec<TargetId> =
        (1..=8).map(|number| TargetId::parse(&format!("m-{number}")).unwrap()).collect();
    // The first six machines are in two racks; the last two are no members.
    let budget = |allowed: &[(&str, u64)]| {
        let domains = allowed.iter().map(|(name, most)| (name.to_string(), (*most, 1))).collect();
        let rack = |index| BTreeSet::from([if index < 3 { "a".into() } else { "b".into() }]);
        let members = machines.iter().take(6).filter_map(TargetId::machine).enumerate();
        LimitingBudget {
            budget: Budget {
                id: BudgetId::trusted("gpu"),
                filter: "labels.role=gpu".into(),
                max_unavailable: MaxUnavailable::Percent(40),
                per: FailureDomain::Rack,
                created_at: at(0),
                updated_at: at(0),
                version: 1,
            },
            domains,
            members: members.map(|(index, machine)| (machine, rack(index))).collect(),
        }
    };
    let none = Vec::new();
    let one = vec![budget(&[("a", 1), ("b", 9)])];
    let two = vec![budget(&[("a", 1), ("b", 9)]), budget(&[("a", 1), ("b", 1)])];
    for (budgets, max_in_flight, most) in [
        (&none, None, [2, 6]),
        (&none, Some(4), [2, 4]),
        // Of the first wave one; of the second one in rack a, three in rack b, two unlimited.
        (&one, None, [1, 6]),
        (&two, None, [1, 4]),
        (&two, Some(1), [1, 1]),
    ] {
        let pace = Pace { max_in_flight, ..Pace::default() };
        assert_eq!(most_at_once(&[2, 6], &machines, &pace, budgets), most);
    }
    assert_eq!(
        two[1].describe(),
        "budget gpu: at most 40% per rack of labels.role=gpu; 6 targets in 2 domains, nothing is \
         left in 2 of them"
    );
}

#[test]
fn a_rollout_that_limits_itself_has_a_budget_until_its_end() {
    let limited =
        |per| Pace { max_unavailable: Some(MaxUnavailable::Count(3)), per, ..Pace::default() };
    assert_eq!(rollout(9, Pace::default()).own_budget(at(1)), None);
    let mut one = rollout(9, limited(FailureDomain::Rack));
    let budget = one.own_budget(at(1)).unwrap();
    assert_eq!((budget.id.as_str(), budget.filter.as_str()), ("ro-1", "labels.role=gpu"));
    assert!(!budget.same_as(&rollout(9, limited(FailureDomain::All)).own_budget(at(1)).unwrap()));
    for (initiator, binds) in [("ro-1", true), ("ro-2", false), ("ada", false), ("", false)] {
        assert_eq!(Budget::binds(&budget.id, initiator), binds, "{initiator}");
        assert!(Budget::binds(&BudgetId::trusted("gpu"), initiator));
    }
    for ended in [RolloutStage::Done, RolloutStage::Aborted] {
        one.stage = ended;
        assert_eq!(one.own_budget(at(1)), None);
    }
}

#[test]
fn the_parameters_of_racks_and_nodes_are_checked() {
    let operation = |params: &[(&str, &str)]| RolloutOperation {
        run_type: RunType::RackMaintenance,
        plan_id: None,
        params: params.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    };
    for sound in [
        &[][..],
        &[("activities", "FirmwareUpgrade,PowerSequence"), ("power", "reset")],
        &[("firmware", "fw-1")],
    ] {
        operation(sound).check("type").unwrap();
    }
    let node = |run_type, params: &[(&str, &str)]| {
        RolloutOperation { run_type, ..operation(params) }.check("type")
    };
    node(RunType::Onboard, &[("site", "site-1")]).unwrap();
    node(RunType::Decommission, &[("mode", "soft_reset")]).unwrap();
    for (run_type, params, field) in [
        (RunType::Onboard, &[][..], "site"),
        (RunType::Onboard, &[("site", "home")], "site"),
        (RunType::Decommission, &[], "mode"),
        (RunType::Decommission, &[("mode", "reactivate")], "mode"),
    ] {
        let refusal = node(run_type, params).unwrap_err();
        assert_eq!(refusal.field, Some(format!("rollout.spec.params[{field}]")), "{refusal}");
    }
    for (name, value) in
        [("activities", "dance"), ("power", "up"), ("firmware", "op-1"), ("machines", "m-1")]
    {
        let refusal = operation(&[(name, value)]).check("type").unwrap_err();
        assert_eq!(refusal.field, Some(format!("rollout.spec.params[{name}]")), "{refusal}");
    }
}
