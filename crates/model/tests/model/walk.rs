//! Every reachable state of a run, under every event.
//!
//! The walk starts with a new run and applies, breadth first: every answer and every class of fault
//! to every provider call, every interruption, every takeover, and every operator action at every
//! point, early and late. States are distinguished by their shape: times and counts are reduced to
//! what decisions depend on, so the walk ends. The rules that must hold are in `invariants`.

use crate::invariants::{Past, check_ended, check_open, check_refused};
use crate::support::{TIMEOUT_SECONDS, at, drain, join, netboot, note, power_off, spec, who, wipe};
use model::effect::{Answer, Outcome, Verb};
use model::fault::{Class, Code, Fault};
use model::plan::RunStep;
use model::run::act::{Acted, Action, RestartMode, act, restart};
use model::run::{
    Decision, Given, HaltKind, Policy, Progress, Run, StepPhase, StepState, Then, Workflow, decide,
};
use model::time::Timestamp;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// How many status calls may fail in a row; the walk skips those in the middle.
const MAX_LOOKS: u32 = 8;

const SOON: Duration = Duration::from_millis(1);
/// Longer than any backoff.
pub const PAST_WAITS: Duration = Duration::from_secs(61);
/// Longer than any step timeout.
const PAST_DEADLINE: Duration = Duration::from_secs(2 * TIMEOUT_SECONDS as u64);

/// One fault of each class and of each `Happened`, and those that the rules treat specially.
const FAULTS: [Code; 9] = [
    Code::BmcUnreachable,
    Code::EffectFailed,
    Code::AnswerLost,
    Code::StepTimeout,
    Code::OutcomeUnknown,
    Code::ProviderMissing,
    Code::CapabilityMissing,
    Code::WorkerPanicked,
    Code::RecordUnreadable,
];

/// An event for a stored run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Answered(Result<Answer, Fault>),
    Interrupted,
    /// The worker crashed during a provider call.
    TakenOver,
    /// The run is due, or was woken, without an open provider call.
    Due,
    Acted(Action),
}

impl Input {
    fn word(&self) -> &'static str {
        match self {
            Self::Answered(Ok(_)) => "the device answers",
            Self::Answered(Err(_)) => "the order fails",
            Self::Interrupted => "its work is interrupted",
            Self::TakenOver => "its worker dies and another takes over",
            Self::Due => "a worker takes it",
            Self::Acted(Action::Cancel) => "cancel",
            Self::Acted(Action::RetryStep) => "retry-step",
            Self::Acted(Action::Resume) => "resume",
            Self::Acted(Action::Adopt) => "adopt",
            Self::Acted(Action::MarkManual) => "mark-manual",
        }
    }
}

#[derive(Clone)]
struct Node {
    run: Run,
    past: Past,
    now: Timestamp,
    epoch: i64,
}

/// What distinguishes two states: everything that decisions depend on. The fault that ended a run,
/// and whether a step was adopted, do not count; the rules about them are checked at every
/// transition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shape {
    workflow: Workflow,
    at: usize,
    scan: Option<usize>,
    halt: Option<(bool, bool)>,
    started: bool,
    steps: Vec<StepShape>,
    past: Option<Past>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StepShape {
    of: usize,
    undo: bool,
    state: StepPhase,
    begun: bool,
    /// Properties that matter only for the current step.
    live: Option<LiveShape>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LiveShape {
    left: u32,
    open: bool,
    pursuit: Verb,
    asked: Option<Verb>,
    /// Set while the outcome is uncertain: whether a retry is allowed.
    doubt: Option<bool>,
    looks: u32,
    waits: bool,
    late: bool,
}

fn shape(node: &Node) -> Shape {
    let progress = &node.run.progress;
    let in_hand = progress.scan.unwrap_or(progress.at);
    let over = node.run.ended() && !progress.workflow.failed();
    let live = |step: &StepState| LiveShape {
        left: step.budget.saturating_sub(step.attempt),
        open: step.open,
        pursuit: step.pursuit,
        asked: step.asked.as_ref().map(|asked| asked.verb),
        doubt: step.doubt.as_ref().map(|fault| fault.class() == Class::Retryable),
        looks: step.looks,
        waits: step.not_before.is_some(),
        late: step.open && is_late(step, node.now),
    };
    let steps = progress.steps.iter().enumerate();
    Shape {
        workflow: progress.workflow,
        at: progress.at,
        scan: progress.scan,
        halt: progress.halt.as_ref().map(|halt| (halt.kind == HaltKind::Cancel, halt.undoing)),
        started: progress.started_at.is_some(),
        steps: steps
            .map(|(index, step)| StepShape {
                of: step.of,
                undo: step.undo,
                state: step.state,
                begun: !step.undo && step.attempt > 0,
                live: (index == in_hand && !over).then(|| live(step)),
            })
            .collect(),
        past: (!over).then(|| node.past.relative_to(&node.run)),
    }
}

fn is_late(step: &StepState, now: Timestamp) -> bool {
    now >= step.attempt_since + Duration::from_secs(TIMEOUT_SECONDS.into())
}

/// Worst-case worlds, to prove that every run ends all the same.
#[derive(Debug, Clone, Copy)]
enum Bleak {
    /// No call is ever answered.
    Silent,
    /// Everything that was started stays in progress for ever.
    Endless,
}

impl Bleak {
    fn input(self, run: &Run) -> Input {
        let lost = || Input::Answered(Err(Fault::new(Code::StepTimeout, "as told")));
        match (self, run.open_order().map(|(_, verb)| verb)) {
            (_, None) => Input::Due,
            (Self::Silent, Some(_)) => lost(),
            (Self::Endless, Some(Verb::GetStatus)) => Input::Answered(Ok(Answer::UnderWay)),
            (Self::Endless, Some(Verb::Perform | Verb::Follow | Verb::Observe | Verb::Stop)) => {
                lost()
            }
        }
    }
}

/// Source, destination, event, and the open stop request: cancel (true) or freeze (false).
pub type WorkflowMove = (&'static str, &'static str, &'static str, Option<bool>);

/// All states of the runs of one plan.
struct Walk {
    nodes: Vec<Node>,
    /// How each state was first reached.
    from: Vec<Option<(usize, String)>>,
    edges: Vec<Vec<usize>>,
    /// The successor of each state in each worst-case world.
    bleak: Vec<[Option<usize>; 2]>,
    known: HashMap<Shape, usize>,
    /// The transitions between workflow states.
    moves: BTreeSet<WorkflowMove>,
    queue: VecDeque<usize>,
}

impl Walk {
    fn new() -> Self {
        Self {
            nodes: Vec::new(),
            from: Vec::new(),
            edges: Vec::new(),
            bleak: Vec::new(),
            known: HashMap::new(),
            moves: BTreeSet::new(),
            queue: VecDeque::new(),
        }
    }

    /// Starts with a run as a request creates it.
    fn root(&mut self, run: Run, from: Option<(usize, String)>) {
        let past = Past::new(&run);
        self.add(Node { run, past, now: at(0), epoch: 1 }, || from);
    }

    fn add(&mut self, node: Node, from: impl FnOnce() -> Option<(usize, String)>) -> usize {
        let shape = shape(&node);
        if let Some(index) = self.known.get(&shape) {
            return *index;
        }
        let index = self.nodes.len();
        self.known.insert(shape, index);
        self.nodes.push(node);
        self.from.push(from());
        self.edges.push(Vec::new());
        self.bleak.push([None, None]);
        self.queue.push_back(index);
        index
    }

    fn explore(&mut self) {
        while let Some(index) = self.queue.pop_front() {
            for (input, wait) in inputs(&self.nodes[index].run) {
                let label = || format!("{input:?} after {wait:?}");
                let said = || format!("{}\n  {}", self.story(index), label());
                let Some(next) = self.nodes[index].after(&input, wait, &said) else { continue };
                let from = &self.nodes[index].run.progress;
                let halt = from.halt.as_ref().map(|halt| halt.kind == HaltKind::Cancel);
                let to = next.run.progress.workflow.as_str();
                self.moves.insert((from.workflow.as_str(), to, input.word(), halt));
                let target = self.add(next, || Some((index, label())));
                self.edges[index].push(target);
            }
            for (world, bleak) in [Bleak::Silent, Bleak::Endless].into_iter().enumerate() {
                let node = &self.nodes[index];
                if node.run.ended() {
                    continue;
                }
                let input = bleak.input(&node.run);
                let label = || format!("{bleak:?}: {input:?}");
                let said = || format!("{}\n  {}", self.story(index), label());
                let next = node.after(&input, PAST_DEADLINE, &said).expect("it was decided");
                let target = self.add(next, || Some((index, label())));
                self.bleak[index][world] = Some(target);
                self.edges[index].push(target);
            }
        }
    }

    /// Explores the runs derived from ended ones, until there are no new states.
    fn explore_again(&mut self) {
        let mut seen = 0;
        while seen < self.nodes.len() {
            let new = seen..self.nodes.len();
            seen = self.nodes.len();
            for index in new {
                for how in [RestartMode::Rerun, RestartMode::RestartClean] {
                    let run = &self.nodes[index].run;
                    if let Ok(progress) = restart(run, how) {
                        let run = Run { spec: run.spec.clone(), progress, version: 1 };
                        self.root(run, Some((index, format!("{how:?}"))));
                    }
                }
            }
            self.explore();
        }
    }

    /// The path to a state, for diagnosis.
    fn story(&self, index: usize) -> String {
        let mut lines = vec![format!("{:#?}", self.nodes[index].run.progress)];
        let mut at = index;
        while let Some((parent, label)) = &self.from[at] {
            lines.push(format!("  {label}"));
            at = *parent;
        }
        lines.reverse();
        lines.join("\n")
    }

    /// Every state has an exit, and in no worst-case world does a run last for ever.
    fn check_ends(&self) {
        let mut back = vec![Vec::new(); self.nodes.len()];
        for (index, targets) in self.edges.iter().enumerate() {
            targets.iter().for_each(|target| back[*target].push(index));
        }
        let ended = |index: &usize| self.nodes[*index].run.ended();
        let mut leads_out = vec![false; self.nodes.len()];
        let mut queue: Vec<usize> = (0..self.nodes.len()).filter(ended).collect();
        while let Some(index) = queue.pop() {
            if !std::mem::replace(&mut leads_out[index], true) {
                queue.extend(&back[index]);
            }
        }
        if let Some(stuck) = leads_out.iter().position(|out| !out) {
            panic!("no way out of\n{}", self.story(stuck));
        }
        for world in 0..2 {
            let mut ends = vec![false; self.nodes.len()];
            for start in 0..self.nodes.len() {
                let mut path = Vec::new();
                let mut at = start;
                while let Some(next) = self.bleak[at][world].filter(|_| !ends[at]) {
                    path.push(at);
                    assert!(path.len() < 1_000, "it never ends from\n{}", self.story(start));
                    at = next;
                }
                path.into_iter().for_each(|index| ends[index] = true);
            }
        }
    }
}

/// All events for a stored run.
pub fn inputs(run: &Run) -> Vec<(Input, Duration)> {
    let mut all: Vec<_> = Action::ALL.iter().map(|one| (Input::Acted(*one), SOON)).collect();
    if run.ended() {
        return all;
    }
    let Some((_, verb)) = run.open_order() else {
        all.extend([SOON, PAST_WAITS, PAST_DEADLINE].map(|wait| (Input::Due, wait)));
        return all;
    };
    let answers = [
        Answer::Done(Outcome::default()),
        Answer::UnderWay,
        Answer::NeverStarted,
        Answer::Unknown("?".into()),
        Answer::Differs("other".into()),
        Answer::Stopped,
    ];
    let answers = answers.into_iter().map(Ok);
    let faults = FAULTS.into_iter().map(|code| Err(Fault::new(code, "as told")));
    for result in answers.chain(faults) {
        let late = matches!(&result, Ok(Answer::UnderWay | Answer::NeverStarted))
            || matches!(&result, Err(fault) if fault.code == Code::StepTimeout);
        if late {
            all.push((Input::Answered(result.clone()), PAST_DEADLINE));
        }
        all.push((Input::Answered(result), SOON));
    }
    all.push((Input::TakenOver, PAST_WAITS));
    if run.progress.halting() && matches!(verb, Verb::Perform | Verb::Follow) {
        all.push((Input::Interrupted, SOON));
    }
    all
}

impl Node {
    /// The state after an event, checked; none when the event changes nothing.
    fn after(&self, input: &Input, wait: Duration, said: &dyn Fn() -> String) -> Option<Self> {
        let now = self.now + wait;
        let mut past = self.past.clone();
        let (run, then, epoch) = match input {
            Input::Acted(action) => {
                let progress = self.acted(*action, &mut past, now, said)?;
                (Run { progress, ..self.run.clone() }, None, self.epoch)
            }
            Input::Answered(result) => {
                let (_, verb) = self.run.open_order()?;
                past.answered(&self.run, verb, result);
                let given = Given::Answered(verb, result.clone());
                self.decided(Some(&given), self.epoch, now, said)
            }
            Input::Interrupted => {
                past.lost(&self.run);
                self.decided(Some(&Given::Interrupted), self.epoch, now, said)
            }
            Input::TakenOver => {
                past.lost(&self.run);
                self.decided(None, self.epoch + 1, now, said)
            }
            Input::Due => self.decided(None, self.epoch, now, said),
        };
        if let Some(Then::Ask(order, timeout)) = &then {
            past.asked(&run, order, *timeout, said);
        }
        past.moved(&run, said);
        match (&then, run.ended()) {
            (_, true) => check_ended(&run, &past, said),
            (then, false) => check_open(&run, then.as_ref(), now, said),
        }
        let mut next = Self { run, past, now, epoch };
        skip_the_middle_looks(&mut next.run);
        Some(next)
    }

    fn acted(
        &self,
        action: Action,
        past: &mut Past,
        now: Timestamp,
        said: &dyn Fn() -> String,
    ) -> Option<Progress> {
        match act(&self.run, action, &who(), now) {
            Ok(Acted::Already) => None,
            Ok(Acted::Told(progress, _) | Acted::Changed(progress, _)) => {
                past.told(&self.run, action);
                Some(progress)
            }
            Ok(Acted::Reopened(progress, _)) => {
                past.reopened(&self.run, action);
                Some(progress)
            }
            Err(refusal) => {
                check_refused(&self.run, action, &refusal, said);
                None
            }
        }
    }

    fn decided(
        &self,
        given: Option<&Given>,
        epoch: i64,
        now: Timestamp,
        said: &dyn Fn() -> String,
    ) -> (Run, Option<Then>, i64) {
        let Decision { run, notes, then, .. } =
            decide(&self.run, epoch, given, Policy::default(), now);
        assert!(notes.len() < 40, "it goes round and round: {notes:#?}\n{}", said());
        let asked = run.progress.current().and_then(|step| step.asked.as_ref());
        assert!(asked.is_none_or(|asked| asked.epoch == epoch), "{}", said());
        (run, Some(then), epoch)
    }
}

/// Repeated failed status calls reach the limit eventually; those in between differ only in their
/// count.
pub fn skip_the_middle_looks(run: &mut Run) {
    for step in &mut run.progress.steps {
        if step.looks > 1 {
            step.looks = MAX_LOOKS - 1;
        }
    }
}

fn walk(steps: Vec<RunStep>) -> Walk {
    let mut walk = Walk::new();
    walk.root(Run::new(spec(steps)), None);
    walk.explore();
    walk
}

/// Every state of the runs of a plan, with the time at which it was reached.
pub fn states(steps: Vec<RunStep>) -> Vec<(Run, Timestamp)> {
    let mut walk = walk(steps);
    walk.explore_again();
    walk.nodes.into_iter().map(|node| (node.run, node.now)).collect()
}

/// The transitions between workflow states, and every state of the runs of the plan.
pub fn moves(steps: Vec<RunStep>) -> (BTreeSet<WorkflowMove>, Vec<(Run, Timestamp)>) {
    let walk = walk(steps);
    let states = walk.nodes.into_iter().map(|node| (node.run, node.now)).collect();
    (walk.moves, states)
}

fn workflows(walk: &Walk) -> Vec<Workflow> {
    let reached = |flow: &Workflow| walk.nodes.iter().any(|one| one.run.progress.workflow == *flow);
    Workflow::ALL.into_iter().filter(reached).collect()
}

/// Walks one plan, with derived runs if `again`, and asserts that the walk was not cut short.
fn walks(steps: Vec<RunStep>, again: bool, at_least: usize) {
    let names: Vec<_> =
        steps.iter().map(|one| format!("{}x{}", one.name, 1 + one.max_retries)).collect();
    let undone = steps.iter().any(|one| one.effect.undo().is_some());
    let mut walk = walk(steps);
    if again {
        walk.explore_again();
    }
    walk.check_ends();
    let edges: usize = walk.edges.iter().map(Vec::len).sum();
    println!("{names:?}: {} states, {edges} transitions", walk.nodes.len());
    assert!(walk.nodes.len() >= at_least, "{names:?}: only {} states", walk.nodes.len());
    let expected: Vec<_> = Workflow::ALL
        .into_iter()
        .filter(|flow| undone || *flow != Workflow::Compensating)
        .collect();
    assert_eq!(workflows(&walk), expected, "{names:?}");
    for verb in Verb::ALL {
        let asked = |one: &Node| one.run.open_order().is_some_and(|(_, asked)| asked == verb);
        assert!(walk.nodes.iter().any(asked), "{names:?}: never {verb:?}");
    }
}

#[test]
fn one_destructive_step_without_retries() {
    walks(vec![wipe(0)], true, 1_900);
}

#[test]
fn one_destructive_step_with_a_retry() {
    walks(vec![wipe(1)], true, 2_200);
}

#[test]
fn one_harmless_step_with_a_retry() {
    walks(vec![note(1)], true, 1_900);
}

#[test]
fn one_step_that_can_be_undone() {
    walks(vec![netboot(0)], true, 11_000);
}

#[test]
fn an_undoable_step_before_a_destructive_one() {
    walks(vec![netboot(1), wipe(0)], true, 30_000);
}

#[test]
fn a_destructive_step_before_an_undoable_one() {
    walks(vec![wipe(1), join(0)], true, 25_000);
}

#[test]
fn three_steps_two_of_which_can_be_undone() {
    walks(vec![netboot(0), wipe(1), join(1)], false, 40_000);
}

#[test]
fn three_steps_of_which_the_last_is_harmless() {
    walks(vec![join(1), wipe(0), note(0)], false, 25_000);
}

#[test]
fn a_drain_before_the_power_is_cut() {
    walks(vec![drain(1), power_off(0)], true, 30_000);
}
