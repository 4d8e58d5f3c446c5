//! Invariants of runs: what must hold in every state and in every transition.
//!
//! [`RunObserver`] records provider calls and answers by rules of its own, independently of the
//! model. The model does not see it.

use model::effect::{CallVerb, ProviderAnswer, ProviderCall};
use model::fault::{EffectOutcome, Fault, FaultClass, FaultCode};
use model::plan::UNDO_PREFIX;
use model::refusal::Refusal;
use model::run::actions::Action;
use model::run::{AfterCommit, Run, RunPhase, StepPhase, Workflow};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

type Describe<'a> = &'a dyn Fn() -> String;

/// State of a run that an outside observer has seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunObserver {
    /// The number of steps at the start; later ones are undo steps of a cancel.
    steps: usize,
    /// By step name.
    by_step: BTreeMap<String, Trace>,
    /// The last step of the plan that was ever performed.
    furthest: Option<usize>,
    /// The last stop request of the operator that was accepted.
    stop_request: Option<StopRequest>,
    /// The outcome of a destructive effect cannot be determined, and the operator was told so.
    unknown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum StopRequest {
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

fn current_step_name(run: &Run) -> String {
    run.progress.current().map(|step| run.step_name(step)).unwrap_or_default()
}

impl RunObserver {
    pub fn new(run: &Run) -> Self {
        Self {
            steps: run.progress.steps.len(),
            by_step: BTreeMap::new(),
            furthest: None,
            stop_request: None,
            unknown: false,
        }
    }

    /// Reduces the past to what still matters, with attempts relative to the run's own, so that
    /// equivalent pasts compare equal. For steps other than the current one only the used keys
    /// matter, where a name may be reused.
    pub fn relative_to(&self, run: &Run) -> Self {
        let mut past = self.clone();
        let current = current_step_name(run);
        past.by_step.retain(|name, _| *name == current || name.starts_with(UNDO_PREFIX));
        for (name, trace) in &mut past.by_step {
            let of_name = |step: &&model::run::StepState| run.step_name(step) == *name;
            let attempt = run.progress.steps.iter().rfind(of_name).map_or(0, |step| step.attempt);
            trace.performed = trace.performed.map(|performed| attempt.abs_diff(performed).min(2));
            if *name != current {
                *trace = Trace { performed: trace.performed, ..Trace::default() };
            }
        }
        past
    }

    fn trace(&mut self, run: &Run) -> &mut Trace {
        self.by_step.entry(current_step_name(run)).or_default()
    }

    /// Applies an answer, by the contract of the verbs alone.
    pub fn answered(&mut self, run: &Run, verb: CallVerb, result: &Result<ProviderAnswer, Fault>) {
        let destructive = run
            .progress
            .current()
            .and_then(|step| run.effect(step))
            .is_some_and(|effect| effect.harmful_to_repeat());
        let trace = self.trace(run);
        match (verb, result) {
            (CallVerb::Observe, _) => {}
            (_, Ok(ProviderAnswer::Done(_))) => trace.in_doubt = false,
            (CallVerb::GetStatus, Ok(ProviderAnswer::NeverStarted)) => {
                trace.in_doubt = false;
                trace.never_started = true;
            }
            (CallVerb::Stop, Ok(ProviderAnswer::Stopped)) => trace.in_doubt = false,
            (CallVerb::GetStatus | CallVerb::Stop, Ok(ProviderAnswer::Unknown(_)))
                if destructive =>
            {
                self.unknown = true;
            }
            (CallVerb::Perform | CallVerb::Follow, Ok(_)) => trace.just_now = true,
            (CallVerb::Follow, Err(fault)) if fault.code.peer_unreachable() => {
                trace.just_now = true
            }
            (CallVerb::Perform | CallVerb::Follow, Err(fault)) => match fault.code.effect_outcome()
            {
                EffectOutcome::Unknown => trace.just_now = true,
                EffectOutcome::NotApplied => trace.in_doubt = false,
            },
            (CallVerb::GetStatus | CallVerb::Stop, Ok(_) | Err(_)) => {}
        }
    }

    /// The current call got no answer.
    pub fn lost(&mut self, run: &Run) {
        if let Some((_, CallVerb::Perform | CallVerb::Follow)) = run.open_call() {
            self.trace(run).just_now = true;
        }
    }

    /// Checks a provider call: it has a timeout and the committed key; after an uncertain outcome
    /// it only gets the status or stops; a destructive effect is not repeated while its outcome is
    /// uncertain; no key is used twice; and steps are performed in order.
    pub fn record_call(
        &mut self,
        run: &Run,
        call: &ProviderCall,
        timeout: Duration,
        message: Describe,
    ) {
        assert!(timeout > Duration::ZERO, "{:?} has no time\n{}", call.verb, message());
        let step = run.progress.current().expect("a current step");
        assert_eq!(call.key, run.key(step), "{}", message());
        assert_eq!(run.open_call(), Some((call.key.clone(), call.verb)), "{}", message());
        let (attempt, of, undo) = (step.attempt, step.plan_step, step.undo);
        let destructive = call.effect.harmful_to_repeat();
        let trace = self.trace(run);
        if std::mem::take(&mut trace.just_now) {
            let probes = matches!(call.verb, CallVerb::GetStatus | CallVerb::Stop);
            assert!(probes, "{:?} although it may have happened\n{}", call.verb, message());
        }
        if call.verb != CallVerb::Perform {
            return;
        }
        assert!(!destructive || !trace.in_doubt, "performed while in doubt\n{}", message());
        if let Some(before) = trace.performed {
            let fresh = attempt > before || (attempt == before && trace.never_started);
            assert!(fresh, "the key {} is used twice\n{}", call.key, message());
        }
        trace.performed = Some(attempt);
        trace.in_doubt = true;
        trace.never_started = false;
        if !undo {
            assert!(self.furthest.is_none_or(|far| of >= far), "out of order\n{}", message());
            self.furthest = Some(of);
        }
    }

    /// The run accepted an operator's stop request.
    pub fn record_action(&mut self, run: &Run, action: Action) {
        match action {
            Action::Cancel => self.stop_request = Some(StopRequest::Cancel),
            Action::MarkManual if !run.ended() => self.stop_request = Some(StopRequest::Freeze),
            Action::MarkManual | Action::RetryStep | Action::Resume | Action::Adopt => {}
        }
    }

    /// An operator resumed the run. Only a run that was already undoing stays canceled.
    pub fn reopened(&mut self, run: &Run, action: Action) {
        let undoing = self.undoing(run);
        self.stop_request = undoing.then_some(StopRequest::Cancel);
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
    pub fn moved(&mut self, run: &Run, message: Describe) {
        let current = run.progress.current().filter(|step| !step.undo && !run.ended());
        if let (Some(step), Some(far)) = (current, self.furthest) {
            assert!(step.plan_step >= far, "an earlier step is current again\n{}", message());
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
pub fn check_open(run: &Run, then: Option<&AfterCommit>, now: Timestamp, message: Describe) {
    let progress = &run.progress;
    assert!(progress.finished_at.is_none(), "{}", message());
    match then {
        // After an operator's action the run is woken.
        None => {}
        Some(AfterCommit::CallProvider(..)) => assert!(run.open_call().is_some(), "{}", message()),
        Some(AfterCommit::IdleUntil(at)) => {
            assert!(*at > now, "it waits for what has been\n{}", message());
            assert!(run.open_call().is_none(), "{}", message());
        }
        Some(AfterCommit::Idle) => panic!("an active run rests\n{}", message()),
    }
    let requested = progress.steps.iter().filter(|step| step.intent.is_some()).count();
    assert_eq!(requested, usize::from(run.open_call().is_some()), "{}", message());
    let running = progress.steps.iter().filter(|step| step.state == StepPhase::Running).count();
    assert!(running <= 1, "two steps at once\n{}", message());
    assert!(matches!(run.phase(), RunPhase::Pending | RunPhase::Running), "{}", message());
    let undo = progress.current().is_some_and(|step| step.undo);
    let (compensating, pending) =
        (progress.workflow == Workflow::Compensating, progress.workflow == Workflow::Pending);
    assert!(pending || compensating == undo, "{}", message());
    if let Some(failure) = &progress.failure {
        assert_eq!(failure.fault.code, FaultCode::UndoFailed, "{}", message());
    }
}

/// Checks how a run may end.
pub fn check_ended(run: &Run, past: &RunObserver, message: Describe) {
    let progress = &run.progress;
    let workflow = progress.workflow;
    assert!(progress.finished_at.is_some(), "{}", message());
    assert!(run.open_call().is_none(), "an order outlives the run\n{}", message());
    for step in &progress.steps {
        assert!(step.intent.is_none(), "an order outlives the run\n{}", message());
        assert_ne!(step.state, StepPhase::Running, "a step outlives the run\n{}", message());
    }
    let forward = || progress.steps.iter().filter(|step| !step.undo);
    let undone = &progress.steps[past.steps.min(progress.steps.len())..];
    match workflow {
        Workflow::Completed | Workflow::Reconciled => {
            let all = forward().all(|step| step.state == StepPhase::Succeeded);
            assert!(all && undone.is_empty(), "{workflow:?} with work left\n{}", message());
            assert!(progress.failure.is_none() && past.stop_request.is_none(), "{}", message());
            assert_eq!(workflow == Workflow::Reconciled, progress.adopted, "{}", message());
        }
        Workflow::Cancelled => {
            assert_eq!(past.stop_request, Some(StopRequest::Cancel), "{}", message());
            let ended = |phase| matches!(phase, StepPhase::Succeeded | StepPhase::Failed);
            assert!(undone.iter().all(|step| step.undo && ended(step.state)), "{}", message());
            let failed = undone.iter().any(|step| step.state == StepPhase::Failed);
            let code = progress.failure.as_ref().map(|failure| failure.fault.code);
            assert_eq!(code, failed.then_some(FaultCode::UndoFailed), "{}", message());
            check_all_undone(run, past, message);
        }
        Workflow::FailedRetryable | Workflow::FailedManualIntervention => {
            check_failed(run, past, message);
        }
        Workflow::Pending | Workflow::Running | Workflow::Compensating => {
            panic!("{workflow:?} is no end\n{}", message());
        }
    }
    let phase = match workflow {
        Workflow::Completed | Workflow::Reconciled => RunPhase::Succeeded,
        Workflow::Cancelled => RunPhase::Canceled,
        _ => RunPhase::Failed,
    };
    assert_eq!(run.phase(), phase, "{}", message());
}

/// Every undoable step that this run started was undone once, or the run reports that this failed.
fn check_all_undone(run: &Run, past: &RunObserver, message: Describe) {
    for step in run.progress.steps.iter().take(past.steps) {
        let undoable = run.plan_step(step).is_some_and(|plan| plan.effect.undo().is_some());
        if !step.undo && step.attempt > 0 && undoable {
            let undone = format!("{UNDO_PREFIX}{}", run.step_name(step));
            let times = run.progress.steps[past.steps..]
                .iter()
                .filter(|one| run.step_name(one) == undone)
                .count();
            assert_eq!(times, 1, "{undone}\n{}", message());
        }
    }
}

fn check_failed(run: &Run, past: &RunObserver, message: Describe) {
    let progress = &run.progress;
    let failure = progress.failure.as_ref().expect("a failed run says why");
    assert!(!failure.fault.message.is_empty(), "{}", message());
    let at = progress.current().map(|step| run.step_name(step)).unwrap_or_default();
    assert_eq!(failure.step, at, "it failed elsewhere than where it stands\n{}", message());
    if failure.fault.class() != FaultClass::Retryable {
        assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", message());
    }
    match past.stop_request {
        Some(StopRequest::Cancel) => {
            assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", message());
            assert_eq!(
                failure.fault.code,
                FaultCode::OutcomeUnknown,
                "a cancel was lost\n{}",
                message()
            );
        }
        Some(StopRequest::Freeze) => {
            assert_eq!(progress.workflow, Workflow::FailedManualIntervention, "{}", message());
        }
        None => assert_ne!(failure.fault.code, FaultCode::FrozenByOperator, "{}", message()),
    }
    if past.unknown && past.stop_request.is_none() {
        assert_eq!(failure.fault.code, FaultCode::OutcomeUnknown, "{}", message());
    }
}

/// A refused action says what to type instead, and is refused only in states where it makes no
/// sense.
pub fn check_refused(run: &Run, action: Action, refusal: &Refusal, message: Describe) {
    let next = refusal.next_command.as_deref().unwrap_or_default();
    assert!(next.starts_with("farrier "), "{refusal:?}\n{}", message());
    let way_out = match action {
        Action::Cancel => run.ended(),
        Action::RetryStep | Action::Resume | Action::Adopt => run.phase() != RunPhase::Failed,
        Action::MarkManual => matches!(run.phase(), RunPhase::Succeeded | RunPhase::Canceled),
    };
    assert!(way_out, "{action:?} is refused: {refusal}\n{}", message());
}
