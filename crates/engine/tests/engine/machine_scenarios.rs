//! Machine scenarios: every built-in plan, and its paths when hardware fails and operators act.
//! Built-in plans are included automatically; a new path is added here.

use crate::budgets::make_budget;
use crate::clients::{Client, ClientAction, run_client_script};
use crate::scenario::{Coverage, Fixture, Sampling, Scenario};
use crate::test_env::{Process, TestEnv};
use model::effect::{CallVerb, Effect};
use model::id::PlanId;
use model::plan::{
    Maintenance, NETWORK, Params, Plan, PowerChange, RunType, default_plan, variants,
};
use model::run::Workflow;
use model::run::actions::{Action, RestartMode};
use providers::sim::{self, FaultRule};
use std::collections::BTreeSet;

/// A machine, and the requests to it.
#[derive(Clone)]
pub struct MachineFixture {
    /// The plan of the first run.
    pub plan: Plan,
    /// Requests that are done before the scenario begins.
    pub before: Vec<ClientAction>,
    pub faults: Vec<FaultRule>,
    /// Requests, in order.
    pub script: Vec<ClientAction>,
    /// Something wakes the run during its backoff.
    pub woken_in_backoff: bool,
}

pub const MACHINE: &str = "m-1";

pub fn all() -> Vec<Scenario> {
    let defaults = RunType::PLANNED.map(|run_type| (run_type, default_plan(run_type).unwrap()));
    let plans = defaults.into_iter().chain(variants()).map(|(run_type, plan)| {
        let name = plan.id.to_string();
        scenario(&name, (run_type, plan), Vec::new(), Vec::new())
    });
    plans.chain(reimages()).chain(drains()).chain(powers()).collect()
}

/// Reimages.
fn reimages() -> Vec<Scenario> {
    let repave = |action, times| fault("repave", CallVerb::Perform, action, times);
    let reimage = |name: &str, faults, then| {
        scenario(name, (RunType::Reimage, default_plan(RunType::Reimage).unwrap()), faults, then)
    };
    let broken = || vec![repave(sim::Action::Fail, 0)];
    let fails_once = || vec![repave(sim::Action::Fail, 1)];
    vec![
        reimage("repave fails once", fails_once(), vec![]),
        reimage("repave's answer is lost", vec![repave(sim::Action::Drop, 1)], vec![]),
        reimage("repave answers garbage", vec![repave(sim::Action::Garbage, 1)], vec![]),
        reimage("repave is told twice", vec![repave(sim::Action::Twice, 1)], vec![]),
        reimage("repave answers late", vec![slow("repave", 20_000)], vec![]),
        hanging("join hangs", "join", (RunType::Reimage, default_plan(RunType::Reimage).unwrap())),
        reimage(
            "mended, step retried",
            broken(),
            vec![ClientAction::ClearFaults, ClientAction::Act(Action::RetryStep)],
        ),
        reimage(
            "mended, run again",
            broken(),
            vec![ClientAction::ClearFaults, ClientAction::Restart(RestartMode::Rerun)],
        ),
        reimage(
            "mended, restarted clean",
            broken(),
            vec![ClientAction::ClearFaults, ClientAction::Restart(RestartMode::RestartClean)],
        ),
        reimage(
            "marked manual, resumed",
            broken(),
            vec![
                ClientAction::Act(Action::MarkManual),
                ClientAction::ClearFaults,
                ClientAction::Act(Action::Resume),
            ],
        ),
        with_wake_in_backoff(reimage("woken as it waits", fails_once(), vec![])),
    ]
}

/// Drains: to enter maintenance, and before an RMA.
fn drains() -> Vec<Scenario> {
    let drain = |action, times| fault("drain", CallVerb::Perform, action, times);
    let way = variant(Maintenance::EnterDraining.plan_id().as_str());
    let enter = |name: &str, faults, then| scenario(name, way.clone(), faults, then);
    let broken = vec![fault("rma", CallVerb::Perform, sim::Action::Fail, 0)];
    let rma = (RunType::Rma, default_plan(RunType::Rma).unwrap());
    vec![
        enter("a budget blocks once", vec![drain(sim::Action::Fail, 1)], vec![]),
        enter("drain's answer is lost", vec![drain(sim::Action::Drop, 1)], vec![]),
        hanging("drain hangs", "drain", way.clone()),
        enter(
            "budgets mended, run again",
            vec![drain(sim::Action::Fail, 0)],
            vec![ClientAction::ClearFaults, ClientAction::Restart(RestartMode::Rerun)],
        ),
        // The drain is undone, and done again.
        scenario(
            "record mended, restarted clean",
            rma,
            broken,
            vec![ClientAction::ClearFaults, ClientAction::Restart(RestartMode::RestartClean)],
        ),
    ]
}

/// Power: one step never powers a machine off twice.
fn powers() -> Vec<Scenario> {
    let power = |action, times| fault("power", CallVerb::Perform, action, times);
    let way = variant(PowerChange::Off.plan_id().as_str());
    let off = |name: &str, faults, then| scenario(name, way.clone(), faults, then);
    vec![
        off("power off's answer is lost", vec![power(sim::Action::Drop, 1)], vec![]),
        off("power off is told twice", vec![power(sim::Action::Twice, 1)], vec![]),
        off(
            "power off fails, step retried",
            vec![power(sim::Action::Fail, 0)],
            vec![ClientAction::ClearFaults, ClientAction::Act(Action::RetryStep)],
        ),
    ]
}

/// The hardware never starts an effect and never reports it, so the step waits for its deadline.
/// The deadline is set to one minute: half an hour shows nothing more.
fn hanging(name: &str, effect: &str, (run_type, mut plan): (RunType, Plan)) -> Scenario {
    plan.id = PlanId::trusted(format!("{}-in-a-minute", plan.id));
    (plan.default_for, plan.built_in) = (None, false);
    for step in plan.steps.iter_mut().filter(|step| step.effect.name() == effect) {
        step.timeout_seconds = Some(60);
    }
    let faults = vec![fault(effect, CallVerb::Perform, sim::Action::Hang, 1)];
    scenario(name, (run_type, plan), faults, vec![])
}

fn variant(id: &str) -> (RunType, Plan) {
    variants().into_iter().find(|(_, plan)| plan.id.as_str() == id).expect("a built-in plan")
}

fn scenario(
    name: &str,
    (run_type, plan): (RunType, Plan),
    faults: Vec<FaultRule>,
    then: Vec<ClientAction>,
) -> Scenario {
    let script = std::iter::once(start(run_type, &plan)).chain(then).collect();
    let before = before(run_type, &plan);
    let steps: Vec<String> = plan.steps.iter().map(|step| step.name.clone()).collect();
    // One commit for each step and one more.
    let commits = vec![("start_run", 1), ("commit", steps.len() + 1)];
    Scenario {
        name: name.into(),
        fixture: Fixture::Machine(MachineFixture {
            plan,
            before,
            faults,
            script,
            woken_in_backoff: false,
        }),
        coverage: Coverage { steps, commits, shared: false },
        sampling: Sampling::FirstAndLast,
    }
}

fn with_wake_in_backoff(scenario: Scenario) -> Scenario {
    let fixture = match scenario.fixture {
        Fixture::Machine(fixture) => {
            Fixture::Machine(MachineFixture { woken_in_backoff: true, ..fixture })
        }
        Fixture::Devices(fixture) => Fixture::Devices(fixture),
    };
    Scenario { fixture, ..scenario }
}

fn start(run_type: RunType, plan: &Plan) -> ClientAction {
    if plan.default_for == Some(run_type) {
        ClientAction::Start(run_type)
    } else {
        ClientAction::StartPlan(run_type, plan.id.clone())
    }
}

/// The requests that bring the machine to where a run of this plan has work to do.
fn before(run_type: RunType, plan: &Plan) -> Vec<ClientAction> {
    let enter = ClientAction::Start(RunType::EnterMaintenance);
    let joined = || vec![enter.clone(), ClientAction::Start(RunType::Reimage)];
    let power = |change: PowerChange| ClientAction::StartPlan(RunType::Power, change.plan_id());
    let drains = plan.steps.iter().any(|step| matches!(step.effect, Effect::Drain { .. }));
    let uncordons = plan.steps.iter().any(|step| matches!(step.effect, Effect::Uncordon { .. }));
    match run_type {
        RunType::EnterMaintenance if drains => joined(),
        RunType::EnterMaintenance => vec![],
        RunType::ExitMaintenance if uncordons => {
            let way = Maintenance::EnterDraining;
            [joined(), vec![ClientAction::StartPlan(way.run_type(), way.plan_id())]].concat()
        }
        // An upgrade ends with a check of the cluster, and an RMA drains the machine there.
        RunType::Upgrade | RunType::Rma => joined(),
        RunType::ExitRma => vec![enter, ClientAction::Start(RunType::Rma)],
        RunType::Power if plan.id == PowerChange::On.plan_id() => {
            vec![enter, power(PowerChange::Off)]
        }
        RunType::ExitMaintenance
        | RunType::Reboot
        | RunType::Reimage
        | RunType::NetReconfig
        | RunType::Join
        | RunType::Power => vec![enter],
        // Lifecycles start these.
        RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check
        | RunType::Onboard
        | RunType::Decommission
        | RunType::NodeDrain => vec![],
    }
}

fn fault(effect: &str, verb: CallVerb, action: sim::Action, times: u32) -> FaultRule {
    FaultRule { effect: effect.into(), verb, times, ..FaultRule::new(action) }
}

fn slow(effect: &str, delay_ms: u32) -> FaultRule {
    FaultRule { delay_ms, ..fault(effect, CallVerb::Perform, sim::Action::Slow, 1) }
}

pub fn params(run_type: RunType) -> Params {
    match run_type {
        RunType::NetReconfig => Params::from([(NETWORK.into(), "network: {}".into())]),
        RunType::EnterMaintenance
        | RunType::ExitMaintenance
        | RunType::Reboot
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::Rma
        | RunType::Power
        | RunType::ExitRma
        | RunType::Join
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check
        | RunType::Onboard
        | RunType::Decommission
        | RunType::NodeDrain => Params::new(),
    }
}

impl MachineFixture {
    /// True if the hardware never starts an effect and never reports it.
    pub fn hangs(&self) -> bool {
        self.faults.iter().any(|rule| rule.action == sim::Action::Hang)
    }

    /// Creates the initial state of the scenario.
    pub async fn prepare(&self, env: &TestEnv, process: &Process) {
        env.register(&process.engine, MACHINE).await;
        if !self.plan.built_in {
            process.engine.plans().create(self.plan.clone()).await.expect("a plan of one's own");
        }
        for (index, request) in self.before.iter().enumerate() {
            let client = Client::new(&process.engine);
            let run =
                run_client_script(client, env.sim.clone(), vec![request.clone()], index).await;
            let workflow = run.map(|run| run.progress.workflow);
            assert_eq!(workflow, Some(Workflow::Completed), "before {}: {request:?}", self.plan.id);
        }
        // What the operations take of it is checked after every commit.
        make_budget(&process.engine, "fleet", "", "1", "").await;
        env.enable_budget_checks();
        for rule in &self.faults {
            env.sim.add_fault(rule.clone()).expect("a rule");
        }
    }
}

/// A kind of step without a scenario would be untested.
#[test]
fn every_kind_of_step_has_a_scenario() {
    let scenarios = crate::scenario::all();
    let plans = scenarios.iter().filter_map(|scenario| match &scenario.fixture {
        Fixture::Machine(fixture) => Some(&fixture.plan),
        Fixture::Devices(_) => None,
    });
    let steps: Vec<_> = plans.flat_map(|plan| &plan.steps).collect();
    let steps = || steps.iter();
    let on_racks = crate::device_scenarios::effect_names();
    let done: BTreeSet<&str> = steps().map(|step| step.effect.name()).chain(on_racks).collect();
    let undone: BTreeSet<&str> =
        steps().filter_map(|step| step.effect.undo()).map(|undo| undo.name()).collect();
    let all: BTreeSet<&str> = Effect::NAMES.into_iter().collect();
    assert_eq!(done.union(&undone).copied().collect::<BTreeSet<_>>(), all);
    let mut names: Vec<&str> = scenarios.iter().map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), scenarios.len(), "two scenarios have one name");
}
