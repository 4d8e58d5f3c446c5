//! Every reachable state of a run, under every event.
//!
//! The walk starts with a new run and applies, breadth first: every answer and every class of fault
//! to every provider call, every interruption, every takeover, and every operator action at every
//! point, early and late. States are distinguished by their shape: times and counts are reduced to
//! what decisions depend on, so the walk ends. The rules that must hold are in `invariants`.

use crate::invariants::{RunObserver, check_ended, check_open, check_refused};
use crate::support::{TIMEOUT_SECONDS, at, drain, join, netboot, note, power_off, spec, who, wipe};
use model::effect::{CallOutcome, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultClass, FaultCode};
use model::plan::RunStep;
use model::run::actions::{Action, ActionResult, RestartMode, apply_action, restart};
use model::run::{
    AfterCommit, CallResult, Decision, Policy, Progress, Run, StepPhase, StepState, StopKind,
    Workflow, decide,
};
use model::time::Timestamp;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Most status calls that may fail in a row; the walk skips those in the middle.
const MAX_STATUS_CALLS: u32 = 8;

const SOON: Duration = Duration::from_millis(1);
/// Longer than any backoff.
pub const PAST_WAITS: Duration = Duration::from_secs(61);
/// Longer than any step timeout.
const PAST_DEADLINE: Duration = Duration::from_secs(2 * TIMEOUT_SECONDS as u64);

/// One fault of each class and of each `EffectOutcome`, and those that the rules treat specially.
const FAULTS: [FaultCode; 9] = [
    FaultCode::BmcUnreachable,
    FaultCode::EffectFailed,
    FaultCode::AnswerLost,
    FaultCode::StepTimeout,
    FaultCode::OutcomeUnknown,
    FaultCode::ProviderMissing,
    FaultCode::CapabilityMissing,
    FaultCode::WorkerPanicked,
    FaultCode::RecordUnreadable,
];

/// An event for a stored run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Answered(Result<ProviderAnswer, Fault>),
    Interrupted,
    /// The worker crashed during a provider call.
    TakenOver,
    /// The run is due, or was woken, without an open provider call.
    Due,
    Acted(Action),
}

impl Input {
    fn name(&self) -> &'static str {
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
    past: RunObserver,
    now: Timestamp,
    epoch: i64,
}

/// Fields that distinguish two states: everything that decisions depend on. The fault that ended a
/// run, and whether a step was adopted, do not count; the rules about them are checked at every
/// transition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shape {
    workflow: Workflow,
    at: usize,
    scan: Option<usize>,
    halt: Option<(bool, bool)>,
    started: bool,
    steps: Vec<StepShape>,
    past: Option<RunObserver>,
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
    pursuit: CallVerb,
    open_verb: Option<CallVerb>,
    /// Set while the outcome is uncertain: whether a retry is allowed.
    doubt: Option<bool>,
    status_calls: u32,
    waits: bool,
    late: bool,
}

fn shape(node: &Node) -> Shape {
    let progress = &node.run.progress;
    let current = progress.scan_index.unwrap_or(progress.step_index);
    let over = node.run.ended() && !progress.workflow.failed();
    let live = |step: &StepState| LiveShape {
        left: step.max_attempt.saturating_sub(step.attempt),
        open: step.attempt_open,
        pursuit: step.next_verb,
        open_verb: step.intent.as_ref().map(|requested| requested.verb),
        doubt: step.uncertain_fault.as_ref().map(|fault| fault.class() == FaultClass::Retryable),
        status_calls: step.failed_status_calls,
        waits: step.not_before.is_some(),
        late: step.attempt_open && is_late(step, node.now),
    };
    let steps = progress.steps.iter().enumerate();
    Shape {
        workflow: progress.workflow,
        at: progress.step_index,
        scan: progress.scan_index,
        halt: progress
            .stop_request
            .as_ref()
            .map(|halt| (halt.kind == StopKind::Cancel, halt.undoing)),
        started: progress.started_at.is_some(),
        steps: steps
            .map(|(index, step)| StepShape {
                of: step.plan_step,
                undo: step.undo,
                state: step.state,
                begun: !step.undo && step.attempt > 0,
                live: (index == current && !over).then(|| live(step)),
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
enum WorstCase {
    /// No call is ever answered.
    Silent,
    /// Everything that was started stays in progress for ever.
    Endless,
}

impl WorstCase {
    fn input(self, run: &Run) -> Input {
        let lost = || Input::Answered(Err(Fault::new(FaultCode::StepTimeout, "as told")));
        match (self, run.open_call().map(|(_, verb)| verb)) {
            (_, None) => Input::Due,
            (Self::Silent, Some(_)) => lost(),
            (Self::Endless, Some(CallVerb::GetStatus)) => {
                Input::Answered(Ok(ProviderAnswer::UnderWay))
            }
            (
                Self::Endless,
                Some(CallVerb::Perform | CallVerb::Follow | CallVerb::Observe | CallVerb::Stop),
            ) => lost(),
        }
    }
}

/// Source, destination, event, and the open stop request: cancel (true) or freeze (false).
pub type WorkflowTransition = (&'static str, &'static str, &'static str, Option<bool>);

/// All states of the runs of one plan.
struct Walk {
    nodes: Vec<Node>,
    /// For each state, the transition by which it was first reached.
    from: Vec<Option<(usize, String)>>,
    edges: Vec<Vec<usize>>,
    /// The successor of each state in each worst-case world.
    bleak: Vec<[Option<usize>; 2]>,
    known: HashMap<Shape, usize>,
    /// The transitions between workflow states.
    moves: BTreeSet<WorkflowTransition>,
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
        let past = RunObserver::new(&run);
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
                let message = || format!("{}\n  {}", self.describe_path(index), label());
                let Some(next) = self.nodes[index].after(&input, wait, &message) else { continue };
                let from = &self.nodes[index].run.progress;
                let halt = from.stop_request.as_ref().map(|halt| halt.kind == StopKind::Cancel);
                let to = next.run.progress.workflow.as_str();
                self.moves.insert((from.workflow.as_str(), to, input.name(), halt));
                let target = self.add(next, || Some((index, label())));
                self.edges[index].push(target);
            }
            for (env, bleak) in [WorstCase::Silent, WorstCase::Endless].into_iter().enumerate() {
                let node = &self.nodes[index];
                if node.run.ended() {
                    continue;
                }
                let input = bleak.input(&node.run);
                let label = || format!("{bleak:?}: {input:?}");
                let message = || format!("{}\n  {}", self.describe_path(index), label());
                let next = node.after(&input, PAST_DEADLINE, &message).expect("it was decided");
                let target = self.add(next, || Some((index, label())));
                self.bleak[index][env] = Some(target);
                self.edges[index].push(target);
            }
        }
    }

    /// Explores the runs derived from ended ones, until there are no new states.
    fn explore_restarts(&mut self) {
        let mut observed = 0;
        while observed < self.nodes.len() {
            let new = observed..self.nodes.len();
            observed = self.nodes.len();
            for index in new {
                for how in [RestartMode::Rerun, RestartMode::RestartClean] {
                    let run = &self.nodes[index].run;
                    if let Ok(progress) = restart(run, how, false) {
                        let run = Run { spec: run.spec.clone(), progress, version: 1 };
                        self.root(run, Some((index, format!("{how:?}"))));
                    }
                }
            }
            self.explore();
        }
    }

    /// The path to a state, for diagnosis.
    fn describe_path(&self, index: usize) -> String {
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
            panic!("no way out of\n{}", self.describe_path(stuck));
        }
        for env in 0..2 {
            let mut ends = vec![false; self.nodes.len()];
            for start in 0..self.nodes.len() {
                let mut path = Vec::new();
                let mut at = start;
                while let Some(next) = self.bleak[at][env].filter(|_| !ends[at]) {
                    path.push(at);
                    assert!(
                        path.len() < 1_000,
                        "it never ends from\n{}",
                        self.describe_path(start)
                    );
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
    let Some((_, verb)) = run.open_call() else {
        all.extend([SOON, PAST_WAITS, PAST_DEADLINE].map(|wait| (Input::Due, wait)));
        return all;
    };
    let answers = [
        ProviderAnswer::Done(CallOutcome::default()),
        ProviderAnswer::UnderWay,
        ProviderAnswer::NeverStarted,
        ProviderAnswer::Unknown("?".into()),
        ProviderAnswer::Differs("other".into()),
        ProviderAnswer::Stopped,
    ];
    let answers = answers.into_iter().map(Ok);
    let faults = FAULTS.into_iter().map(|code| Err(Fault::new(code, "as told")));
    for result in answers.chain(faults) {
        let late = matches!(&result, Ok(ProviderAnswer::UnderWay | ProviderAnswer::NeverStarted))
            || matches!(&result, Err(fault) if fault.code == FaultCode::StepTimeout);
        if late {
            all.push((Input::Answered(result.clone()), PAST_DEADLINE));
        }
        all.push((Input::Answered(result), SOON));
    }
    all.push((Input::TakenOver, PAST_WAITS));
    if run.progress.halting() && matches!(verb, CallVerb::Perform | CallVerb::Follow) {
        all.push((Input::Interrupted, SOON));
    }
    all
}

impl Node {
    /// The state after an event, checked; none when the event changes nothing.
    fn after(&self, input: &Input, wait: Duration, message: &dyn Fn() -> String) -> Option<Self> {
        let now = self.now + wait;
        let mut past = self.past.clone();
        let (run, then, epoch) = match input {
            Input::Acted(action) => {
                let progress = self.acted(*action, &mut past, now, message)?;
                (Run { progress, ..self.run.clone() }, None, self.epoch)
            }
            Input::Answered(result) => {
                let (_, verb) = self.run.open_call()?;
                past.answered(&self.run, verb, result);
                let given = CallResult::Answered(verb, result.clone());
                self.decided(Some(&given), self.epoch, now, message)
            }
            Input::Interrupted => {
                past.lost(&self.run);
                self.decided(Some(&CallResult::Abandoned), self.epoch, now, message)
            }
            Input::TakenOver => {
                past.lost(&self.run);
                self.decided(None, self.epoch + 1, now, message)
            }
            Input::Due => self.decided(None, self.epoch, now, message),
        };
        if let Some(AfterCommit::CallProvider(call, timeout)) = &then {
            past.record_call(&run, call, *timeout, message);
        }
        past.moved(&run, message);
        match (&then, run.ended()) {
            (_, true) => check_ended(&run, &past, message),
            (then, false) => check_open(&run, then.as_ref(), now, message),
        }
        let mut next = Self { run, past, now, epoch };
        skip_middle_status_calls(&mut next.run);
        Some(next)
    }

    fn acted(
        &self,
        action: Action,
        past: &mut RunObserver,
        now: Timestamp,
        message: &dyn Fn() -> String,
    ) -> Option<Progress> {
        match apply_action(&self.run, action, &who(), now) {
            Ok(ActionResult::Unchanged) => None,
            Ok(ActionResult::Recorded(progress, _) | ActionResult::Changed(progress, _)) => {
                past.record_action(&self.run, action);
                Some(progress)
            }
            Ok(ActionResult::Reopened(progress, _)) => {
                past.reopened(&self.run, action);
                Some(progress)
            }
            Err(refusal) => {
                check_refused(&self.run, action, &refusal, message);
                None
            }
        }
    }

    fn decided(
        &self,
        given: Option<&CallResult>,
        epoch: i64,
        now: Timestamp,
        message: &dyn Fn() -> String,
    ) -> (Run, Option<AfterCommit>, i64) {
        let Decision { run, notes, then, .. } =
            decide(&self.run, epoch, given, Policy::default(), now);
        assert!(notes.len() < 40, "it goes round and round: {notes:#?}\n{}", message());
        let requested = run.progress.current().and_then(|step| step.intent.as_ref());
        assert!(requested.is_none_or(|requested| requested.epoch == epoch), "{}", message());
        (run, Some(then), epoch)
    }
}

/// Repeated failed status calls reach the limit eventually; those in between differ only in their
/// count.
pub fn skip_middle_status_calls(run: &mut Run) {
    for step in &mut run.progress.steps {
        if step.failed_status_calls > 1 {
            step.failed_status_calls = MAX_STATUS_CALLS - 1;
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
    walk.explore_restarts();
    walk.nodes.into_iter().map(|node| (node.run, node.now)).collect()
}

/// The transitions between workflow states, and every state of the runs of the plan.
pub fn moves(steps: Vec<RunStep>) -> (BTreeSet<WorkflowTransition>, Vec<(Run, Timestamp)>) {
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
        walk.explore_restarts();
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
    for verb in CallVerb::ALL {
        let requested =
            |one: &Node| one.run.open_call().is_some_and(|(_, requested)| requested == verb);
        assert!(walk.nodes.iter().any(requested), "{names:?}: never {verb:?}");
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
