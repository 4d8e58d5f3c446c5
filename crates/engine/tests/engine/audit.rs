//! What must be true when the dust has settled, whatever happened before.

use crate::clients::Sight;
use crate::world::{About, Kept, World};
use model::condition::ConditionType;
use model::effect::Effect;
use model::machine::Phase;
use model::node::Room;
use model::run::{Run, StepPhase, StepState, Workflow};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use store::Event;

/// How a story came out, as far as it must not depend on what happened on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub workflows: Vec<Workflow>,
    pub steps: Vec<(String, StepPhase)>,
    pub phase: Phase,
    pub conditions: Vec<(ConditionType, bool)>,
    /// How often each effect of each run acted, by run and step.
    pub acted: BTreeMap<(usize, String), u32>,
}

/// How often an effect may be ordered under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    Once,
    /// Somebody who slept may wake with the order on his lips.
    RestartMode,
}

impl World {
    pub async fn outcome(&self, machine: &str) -> Outcome {
        self.let_the_hardware_act(machine).await;
        let about = self.about(machine).await;
        let mut acted = BTreeMap::new();
        for (index, kept) in about.runs.iter().enumerate() {
            for count in self.sim.effects(kept.run.spec.id.as_str()).expect("the ledger") {
                let step = step_of(&count.key);
                *acted.entry((index, step)).or_default() += count.applied;
            }
        }
        acted.retain(|_, times| *times > 0);
        let steps = about.runs.last().map(|kept| {
            let steps = kept.run.progress.steps.iter();
            steps.map(|step| (kept.run.step_name(step), step.state)).collect()
        });
        let conditions = about.machine.conditions.iter();
        Outcome {
            workflows: about.runs.iter().map(|kept| kept.run.progress.workflow).collect(),
            steps: steps.unwrap_or_default(),
            phase: about.machine.phase,
            conditions: conditions.map(|(kind, known)| (kind, known.status)).collect(),
            acted,
        }
    }

    /// Everything that is wrong with what is stored about a machine, and with what its hardware and its
    /// watcher saw.
    pub async fn audit(&self, machine: &str, seen: &[Sight], asking: Asking) -> Vec<String> {
        self.let_the_hardware_act(machine).await;
        let about = self.about(machine).await;
        let mut wrong = self.witnessed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.audit_history(&about, &mut wrong);
        for kept in &about.runs {
            audit_run(kept, &mut wrong);
            self.audit_effects(kept, asking, &mut wrong);
            audit_watch(kept, seen, &mut wrong);
        }
        if let Some(run) = &about.machine.active_run {
            wrong.push(format!("{machine} is still held by {run}"));
        }
        wrong
    }

    fn audit_history(&self, about: &About, wrong: &mut Vec<String>) {
        gaps(about.machine.id.as_str(), &about.history, about.machine.version, wrong);
        for kept in &about.runs {
            gaps(kept.run.spec.id.as_str(), &kept.history, kept.run.version, wrong);
        }
        let mut requests: Vec<&str> =
            about.runs.iter().map(|kept| kept.run.spec.request_id.as_str()).collect();
        requests.sort_unstable();
        if requests.windows(2).any(|pair| pair[0] == pair[1]) {
            wrong.push(format!("one request made two runs: {requests:?}"));
        }
    }

    /// No key acts twice, and no step that harms when repeated acts under two keys. The hardware refuses to do one key
    /// twice, so nobody may count on that: a key is not even asked for twice, unless a sleeper asks again.
    pub fn audit_effects(&self, kept: &Kept, asking: Asking, wrong: &mut Vec<String>) {
        let run = &kept.run;
        let counts = self.sim.effects(run.spec.id.as_str()).expect("the ledger");
        for count in counts.iter().filter(|count| count.applied > 1) {
            wrong.push(format!("{} acted {} times", count.key, count.applied));
        }
        for count in counts.iter().filter(|count| asking == Asking::Once && count.asked > 1) {
            wrong.push(format!("{} was asked for {} times", count.key, count.asked));
        }
        for step in run.progress.steps.iter() {
            let harmful = run.effect(step).is_some_and(|effect| effect.destructive());
            let name = run.step_name(step);
            let keys = counts.iter().filter(|one| one.applied > 0 && step_of(&one.key) == name);
            let keys: Vec<&str> = keys.map(|one| one.key.as_str()).collect();
            if harmful && keys.len() > 1 {
                wrong.push(format!("a destructive step acted under several keys: {keys:?}"));
            }
            let written = run.effect(step).is_some_and(|effect| is_only_written(&effect));
            let adopted = adopted(&step.message) || written || self.worked_at(run, &name);
            if step.state == StepPhase::Succeeded && keys.is_empty() && !adopted {
                wrong.push(format!("step {name} of {} succeeded and never acted", run.spec.id));
            }
        }
    }
}

impl World {
    /// Whether an agent has done a step of a run.
    fn worked_at(&self, run: &Run, step: &str) -> bool {
        let worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = format!("{}/{step}/", run.spec.id);
        worked.keys().any(|key| key.starts_with(&keys))
    }
}

/// What is done in Farrier's own record acts on no hardware, and neither does waiting for an agent.
fn is_only_written(effect: &Effect) -> bool {
    let Effect::Stage { stage, by, .. } = effect else { return false };
    match stage.room() {
        Room::Record => true,
        Room::Agent => by.is_empty() && stage.task().is_none(),
        Room::Maas => false,
    }
}

fn adopted(message: &str) -> bool {
    message.starts_with("adopted")
}

pub fn step_of(key: &str) -> String {
    key.split('/').nth(1).unwrap_or_default().to_string()
}

/// A history is told version by version, and ends where the object is.
pub fn gaps(id: &str, history: &[Event], version: i64, wrong: &mut Vec<String>) {
    let told: Vec<i64> = history.iter().map(|event| event.version).collect();
    let expected: Vec<i64> = (1..=version).collect();
    if told != expected {
        wrong.push(format!("the history of {id} at version {version} tells of {told:?}"));
    }
}

/// Nobody holds it, nothing is under way, nothing is left to do.
pub fn audit_run(kept: &Kept, wrong: &mut Vec<String>) {
    let Kept { run, held, .. } = kept;
    let id = &run.spec.id;
    if !run.ended() {
        wrong.push(format!("{id} is lost: it stays {}", run.progress.workflow.as_str()));
    }
    if let Some(owner) = &held.owner {
        wrong.push(format!("{id} is still in the hands of {owner}"));
    }
    for step in run.progress.steps.iter().filter(|step| step.asked.is_some()) {
        wrong.push(format!("{id} still intends step {}", run.step_name(step)));
    }
    if run.progress.workflow == Workflow::Cancelled {
        audit_undo(kept, wrong);
    }
}

/// What a canceled run did and could undo, it has undone. What it found done it leaves alone.
fn audit_undo(kept: &Kept, wrong: &mut Vec<String>) {
    let run = &kept.run;
    let done = |step: &&StepState| step.state == StepPhase::Succeeded && !adopted(&step.message);
    for step in run.progress.steps.iter().filter(|step| !step.undo).filter(done) {
        let undoable = run.effect(step).is_some_and(|effect| effect.undo().is_some());
        let mut undone = run.progress.steps.iter().filter(done);
        if undoable && !undone.any(|other| other.undo && other.of == step.of) {
            let name = run.step_name(step);
            wrong.push(format!("{} was canceled and step {name} not undone", run.spec.id));
        }
    }
}

/// A watcher saw every version once, in order, from the beginning or from a snapshot on.
fn audit_watch(kept: &Kept, seen: &[Sight], wrong: &mut Vec<String>) {
    let id = &kept.run.spec.id;
    let of_run = || seen.iter().filter(|sight| sight.run == *id);
    let Some(first) = of_run().next() else {
        wrong.push(format!("{id} was never shown to its watcher"));
        return;
    };
    let shown: Vec<i64> = of_run().map(|sight| sight.version).collect();
    let first = if first.initial { first.version } else { 1 };
    let expected: Vec<i64> = (first..=kept.run.version).collect();
    if shown != expected {
        wrong.push(format!("of {id} at version {} was shown {shown:?}", kept.run.version));
    }
}
