//! The invariants that must hold at the end of a scenario, whatever was injected.

use crate::clients::WatchEntry;
use crate::device_records::{RecordSummary, StoredState};
use crate::scenario::{Fixture, Scenario};
use crate::test_env::{StoredRun, TestEnv};
use model::condition::ConditionType;
use model::effect::Effect;
use model::machine::{Machine, Phase};
use model::node::StageExecutor;
use model::plan::RunType;
use model::run::{Run, StepPhase, StepState, Workflow};
use model::target::TargetId;
use providers::{Provider, Target};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use store::Event;

/// The workflow state of a run, and the phase of each step.
type Ended = (Workflow, Vec<(String, StepPhase)>);

/// A machine's id, phase and conditions.
type MachineOutcome = (String, Phase, Vec<(ConditionType, bool)>);

/// The end of a scenario, without what an injection may legally change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// By id.
    pub machines: Vec<MachineOutcome>,
    /// The states of the records, by id.
    pub records: Vec<(String, &'static str)>,
    /// The runs on each target, in order.
    pub runs: BTreeMap<String, Vec<Ended>>,
    /// For each step of each run, the number of times that hardware applied it or an agent executed
    /// it.
    pub acted: BTreeMap<(String, usize, String), u32>,
    /// For each node, whether it has an agent.
    pub agents: Vec<bool>,
}

impl Outcome {
    /// Without an injection the last run on each target is completed, every device is ready or
    /// gone, and the newest node is in the state that the scenario names.
    pub fn assert_ends_well(&self, scenario: &Scenario) {
        let last = self.runs.values().filter_map(|runs| runs.last());
        let mut ends = last.map(|(workflow, _)| *workflow);
        assert!(ends.all(|end| end == Workflow::Completed), "{}: {self:?}", scenario.name);
        let of_node = |id: &String| id.starts_with("node ");
        let mut devices = self.records.iter().filter(|(id, _)| !of_node(id));
        assert!(devices.all(|(_, name)| *name == "Ready"), "{self:?}");
        let newest = self.records.iter().rev().find(|(id, _)| of_node(id));
        let expected = match &scenario.fixture {
            Fixture::Machine(_) => None,
            Fixture::Devices(fixture) => fixture.node,
        };
        assert_eq!(newest.map(|(_, name)| *name), expected, "{self:?}");
    }
}

/// The rule for a second call of a provider to perform one effect under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatedCalls {
    Forbidden,
    /// A process that was frozen just before its call makes it when it wakes.
    Allowed,
}

impl TestEnv {
    /// Probes the hardware first: the simulator applies pending effects when it is read.
    pub async fn stored_state_after_hardware(&self) -> StoredState {
        for Machine { id, spec, .. } in self.machines().await {
            // The result does not matter; the machine may be down.
            let _ = self.sim.probe(&Target { id: TargetId::from(&id), spec }).await;
        }
        self.stored_state().await
    }

    /// Waits until no record changes state by itself, also when abandoned claims must expire first.
    pub async fn wait_until_records_idle(&self) {
        for _ in 0..MAX_IDLE_WAIT_SECONDS {
            let all = self.records().await;
            let nodes = crate::node_scenarios::nodes_are_idle(self, &all.nodes).await;
            let rollouts = self.rollouts_are_idle().await;
            let devices = all.devices().all(|one| is_idle(one.state));
            if devices && all.hosts_are_idle() && nodes && rollouts {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    pub async fn outcome(&self) -> Outcome {
        self.outcome_of(&self.stored_state_after_hardware().await)
    }

    pub fn outcome_of(&self, all: &StoredState) -> Outcome {
        let named = |one: RecordSummary<'_>| {
            let position = all.records.nodes.iter().position(|node| node.head.id == one.key);
            (position.map_or(one.key, |position| format!("node {position}")), one.state)
        };
        let records = all.records.all().map(named).collect();
        let mut runs: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut acted = BTreeMap::new();
        // A switch checks itself more or less often, depending on who held it in between.
        let own_look =
            |run: &Run| run.spec.run_type == RunType::Check && run.spec.parent_run.is_none();
        let worked = self.agent_executions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for StoredRun { run, .. } in all.runs.iter().filter(|stored| !own_look(&stored.run)) {
            let target = run.spec.target.key();
            let on_target = runs.entry(target.clone()).or_default();
            for count in self.sim.effects(run.spec.id.as_str()).expect("the effect counts") {
                let step = (target.clone(), on_target.len(), step_of(&count.key));
                *acted.entry(step).or_default() += count.applied;
            }
            let own = format!("{}/", run.spec.id);
            for (key, times) in worked.iter().filter(|(key, _)| key.starts_with(&own)) {
                let step = (target.clone(), on_target.len(), step_of(key));
                *acted.entry(step).or_default() += times;
            }
            let steps = run.progress.steps.iter();
            let steps = steps.map(|step| (run.step_name(step), step.state)).collect();
            on_target.push((run.progress.workflow, steps));
        }
        acted.retain(|_, times| *times > 0);
        let agents = all.agents.iter().map(|(speaks, _)| *speaks).collect();
        let machines = all.machines.iter().map(|machine| {
            let conditions = machine.conditions.iter();
            let conditions = conditions.map(|(kind, known)| (kind, known.status)).collect();
            (machine.id.to_string(), machine.phase, conditions)
        });
        Outcome { machines: machines.collect(), records, runs, acted, agents }
    }

    pub async fn audit(&self, repeated: RepeatedCalls) -> Vec<String> {
        self.audit_state(&self.stored_state_after_hardware().await, repeated)
    }

    /// All violations, in the store and in the calls that the hardware received.
    pub fn audit_state(&self, all: &StoredState, repeated: RepeatedCalls) -> Vec<String> {
        let mut wrong = self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for stored in &all.runs {
            let parent = stored.run.spec.steps.iter().any(|step| step.effect.name() == "parts");
            audit_run(stored, &mut wrong);
            audit_history(
                stored.run.spec.id.as_str(),
                &stored.history,
                stored.run.version,
                &mut wrong,
            );
            if !parent {
                self.audit_effects(stored, repeated, &mut wrong);
            }
            audit_child_run(stored, &all.runs, &mut wrong);
        }
        audit_requests(&all.runs, &mut wrong);
        audit_claims(all, &mut wrong);
        self.audit_agents(all, &mut wrong);
        audit_concurrency(&all.runs, &mut wrong);
        wrong.extend(all.claimed.iter().map(|id| format!("{id} is still claimed")));
        wrong
    }

    /// No key acts twice, and no destructive step acts under two keys. The simulator deduplicates
    /// keys, so performing one key twice is a violation by itself, unless `repeated` allows it.
    pub fn audit_effects(
        &self,
        stored: &StoredRun,
        repeated: RepeatedCalls,
        wrong: &mut Vec<String>,
    ) {
        let run = &stored.run;
        let counts = self.sim.effects(run.spec.id.as_str()).expect("the effect counts");
        for count in counts.iter().filter(|count| count.applied > 1) {
            wrong.push(format!("{} acted {} times", count.key, count.applied));
        }
        for count in counts
            .iter()
            .filter(|count| repeated == RepeatedCalls::Forbidden && count.requested > 1)
        {
            wrong.push(format!("{} was asked for {} times", count.key, count.requested));
        }
        for step in run.progress.steps.iter() {
            let harmful = run.effect(step).is_some_and(|effect| effect.harmful_to_repeat());
            let name = run.step_name(step);
            let keys = counts.iter().filter(|one| one.applied > 0 && step_of(&one.key) == name);
            let keys: Vec<&str> = keys.map(|one| one.key.as_str()).collect();
            if harmful && keys.len() > 1 {
                wrong.push(format!("a destructive step acted under several keys: {keys:?}"));
            }
            let written = run.effect(step).is_some_and(|effect| acts_on_no_hardware(&effect));
            let adopted = adopted(&step.message) || written || self.executed_by_agent(run, &name);
            if step.state == StepPhase::Succeeded && keys.is_empty() && !adopted {
                wrong.push(format!("step {name} of {} succeeded and never acted", run.spec.id));
            }
        }
    }
}

impl TestEnv {
    /// True if an agent has executed a step of a run.
    fn executed_by_agent(&self, run: &Run, step: &str) -> bool {
        let worked = self.agent_executions.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = format!("{}/{step}/", run.spec.id);
        worked.keys().any(|key| key.starts_with(&keys))
    }
}

/// Stages in Farrier's own record, and waiting for an agent, act on no hardware.
fn acts_on_no_hardware(effect: &Effect) -> bool {
    let Effect::Stage { stage, provider: by, .. } = effect else { return false };
    match stage.executor() {
        StageExecutor::Record(_) => true,
        StageExecutor::Enrollment => by.is_empty(),
        StageExecutor::Maas | StageExecutor::Task(_) => false,
    }
}

fn adopted(message: &str) -> bool {
    message.starts_with("adopted")
}

pub fn step_of(key: &str) -> String {
    key.split('/').nth(1).unwrap_or_default().to_string()
}

/// A history has one event per version and ends at the version of the object.
pub fn audit_history(id: &str, history: &[Event], version: i64, wrong: &mut Vec<String>) {
    let reported: Vec<i64> = history.iter().map(|event| event.version).collect();
    let expected: Vec<i64> = (1..=version).collect();
    if reported != expected {
        wrong.push(format!("the history of {id} at version {version} has {reported:?}"));
    }
}

/// An ended run has no owner, no open intent and no step left to undo.
pub fn audit_run(stored: &StoredRun, wrong: &mut Vec<String>) {
    let StoredRun { run, queue_row: claimed, .. } = stored;
    let id = &run.spec.id;
    if !run.ended() {
        wrong.push(format!("{id} never ended: it is {}", run.progress.workflow.as_str()));
    }
    if let Some(owner) = &claimed.owner {
        wrong.push(format!("{id} is still claimed by {owner}"));
    }
    for step in run.progress.steps.iter().filter(|step| step.intent.is_some()) {
        wrong.push(format!("{id} has an open intent for step {}", run.step_name(step)));
    }
    if run.progress.workflow == Workflow::Cancelled {
        audit_undo(stored, wrong);
    }
}

/// A canceled run undoes the steps that it did and that can be undone, but not adopted ones.
fn audit_undo(stored: &StoredRun, wrong: &mut Vec<String>) {
    let run = &stored.run;
    let done = |step: &&StepState| step.state == StepPhase::Succeeded && !adopted(&step.message);
    for step in run.progress.steps.iter().filter(|step| !step.undo).filter(done) {
        let undoable = run.effect(step).is_some_and(|effect| effect.undo().is_some());
        let mut undone = run.progress.steps.iter().filter(done);
        if undoable && !undone.any(|other| other.undo && other.plan_step == step.plan_step) {
            let name = run.step_name(step);
            wrong.push(format!("{} was canceled and step {name} not undone", run.spec.id));
        }
    }
}

/// A watcher receives every version once, in order, from the first or from its snapshot.
pub fn audit_watch(stored: &StoredRun, observed: &[WatchEntry], wrong: &mut Vec<String>) {
    let id = &stored.run.spec.id;
    let of_run = || observed.iter().filter(|observation| observation.run == *id);
    let Some(first) = of_run().next() else {
        wrong.push(format!("{id} was never shown to its watcher"));
        return;
    };
    let shown: Vec<i64> = of_run().map(|observation| observation.version).collect();
    let first = if first.initial { first.version } else { 1 };
    let expected: Vec<i64> = (first..=stored.run.version).collect();
    if shown != expected {
        wrong.push(format!("of {id} at version {} was shown {shown:?}", stored.run.version));
    }
}

impl TestEnv {
    /// No task is open, and each step was executed by an agent at most once.
    fn audit_agents(&self, all: &StoredState, wrong: &mut Vec<String>) {
        let open = all.agents.iter().filter_map(|(_, task)| task.as_ref());
        wrong.extend(open.map(|key| format!("{key} is still open")));
        let worked = self.agent_executions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut steps: BTreeMap<&str, u32> = BTreeMap::new();
        for (key, times) in worked.iter() {
            let step = key.rsplit_once('/').map_or(key.as_str(), |(step, _)| step);
            *steps.entry(step).or_default() += times;
        }
        let often = steps.into_iter().filter(|(_, times)| *times > 1);
        wrong.extend(often.map(|(step, times)| format!("{step} was done {times} times")));
    }
}

/// One request makes one run.
fn audit_requests(runs: &[StoredRun], wrong: &mut Vec<String>) {
    let mut requests: Vec<(String, &str)> = runs
        .iter()
        .map(|stored| (stored.run.spec.target.key(), stored.run.spec.request_id.as_str()))
        .collect();
    requests.sort_unstable();
    let twice = requests.windows(2).filter(|pair| pair[0] == pair[1]);
    wrong.extend(twice.map(|pair| format!("one request made two runs: {:?}", pair[0])));
}

/// The limit for records to become idle, in seconds.
const MAX_IDLE_WAIT_SECONDS: u32 = 120;

fn is_idle(name: &str) -> bool {
    matches!(name, "Ready" | "Error")
}

/// A child run ends before its parent.
fn audit_child_run(stored: &StoredRun, runs: &[StoredRun], wrong: &mut Vec<String>) {
    let Some(parent) = &stored.run.spec.parent_run else { return };
    let (id, part) = (&stored.run.spec.id, &stored.run);
    let Some(parent) = runs.iter().find(|one| one.run.spec.id == *parent) else {
        wrong.push(format!("{id} has no parent run"));
        return;
    };
    let (ended, end) = (part.progress.finished_at, parent.run.progress.finished_at);
    if ended > end {
        wrong.push(format!("{id} ended at {ended:?}, after its parent, which ended at {end:?}"));
    }
}

/// No device is held at the end, and no history has gaps.
fn audit_claims(all: &StoredState, wrong: &mut Vec<String>) {
    let machines = all.machines.iter().map(|one| (one.id.to_string(), one.active_run.clone()));
    for machine in &all.machines {
        let id = machine.id.as_str();
        audit_history(id, &all.histories[id], machine.version, wrong);
    }
    for RecordSummary { key, head, .. } in all.records.all() {
        audit_history(&key, &all.histories[&key], head.version, wrong);
    }
    let records = all.records.all().map(|one| (one.key, one.head.active_run.clone()));
    for (id, holder) in machines.chain(records) {
        if let Some(run) = holder {
            wrong.push(format!("{id} is still held by {run}"));
        }
    }
    for rack in &all.records.racks {
        let waits = rack.active.iter().chain(&rack.maintenance_requested);
        wrong.extend(waits.map(|run| format!("{} still waits for {run}", rack.head.id)));
    }
    for host in all.records.hosts.iter().filter(|host| host.is_ready()) {
        let machine = all.machines.iter().find(|one| one.id == host.machine());
        let alerts = machine.map(|machine| machine.health.messages()).unwrap_or_default();
        wrong.extend(
            alerts.iter().map(|message| format!("{} is ready, but {message}", host.head.id)),
        );
    }
    for shelf in all.records.shelves.iter().filter(|shelf| shelf.run.is_some()) {
        wrong.push(format!("{} still waits for {:?}", shelf.head.id, shelf.run));
    }
}

/// No group step ever ran more child runs at once than `at_once`.
fn audit_concurrency(runs: &[StoredRun], wrong: &mut Vec<String>) {
    for parent in runs {
        for step in &parent.run.spec.steps {
            let Effect::ChildRuns { group } = &step.effect else { continue };
            let of_step = format!("{}/{}/", parent.run.spec.id, step.name);
            let parts: Vec<&Run> = runs
                .iter()
                .map(|stored| &stored.run)
                .filter(|run| run.spec.request_id.starts_with(&of_step))
                .collect();
            let lasts = |run: &Run| {
                (run.spec.created_at, run.progress.finished_at.unwrap_or(run.spec.created_at))
            };
            for part in &parts {
                let at = lasts(part).0;
                let together = parts.iter().filter(|one| {
                    let (begun, ended) = lasts(one);
                    begun <= at && at < ended
                });
                if together.count() > group.max_concurrent as usize {
                    wrong.push(format!("too many child runs of {of_step} at once"));
                }
            }
        }
    }
}
