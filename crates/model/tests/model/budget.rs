//! Disruption budgets: which machines count, which serve, what an operation takes, and the verdict.

use crate::support::{at, drain, note, power_off, spec, wipe};
use model::blast_radius::Impact;
use model::budget::{
    Budget, BudgetUse, FailureDomain, MaxUnavailable, Unavailability, UnavailableMachine,
    describe_uses, history_notes, losses, refuse, same_for_budgets, same_membership,
    unavailability,
};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{ChildRunGroup, ChildRunSpec, Effect};
use model::gate::{Gate, Overrides};
use model::id::{BudgetId, MachineId, PowerShelfId, RackId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::{MODE, NodeState};
use model::plan::{RunStep, RunType};
use model::refusal::Reason;
use model::run::RunSpec;
use model::target::{TargetId, TargetKind};

fn budget(filter: &str, max: &str, per: &str) -> Budget {
    Budget {
        id: BudgetId::trusted("gpu-prod"),
        filter: filter.into(),
        max_unavailable: MaxUnavailable::parse("max", max).unwrap(),
        per: FailureDomain::parse("per", per).unwrap(),
        created_at: at(0),
        updated_at: at(0),
        version: 1,
    }
}

/// A machine in service: READY, in a rack, with a label.
fn machine() -> Machine {
    let spec = MachineSpec {
        rack: Some(RackId::trusted("rack-1")),
        feeds: vec![PowerShelfId::trusted("ps-1"), PowerShelfId::trusted("ps-2")],
        provider: "sim".into(),
        ..MachineSpec::default()
    };
    let labels = Labels::from([("env".into(), "prod".into())]);
    Machine { phase: Phase::Ready, ..Machine::new(MachineId::trusted("m-1"), spec, labels, at(0)) }
}

fn with(condition: ConditionType, status: bool) -> Machine {
    let mut machine = machine();
    machine.learn(&[ConditionObservation::new(condition, status, "seen")], at(1));
    machine
}

#[test]
fn a_limit_is_a_count_or_a_percentage_that_rounds_down() {
    for (text, total, allowed) in [
        ("1", 0, 1),
        ("3", 100, 3),
        ("5%", 61, 3),
        ("5%", 60, 3),
        ("5%", 59, 2),
        ("5%", 19, 0),
        ("5%", 20, 1),
        ("100%", 7, 7),
        ("33%", 3, 0),
        ("34%", 3, 1),
        ("1%", u64::MAX, u64::MAX / 100),
    ] {
        let limit = MaxUnavailable::parse("f", text).unwrap();
        assert_eq!(limit.of(total), allowed, "{text} of {total}");
        assert_eq!(limit.to_string(), text);
    }
    for wrong in ["", "0", "0%", "101%", "-1", "+1", "5 %", "%", "x", "1.5%", "99999999999", "５"]
    {
        let refusal = MaxUnavailable::parse("budget.max_unavailable", wrong).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("budget.max_unavailable"), "{wrong:?}");
    }
}

#[test]
fn a_failure_domain_is_a_rack_a_feed_or_a_label() {
    for text in ["", "rack", "feed", "labels.zone"] {
        assert_eq!(FailureDomain::parse("f", text).unwrap().to_string(), text);
    }
    for wrong in ["racks", "labels", "labels.", "RACK", " "] {
        let refusal = FailureDomain::parse("budget.per", wrong).unwrap_err();
        assert!(refusal.message.contains("write rack, feed or labels.KEY"), "{refusal}");
    }
}

#[test]
fn a_filter_names_what_does_not_change_while_a_machine_works() {
    for (filter, word) in [
        ("phase=READY", "a phase or state"),
        ("labels.env=prod AND effective_state=IDLE", "a phase or state"),
        ("lifecycle_state!=RMA", "a phase or state"),
        ("condition.Reachable=true", "condition.Reachable"),
        ("env=prod", "is not a field"),
    ] {
        let refusal = budget(filter, "1", "").rule().unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("budget.filter"), "{filter}");
        assert!(refusal.message.contains(word), "{refusal}");
    }
    for filter in ["", "labels.env=prod", "rack_id=rack-1 AND provider!=maas", "machine_id=m-1"] {
        assert!(budget(filter, "1", "").rule().is_ok(), "{filter}");
    }
}

#[test]
fn a_machine_counts_in_the_domains_of_what_it_depends_on() {
    let domains = |per: &str, machine: &Machine| {
        let rule = budget("labels.env=prod", "1", per).rule().unwrap();
        rule.domains(machine).into_iter().collect::<Vec<_>>()
    };
    for (per, expected) in [
        ("", &[""][..]),
        ("rack", &["rack-1"]),
        ("feed", &["ps-1", "ps-2"]),
        ("labels.env", &["prod"]),
        ("labels.zone", &[""]),
    ] {
        assert_eq!(domains(per, &machine()), expected, "{per}");
    }
    let bare = MachineSpec { rack: None, feeds: Vec::new(), ..machine().spec };
    for per in ["rack", "feed"] {
        assert_eq!(domains(per, &Machine { spec: bare.clone(), ..machine() }), [""], "{per}");
    }
    let other = Machine { labels: Labels::new(), ..machine() };
    let new = Machine { phase: Phase::FactoryReady, ..machine() };
    let outside = [with(ConditionType::Rma, true), with(ConditionType::Retired, true), other, new];
    for outside in outside {
        assert!(domains("", &outside).is_empty(), "{outside:?}");
    }
    let maintained = Machine { phase: Phase::Maintenance, ..machine() };
    assert_eq!(domains("", &maintained), [""]);
}

#[test]
fn a_machine_serves_while_it_is_ready_reachable_and_free() {
    let in_phase = |phase| Machine { phase, ..machine() };
    let reachable = with(ConditionType::Reachable, true);
    let unreachable = with(ConditionType::Reachable, false);
    let table = [
        (machine(), None, None, None),
        (reachable.clone(), None, None, None),
        (reachable.clone(), Some(NodeState::Active), None, None),
        (unreachable.clone(), None, None, Some("unreachable")),
        (unreachable, Some(NodeState::Active), None, Some("unreachable")),
        (in_phase(Phase::Maintenance), None, None, Some("phase MAINTENANCE")),
        (in_phase(Phase::FactoryReady), None, None, Some("phase FACTORY_READY")),
        (reachable.clone(), None, Some("op-7"), Some("op-7")),
        (in_phase(Phase::Maintenance), None, Some("op-7"), Some("op-7")),
    ];
    for (machine, node, taker, expected) in table {
        let why = unavailability(&machine, node, taker).map(|why| why.to_string());
        assert_eq!(why.as_deref(), expected, "{machine:?} {node:?} {taker:?}");
    }
    for state in NodeState::ALL {
        let serves = unavailability(&reachable, Some(state), None).is_none();
        assert_eq!(serves, state == NodeState::Active, "{state}");
    }
}

/// A change that decides nothing about budgets costs nothing.
#[test]
fn what_changes_a_membership_is_known() {
    let relabeled = Machine { labels: Labels::new(), ..machine() };
    let mut moved = machine();
    moved.spec.rack = None;
    let mut fed = machine();
    fed.spec.feeds.clear();
    let mut other = machine();
    other.spec.provider = "maas".into();
    let new = Machine { phase: Phase::FactoryReady, ..machine() };
    let flagged = [with(ConditionType::Rma, true), with(ConditionType::Retired, true)];
    for after in [relabeled, moved, fed, other, new].into_iter().chain(flagged) {
        assert!(!same_membership(&machine(), &after), "{after:?}");
    }
    let entered = Machine { phase: Phase::Maintenance, ..machine() };
    for after in [entered, with(ConditionType::Reachable, false)] {
        assert!(same_membership(&machine(), &after) && !same_for_budgets(&machine(), &after));
    }
    let mut renamed = machine();
    renamed.spec.serial = "S-1".into();
    for after in
        [renamed, with(ConditionType::Reachable, true), with(ConditionType::Degraded, true)]
    {
        assert!(same_for_budgets(&machine(), &after), "{after:?}");
    }
}

fn of(run_type: RunType, target: TargetId, steps: Vec<RunStep>) -> RunSpec {
    RunSpec { run_type, target, ..spec(steps) }
}

fn on(kind: TargetKind, id: &str) -> TargetId {
    TargetId::new(kind, id)
}

/// What a run takes follows from the facts of its effects, and of those of its parts.
#[test]
fn a_run_takes_what_its_steps_take() {
    let m = || on(TargetKind::Machine, "m-1");
    let part = |kind, id: &str, steps| ChildRunSpec {
        target: on(kind, id),
        run_type: RunType::Power,
        steps,
    };
    let group = ChildRunGroup {
        child_runs: vec![
            part(TargetKind::PowerShelf, "ps-1", vec![power_off(0)]),
            part(TargetKind::Machine, "m-2", vec![note(0)]),
        ],
        max_concurrent: 1,
        skip_if_all_hold: Vec::new(),
    };
    let parts = RunStep { effect: Effect::ChildRuns { group }, ..note(0) };
    let rack = on(TargetKind::Rack, "rack-1");
    for (spec, expected) in [
        (of(RunType::Reimage, m(), vec![note(0)]), vec![]),
        (of(RunType::Reimage, m(), vec![note(0), wipe(0)]), vec![(m(), Impact::DiskLoss)]),
        (of(RunType::ExitMaintenance, m(), vec![note(0)]), vec![]),
        (of(RunType::EnterMaintenance, m(), vec![drain(0)]), vec![(m(), Impact::Maintenance)]),
        (of(RunType::Power, m(), vec![power_off(0)]), vec![(m(), Impact::PowerLoss)]),
        (
            of(RunType::RackMaintenance, rack, vec![parts]),
            vec![(on(TargetKind::PowerShelf, "ps-1"), Impact::PowerLoss)],
        ),
    ] {
        assert_eq!(losses(&spec), expected, "{:?}", spec.run_type);
    }
    for (mode, takes) in [
        ("drain", true),
        ("retire", true),
        ("full_decommission", true),
        ("soft_reset", true),
        ("reactivate", false),
    ] {
        for run_type in [RunType::NodeDrain, RunType::Decommission] {
            let mut spec = of(run_type, m(), vec![note(0)]);
            spec.params.insert(MODE.into(), mode.into());
            assert_eq!(!losses(&spec).is_empty(), takes, "{run_type:?} {mode}");
        }
    }
}

/// The use of a budget of at most 5 %, with names.
fn used(total: u64, unavailable: u64, takes: u64) -> BudgetUse {
    let named = (0..unavailable.min(2)).map(|number| UnavailableMachine {
        machine: MachineId::trusted(format!("m-{number}")),
        why: Unavailability::TakenBy(format!("op-{number}")),
    });
    let named = named.collect();
    BudgetUse {
        budget: budget("", "5%", ""),
        domain: String::new(),
        total,
        unavailable,
        takes,
        named,
    }
}

/// Always refuses to take one more.
pub fn exhausted() -> BudgetUse {
    used(61, 3, 1)
}

#[test]
fn an_operation_never_takes_a_budget_past_its_limit() {
    for total in 0..60 {
        for unavailable in 0..6 {
            for takes in 0..6 {
                let one = used(total, unavailable, takes);
                let allowed = total * 5 / 100;
                let past = unavailable + takes > allowed;
                assert_eq!(one.is_exceeded(), past && takes > 0, "{one:?}");
                assert_eq!(one.left(), allowed.saturating_sub(unavailable + takes), "{one:?}");
                let refusal = refuse("it", &[one], &Overrides::default());
                assert_eq!(refusal.is_some(), past && takes > 0);
            }
        }
    }
}

#[test]
fn a_refusal_names_the_budget_its_state_its_users_and_the_command() {
    let health = Overrides::of(&[Gate::Health], "fire");
    let refusal = refuse("REBOOT of m-9", &[exhausted()], &health).unwrap();
    assert_eq!(
        refusal.message,
        "REBOOT of m-9 would take 1 machine from budget gpu-prod, 3 of 3 allowed unavailable of \
         61: m-0 (op-0), m-1 (op-1), and 1 more (gate budget:gpu-prod)"
    );
    assert_eq!(refusal.reason, Reason::BudgetExhausted);
    assert_eq!(refusal.gate_word().as_deref(), Some("budget:gpu-prod"));
    assert_eq!(
        refusal.next_command.as_deref(),
        Some(
            "farrier budget get gpu-prod   # or repeat it with --override \
             health,budget:gpu-prod --reason …"
        )
    );
    let shrunk = refuse("REBOOT of m-9", &[used(12, 0, 2)], &Overrides::default()).unwrap();
    let expected = "would take 2 machines from budget gpu-prod, 0 of 0 allowed unavailable of \
                    12, because 5% of 12 rounds down to 0 (gate budget:gpu-prod)";
    assert!(shrunk.message.ends_with(expected), "{shrunk}");
    let mut racks = [exhausted(), exhausted()];
    for (one, domain) in racks.iter_mut().zip(["rack-1", ""]) {
        (one.budget.per, one.domain) = (FailureDomain::Rack, domain.into());
    }
    let said = refuse("it", &racks, &Overrides::default()).unwrap().message;
    assert!(said.contains("gpu-prod (rack-1), ") && said.contains("(without a rack), "), "{said}");
}

#[test]
fn an_override_passes_the_budgets_that_it_names() {
    let gate = |name: &str| {
        let words = vec![format!("budget:{name}"), "health".to_string()];
        Overrides::parse(&words, "fire", model::gate::RACK_MAINTENANCE)
    };
    let named = gate("gpu-prod").unwrap();
    assert_eq!(refuse("it", &[exhausted()], &named), None);
    assert!(refuse("it", &[exhausted()], &gate("other").unwrap()).is_some());
    assert_eq!(
        history_notes(&[exhausted()], &named, "ada"),
        "gate budget:gpu-prod overridden by ada: fire"
    );
    assert_eq!(
        history_notes(&[], &named, "ada"),
        "gate budget:gpu-prod named by ada, and it did not refuse: fire"
    );
    // It is stored with the run, in its parameters and in a record.
    let mut params = model::plan::Params::new();
    named.store_in(&mut params);
    assert_eq!(Overrides::of_params(&params), named);
    let stored = serde_json::to_string(&named).unwrap();
    assert_eq!(serde_json::from_str::<Overrides>(&stored).unwrap(), named);
    assert_eq!(named.without_approval(), named);
    assert_eq!(named.only(&[Gate::Health]), Overrides::of(&[Gate::Health], "fire"));
    assert_eq!(named.words(), ["health", "budget:gpu-prod"]);
    for (word, said) in [
        ("budget", "names no budget"),
        ("budget:", "gate_override.gates[0] is required"),
        ("budget:a b", "contains ' '"),
        ("health:x", "cannot be overridden"),
    ] {
        let refused = Overrides::parse(&[word.into()], "fire", model::gate::RACK_MAINTENANCE);
        let refusal = refused.unwrap_err();
        assert!(refusal.message.contains(said), "{word}: {refusal}");
    }
    let not_of_request = Overrides::parse(&["budget:x".into()], "fire", model::gate::ONBOARD_NODE);
    assert!(not_of_request.unwrap_err().message.contains("not a gate of this request"));
}

#[test]
fn a_dry_run_tells_what_is_taken_and_what_is_left() {
    let named = Overrides::of(&[], "fire").and_budget(&BudgetId::trusted("gpu-prod"));
    let other = Overrides::of(&[], "fire").and_budget(&BudgetId::trusted("other"));
    let none = Overrides::default();
    let refuses = "budget gpu-prod: takes 1 machine, 3 of 3 allowed are unavailable now, 0 would \
                   be left";
    for (one, overrides, expected) in [
        (used(61, 3, 0), &none, vec![]),
        (
            used(61, 1, 1),
            &none,
            vec![
                "budget gpu-prod: takes 1 machine, 1 of 3 allowed are unavailable now, 1 would be \
                 left"
                    .to_string(),
            ],
        ),
        (exhausted(), &none, vec![format!("{refuses}; it refuses")]),
        (exhausted(), &named, vec![format!("{refuses}; it refuses, and the override passes it")]),
        (
            used(61, 3, 0),
            &other,
            vec!["budget other is named by the override, and nothing is taken from it".into()],
        ),
    ] {
        assert_eq!(describe_uses(&[one], overrides), expected);
    }
}

#[test]
fn a_budget_that_allows_nothing_is_refused_when_it_is_made() {
    let all = |total| vec![(String::new(), total)];
    let racks = |one, other| vec![("rack-1".to_string(), one), ("rack-2".to_string(), other)];
    for (max, per, totals, said) in [
        ("1", "", vec![], None),
        ("1", "rack", racks(1, 1), None),
        ("5%", "", all(20), None),
        ("5%", "", vec![], Some("no machine counts in the budget; write a count such as 1")),
        (
            "5%",
            "",
            all(19),
            Some(
                "is 5%, which is 0 of 19: every operation would be refused; write 1, or at least 6%",
            ),
        ),
        ("5%", "rack", racks(20, 18), Some("which is 0 of 18 (rack-2): every operation")),
    ] {
        let refused = budget("", max, per).check_allows(&totals).err().map(|one| one.message);
        assert_eq!(refused.is_some(), said.is_some(), "{max} {totals:?}: {refused:?}");
        assert!(refused.unwrap_or_default().contains(said.unwrap_or_default()));
    }
    // The advice would be accepted.
    for total in 1..300 {
        let refusal = budget("", "1%", "").check_allows(&all(total));
        let Err(refusal) = refusal else { continue };
        let (_, least) = refusal.message.rsplit_once("at least ").unwrap();
        assert!(budget("", least, "").check_allows(&all(total)).is_ok(), "{least} of {total}");
    }
}
