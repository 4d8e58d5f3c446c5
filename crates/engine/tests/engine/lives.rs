//! The list: everything the matrix proves. A new plan is in it by being built in; a new lifecycle, or a
//! new way for one to go, joins by adding its name here.

use crate::clients::{Ask, Door, follow_script};
use crate::world::{Process, World};
use model::effect::Verb;
use model::plan::{NETWORK, Params, RunType, default_plan};
use model::run::act::{Action, Again};
use providers::sim::{self, FaultRule};

/// One way a machine's operations may go.
#[derive(Clone)]
pub struct Life {
    pub name: String,
    pub run_type: RunType,
    /// What the hardware does wrong.
    pub faults: Vec<FaultRule>,
    /// What is asked for, in order.
    pub script: Vec<Ask>,
    /// Somebody cannot wait, and asks for the next attempt while the run rests before it.
    pub nudged: bool,
}

pub const MACHINE: &str = "m-1";

/// Every life there is.
pub fn all() -> Vec<Life> {
    let plans = RunType::ALL.into_iter().map(|run_type| {
        let name = default_plan(run_type).id.to_string();
        life(&name, run_type, Vec::new(), Vec::new())
    });
    let repave = |action, times| fault("repave", Verb::Perform, action, times);
    let reimage = |name: &str, faults, then| life(name, RunType::Reimage, faults, then);
    let broken = || vec![repave(sim::Action::Fail, 0)];
    let ways = [
        reimage("repave fails once", vec![repave(sim::Action::Fail, 1)], vec![]),
        reimage("repave's answer is lost", vec![repave(sim::Action::Drop, 1)], vec![]),
        reimage("repave answers garbage", vec![repave(sim::Action::Garbage, 1)], vec![]),
        reimage("repave is told twice", vec![repave(sim::Action::Twice, 1)], vec![]),
        reimage("repave answers late", vec![late("repave", 20_000)], vec![]),
        reimage("join hangs", vec![fault("join", Verb::Perform, sim::Action::Hang, 1)], vec![]),
        reimage("mended, step retried", broken(), vec![Ask::Mend, Ask::Act(Action::RetryStep)]),
        reimage("mended, run again", broken(), vec![Ask::Mend, Ask::Again(Again::Rerun)]),
        reimage(
            "mended, restarted clean",
            broken(),
            vec![Ask::Mend, Ask::Again(Again::RestartClean)],
        ),
        reimage(
            "marked manual, resumed",
            broken(),
            vec![Ask::Act(Action::MarkManual), Ask::Mend, Ask::Act(Action::Resume)],
        ),
    ];
    let fails_once = || vec![repave(sim::Action::Fail, 1)];
    let nudged = Life { nudged: true, ..reimage("nudged as it waits", fails_once(), vec![]) };
    plans.chain(ways).chain([nudged]).collect()
}

fn life(name: &str, run_type: RunType, faults: Vec<FaultRule>, then: Vec<Ask>) -> Life {
    let script = std::iter::once(Ask::Start(run_type)).chain(then).collect();
    Life { name: name.into(), run_type, faults, script, nudged: false }
}

fn fault(effect: &str, verb: Verb, action: sim::Action, times: u32) -> FaultRule {
    FaultRule { effect: effect.into(), verb, times, ..FaultRule::new(action) }
}

fn late(effect: &str, delay_ms: u32) -> FaultRule {
    FaultRule { delay_ms, ..fault(effect, Verb::Perform, sim::Action::Slow, 1) }
}

pub fn params(run_type: RunType) -> Params {
    match run_type {
        RunType::NetReconfig => Params::from([(NETWORK.into(), "network: {}".into())]),
        RunType::EnterMaintenance
        | RunType::ExitMaintenance
        | RunType::Reboot
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::Rma => Params::new(),
    }
}

/// Whether a run of this type must find its machine in maintenance, and in its cluster.
const fn needs_maintenance(run_type: RunType) -> bool {
    match run_type {
        RunType::EnterMaintenance => false,
        RunType::ExitMaintenance
        | RunType::Reboot
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma => true,
    }
}

impl Life {
    /// The hardware never begins with something, and never says so.
    pub fn hangs(&self) -> bool {
        self.faults.iter().any(|rule| rule.action == sim::Action::Hang)
    }

    /// Brings the machine to where the life begins.
    pub async fn prepare(&self, world: &World, process: &Process) {
        world.register(&process.engine, MACHINE).await;
        if needs_maintenance(self.run_type) {
            let door = Door::to(&process.engine);
            // Upgrading ends with a look into the cluster, so the machine must be in one.
            let before = [RunType::EnterMaintenance, RunType::Reimage];
            for run_type in before.into_iter().take(match self.run_type {
                RunType::Upgrade => 2,
                _ => 1,
            }) {
                follow_script(door.clone(), world.sim.clone(), vec![Ask::Start(run_type)]).await;
            }
        }
        for rule in &self.faults {
            world.sim.add_fault(rule.clone()).expect("a rule");
        }
    }
}
