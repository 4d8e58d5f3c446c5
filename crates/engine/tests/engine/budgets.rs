//! Disruption budgets in admission: no request takes more machines than they allow, whatever it is,
//! and nothing is taken twice or kept after its end.

use crate::nodes::{NodeFixture, refusal};
use crate::rack_fixture::{RackFixture, machines, maintenance_request, power};
use crate::test_env::{TestEnv, simulate};
use engine::Engine;
use engine::admission::{RestartRequest, StartRequest};
use engine::budget::{BudgetUpdate, BudgetView};
use engine::component::FirmwareUpdate;
use engine::node::Decommission;
use model::budget::{Budget, FailureDomain, MaxUnavailable};
use model::effect::DesiredPower;
use model::gate::{Gate, Overrides};
use model::id::{BudgetId, MachineId, PowerShelfId, RackId, RunId};
use model::machine::{Machine, Phase};
use model::node::DecommissionMode;
use model::plan::{Params, RunType};
use model::power_shelf::maintenance::PowerChangeRequest;
use model::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use model::refusal::{Reason, Refusal};
use model::run::actions::{Action, Requester, RestartMode};
use model::target::{TargetId, TargetKind};
use providers::sim::{Action as Fails, FaultRule};
use std::time::Duration;
use store::{Store, StoreError};

pub fn budget(id: &str, filter: &str, max: &str, per: &str) -> Budget {
    Budget {
        id: BudgetId::trusted(id),
        filter: filter.into(),
        max_unavailable: MaxUnavailable::parse("max", max).unwrap(),
        per: FailureDomain::parse("per", per).unwrap(),
        created_at: model::time::Timestamp::default(),
        updated_at: model::time::Timestamp::default(),
        version: 0,
    }
}

pub async fn make_budget(
    engine: &Engine,
    id: &str,
    filter: &str,
    max: &str,
    per: &str,
) -> BudgetView {
    let made = engine.budgets().create(budget(id, filter, max, per), "ada".into()).await;
    made.expect("created")
}

/// Changes a machine as a probe or an operator would.
async fn set_machine(store: &Store, id: &str, change: fn(&mut Machine)) {
    let input = (MachineId::trusted(id), change);
    let written = store.retry_write("set", input, |(id, change), tx| {
        Box::pin(async move {
            let mut machine = tx.machine_locked(id).await?.expect("a machine");
            change(&mut machine);
            let at = machine.updated_at;
            tx.update_machine(&mut machine, &crate::rack_fixture::event(at))
        })
    });
    written.await.expect("written");
}

fn ready(machine: &mut Machine) {
    machine.phase = Phase::Ready;
}

fn start(machine: &str, run_type: RunType, request_id: &str) -> StartRequest {
    StartRequest {
        machine_id: MachineId::trusted(machine),
        request_id: request_id.into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: Overrides::default(),
        initiator: "ada".into(),
    }
}

async fn unavailable(engine: &Engine, id: &str) -> u64 {
    let view = engine.budgets().get(&BudgetId::trusted(id)).await.expect("a budget");
    view.domains.iter().map(|domain| domain.unavailable).sum()
}

async fn ended(engine: &Engine, id: &RunId) {
    while !engine.runs().get(id).await.expect("a run").ended() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn is_exhausted(refusal: &Refusal, budget: &str) {
    assert_eq!(refusal.reason, Reason::BudgetExhausted, "{refusal}");
    assert_eq!(refusal.gate_word(), Some(format!("budget:{budget}")), "{refusal}");
}

/// A fleet in service, and an engine. Whatever happens, no budget is exceeded after any commit.
async fn fleet(count: usize) -> (TestEnv, Engine) {
    let env = TestEnv::new(11).await;
    let engine = env.boot("a").await.engine;
    for number in 1..=count {
        let id = format!("m-{number}");
        env.register(&engine, &id).await;
        set_machine(&env.store, &id, ready).await;
    }
    env.enable_budget_checks();
    (env, engine)
}

fn check(env: &TestEnv) {
    let violations = env.violations.lock().unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn a_machine_is_taken_from_admission_to_the_end() {
    simulate(async {
        let (env, engine) = fleet(3).await;
        make_budget(&engine, "all", "", "1", "").await;
        let runs = engine.runs();
        let run = runs.start(start("m-1", RunType::Reboot, "r-1")).await.unwrap().run;
        let id = run.spec.id;
        let refused = refusal(runs.start(start("m-2", RunType::Reboot, "r-2")).await);
        is_exhausted(&refused, "all");
        let expected = format!(
            "REBOOT of m-2 would take 1 machine from budget all, 1 of 1 allowed unavailable of 3: \
             m-1 ({id})"
        );
        assert!(refused.message.starts_with(&expected), "{refused}");
        // A repetition of the first request is no new one.
        let again = runs.start(start("m-1", RunType::Reboot, "r-1")).await.unwrap();
        assert!(!again.new);
        ended(&engine, &id).await;
        assert_eq!(unavailable(&engine, "all").await, 0);
        let second = runs.start(start("m-2", RunType::EnterMaintenance, "r-3")).await.unwrap();
        ended(&engine, &second.run.spec.id).await;
        // It stays out of service, and an operation on it takes nothing more.
        assert_eq!(unavailable(&engine, "all").await, 1);
        assert_eq!(engine.budgets().tally().await.unwrap(), (1, 1));
        let healed = runs.start(start("m-2", RunType::Reboot, "r-4")).await.unwrap();
        is_exhausted(&refusal(runs.start(start("m-1", RunType::Reboot, "r-5")).await), "all");
        ended(&engine, &healed.run.spec.id).await;
        let back = runs.start(start("m-2", RunType::ExitMaintenance, "r-6")).await.unwrap();
        ended(&engine, &back.run.spec.id).await;
        assert_eq!(unavailable(&engine, "all").await, 0);
        check(&env);
    });
}

#[test]
fn an_override_passes_one_budget_and_is_in_the_history() {
    simulate(async {
        let (env, engine) = fleet(2).await;
        let (one, other) = (BudgetId::trusted("one"), BudgetId::trusted("other"));
        make_budget(&engine, "one", "", "1", "").await;
        make_budget(&engine, "other", "", "1", "").await;
        set_machine(&env.store, "m-1", |machine| machine.phase = Phase::Maintenance).await;
        let request = |overrides: Overrides| StartRequest {
            overrides,
            ..start("m-2", RunType::Reboot, "r-1")
        };
        let only = Overrides::of(&[], "fire").and_budget(&one);
        let refused = refusal(engine.runs().start(request(only.clone())).await);
        is_exhausted(&refused, "other");
        let next = refused.next_command.unwrap();
        assert!(next.contains("--override budget:one,budget:other --reason …"), "{next}");
        let both = only.and_budget(&other);
        let run = engine.runs().start(request(both)).await.unwrap().run;
        let history = engine.history(run.spec.id.as_str(), 0, 9).await.unwrap();
        for word in ["one", "other"] {
            let note = format!("gate budget:{word} overridden by ada: fire");
            assert!(history[0].message.contains(&note), "{}", history[0].message);
        }
        ended(&engine, &run.spec.id).await;
        // One that was not needed says so.
        set_machine(&env.store, "m-1", ready).await;
        let named = Overrides::of(&[], "fire").and_budget(&one);
        let request = StartRequest { request_id: "r-2".into(), ..request(named) };
        let run = engine.runs().start(request).await.unwrap().run;
        let history = engine.history(run.spec.id.as_str(), 0, 9).await.unwrap();
        let note = "gate budget:one named by ada, and it did not refuse: fire";
        assert!(history[0].message.contains(note), "{}", history[0].message);
    });
}

/// Unplanned losses count too, and an operation on the lost machine is allowed.
#[test]
fn a_machine_that_does_not_serve_uses_the_budget() {
    use model::condition::{ConditionObservation, ConditionType};
    simulate(async {
        let (env, engine) = fleet(2).await;
        make_budget(&engine, "all", "", "1", "").await;
        set_machine(&env.store, "m-1", |machine| {
            let lost = ConditionObservation::new(ConditionType::Reachable, false, "Timeout");
            machine.learn(&[lost], machine.updated_at);
        })
        .await;
        let refused = refusal(engine.runs().start(start("m-2", RunType::Reboot, "r-1")).await);
        assert!(refused.message.contains("m-1 (unreachable)"), "{refused}");
        engine.runs().start(start("m-1", RunType::Reboot, "r-2")).await.unwrap();
        // A machine that is flagged does not count any more.
        let shrunk = BudgetUpdate {
            max_unavailable: Some(MaxUnavailable::Percent(60)),
            ..BudgetUpdate::default()
        };
        let id = BudgetId::trusted("all");
        let changed = engine.budgets().update(id, shrunk, None, "ada".into()).await.unwrap();
        assert_eq!(changed.domains[0].allowed, 1);
        set_machine(&env.store, "m-1", |machine| {
            let flag = ConditionObservation::new(ConditionType::Rma, true, "broken");
            machine.learn(&[flag], machine.updated_at);
        })
        .await;
        let refused = refusal(engine.runs().start(start("m-2", RunType::Reboot, "r-3")).await);
        let expected = "0 of 0 allowed unavailable of 1, because 60% of 1 rounds down to 0";
        assert!(refused.message.contains(expected), "{refused}");
    });
}

/// A failed run gives its machine back; one that continues takes it again, and is asked again.
#[test]
fn a_run_that_continues_is_asked_again() {
    simulate(async {
        let (env, engine) = fleet(2).await;
        make_budget(&engine, "all", "", "1", "").await;
        let broken = FaultRule {
            machine: "m-1".into(),
            effect: "reboot".into(),
            message: "it is broken".into(),
            ..FaultRule::new(Fails::Fail)
        };
        env.sim.add_fault(broken).unwrap();
        let runs = engine.runs();
        let run = runs.start(start("m-1", RunType::Reboot, "r-1")).await.unwrap().run.spec.id;
        ended(&engine, &run).await;
        assert_eq!(unavailable(&engine, "all").await, 0);
        let other = runs.start(start("m-2", RunType::EnterMaintenance, "r-2")).await.unwrap();
        let who = || Requester { by: "bob".into(), reason: "fixed".into() };
        let act = |action: Action| runs.act(run.clone(), action, who());
        is_exhausted(&refusal(act(Action::Resume).await), "all");
        let restart = RestartRequest {
            original: run.clone(),
            mode: RestartMode::Rerun,
            request_id: "r-3".into(),
            overrides: Overrides::default(),
        };
        is_exhausted(&refusal(runs.restart_with(restart, who()).await), "all");
        ended(&engine, &other.run.spec.id).await;
        let back = runs.start(start("m-2", RunType::ExitMaintenance, "r-4")).await.unwrap();
        ended(&engine, &back.run.spec.id).await;
        env.sim.clear_faults(None).unwrap();
        act(Action::Resume).await.unwrap();
        assert_eq!(unavailable(&engine, "all").await, 1);
        // To resume what is under way takes nothing twice.
        let _ = act(Action::Resume).await;
        assert_eq!(unavailable(&engine, "all").await, 1);
        ended(&engine, &run).await;
        assert_eq!(unavailable(&engine, "all").await, 0);
        check(&env);
    });
}

/// The override of every other gate.
fn in_service() -> Overrides {
    Overrides::of(&[Gate::InService], "a test")
}

/// Racks, switches, shelves and firmware take the machines that they affect.
#[test]
fn requests_to_devices_take_the_machines_that_they_affect() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let (engine, store) = (fixture.engine(), &fixture.env.store);
        for id in ["m-1", "m-2"] {
            set_machine(store, id, ready).await;
        }
        make_budget(engine, "rack", "rack_id=rack-1", "1", "rack").await;
        let all = MaintenanceScope::default();
        let maintain = async |request: RackMaintenanceRequest, dry_run: bool| {
            let request = engine::rack::MaintenanceStart {
                overrides: in_service(),
                dry_run,
                ..maintenance_request(request)
            };
            engine.racks().maintain(request).await
        };
        let off = |scope| power(scope, PowerSequence::Off);
        is_exhausted(&refusal(maintain(off(all.clone()), false).await), "rack");
        let preview = maintain(off(all.clone()), true).await.unwrap().preview.unwrap();
        assert!(preview.refusals.iter().any(|one| one.reason == Reason::BudgetExhausted));
        let said = "budget rack (rack-1): takes 2 machines, 0 of 1 allowed are unavailable now, 0 \
                    would be left; it refuses";
        assert!(preview.later_gates.contains(&said.to_string()), "{:?}", preview.later_gates);
        // The firmware of a switch takes the fabric from every machine of the rack.
        let switch = MaintenanceScope {
            switches: vec![model::id::SwitchId::trusted("sw-1")],
            ..MaintenanceScope::default()
        };
        let flash = |scope| RackMaintenanceRequest {
            scope,
            activities: vec![RequestedActivity::FirmwareUpgrade(None)],
        };
        is_exhausted(&refusal(maintain(flash(switch), false).await), "rack");
        let shelf = |overrides: Overrides| PowerChangeRequest {
            ids: vec![PowerShelfId::trusted("ps-1")],
            operation: DesiredPower::Off,
            initiator: "ada".into(),
            overrides,
            request_id: None,
        };
        is_exhausted(&refusal(engine.power_shelves().maintain(shelf(in_service())).await), "rack");
        let foreseen = engine.power_shelves().preview(shelf(in_service())).await.unwrap().preview;
        assert!(foreseen.warnings.contains(&said.to_string()), "{:?}", foreseen.warnings);
        is_exhausted(foreseen.refusals.last().unwrap(), "rack");
        let update = FirmwareUpdate {
            targets: ["m-1", "m-2"].map(|id| TargetId::new(TargetKind::Machine, id)).into(),
            firmware: None,
            request_id: String::new(),
            reference: String::new(),
            overrides: in_service(),
            by: "ada".into(),
            dry_run: false,
        };
        let done = engine.components().update(update).await.unwrap();
        let refused = format!("{done:?}");
        assert!(refused.contains("BudgetExhausted"), "{refused}");

        // One machine is allowed, and counts while the rack's operation runs.
        let run = maintain(flash(machines(&["m-1"])), false).await.unwrap().run.unwrap();
        let refused = refusal(engine.runs().start(start("m-2", RunType::Reboot, "r-1")).await);
        assert!(refused.message.contains(&format!("m-1 ({})", run.spec.id)), "{refused}");
        fixture.wait_until_ended(&run.spec.id).await;
        fixture.wait_until_released().await;
        assert_eq!(unavailable(engine, "rack").await, 0);
    });
}

/// Machines without power count until their shelf reports its power as on again.
#[test]
fn a_shelf_takes_its_machines_until_it_is_on_again() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let (engine, store) = (fixture.engine(), &fixture.env.store);
        for id in ["m-1", "m-2"] {
            set_machine(store, id, ready).await;
        }
        make_budget(engine, "rack", "", "2", "").await;
        let switch = async |operation: DesiredPower| {
            let request = PowerChangeRequest {
                ids: vec![PowerShelfId::trusted("ps-1")],
                operation,
                initiator: "ada".into(),
                overrides: match operation {
                    DesiredPower::Off => in_service(),
                    DesiredPower::On => Overrides::default(),
                },
                request_id: None,
            };
            engine.power_shelves().maintain(request).await.unwrap();
        };
        switch(DesiredPower::Off).await;
        // From the request on, before the shelf's turn.
        assert_eq!(unavailable(engine, "rack").await, 2);
        let power = async || {
            let shelf = engine.devices().get::<model::power_shelf::PowerShelf>("ps-1").await;
            let shelf = shelf.unwrap();
            (shelf.facts.power, shelf.maintenance_requested.is_none() && shelf.run.is_none())
        };
        while power().await != (Some(DesiredPower::Off), true) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(unavailable(engine, "rack").await, 2);
        switch(DesiredPower::On).await;
        while power().await != (Some(DesiredPower::On), true) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(unavailable(engine, "rack").await, 0);
    });
}

#[test]
fn a_node_that_is_drained_uses_the_budget_of_its_machine() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let node = fixture.node().await;
        let store = &fixture.env.store;
        set_machine(store, node.machine.as_str(), ready).await;
        fixture.env.register(&fixture.process.engine, "m-other").await;
        set_machine(store, "m-other", |machine| machine.phase = Phase::Maintenance).await;
        make_budget(&fixture.process.engine, "all", "", "1", "").await;
        let drain = |overrides: Overrides| Decommission {
            node: node.id(),
            mode: DecommissionMode::Drain,
            overrides,
            request_id: "r-drain".into(),
            by: "ada".into(),
        };
        let nodes = fixture.process.engine.nodes();
        is_exhausted(&refusal(nodes.decommission(drain(Overrides::default())).await), "all");
        let foreseen = nodes.preview_decommission(drain(in_budget())).await.unwrap();
        let said = "budget all: takes 1 machine, 1 of 1 allowed are unavailable now, 0 would be \
                    left; it refuses, and the override passes it";
        assert!(foreseen.preview.notes.contains(&said.to_string()), "{:?}", foreseen.preview.notes);
        set_machine(store, "m-other", ready).await;
        let run = nodes.decommission(drain(Overrides::default())).await.unwrap().run;
        is_exhausted(
            &refusal(
                fixture.process.engine.runs().start(start("m-other", RunType::Reboot, "r-1")).await,
            ),
            "all",
        );
        ended(&fixture.process.engine, &run.spec.id).await;
        // It is drained now: its node is retired, so its machine does not serve.
        assert_eq!(unavailable(&fixture.process.engine, "all").await, 1);
    });
}

fn in_budget() -> Overrides {
    Overrides::of(&[], "a test").and_budget(&BudgetId::trusted("all"))
}

#[test]
fn a_budget_that_allows_nothing_is_refused_and_leaves_no_trace() {
    simulate(async {
        let (_, engine) = fleet(10).await;
        let made = engine.budgets().create(budget("b", "", "5%", ""), "ada".into()).await;
        let refused = refusal(made);
        assert_eq!(refused.field.as_deref(), Some("budget.max_unavailable"));
        assert!(refused.message.contains("write 1, or at least 10%"), "{refused}");
        let found = engine.budgets().get(&BudgetId::trusted("b")).await;
        assert_eq!(refusal(found).reason, Reason::NotFound);
        let view = make_budget(&engine, "b", "", "10%", "").await;
        assert_eq!((view.domains[0].total, view.domains[0].allowed), (10, 1));
        // The same again is the same; another one is refused.
        assert_eq!(
            make_budget(&engine, "b", "", "10%", "").await.budget.version,
            view.budget.version
        );
        let other = engine.budgets().create(budget("b", "", "2", ""), "ada".into()).await;
        assert_eq!(refusal(other).reason, Reason::BudgetExists);
        let change = async |version| {
            let per = Some(FailureDomain::Rack);
            let update = BudgetUpdate { per, ..BudgetUpdate::default() };
            let id = BudgetId::trusted("b");
            engine.budgets().update(id, update, Some(version), "bob".into()).await
        };
        assert_eq!(refusal(change(99).await).reason, Reason::VersionMoved);
        let changed = change(view.budget.version).await.unwrap();
        assert_eq!(changed.budget.per, FailureDomain::Rack);
        let history = engine.history("budget/b", 0, 9).await.unwrap();
        let said: Vec<&str> = history.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(said, ["at most 10% of all machines", "per changed from \"\" to \"rack\""]);
        let gone = engine.budgets().delete(BudgetId::trusted("b"), None, "bob".into()).await;
        assert!(gone.is_ok());
        let run = engine.runs().start(start("m-1", RunType::Reboot, "r-1")).await;
        assert!(run.is_ok());
    });
}

/// Many requests of two replicas at random, with failures, cancels and a crash: no budget is ever
/// exceeded, and in the end nothing is taken.
#[test]
fn no_admission_ever_takes_a_budget_past_its_limit() {
    for seed in 0..4 {
        simulate(async move {
            let (env, engine) = fleet(12).await;
            for number in 1..=12 {
                let rack = RackId::trusted(format!("rack-{}", number % 3));
                let input = (MachineId::trusted(format!("m-{number}")), rack);
                let placed = env.store.write("place", input, |(id, rack), tx| {
                    Box::pin(async move {
                        let mut machine = tx.machine_locked(id).await?.expect("a machine");
                        machine.spec.rack = Some(rack.clone());
                        let at = machine.updated_at;
                        tx.update_machine(&mut machine, &crate::rack_fixture::event(at))
                    })
                });
                placed.await.unwrap();
            }
            make_budget(&engine, "all", "", "34%", "").await;
            make_budget(&engine, "racks", "", "2", "rack").await;
            make_budget(&engine, "some", "machine_id in (m-1, m-2, m-3, m-4)", "1", "").await;
            let second = env.boot("b").await;
            let mut dice = seed * 7_919 + 1;
            let mut roll = move |sides: u64| {
                dice = model::retry::fnv1a(&dice.to_string(), 0);
                dice % sides
            };
            let (mut accepted, mut refused) = (Vec::new(), 0);
            for round in 0..60 {
                let mut requests = Vec::new();
                for number in 0..3 {
                    let machine = format!("m-{}", 1 + roll(12));
                    let run_type = match roll(4) {
                        0 => RunType::EnterMaintenance,
                        1 | 2 => RunType::ExitMaintenance,
                        _ => RunType::Reboot,
                    };
                    let engine = match roll(2) == 0 || round > 30 {
                        true => &engine,
                        false => &second.engine,
                    };
                    let request = start(&machine, run_type, &format!("r-{round}-{number}"));
                    requests.push((engine.clone(), request));
                }
                let asked = requests
                    .into_iter()
                    .map(async |(engine, request)| engine.runs().start(request).await);
                for answer in futures_util::future::join_all(asked).await {
                    match answer {
                        Ok(started) => accepted.push(started.run.spec.id),
                        Err(StoreError::Refused(refusal)) => {
                            refused += i32::from(refusal.reason == Reason::BudgetExhausted);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                if roll(4) == 0 && !accepted.is_empty() {
                    let id = accepted[roll(accepted.len() as u64) as usize].clone();
                    let who = Requester { by: "bob".into(), reason: String::new() };
                    let _ = engine.runs().act(id, Action::Cancel, who).await;
                }
                if round == 30 {
                    second.injector.kill();
                }
                tokio::time::sleep(Duration::from_millis(roll(4_000))).await;
                check(&env);
            }
            assert!(accepted.len() > 20 && refused > 5, "{} and {refused}", accepted.len());
            for id in &accepted {
                ended(&engine, id).await;
            }
            let view = engine.budgets().get(&BudgetId::trusted("all")).await.unwrap();
            let taken = |one: &&model::budget::UnavailableMachine| {
                matches!(one.why, model::budget::Unavailability::TakenBy(_))
            };
            assert_eq!(view.domains[0].machines.iter().filter(taken).count(), 0, "{view:?}");
            check(&env);
        });
    }
}
