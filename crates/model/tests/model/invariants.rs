//! Invariants of runs: what must hold in every state and in every transition.
//!
//! [`Past`] records provider calls and answers by rules of its own, independently of the model. The
//! model does not see it.

use model::effect::{Answer, Order, Verb};
use model::fault::{Class, Code, Fault, Happened};
use model::plan::UNDO_PREFIX;
use model::refusal::Refusal;
use model::run::act::Action;
use model::run::{Run, RunPhase, StepPhase, Then, Workflow};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

type Said<'a> = &'a dyn Fn() -> String;

/// What an outside observer remembers of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Past {
    /// The number of steps at the start; later ones are undo steps of a cancel.
    steps: usize,
    /// By step name.
    by_step: BTreeMap<String, Trace>,
    /// The last step of the plan that was ever performed.
    furthest: Option<usize>,
    /// The last stop request of the operator that was accepted.
    wish: Option<Wish>,
    /// The outcome of a destructive effect cannot be determined, and the operator was told so.
    unknown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wish {
    Cancel,
    Freeze,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Trace {
    /// The effect was requested, and its outcome is not known.
    in_doubt: bool,
    /// The outcome became uncertain just now: the next call must get the status or stop.
    just_now: bool,
    performed: Option<u32>,
    /// The provider answered that the last key was never started.
    never_started: bool,
}

fn name_in_hand(run: &Run) -> String {
    run.progress.current().map(|step| run.step_name(step)).unwrap_or_default()
}

impl Past {
    pub fn new(run: &Run) -> Self {
        Self {
            steps: run.progress.steps.len(),
            by_step: BTreeMap::new(),
            furthest: None,
            wish: None,
            unknown: false,
        }
    }

    /// Reduces the past to what still matters, with attempts relative to the run's own, so that
    /// equivalent pasts compare equal. For steps other than the current one only the used keys
    /// matter, where a name may be reused.
    pub fn relative_to(&self, run: &Run) -> Self {
        let mut past = self.clone();
        let in_hand = name_in_hand(run);
        past.by_step.retain(|name, _| *name == in_hand || name.starts_with(UNDO_PREFIX));
        for (name, trace) in &mut past.by_step {
            let of_name = |step: &&model::run::StepState| run.step_name(step) == *name;
            let attempt = run.progress.steps.iter().rfind(of_name).map_or(0, |step| step.attempt);
            trace.performed = trace.performed.map(|performed| attempt.abs_diff(performed).min(2));
            if *name != in_hand {
                *trace = Trace { performed: trace.performed, ..Trace::default() };
            }
        }
        past
    }

    fn trace(&mut self, run: &Run) -> &mut Trace {
        self.by_step.entry(name_in_hand(run)).or_default()
    }

    /// What an answer settles, by the contract of the verbs alone.
    pub fn answered(&mut self, run: &Run, verb: Verb, result: &Result<Answer, Fault>) {
        let destructive = run
            .progress
            .current()
            .and_then(|step| run.effect(step))
            .is_some_and(|effect| effect.destructive());
        let trace = self.trace(run);
        match (verb, result) {
            (Verb::Observe, _) => {}
            (_, Ok(Answer::Done(_))) => trace.in_doubt = false,
            (Verb::GetStatus, Ok(Answer::NeverStarted)) => {
                trace.in_doubt = false;
                trace.never_started = true;
            }
            (Verb::Stop, Ok(Answer::Stopped)) => trace.in_doubt = false,
            (Verb::GetStatus | Verb::Stop, Ok(Answer::Unknown(_))) if destructive => {
                self.unknown = true;
            }
            (Verb::Perform | Verb::Follow, Ok(_)) => trace.just_now = true,
            (Verb::Follow, Err(fault)) if fault.code.unseen() => trace.just_now = true,
            (Verb::Perform | Verb::Follow, Err(fault)) => match fault.code.happened() {
                Happened::Maybe => trace.just_now = true,
                Happened::No => trace.in_doubt = false,
            },
            (Verb::GetStatus | Verb::Stop, Ok(_) | Err(_)) => {}
        }
    }

    /// The current call got no answer.
    pub fn lost(&mut self, run: &Run) {
        if let Some((_, Verb::Perform | Verb::Follow)) = run.open_order() {
            self.trace(run).just_now = true;
        }
    }

    /// Checks a provider call: it has a timeout and the committed key; after an uncertain outcome
    /// it only gets the status or stops; a destructive effect is not repeated while its outcome is
    /// uncertain; no key is used twice; and steps are performed in order.
    pub fn asked(&mut self, run: &Run, order: &Order, timeout: Duration, said: Said) {
        assert!(timeout > Duration::ZERO, "{:?} has no time\n{}", order.verb, said());
        let step = run.progress.current().expect("a step in hand");
        assert_eq!(order.key, run.key(step), "{}", said());
        assert_eq!(run.open_order(), Some((order.key.clone(), order.verb)), "{}", said());
        let (attempt, of, undo) = (step.attempt, step.of, step.undo);
        let destructive = order.effect.destructive();
        let trace = self.trace(run);
        if std::mem::take(&mut trace.just_now) {
            let looks = matches!(order.verb, Verb::GetStatus | Verb::Stop);
            assert!(looks, "{:?} although it may have happened\n{}", order.verb, said());
        }
        if order.verb != Verb::Perform {
            return;
        }
        assert!(!destructive || !trace.in_doubt, "performed while in doubt\n{}", said());
        if let Some(before) = trace.performed {
            let fresh = attempt > before || (attempt == before && trace.never_started);
            assert!(fresh, "the key {} is used twice\n{}", order.key, said());
        }
        trace.performed = Some(attempt);
        trace.in_doubt = true;
        trace.never_started = false;
        if !undo {
            assert!(self.furthest.is_none_or(|far| of >= far), "out of order\n{}", said());
            self.furthest = Some(of);
        }
    }

    /// The run accepted an operator's stop request.
    pub fn told(&mut self, run: &Run, action: Action) {
        match action {
            Action::Cancel => self.wish = Some(Wish::Cancel),
            Action::MarkManual if !run.ended() => self.wish = Some(Wish::Freeze),
            Action::MarkManual | Action::RetryStep | Action::Resume | Action::Adopt => {}
        }
    }

    /// An operator resumed the run. Only a run that was already undoing stays canceled.
    pub fn reopened(&mut self, run: &Run, action: Action) {
        let undoing = self.undoing(run);
        self.wish = undoing.then_some(Wish::Cancel);
        self.unknown = false;
        let trace = self.trace(run);
        trace.just_now = false;
        if action == Action::RetryStep {
            trace.in_doubt = false;
        }
    }

    /// A cancel has stopped the work and added undo steps.
    fn undoing(&self, run: &Run) -> bool {
        run.progress.steps.len() > self.steps
    }

    /// Steps stay in order for adopted steps too: the run never returns to an earlier step.
    pub fn moved(&mut self, run: &Run, said: Said) {
        let in_hand = run.progress.current().filter(|step| !step.undo && !run.ended());
        if let (Some(step), Some(far)) = (in_hand, self.furthest) {
            assert!(step.of >= far, "an earlier step is in hand again\n{}", said());
        }
        // A step that succeeded has no uncertain outcome.
        let settled = run.progress.steps.iter().filter(|one| one.state == StepPhase::Succeeded);
        for step in settled {
            if let Some(trace) = self.by_step.get_mut(&run.step_name(step)) {
                trace.just_now = false;
            }
        }
    }
}

/// Checks an active run: it has an open provider call or waits until a future time.
pub fn check_open(run: &Run, then: Option<&Then>, now: Timestamp, said: Said) {
    let progress = &run.progress;
    assert!(progress.finished_at.is_none(), "{}", said());
    match then {
        // After an operator's action the run is woken.
        None => {}
        Some(Then::Ask(..)) => assert!(run.open_order().is_some(), "{}", said()),
        Some(Then::Until(at)) => {
            assert!(*at > now, "it waits for what has been\n{}", said());
            assert!(run.open_order().is_none(), "{}", said());
        }
        Some(Then::Rest) => panic!("an active run rests\n{}", said()),
    }
    let asked = progress.steps.iter().filter(|step| step.asked.is_some()).count();
    assert_eq!(asked, usize::from(run.open_order().is_some()), "{}", said());
    let running = progress.steps.iter().filter(|step| step.state == StepPhase::Running).count();
    assert!(running <= 1, "two steps at once\n{}", said());
    assert!(matches!(run.phase(), RunPhase::Pending | RunPhase::Running), "{}", said());
    let undo = progress.current().is_some_and(|step| step.undo);
    let (compensating, pending) =
        (progress.workflow == Workflow::Compensating, progress.workflow == Workflow::Pending);
    assert!(pending || compensating == undo, "{}", said());
    if let Some(failure) = &progress.failure {
        assert_eq!(failure.fault.code, Code::UndoFailed, "{}", said());
    }
}

/// Checks how a run may end.
pub fn check_ended(run: &Run, past: &Past, said: Said) {
    let progress = &run.progress;
    let workflow = progress.workflow;
    assert!(progress.finished_at.is_some(), "{}", said());
    assert!(run.open_order().is_none(), "an order outlives the run\n{}", said());
    for step in &progress.steps {
        assert!(step.asked.is_none(), "an order outlives the run\n{}", said());
        assert_ne!(step.state, StepPhase::Running, "a step outlives the run\n{}", said());
    }
    let forward = || progress.steps.iter().filter(|step| !step.undo);
    let undone = &progress.steps[past.steps.min(progress.steps.len())..];
    match workflow {
        Workflow::Completed | Workflow::Reconciled => {
            let all = forward().all(|step| step.state == StepPhase::Succeeded);
            assert!(all && undone.is_empty(), "{workflow:?} with work left\n{}", said());
            assert!(progress.failure.is_none() && past.wish.is_none(), "{}", said());
            assert_eq!(workflow == Workflow::Reconciled, progress.adopted, "{}", said());
        }
        Workflow::Cancelled => {
            assert_eq!(past.wish, Some(Wish::Cancel), "{}", said());
            let ended = |phase| matches!(phase, StepPhase::Succeeded | StepPhase::Failed);
            assert!(undone.iter().all(|step| step.undo && ended(step.state)), "{}", said());
            let failed = undone.iter().any(|step| step.state == StepPhase::Failed);
            let code = progress.failure.as_ref().map(|failure| failure.fault.code);
            assert_eq!(code, failed.then_some(Code::UndoFailed), "{}", said());
            check_all_undone(run, past, said);
        }
        Workflow::FailedRetryable | Workflow::FailedManualIntervention => {
            check_failed(run, past, said);
        }
        Workflow::Pending | Workflow::Running | Workflow::Compensating => {
            panic!("{workflow:?} is no end\n{}", said());
        }
    }
    let phase = match workflow {
        Workflow::Completed | Workflow::Reconciled => RunPhase::Succeeded,
        Workflow::Cancelled => RunPhase::Canceled,
        _ => RunPhase::Failed,
    };
    assert_eq!(run.phase(), phase, "{}", said());
}

/// Every undoable step that this run started was undone once, or the run reports that this failed.
fn check_all_undone(run: &Run, past: &Past, said: Said) {
    for step in run.progress.steps.iter().take(past.steps) {
        let undoable = run.plan_step(step).is_some_and(|plan| plan.effect.undo().is_some());
        if !step.undo && step.attempt > 0 && undoable {
            let undone = format!("{UNDO_PREFIX}{}", run.step_name(step));
            let times = run.progress.steps[past.steps..]
                .iter()
                .filter(|one| run.step_name(one) == undone)
                .count();
            assert_eq!(times, 1, "{undone}\n{}", said());
        }
    }
}

fn check_failed(run: &Run, past: &Past, said: Said) {
    let progress = &run.progress;
    let failure = progress.failure.as_ref().expect("a failed run says why");
    assert!(!failure.fault.said.is_empty(), "{}", said());
    let at = progress.current().map(|step| run.step_name(step)).unwrap_or_default();
    assert_eq!(failure.step, at, "it failed elsewhere than where it stands\n{}", said());
    if failure.fault.class() != Class::Retryable {
        assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", said());
    }
    match past.wish {
        Some(Wish::Cancel) => {
            assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", said());
            assert_eq!(failure.fault.code, Code::OutcomeUnknown, "a cancel was lost\n{}", said());
        }
        Some(Wish::Freeze) => {
            assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", said());
        }
        None => assert_ne!(failure.fault.code, Code::FrozenByOperator, "{}", said()),
    }
    if past.unknown && past.wish.is_none() {
        assert_eq!(failure.fault.code, Code::OutcomeUnknown, "{}", said());
    }
}

/// A refused action says what to type instead, and is refused only in states where it makes no
/// sense.
pub fn check_refused(run: &Run, action: Action, refusal: &Refusal, said: Said) {
    let next = refusal.next.as_deref().unwrap_or_default();
    assert!(next.starts_with("farrier "), "{refusal:?}\n{}", said());
    let way_out = match action {
        Action::Cancel => run.ended(),
        Action::RetryStep | Action::Resume => {
            matches!(run.phase(), RunPhase::Succeeded | RunPhase::Canceled)
        }
        Action::Adopt => run.phase() != RunPhase::Failed,
        Action::MarkManual => matches!(run.phase(), RunPhase::Succeeded | RunPhase::Canceled),
    };
    assert!(way_out, "{action:?} is refused: {refusal}\n{}", said());
}
