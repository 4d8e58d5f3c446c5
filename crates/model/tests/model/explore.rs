//! Explores a lifecycle: every reachable record, under every event.
//!
//! A lifecycle is a pure function, so it can be called for every state. The walk starts with a new
//! record and applies every event that [`Explore::events`] lists, breadth first. It proves that
//! every state is reachable and that none is a dead end. The pages in `docs/states` are generated
//! from it, so they always agree with the code.

mod devices;
mod host;
mod node;
mod rack;
mod rollout;
mod site;

use model::fault::{Fault, FaultCode};
use model::id::{PlanId, RunId};
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::plan::{OnFailure, Params, RunType};
use model::run::{ENGINE_VERSION, Failure, Progress, Run, RunSpec, Workflow};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// More records mean that the kind distinguishes records that no decision depends on.
const MAX_RECORDS: usize = 20_000;

/// The name of the empty event.
const AT_ONCE: &str = "at once";

/// An event between two turns: its name, the record after it, and the input of the turn.
pub struct LifecycleEvent<R: Lifecycle> {
    pub name: &'static str,
    pub record: R,
    pub context: R::TurnInput,
}

/// A lifecycle that can be explored.
pub trait Explore: Lifecycle + fmt::Debug {
    /// The title and the introduction of its page.
    const TITLE: &'static str;
    const ABOUT: &'static str;
    /// The states without an exit.
    const FINAL: &'static [&'static str] = &[];

    fn fresh() -> Self;
    /// All events in the current state: requests, other objects and its own run. The first is
    /// always the empty event.
    fn events(&self) -> Vec<LifecycleEvent<Self>>;
    /// Advice to an operator in this state.
    fn advice(&self) -> &'static str;
    /// The history message of the last transition, if it was not made in the record's own turn.
    fn last_message(&self) -> String {
        String::new()
    }
}

/// A transition between two states.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: String,
    /// None: the record is removed.
    pub to: Option<String>,
    /// The events that cause it.
    pub when: BTreeSet<String>,
    /// The history message.
    pub message: String,
}

/// A state on the page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateEntry {
    pub state: String,
    /// Texts that say what the record waits for in this state.
    pub waits: BTreeSet<String>,
    pub advice: String,
}

/// A lifecycle as shown on its page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chart {
    pub title: String,
    pub about: String,
    pub begins: String,
    pub states: Vec<StateEntry>,
    pub edges: Vec<Edge>,
}

/// Source, destination, and history message.
type Transition = (String, Option<String>, String);

/// The working state of an exploration.
struct Walk<R> {
    records: Vec<R>,
    known: BTreeMap<String, usize>,
    queue: VecDeque<usize>,
    /// The successors of each record; the flag says that it can be removed.
    successors: Vec<(BTreeSet<usize>, bool)>,
    edges: BTreeMap<Transition, BTreeSet<String>>,
    waits: BTreeMap<String, BTreeSet<String>>,
}

/// Explores a kind. An error describes a mistake in its rules.
pub fn chart<R: Explore>() -> Result<Chart, String> {
    let mut walk = Walk {
        records: Vec::new(),
        known: BTreeMap::new(),
        queue: VecDeque::new(),
        successors: Vec::new(),
        edges: BTreeMap::new(),
        waits: BTreeMap::new(),
    };
    walk.add(R::fresh())?;
    while let Some(index) = walk.queue.pop_front() {
        let mut at_once = None;
        for (position, happening) in walk.records[index].events().into_iter().enumerate() {
            let to = walk.step(index, happening, at_once.as_ref())?;
            if position == 0 {
                at_once = to;
            }
        }
    }
    walk.check_exits()?;
    walk.drawn()
}

impl<R: Explore> Walk<R> {
    fn add(&mut self, record: R) -> Result<usize, String> {
        let key = format!("{record:?}");
        if let Some(index) = self.known.get(&key) {
            return Ok(*index);
        }
        let index = self.records.len();
        if index == MAX_RECORDS {
            return Err(format!("{} has more than {MAX_RECORDS} records", R::TITLE));
        }
        if !R::STATES.contains(&record.state_name()) {
            return Err(format!("{} is not among the states of {}", record.state_name(), R::TITLE));
        }
        self.known.insert(key, index);
        self.records.push(record);
        self.successors.push((BTreeSet::new(), false));
        self.queue.push_back(index);
        Ok(index)
    }

    /// One turn, and another one at the time it waits for. A transition that the record makes
    /// without the event (`at_once`) is not attributed to the event.
    fn step(
        &mut self,
        index: usize,
        happening: LifecycleEvent<R>,
        at_once: Option<&Transition>,
    ) -> Result<Option<Transition>, String> {
        let LifecycleEvent { name: what, record, context: observed } = happening;
        let now = Timestamp::default();
        match record.next(&observed, now) {
            LifecycleDecision::IdleUntil(at, why) => {
                self.rest(index, &record, why.0)?;
                let later = match what {
                    AT_ONCE => "the time has come".into(),
                    what => format!("{what}, and the time has come"),
                };
                match record.next(&observed, at) {
                    LifecycleDecision::Idle(_) | LifecycleDecision::IdleUntil(..) => Ok(None),
                    moves @ (LifecycleDecision::Transition(_) | LifecycleDecision::Remove(_)) => {
                        self.go(index, (&record, &later), moves, at_once)
                    }
                }
            }
            LifecycleDecision::Idle(why) => {
                self.rest(index, &record, why.0)?;
                self.moved(index, &record, what);
                Ok(None)
            }
            moves @ (LifecycleDecision::Transition(_) | LifecycleDecision::Remove(_)) => {
                self.go(index, (&record, what), moves, at_once)
            }
        }
    }

    fn rest(&mut self, index: usize, record: &R, why: String) -> Result<(), String> {
        self.waits.entry(record.state_name().into()).or_default().insert(without_run_ids(&why));
        let to = self.add(record.clone())?;
        self.successors[index].0.insert(to);
        Ok(())
    }

    /// The event itself was a transition, made by another component; the record's own turn has
    /// nothing to do.
    fn moved(&mut self, index: usize, record: &R, what: &str) {
        let from = self.records[index].state_name();
        if from != record.state_name() {
            let to = Some(record.state_name().to_string());
            let way = (from.to_string(), to, without_run_ids(&record.last_message()));
            self.edges.entry(way).or_default().insert(what.into());
        }
    }

    fn go(
        &mut self,
        index: usize,
        (from, when): (&R, &str),
        next: LifecycleDecision<R>,
        at_once: Option<&Transition>,
    ) -> Result<Option<Transition>, String> {
        let (to, message) = match next {
            LifecycleDecision::Transition(change) => {
                let (name, message) =
                    (change.record.state_name().to_string(), change.note.message.clone());
                let to = self.add(change.record)?;
                self.successors[index].0.insert(to);
                (Some(name), message)
            }
            LifecycleDecision::Remove(note) => {
                self.successors[index].1 = true;
                (None, note.message)
            }
            LifecycleDecision::Idle(_) | LifecycleDecision::IdleUntil(..) => return Ok(None),
        };
        let way = (from.state_name().to_string(), to, without_run_ids(&message));
        if at_once != Some(&way) {
            self.edges.entry(way.clone()).or_default().insert(when.into());
        }
        Ok(Some(way))
    }

    /// Checks that every state is reached, and that every record can reach another state or its
    /// removal.
    fn check_exits(&self) -> Result<(), String> {
        let reached: BTreeSet<&str> = self.records.iter().map(R::state_name).collect();
        if let Some(missing) = R::STATES.iter().find(|state| !reached.contains(*state)) {
            return Err(format!("nothing leads to {missing} of {}", R::TITLE));
        }
        for start in 0..self.records.len() {
            let record = &self.records[start];
            match (self.leads_out(start), R::FINAL.contains(&record.state_name())) {
                (true, false) | (false, true) => {}
                (false, false) => return Err(format!("no way out of {record:?}")),
                (true, true) => return Err(format!("a way out of the end {record:?}")),
            }
        }
        Ok(())
    }

    fn leads_out(&self, start: usize) -> bool {
        let name = self.records[start].state_name();
        let mut observed = BTreeSet::from([start]);
        let mut queue = VecDeque::from([start]);
        while let Some(index) = queue.pop_front() {
            let (ways, gone) = &self.successors[index];
            if *gone || self.records[index].state_name() != name {
                return true;
            }
            queue.extend(ways.iter().filter(|way| observed.insert(**way)));
        }
        false
    }

    fn drawn(self) -> Result<Chart, String> {
        let mut stays = Vec::new();
        for state in R::STATES {
            let found = self.records.iter().find(|record| record.state_name() == *state);
            let record = found.ok_or_else(|| format!("nothing leads to {state}"))?;
            stays.push(StateEntry {
                state: (*state).into(),
                waits: self.waits.get(*state).cloned().unwrap_or_default(),
                advice: record.advice().into(),
            });
        }
        let edge = |((from, to, text), when)| Edge { from, to, when, message: text };
        let mut edges: Vec<Edge> = self.edges.into_iter().map(edge).collect();
        let position = |state: &str| R::STATES.iter().position(|one| *one == state);
        edges.sort_by_key(|edge| {
            let to = edge.to.as_deref().map_or(Some(R::STATES.len()), position);
            (position(&edge.from), to, edge.message.clone())
        });
        Ok(Chart {
            title: R::TITLE.into(),
            about: R::ABOUT.into(),
            begins: R::fresh().state_name().into(),
            states: stays,
            edges,
        })
    }
}

/// The run that a device starts, and the run on its rack.
const OWN: &str = "op-own";
const RACK: &str = "op-rack";

/// Replaces the run ids, so that equal messages compare equal.
fn without_run_ids(message: &str) -> String {
    [OWN, RACK, "op-other"]
        .iter()
        .fold(message.to_string(), |message, id| message.replace(id, "op-…"))
}

/// A run without steps, in the given state.
fn run_in(id: &RunId, run_type: RunType, workflow: Workflow) -> Run {
    let spec = RunSpec {
        id: id.clone(),
        target: TargetId::new(TargetKind::Machine, "m-1"),
        request_id: "request".into(),
        run_type,
        plan_id: PlanId::trusted("plan"),
        steps: Vec::new(),
        params: Params::new(),
        initiator: "engine".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        parent_run: None,
        reports_to: None,
        held_targets: Vec::new(),
        engine_version: ENGINE_VERSION,
        created_at: Timestamp::default(),
    };
    let code = match workflow {
        Workflow::FailedManualIntervention => FaultCode::OutcomeUnknown,
        Workflow::Pending
        | Workflow::Running
        | Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::Cancelled
        | Workflow::Compensating
        | Workflow::Reconciled => FaultCode::EffectFailed,
    };
    let fault = Fault::new(code, "what the device said");
    let failure = Failure { fault, step: "its step".into(), attempts: 1 };
    let failure = workflow.failed().then_some(failure);
    Run { progress: Progress { workflow, failure, ..Progress::fresh(&[]) }, spec, version: 1 }
}

impl Chart {
    /// The page in Markdown.
    pub fn page(&self) -> String {
        let mut page = format!(
            "# {}\n\n<!-- Made by `cargo xtask states` from the lifecycle itself. Change the code, not this page. -->\n\n{}\n\n",
            self.title, self.about
        );
        page.push_str("```mermaid\nstateDiagram-v2\n");
        page.push_str(&format!("    [*] --> {}\n", self.begins));
        for ((from, to), when) in self.arrows() {
            let when = listed(&when, " / ");
            page.push_str(&format!("    {from} --> {to}: {when}\n"));
        }
        page.push_str("```\n\n## States\n\n");
        page.push_str(
            "| state | what it waits for there | what a person can do |\n|---|---|---|\n",
        );
        for StateEntry { state, waits, advice } in &self.states {
            let waits = match waits.is_empty() {
                true => "nothing: it moves on at once".into(),
                false => listed(waits, "; "),
            };
            page.push_str(&format!("| {state} | {} | {} |\n", cell(&waits), cell(advice)));
        }
        page.push_str("\n## Moves\n\n");
        self.push_moves(&mut page);
        page
    }

    fn push_moves(&self, page: &mut String) {
        let reported = self.edges.iter().any(|edge| !edge.message.is_empty());
        page.push_str(match reported {
            true => "| from | to | when | what its history says |\n|---|---|---|---|\n",
            false => "| from | to | when |\n|---|---|---|\n",
        });
        for edge in &self.edges {
            let to = edge.to.as_deref().unwrap_or("(gone)");
            let when = cell(&listed(&edge.when, "; "));
            page.push_str(&format!("| {} | {to} | {when} |", edge.from));
            page.push_str(&if reported {
                format!(" {} |\n", cell(&edge.message))
            } else {
                "\n".into()
            });
        }
    }

    /// The arrows of the diagram, one per pair of states.
    fn arrows(&self) -> Vec<((String, String), BTreeSet<String>)> {
        let mut arrows: Vec<((String, String), BTreeSet<String>)> = Vec::new();
        for edge in &self.edges {
            let pair = (edge.from.clone(), edge.to.clone().unwrap_or_else(|| "[*]".into()));
            match arrows.iter_mut().find(|(known, _)| *known == pair) {
                Some((_, when)) => when.extend(edge.when.iter().cloned()),
                None => arrows.push((pair, edge.when.clone())),
            }
        }
        arrows
    }
}

fn listed(all: &BTreeSet<String>, between: &str) -> String {
    all.iter().map(String::as_str).collect::<Vec<_>>().join(between)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::here;
    use model::lifecycle::{IdleReason, LifecycleChange, RecordHeader, SubjectKind};
    use model::machine::Labels;
    use model::run::HistoryNote;
    use serde::{Deserialize, Serialize};
    use std::time::Duration;

    /// A mistake in the lifecycle under test.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    enum Mistake {
        None,
        NoWayOut,
        Unreached,
        Unknown,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    struct Lamp<const MISTAKE: u8> {
        head: RecordHeader,
        lit: bool,
    }

    impl<const MISTAKE: u8> Lamp<MISTAKE> {
        fn mistake() -> Mistake {
            match MISTAKE {
                0 => Mistake::None,
                1 => Mistake::NoWayOut,
                2 => Mistake::Unreached,
                _ => Mistake::Unknown,
            }
        }
    }

    impl<const MISTAKE: u8> Lifecycle for Lamp<MISTAKE> {
        const KIND: SubjectKind = SubjectKind::Rack;
        const STATES: &'static [&'static str] = &["Dark", "Lit"];
        type TurnInput = ();

        fn head(&self) -> &RecordHeader {
            &self.head
        }

        fn head_mut(&mut self) -> &mut RecordHeader {
            &mut self.head
        }

        fn state_name(&self) -> &'static str {
            match (self.lit, Self::mistake()) {
                (false, _) => "Dark",
                (true, Mistake::Unknown) => "Blinking",
                (true, Mistake::None | Mistake::NoWayOut | Mistake::Unreached) => "Lit",
            }
        }

        fn next(&self, (): &(), now: Timestamp) -> LifecycleDecision<Self> {
            let night = Timestamp::default() + Duration::from_secs(60);
            match (self.lit, Self::mistake()) {
                (false, Mistake::Unreached) => {
                    LifecycleDecision::Remove(HistoryNote::new("broken", here!()))
                }
                (false, _) if now < night => {
                    LifecycleDecision::IdleUntil(night, IdleReason::new("it is day"))
                }
                (false, _) => {
                    let lit = Self { lit: true, ..self.clone() };
                    LifecycleDecision::Transition(Box::new(LifecycleChange::new(
                        lit,
                        HistoryNote::new("night falls", here!()),
                    )))
                }
                (true, Mistake::NoWayOut) => {
                    LifecycleDecision::Idle(IdleReason::new("it burns for ever"))
                }
                (true, _) => LifecycleDecision::Remove(HistoryNote::new("burnt out", here!())),
            }
        }
    }

    impl<const MISTAKE: u8> Explore for Lamp<MISTAKE> {
        const TITLE: &'static str = "The states of a lamp";
        const ABOUT: &'static str = "It gives light.";

        fn fresh() -> Self {
            let head = RecordHeader::new("lamp", Labels::new(), Timestamp::default());
            Self { head, lit: false }
        }

        fn events(&self) -> Vec<LifecycleEvent<Self>> {
            vec![LifecycleEvent { name: AT_ONCE, record: self.clone(), context: () }]
        }

        fn advice(&self) -> &'static str {
            "wait"
        }
    }

    #[test]
    fn a_sound_lifecycle_is_drawn_and_mistakes_are_named() {
        let page = chart::<Lamp<0>>().unwrap().page();
        for line in [
            "    [*] --> Dark\n",
            "    Dark --> Lit: the time has come\n",
            "    Lit --> [*]: at once\n",
            "| Dark | it is day | wait |\n",
            "| Dark | Lit | the time has come | night falls |\n",
            "| Lit | (gone) | at once | burnt out |\n",
        ] {
            assert!(page.contains(line), "{line:?} is not in\n{page}");
        }
        for (wrong, message) in [
            (chart::<Lamp<1>>(), "no way out of Lamp"),
            (chart::<Lamp<2>>(), "nothing leads to Lit"),
            (chart::<Lamp<3>>(), "Blinking is not among the states"),
        ] {
            let wrong = wrong.unwrap_err();
            assert!(wrong.starts_with(message), "{wrong}");
        }
    }
}
