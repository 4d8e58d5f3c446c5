//! Explores a lifecycle: every reachable record, under every event.
//!
//! A lifecycle is a pure function, so it can be called for every state. The walk starts with a new
//! record and applies every event that [`Explore::happens`] lists, breadth first. It proves that
//! every state is reachable and that none is a dead end. The pages in `docs/states` are generated
//! from it, so they always agree with the code.

mod devices;
mod host;
mod node;
mod rack;
mod site;

use model::fault::{Code, Fault};
use model::id::{PlanId, RunId};
use model::lifecycle::{Lifecycle, Next};
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
pub struct Happening<R: Lifecycle> {
    pub what: &'static str,
    pub record: R,
    pub seen: R::Seen,
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
    fn happens(&self) -> Vec<Happening<Self>>;
    /// What an operator can do in this state.
    fn advice(&self) -> &'static str;
    /// The history message of the last transition, if it was not made in the record's own turn.
    fn said(&self) -> String {
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
    pub said: String,
}

/// A state on the page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stay {
    pub state: String,
    /// What the record waits for in this state.
    pub waits: BTreeSet<String>,
    pub advice: String,
}

/// A lifecycle as shown on its page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chart {
    pub title: String,
    pub about: String,
    pub begins: String,
    pub stays: Vec<Stay>,
    pub edges: Vec<Edge>,
}

/// Source, destination, and history message.
type Way = (String, Option<String>, String);

/// The working state of an exploration.
struct Walk<R> {
    records: Vec<R>,
    known: BTreeMap<String, usize>,
    queue: VecDeque<usize>,
    /// The successors of each record; the flag says that it can be removed.
    ways: Vec<(BTreeSet<usize>, bool)>,
    edges: BTreeMap<Way, BTreeSet<String>>,
    waits: BTreeMap<String, BTreeSet<String>>,
}

/// Explores a kind. An error describes a mistake in its rules.
pub fn chart<R: Explore>() -> Result<Chart, String> {
    let mut walk = Walk {
        records: Vec::new(),
        known: BTreeMap::new(),
        queue: VecDeque::new(),
        ways: Vec::new(),
        edges: BTreeMap::new(),
        waits: BTreeMap::new(),
    };
    walk.add(R::fresh())?;
    while let Some(index) = walk.queue.pop_front() {
        let mut at_once = None;
        for (place, happening) in walk.records[index].happens().into_iter().enumerate() {
            let to = walk.step(index, happening, at_once.as_ref())?;
            if place == 0 {
                at_once = to;
            }
        }
    }
    walk.check_ways_out()?;
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
        if !R::STATES.contains(&record.word()) {
            return Err(format!("{} is not among the states of {}", record.word(), R::TITLE));
        }
        self.known.insert(key, index);
        self.records.push(record);
        self.ways.push((BTreeSet::new(), false));
        self.queue.push_back(index);
        Ok(index)
    }

    /// One turn, and another one at the time it waits for. A transition that the record makes
    /// without the event (`at_once`) is not attributed to the event.
    fn step(
        &mut self,
        index: usize,
        happening: Happening<R>,
        at_once: Option<&Way>,
    ) -> Result<Option<Way>, String> {
        let Happening { what, record, seen } = happening;
        let now = Timestamp::default();
        match record.next(&seen, now) {
            Next::Until(at, why) => {
                self.rest(index, &record, why.0)?;
                let later = match what {
                    AT_ONCE => "the time has come".into(),
                    what => format!("{what}, and the time has come"),
                };
                match record.next(&seen, at) {
                    Next::Rest(_) | Next::Until(..) => Ok(None),
                    moves @ (Next::Become(_) | Next::Remove(_)) => {
                        self.go(index, (&record, &later), moves, at_once)
                    }
                }
            }
            Next::Rest(why) => {
                self.rest(index, &record, why.0)?;
                self.moved(index, &record, what);
                Ok(None)
            }
            moves @ (Next::Become(_) | Next::Remove(_)) => {
                self.go(index, (&record, what), moves, at_once)
            }
        }
    }

    fn rest(&mut self, index: usize, record: &R, why: String) -> Result<(), String> {
        self.waits.entry(record.word().into()).or_default().insert(nameless(&why));
        let to = self.add(record.clone())?;
        self.ways[index].0.insert(to);
        Ok(())
    }

    /// The event itself was a transition, made by another component; the record's own turn has
    /// nothing to do.
    fn moved(&mut self, index: usize, record: &R, what: &str) {
        let from = self.records[index].word();
        if from != record.word() {
            let to = Some(record.word().to_string());
            let way = (from.to_string(), to, nameless(&record.said()));
            self.edges.entry(way).or_default().insert(what.into());
        }
    }

    fn go(
        &mut self,
        index: usize,
        (from, when): (&R, &str),
        next: Next<R>,
        at_once: Option<&Way>,
    ) -> Result<Option<Way>, String> {
        let (to, said) = match next {
            Next::Become(change) => {
                let (word, said) = (change.record.word().to_string(), change.note.said.clone());
                let to = self.add(change.record)?;
                self.ways[index].0.insert(to);
                (Some(word), said)
            }
            Next::Remove(note) => {
                self.ways[index].1 = true;
                (None, note.said)
            }
            Next::Rest(_) | Next::Until(..) => return Ok(None),
        };
        let way = (from.word().to_string(), to, nameless(&said));
        if at_once != Some(&way) {
            self.edges.entry(way.clone()).or_default().insert(when.into());
        }
        Ok(Some(way))
    }

    /// Checks that every state is reached, and that every record can reach another state or its
    /// removal.
    fn check_ways_out(&self) -> Result<(), String> {
        let reached: BTreeSet<&str> = self.records.iter().map(R::word).collect();
        if let Some(missing) = R::STATES.iter().find(|state| !reached.contains(*state)) {
            return Err(format!("nothing leads to {missing} of {}", R::TITLE));
        }
        for start in 0..self.records.len() {
            let record = &self.records[start];
            match (self.leads_out(start), R::FINAL.contains(&record.word())) {
                (true, false) | (false, true) => {}
                (false, false) => return Err(format!("no way out of {record:?}")),
                (true, true) => return Err(format!("a way out of the end {record:?}")),
            }
        }
        Ok(())
    }

    fn leads_out(&self, start: usize) -> bool {
        let word = self.records[start].word();
        let mut seen = BTreeSet::from([start]);
        let mut queue = VecDeque::from([start]);
        while let Some(index) = queue.pop_front() {
            let (ways, gone) = &self.ways[index];
            if *gone || self.records[index].word() != word {
                return true;
            }
            queue.extend(ways.iter().filter(|way| seen.insert(**way)));
        }
        false
    }

    fn drawn(self) -> Result<Chart, String> {
        let mut stays = Vec::new();
        for state in R::STATES {
            let found = self.records.iter().find(|record| record.word() == *state);
            let record = found.ok_or_else(|| format!("nothing leads to {state}"))?;
            stays.push(Stay {
                state: (*state).into(),
                waits: self.waits.get(*state).cloned().unwrap_or_default(),
                advice: record.advice().into(),
            });
        }
        let edge = |((from, to, said), when)| Edge { from, to, when, said };
        let mut edges: Vec<Edge> = self.edges.into_iter().map(edge).collect();
        let place = |state: &str| R::STATES.iter().position(|one| *one == state);
        edges.sort_by_key(|edge| {
            let to = edge.to.as_deref().map_or(Some(R::STATES.len()), place);
            (place(&edge.from), to, edge.said.clone())
        });
        Ok(Chart {
            title: R::TITLE.into(),
            about: R::ABOUT.into(),
            begins: R::fresh().word().into(),
            stays,
            edges,
        })
    }
}

/// The run that a device starts, and the run on its rack.
const OWN: &str = "op-own";
const RACK: &str = "op-rack";

/// Replaces the run ids, so that equal messages compare equal.
fn nameless(said: &str) -> String {
    [OWN, RACK, "op-other"].iter().fold(said.to_string(), |said, id| said.replace(id, "op-…"))
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
        parent: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        part_of: None,
        reports_to: None,
        claims: Vec::new(),
        engine: ENGINE_VERSION,
        created_at: Timestamp::default(),
    };
    let code = match workflow {
        Workflow::FailedManualIntervention => Code::OutcomeUnknown,
        Workflow::Pending
        | Workflow::Running
        | Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::Cancelled
        | Workflow::Compensating
        | Workflow::Reconciled => Code::EffectFailed,
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
        for Stay { state, waits, advice } in &self.stays {
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
        let told = self.edges.iter().any(|edge| !edge.said.is_empty());
        page.push_str(match told {
            true => "| from | to | when | what its history says |\n|---|---|---|---|\n",
            false => "| from | to | when |\n|---|---|---|\n",
        });
        for edge in &self.edges {
            let to = edge.to.as_deref().unwrap_or("(gone)");
            let when = cell(&listed(&edge.when, "; "));
            page.push_str(&format!("| {} | {to} | {when} |", edge.from));
            page.push_str(&if told { format!(" {} |\n", cell(&edge.said)) } else { "\n".into() });
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
    use model::lifecycle::{Change, Head, SubjectKind, Why};
    use model::machine::Labels;
    use model::run::Note;
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
        head: Head,
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
        type Seen = ();

        fn head(&self) -> &Head {
            &self.head
        }

        fn head_mut(&mut self) -> &mut Head {
            &mut self.head
        }

        fn word(&self) -> &'static str {
            match (self.lit, Self::mistake()) {
                (false, _) => "Dark",
                (true, Mistake::Unknown) => "Blinking",
                (true, Mistake::None | Mistake::NoWayOut | Mistake::Unreached) => "Lit",
            }
        }

        fn next(&self, (): &(), now: Timestamp) -> Next<Self> {
            let night = Timestamp::default() + Duration::from_secs(60);
            match (self.lit, Self::mistake()) {
                (false, Mistake::Unreached) => Next::Remove(Note::new("broken", here!())),
                (false, _) if now < night => Next::Until(night, Why::new("it is day")),
                (false, _) => {
                    let lit = Self { lit: true, ..self.clone() };
                    Next::Become(Box::new(Change::new(lit, Note::new("night falls", here!()))))
                }
                (true, Mistake::NoWayOut) => Next::Rest(Why::new("it burns for ever")),
                (true, _) => Next::Remove(Note::new("burnt out", here!())),
            }
        }
    }

    impl<const MISTAKE: u8> Explore for Lamp<MISTAKE> {
        const TITLE: &'static str = "The states of a lamp";
        const ABOUT: &'static str = "It gives light.";

        fn fresh() -> Self {
            let head = Head::new("lamp", Labels::new(), Timestamp::default());
            Self { head, lit: false }
        }

        fn happens(&self) -> Vec<Happening<Self>> {
            vec![Happening { what: AT_ONCE, record: self.clone(), seen: () }]
        }

        fn advice(&self) -> &'static str {
            "wait"
        }
    }

    #[test]
    fn what_is_sound_is_drawn_and_what_is_not_is_named() {
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
        for (wrong, said) in [
            (chart::<Lamp<1>>(), "no way out of Lamp"),
            (chart::<Lamp<2>>(), "nothing leads to Lit"),
            (chart::<Lamp<3>>(), "Blinking is not among the states"),
        ] {
            let wrong = wrong.unwrap_err();
            assert!(wrong.starts_with(said), "{wrong}");
        }
    }
}
