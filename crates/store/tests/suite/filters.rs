//! Filters: the database selects exactly what the model matches, for random filters and fleets.

use crate::harness::{Db, Dice, ended, machine, run, set_condition};
use model::access::{LabelSelector, Scope};
use model::condition::ConditionType;
use model::filter::{Filter, FilterItem, FilterSubject};
use model::id::{PlanId, RackId, RunId};
use model::machine::view::{EffectiveState, LifecycleState};
use model::machine::{Machine, Phase};
use model::plan::RunType;
use model::run::{Run, RunPhase, Workflow};
use model::target::TargetKind;
use std::collections::HashMap;

on_both!(machines_are_selected_as_the_model_says, runs_are_selected_as_the_model_says);

const MACHINES: usize = 60;
const FILTERS: usize = 400;
const KEYS: [&str; 9] = ["env", "a.b", "a/b", "5", "-1", "0x", "Env", "null", "team_1"];
const VALUES: [&str; 12] =
    ["prod", "Prod", "", "5", "null", "true", "it's", "a b", "\\", "\"quoted\"", "ä☃", "%"];
const RACKS: [&str; 3] = ["rack-1", "rack-2", "rack-none"];
const PROVIDERS: [&str; 3] = ["", "sim", "redfish"];
const INITIATORS: [&str; 3] = ["ada", "it's", "engine"];

fn random_machine(dice: &mut Dice, number: usize) -> Machine {
    let mut machine = machine(&format!("m-{number:03}"));
    machine.phase = *dice.pick(&Phase::ALL);
    machine.spec.provider = (*dice.pick(&PROVIDERS)).into();
    machine.spec.rack = dice.coin().then(|| RackId::trusted(*dice.pick(&RACKS[..2])));
    machine.active_run = dice.coin().then(|| RunId::trusted(format!("op-{number:03}")));
    for condition in ConditionType::ALL {
        match dice.roll(4) {
            0 => set_condition(&mut machine, *condition, true),
            1 => set_condition(&mut machine, *condition, false),
            _ => {}
        }
    }
    for _ in 0..dice.roll(5) {
        let (key, value) = (*dice.pick(&KEYS), *dice.pick(&VALUES));
        machine.labels.insert(key.into(), value.into());
    }
    machine
}

fn random_run(dice: &mut Dice, machine: &Machine, number: usize) -> Run {
    let mut run = run(&format!("op-{number:03}"), machine.id.as_str());
    run.spec.run_type = *dice.pick(&RunType::ALL);
    run.spec.plan_id = PlanId::trusted(*dice.pick(&["plan-a", "plan-b"]));
    run.spec.request_id = format!("req {number}");
    run.spec.initiator = (*dice.pick(&INITIATORS)).into();
    run.spec.parent_run = dice.coin().then(|| RunId::trusted("op-1"));
    ended(run, *dice.pick(&Workflow::ALL))
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A field, and values that occur in the fleet.
fn random_field(dice: &mut Dice, subject: FilterSubject) -> (String, Vec<String>) {
    let words = |all: &[&str]| all.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
    let ids = |prefix: &str| (0..6).map(|n| format!("{prefix}-{:03}", n * 10)).collect::<Vec<_>>();
    let effective = EffectiveState::ALL.map(EffectiveState::as_str);
    let lifecycle = LifecycleState::ALL.map(LifecycleState::as_str);
    let phase = if subject == FilterSubject::Machine { "phase" } else { "machine_phase" };
    // A filter by phase takes the lifecycle states too.
    let common = (phase, words(&lifecycle));
    let condition = format!("condition.{}", dice.pick(ConditionType::ALL).as_str());
    let label = format!("labels.{}", dice.pick(&KEYS));
    let mut fields = vec![
        ("machine_id".to_string(), ids("m")),
        (common.0.to_string(), common.1),
        ("effective_state".to_string(), words(&effective)),
        ("lifecycle_state".to_string(), words(&lifecycle)),
        ("provider".to_string(), words(&PROVIDERS)),
        ("rack".to_string(), words(&RACKS)),
        ("rack_id".to_string(), words(&RACKS)),
        (condition, words(&["true", "false"])),
        (label, words(&VALUES)),
    ];
    if subject == FilterSubject::Run {
        fields.extend([
            ("run_id".to_string(), ids("op")),
            ("operation_id".to_string(), ids("op")),
            ("type".to_string(), words(&RunType::ALL.map(RunType::run_word))),
            ("phase".to_string(), words(&RunPhase::ALL.map(RunPhase::as_str))),
            ("workflow_state".to_string(), words(&Workflow::ALL.map(Workflow::as_str))),
            ("plan_id".to_string(), words(&["plan-a", "plan-b", "plan-c"])),
            ("request_id".to_string(), words(&["req 1", "req 2", "no such"])),
            ("target_id".to_string(), [ids("m"), words(&["rack-1", "sw-1"])].concat()),
            ("target_kind".to_string(), words(&TargetKind::ALL.map(TargetKind::as_str))),
            ("initiator".to_string(), words(&INITIATORS)),
            ("part_of".to_string(), words(&["", "op-1", "op-none"])),
            ("created_at".to_string(), words(&["1970-01-01", "1970-01-01T00:00:30Z"])),
        ]);
    }
    fields.swap_remove(dice.roll(fields.len()))
}

fn random_term(dice: &mut Dice, subject: FilterSubject) -> String {
    let (field, values) = random_field(dice, subject);
    let one = quoted(dice.pick::<String>(&values));
    let some: Vec<_> = (0..=dice.roll(3)).map(|_| quoted(dice.pick::<String>(&values))).collect();
    let some = some.join(", ");
    if field == "created_at" {
        return format!("{field}{}{one}", dice.pick(&[">=", "<"]));
    }
    match dice.roll(4) {
        0 => format!("{field}={one}"),
        1 => format!("{field} != {one}"),
        2 => format!("{field} in ({some})"),
        _ => format!("{field} not in ({some})"),
    }
}

fn random_filter(dice: &mut Dice, subject: FilterSubject) -> (String, Filter) {
    let terms: Vec<_> = (0..dice.roll(4)).map(|_| random_term(dice, subject)).collect();
    let text = terms.join(" AND ");
    let filter = Filter::parse(&text, subject).unwrap_or_else(|refusal| panic!("{refusal}"));
    let filter = filter.within(random_scope(dice));
    (format!("{text} within {:?}", filter.scope), filter)
}

/// Most callers may see everything, the others by up to two selectors.
fn random_scope(dice: &mut Dice) -> Scope {
    if dice.roll(3) > 0 {
        return Scope::Everything;
    }
    let selectors = (0..dice.roll(3)).map(|_| {
        let (key, other) = (*dice.pick(&KEYS), *dice.pick(&KEYS));
        let value = quoted(dice.pick::<&str>(&VALUES));
        let first = match dice.roll(3) {
            0 => format!("labels.{key}={value}"),
            1 => format!("labels.{key} in ({value}, {})", quoted(dice.pick::<&str>(&VALUES))),
            _ => format!("labels.{key}"),
        };
        let text = match dice.coin() {
            true => format!("{first} AND labels.{other}!={value}"),
            false => first,
        };
        LabelSelector::parse("selector", &text).unwrap_or_else(|refusal| panic!("{refusal}"))
    });
    Scope::Labels(selectors.collect())
}

async fn fleet(db: &Db, dice: &mut Dice) -> Vec<Machine> {
    let machines: Vec<_> = (0..MACHINES).map(|number| random_machine(dice, number)).collect();
    db.add_machines(machines.clone()).await;
    machines
}

async fn machines_are_selected_as_the_model_says(db: Db) {
    let mut dice = Dice::new(7);
    let machines = fleet(&db, &mut dice).await;
    let (mut some, mut all_or_none) = (0, 0);
    for _ in 0..FILTERS {
        let (text, filter) = random_filter(&mut dice, FilterSubject::Machine);
        let matching: Vec<_> = machines
            .iter()
            .filter(|one| filter.matches(FilterItem::Machine(one)))
            .cloned()
            .collect();
        let selected = tx!([filter], |tx| tx.machines(&filter, None, 1_000).await);
        let page = db.read(selected).await.unwrap();
        assert_eq!(page.machines, matching, "{text}");
        assert_eq!(page.next, None);
        match matching.len() {
            0 | MACHINES => all_or_none += 1,
            _ => some += 1,
        }
    }
    assert!(some > FILTERS / 4 && all_or_none > 0, "{some} filters told any apart");
}

async fn runs_are_selected_as_the_model_says(db: Db) {
    let mut dice = Dice::new(11);
    let machines = fleet(&db, &mut dice).await;
    let mut runs = Vec::new();
    for (number, machine) in machines.iter().enumerate() {
        let run = random_run(&mut dice, machine, number);
        db.insert_run(&run, None).await.unwrap();
        runs.push(run);
    }
    runs.reverse();
    let by_id: HashMap<_, _> = machines.iter().map(|one| (&one.id, one)).collect();
    let mut some = 0;
    for _ in 0..FILTERS {
        let (text, filter) = random_filter(&mut dice, FilterSubject::Run);
        let holds = |run: &&Run| {
            let machine = run.spec.target.machine().and_then(|id| by_id.get(&id).copied());
            filter.matches(FilterItem::Run(run, machine))
        };
        let matching: Vec<_> = runs.iter().filter(holds).cloned().collect();
        let selected = tx!([filter], |tx| tx.runs(&filter, None, 1_000).await);
        assert_eq!(db.read(selected).await.unwrap().runs, matching, "{text}");
        some += usize::from(!matching.is_empty() && matching.len() < runs.len());
    }
    assert!(some > FILTERS / 4, "{some} filters told any apart");
}
