//! Classifies a provider's answer: what it means for the run.
//!
//! When an effect may have happened in spite of a fault, it is never simply retried: its status is
//! read first. If the status cannot be determined and a repetition would do harm, the run stops for
//! an operator.

mod scan;

use super::next::{active_workflow, close_step, fail, stop_run};
use super::{HistoryNote, Progress, Run, StepPhase, StepState};
use crate::condition::{ConditionObservation, ConditionType};
use crate::effect::{
    CallOutcome, CallResult, CallVerb, ClusterExpectation, DeviceFacts, Effect, ProviderAnswer,
};
use crate::fault::{EffectOutcome, Fault, FaultClass, FaultCode};
use crate::plan::RunStep;
use crate::retry::Backoff;
use crate::time::Timestamp;
use crate::{here, note};
use std::time::Duration;

/// The number of consecutive status calls that may fail before the run stops trying.
pub const MAX_STATUS_FAILURES: u32 = 8;

/// The limit of doublings of the delay before a call is followed again.
const MAX_FOLLOW_DOUBLINGS: u32 = 4;

/// The server's retry configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    pub backoff: Backoff,
}

/// The result of a classification: the new progress, its note, and what the answer proves about the
/// machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerClassification {
    pub progress: Progress,
    pub note: HistoryNote,
    pub evidence: Vec<ConditionObservation>,
    /// The facts read from the device.
    pub facts: Option<DeviceFacts>,
}

impl AnswerClassification {
    fn new(progress: Progress, note: HistoryNote) -> Self {
        Self { progress, note, evidence: Vec::new(), facts: None }
    }
}

/// One answer in its context.
struct AnswerContext<'a> {
    run: &'a Run,
    step: &'a StepState,
    name: String,
    policy: Policy,
    now: Timestamp,
}

pub fn classify_answer(
    run: &Run,
    verb: CallVerb,
    result: CallResult,
    policy: Policy,
    now: Timestamp,
) -> AnswerClassification {
    let Some(step) = run.progress.current() else {
        let note = note!("an answer came for no step");
        return AnswerClassification::new(run.progress.clone(), note);
    };
    let case = AnswerContext { run, step, name: run.step_name(step), policy, now };
    let mut classification = match verb {
        CallVerb::Perform => case.performed(result),
        CallVerb::Follow => case.followed(result),
        CallVerb::GetStatus => case.classify_status(result),
        CallVerb::Observe => case.observed(result),
        CallVerb::Stop => case.stopped(result),
    };
    // The intent of the answered call is settled, whatever was decided.
    let index = run.progress.scan_index.unwrap_or(run.progress.step_index);
    if let Some(step) = classification.progress.steps.get_mut(index) {
        step.intent = None;
    }
    classification
}

/// The call was abandoned because the run has to stop: the next call asks the provider to stop it.
pub fn abandon_call(run: &Run) -> AnswerClassification {
    let mut progress = run.progress.clone();
    if let Some(step) = progress.current_mut() {
        let begun = step.attempt_open && step.intent.is_some();
        step.intent = None;
        step.failed_status_calls = 0;
        if begun {
            step.next_verb = CallVerb::Stop;
        }
    }
    let note = note!("stopping step {}", run.current_step());
    AnswerClassification::new(progress, note)
}

impl AnswerContext<'_> {
    fn performed(&self, result: CallResult) -> AnswerClassification {
        match result {
            Ok(ProviderAnswer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(other) => self.mark_uncertain(broken(&other)),
            Err(fault) => match fault.code.effect_outcome() {
                EffectOutcome::Unknown => self.mark_uncertain(fault),
                EffectOutcome::NotApplied => self.attempt_failed(fault),
            },
        }
    }

    /// An unreachable peer says nothing about the work it does.
    fn followed(&self, result: CallResult) -> AnswerClassification {
        match result {
            Err(fault) if fault.code.peer_unreachable() => self.mark_uncertain(fault),
            other => self.performed(other),
        }
    }

    fn classify_status(&self, result: CallResult) -> AnswerClassification {
        match result {
            Ok(ProviderAnswer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(ProviderAnswer::UnderWay) => self.under_way(),
            // A call of a worker that lost its claim may still arrive. Stopping the key makes the
            // provider refuse it, before this run ends or continues under another key.
            Ok(ProviderAnswer::NeverStarted)
                if self.run.progress.halting() || self.step.uncertain_fault.is_some() =>
            {
                self.continue_with(
                    CallVerb::Stop,
                    "it was never started, and must not start now",
                    here!(),
                )
            }
            Ok(ProviderAnswer::NeverStarted) => {
                self.continue_with(CallVerb::Perform, "it was never started", here!())
            }
            Ok(ProviderAnswer::Unknown(observed)) => self.unknown(observed),
            Ok(other @ (ProviderAnswer::Differs(_) | ProviderAnswer::Stopped)) => {
                self.retry_status(broken(&other))
            }
            Err(fault) => self.retry_status(fault),
        }
    }

    fn observed(&self, result: CallResult) -> AnswerClassification {
        let scanning = self.run.progress.scan_index.is_some();
        match result {
            Ok(ProviderAnswer::Done(outcome)) if scanning => self.adopt_up_to_here(outcome),
            Ok(ProviderAnswer::Done(outcome)) => {
                let mut classification = self.succeed(outcome, "adopted: ");
                classification.progress.adopted = true;
                classification
            }
            Ok(ProviderAnswer::Differs(observation)) if scanning => self.scan_back(&observation),
            Ok(ProviderAnswer::Differs(observation)) => {
                self.not_adoptable(format!("step {} cannot be adopted: {observation}", self.name))
            }
            Ok(
                other @ (ProviderAnswer::UnderWay
                | ProviderAnswer::NeverStarted
                | ProviderAnswer::Unknown(_)
                | ProviderAnswer::Stopped),
            ) => self.retry_status(broken(&other)),
            Err(fault) => self.retry_status(fault),
        }
    }

    fn stopped(&self, result: CallResult) -> AnswerClassification {
        let halting = self.run.progress.halting();
        match result {
            Ok(ProviderAnswer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(ProviderAnswer::Stopped) if halting => {
                let mut classification = self.halted();
                // The key is stopped for good.
                self.conclude_attempt(&mut classification);
                classification
            }
            Ok(ProviderAnswer::Stopped) => match &self.step.uncertain_fault {
                Some(fault) => self.attempt_failed(self.as_plain_failure(fault)),
                // A worker that took it over after its deadline has stopped it.
                None if self.now >= self.deadline() => self.attempt_failed(Fault::new(
                    FaultCode::StepTimeout,
                    "it did not end in time, and was stopped",
                )),
                None => self.attempt_failed(Fault::new(FaultCode::EffectFailed, "it was stopped")),
            },
            Ok(ProviderAnswer::Unknown(observed)) => self.unknown(observed),
            Ok(ProviderAnswer::UnderWay) => self.unstoppable(),
            Ok(other @ (ProviderAnswer::NeverStarted | ProviderAnswer::Differs(_))) => {
                self.retry_status(broken(&other))
            }
            Err(fault) => self.retry_status(fault),
        }
    }

    /// The work cannot be stopped, so the run waits for its end: no other operation may touch a
    /// half-written device. Child runs have deadlines of their own and are waited for without
    /// limit; anything else until the step's deadline.
    fn unstoppable(&self) -> AnswerClassification {
        let message = "it cannot be stopped any more, and is seen through";
        let ends_by_itself = self.run.effect(self.step).is_some_and(|one| one.group().is_some());
        if !ends_by_itself && self.now >= self.deadline() {
            return self.retry_status(Fault::new(FaultCode::StepTimeout, message));
        }
        let mut classification = self.continue_with(CallVerb::Stop, message, here!());
        if let Some(step) = classification.progress.current_mut() {
            step.message = message.into();
            step.not_before = Some(self.now + self.rest());
        }
        classification
    }

    /// The work is still in progress: follow it, or stop it when its deadline has passed or the run
    /// has to stop.
    fn under_way(&self) -> AnswerClassification {
        let deadline = self.deadline();
        if self.run.progress.halting() || self.now >= deadline {
            return self.continue_with(CallVerb::Stop, "it is under way and must stop", here!());
        }
        let mut classification = self.continue_with(CallVerb::Follow, "it is under way", here!());
        if let (Some(_), Some(step)) =
            (&self.step.uncertain_fault, classification.progress.current_mut())
        {
            // The connection was just lost; an immediate call would probably fail again.
            step.not_before = Some(deadline.min(self.now + self.rest()));
        }
        classification
    }

    /// The deadline of the current attempt.
    fn deadline(&self) -> Timestamp {
        self.step.attempt_since + self.timeout()
    }

    /// The timeout of an attempt.
    fn timeout(&self) -> Duration {
        self.run.plan_step(self.step).map_or(Duration::ZERO, RunStep::timeout)
    }

    /// The delay before following again. It grows with the age of the attempt.
    fn rest(&self) -> Duration {
        let first = self.policy.backoff.initial.as_millis().max(1);
        let going = self.now.since(self.step.attempt_since).as_millis() / first;
        let failures = (going.max(1).ilog2() + 1).min(MAX_FOLLOW_DOUBLINGS);
        self.policy.backoff.delay(failures, &self.seed())
    }

    fn unknown(&self, observed: String) -> AnswerClassification {
        let message = format!("it is not known whether step {} took effect: {observed}", self.name);
        if self.harmful_to_repeat() {
            return self.step_failed(Fault::new(FaultCode::OutcomeUnknown, message));
        }
        if self.run.progress.halting() {
            return self.halted();
        }
        self.attempt_failed(Fault::new(FaultCode::EffectFailed, message))
    }

    /// The effect may have happened. The only legal follow-up is to get the status.
    fn mark_uncertain(&self, fault: Fault) -> AnswerClassification {
        let note = note!("step {}: {}; looking", self.name, fault.message);
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            step.next_verb = CallVerb::GetStatus;
            step.failed_status_calls = 0;
            step.message = fault.message.clone();
            step.uncertain_fault = Some(fault);
        }
        AnswerClassification::new(progress, note)
    }

    fn continue_with(
        &self,
        verb: CallVerb,
        message: &str,
        line: &'static str,
    ) -> AnswerClassification {
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            step.next_verb = verb;
            step.failed_status_calls = 0;
            step.not_before = None;
        }
        let note = HistoryNote::new(format!("step {}: {message}", self.name), line);
        AnswerClassification::new(progress, note)
    }

    /// A status call failed. It is repeated with backoff, at most `MAX_STATUS_FAILURES` times.
    fn retry_status(&self, fault: Fault) -> AnswerClassification {
        let probes = self.step.failed_status_calls + 1;
        if probes >= MAX_STATUS_FAILURES {
            return self.stop_status_calls(fault);
        }
        let mut progress = self.progress();
        let note = note!("step {}: {}; asking again", self.name, fault.message);
        if let Some(step) = progress.current_mut() {
            step.failed_status_calls = probes;
            step.message = fault.message;
            step.not_before = Some(self.now + self.policy.backoff.delay(probes, &self.seed()));
        }
        AnswerClassification::new(progress, note)
    }

    fn stop_status_calls(&self, fault: Fault) -> AnswerClassification {
        let message = format!(
            "no answer about step {} after {MAX_STATUS_FAILURES} tries: {}",
            self.name, fault.message
        );
        match self.step.next_verb {
            CallVerb::Observe if self.run.progress.scan_index.is_some() => {
                self.scan_back(&fault.message)
            }
            CallVerb::Observe => self.not_adoptable(message),
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop
                if self.harmful_to_repeat() =>
            {
                self.step_failed(Fault::new(FaultCode::OutcomeUnknown, message))
            }
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop
                if self.run.progress.halting() =>
            {
                self.halted()
            }
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop => {
                self.attempt_failed(Fault::new(FaultCode::EffectFailed, message))
            }
        }
    }

    /// The observed state is not the goal of the step. That fails the run, unless it has to stop
    /// anyway; then the status of an open attempt must still be read.
    fn not_adoptable(&self, message: String) -> AnswerClassification {
        match (self.run.progress.halting(), self.step.attempt_open) {
            (true, true) => {
                self.continue_with(CallVerb::GetStatus, "looking what became of it", here!())
            }
            (true, false) => self.halted(),
            (false, _) => self.step_failed(Fault::new(FaultCode::NotAdoptable, message)),
        }
    }

    /// The attempt ended without success: retry if the budget allows, else the step fails. A busy
    /// peer uses up no budget: it is waited for until the deadline of the first attempt that found
    /// it busy.
    fn attempt_failed(&self, fault: Fault) -> AnswerClassification {
        if self.run.progress.halting() {
            let mut classification = self.halted();
            self.conclude_attempt(&mut classification);
            return classification;
        }
        let busy_since =
            fault.code.peer_busy().then(|| self.step.busy_since.unwrap_or(self.step.attempt_since));
        let busy_until = busy_since.map(|since| since + self.timeout());
        let again = match busy_until {
            Some(until) => self.now < until,
            None => self.step.attempt < self.step.max_attempt,
        };
        if !again || fault.class() != FaultClass::Retryable {
            let mut classification = self.step_failed(fault);
            self.conclude_attempt(&mut classification);
            return classification;
        }
        let mut progress = self.progress();
        let note = note!("step {}: {}; trying again", self.name, fault.message);
        if let Some(step) = progress.current_mut() {
            step.attempt_open = false;
            step.next_verb = CallVerb::Perform;
            step.uncertain_fault = None;
            step.failed_status_calls = 0;
            let next = self.now + self.policy.backoff.delay(step.attempt, &self.seed());
            step.not_before = Some(busy_until.map_or(next, |until| next.min(until)));
            step.max_attempt += u32::from(busy_since.is_some());
            step.busy_since = busy_since;
            step.message = fault.message;
        }
        AnswerClassification::new(progress, note)
    }

    fn step_failed(&self, fault: Fault) -> AnswerClassification {
        if let Some(Effect::Verify { expect, advisory: true, .. }) = self.run.effect(self.step) {
            return self.not_observed(expect, &fault);
        }
        let canceling = self.run.progress.stop_request.as_ref().is_some_and(|halt| halt.undoing);
        if self.step.undo && canceling {
            return self.undo_failed(fault);
        }
        let fault = match self.run.progress.unfinished_cancel() {
            Some(halt) => {
                let message = format!("{}; {}", fault.message, halt.describe_unfinished());
                Fault { message, ..fault }
            }
            None => fault,
        };
        let mut progress = self.progress();
        let note = note!("step {} failed: {}", self.name, fault.message);
        progress.scan_index = None;
        fail(self.run, &mut progress, fault, self.now);
        AnswerClassification::new(progress, note)
    }

    /// A check that only informs never fails its run. A drain that it cannot observe is unknown.
    fn not_observed(&self, expect: ClusterExpectation, fault: &Fault) -> AnswerClassification {
        let reason = format!("Unknown:{}", fault.code.as_str());
        let drained = ConditionObservation::new(ConditionType::Drained, false, reason);
        let seen = Some(drained).filter(|_| expect == ClusterExpectation::Drained);
        let (message, evidence) = (fault.message.clone(), seen.into_iter().collect());
        self.succeed(CallOutcome { message, evidence, facts: None }, "not known: ")
    }

    /// A canceled run continues with its remaining undo steps; the failure is kept for the
    /// operator.
    fn undo_failed(&self, fault: Fault) -> AnswerClassification {
        let mut progress = self.progress();
        let message = format!("step {} failed: {}", self.name, fault.message);
        close_step(&mut progress, StepPhase::Failed, &fault.message, self.now);
        progress.failure = Some(super::Failure {
            fault: Fault::new(FaultCode::UndoFailed, message.clone()),
            step: self.name.clone(),
            attempts: self.step.attempt,
        });
        progress.step_index += 1;
        AnswerClassification::new(progress, HistoryNote::new(message, here!()))
    }

    fn succeed(&self, outcome: CallOutcome, how: &str) -> AnswerClassification {
        let mut progress = self.progress();
        let message = format!("{how}{}", outcome.message);
        close_step(&mut progress, StepPhase::Succeeded, &message, self.now);
        if let Some(step) = progress.current_mut() {
            step.attempt_open = false;
            step.uncertain_fault = None;
        }
        progress.step_index += 1;
        if progress.step_index < progress.steps.len() {
            progress.workflow = active_workflow(&progress);
        }
        let note = note!("step {} succeeded: {message}", self.name);
        AnswerClassification { progress, note, evidence: outcome.evidence, facts: outcome.facts }
    }

    /// The attempt has ended; continuing needs a new one.
    fn conclude_attempt(&self, classification: &mut AnswerClassification) {
        let index = self.run.progress.scan_index.unwrap_or(self.run.progress.step_index);
        if let Some(step) = classification.progress.steps.get_mut(index) {
            step.attempt_open = false;
        }
    }

    fn halted(&self) -> AnswerClassification {
        let step = stop_run(self.run, self.now);
        AnswerClassification::new(step.progress, step.note)
    }

    fn progress(&self) -> Progress {
        self.run.progress.clone()
    }

    fn seed(&self) -> String {
        self.run.key(self.step).to_string()
    }

    fn harmful_to_repeat(&self) -> bool {
        self.run.effect(self.step).is_some_and(|effect| effect.harmful_to_repeat())
    }

    /// The effect is now known not to have happened: reports the fault as an ordinary failure.
    fn as_plain_failure(&self, fault: &Fault) -> Fault {
        let code = match fault.code.class() {
            FaultClass::Retryable => FaultCode::EffectFailed,
            FaultClass::NeedsIntervention | FaultClass::Rejected | FaultClass::Bug => fault.code,
        };
        let code = if fault.code == FaultCode::StepTimeout { fault.code } else { code };
        Fault { code, ..fault.clone() }
    }
}

fn broken(answer: &ProviderAnswer) -> Fault {
    Fault::new(
        FaultCode::ProtocolBroken,
        format!("the provider gave an answer out of place: {answer:?}"),
    )
}
