//! One whole turn of a run: from the stored run and the provider's answer to the next commit. All
//! moves that need no provider call are folded into one decision, so the end of one step and the
//! intent of the next are one commit.

use super::next::PlannedCall;
use super::{
    HistoryNote, Policy, Run, RunDecision, StepPhase, abandon_call, classify_answer, next,
};
use crate::condition::ConditionObservation;
use crate::effect::{CallVerb, DeviceFacts, ProviderAnswer, ProviderCall};
use crate::fault::Fault;
use crate::time::Timestamp;
use std::time::Duration;

/// The result of the provider call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    Answered(CallVerb, Result<ProviderAnswer, Fault>),
    /// The call was abandoned because the run has to stop.
    Abandoned,
}

/// The next commit, and the action after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The run to write; it still has the version at which it was read.
    pub run: Run,
    pub notes: Vec<HistoryNote>,
    pub evidence: Vec<ConditionObservation>,
    /// The facts that the step that just ended read from its device.
    pub facts: Option<DeviceFacts>,
    pub then: AfterCommit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterCommit {
    CallProvider(ProviderCall, Duration),
    IdleUntil(Timestamp),
    Idle,
}

/// An attempt that a decision concludes as failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    pub step: String,
    pub attempt: u32,
    /// One line for the log of the run.
    pub message: String,
}

impl FailedAttempt {
    /// The failed attempt, if the run has one more after a decision than before.
    pub fn between(before: &Run, after: &Run) -> Option<Self> {
        let index = before.progress.step_index;
        let open = before.progress.steps.get(index).filter(|step| step.attempt_open)?;
        let ended = after.progress.steps.get(index).filter(|step| !step.attempt_open)?;
        let (name, attempt) = (before.step_name(open), open.attempt);
        let failure = after.progress.failure.as_ref();
        let retries = ended.state == StepPhase::Running && ended.not_before.is_some();
        let message = match failure.filter(|_| before.progress.failure.is_none()) {
            Some(failure) => format!("attempt {attempt} failed: {}", failure.fault),
            None if retries => {
                format!("attempt {attempt} failed: {}; trying again", ended.message)
            }
            None => return None,
        };
        Some(Self { step: name, attempt, message })
    }
}

/// The limit of moves without a provider call; more would be a loop in the rules.
const MAX_DECISIONS: usize = 1_000;

pub fn decide(
    stored: &Run,
    epoch: i64,
    given: Option<&CallResult>,
    policy: Policy,
    now: Timestamp,
) -> Decision {
    let mut run = stored.clone();
    let mut notes = Vec::new();
    let mut evidence = Vec::new();
    let mut facts = None;
    if let Some(given) = given {
        let classification = match given {
            CallResult::Answered(verb, result) => {
                classify_answer(&run, *verb, result.clone(), policy, now)
            }
            CallResult::Abandoned => abandon_call(&run),
        };
        run.progress = classification.progress;
        notes.push(classification.note);
        evidence = classification.evidence;
        facts = classification.facts;
    }
    for _ in 0..MAX_DECISIONS {
        match next(&run, epoch, now) {
            RunDecision::Transition(step) => {
                run.progress = step.progress;
                notes.push(step.note);
            }
            RunDecision::CallProvider(asking) => {
                let PlannedCall { call, progress, timeout, note } = *asking;
                run.progress = progress;
                notes.push(note);
                return Decision {
                    run,
                    notes,
                    evidence,
                    facts,
                    then: AfterCommit::CallProvider(call, timeout),
                };
            }
            RunDecision::IdleUntil(at) => {
                return Decision { run, notes, evidence, facts, then: AfterCommit::IdleUntil(at) };
            }
            RunDecision::Idle => {
                return Decision { run, notes, evidence, facts, then: AfterCommit::Idle };
            }
        }
    }
    Decision { run, notes, evidence, facts, then: AfterCommit::Idle }
}
