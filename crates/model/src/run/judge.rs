//! Classifies a provider's answer: what it means for the run.
//!
//! When an effect may have happened in spite of a fault, it is never simply retried: its status is
//! read first. If the status cannot be determined and a repetition would do harm, the run stops for
//! an operator.

use super::next::{close_step, fail, halted, moving};
use super::{Note, Progress, Run, StepPhase, StepState};
use crate::condition::Evidence;
use crate::effect::{Answer, Facts, Outcome, Verb};
use crate::fault::{Class, Code, Fault, Happened};
use crate::here;
use crate::plan::RunStep;
use crate::retry::Backoff;
use crate::time::Timestamp;
use std::time::Duration;

/// The number of consecutive status calls that may fail before the run stops trying.
pub const MAX_LOOKS: u32 = 8;

/// The limit of doublings of the delay before a call is followed again.
const MAX_RESTS: u32 = 4;

/// The server's retry configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    pub backoff: Backoff,
}

/// The result of a classification: the new progress, its note, and what the answer proves about the
/// machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub progress: Progress,
    pub note: Note,
    pub evidence: Vec<Evidence>,
    /// The facts read from the device.
    pub facts: Option<Facts>,
}

/// One answer in its context.
struct Case<'a> {
    run: &'a Run,
    step: &'a StepState,
    name: String,
    policy: Policy,
    now: Timestamp,
}

pub fn judge(
    run: &Run,
    verb: Verb,
    result: Result<Answer, Fault>,
    policy: Policy,
    now: Timestamp,
) -> Verdict {
    let Some(step) = run.progress.current() else {
        let note = Note::new("an answer came for no step", here!());
        return Verdict { progress: run.progress.clone(), note, evidence: Vec::new(), facts: None };
    };
    let case = Case { run, step, name: run.step_name(step), policy, now };
    let mut verdict = match verb {
        Verb::Perform => case.performed(result),
        Verb::Follow => case.followed(result),
        Verb::GetStatus => case.inquired(result),
        Verb::Observe => case.observed(result),
        Verb::Stop => case.stopped(result),
    };
    // The intent of the answered call is settled, whatever was decided.
    let index = run.progress.scan.unwrap_or(run.progress.at);
    if let Some(step) = verdict.progress.steps.get_mut(index) {
        step.asked = None;
    }
    verdict
}

/// The call was abandoned because the run has to stop: the next call asks the provider to stop it.
pub fn interrupt(run: &Run) -> Verdict {
    let mut progress = run.progress.clone();
    if let Some(step) = progress.current_mut() {
        let begun = step.open && step.asked.is_some();
        step.asked = None;
        step.looks = 0;
        if begun {
            step.pursuit = Verb::Stop;
        }
    }
    let note = Note::new(format!("stopping step {}", run.current_step()), here!());
    Verdict { progress, note, evidence: Vec::new(), facts: None }
}

impl Case<'_> {
    fn performed(&self, result: Result<Answer, Fault>) -> Verdict {
        match result {
            Ok(Answer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(other) => self.doubt(broken(&other)),
            Err(fault) => match fault.code.happened() {
                Happened::Maybe => self.doubt(fault),
                Happened::No => self.attempt_failed(fault),
            },
        }
    }

    /// An unreachable peer says nothing about the work it does.
    fn followed(&self, result: Result<Answer, Fault>) -> Verdict {
        match result {
            Err(fault) if fault.code.unseen() => self.doubt(fault),
            other => self.performed(other),
        }
    }

    fn inquired(&self, result: Result<Answer, Fault>) -> Verdict {
        match result {
            Ok(Answer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(Answer::UnderWay) => self.under_way(),
            // A call of a worker that lost its claim may still arrive. Stopping the key makes the
            // provider refuse it, before this run ends or continues under another key.
            Ok(Answer::NeverStarted)
                if self.run.progress.halting() || self.step.doubt.is_some() =>
            {
                self.pursue(Verb::Stop, "it was never started, and must not start now", here!())
            }
            Ok(Answer::NeverStarted) => self.pursue(Verb::Perform, "it was never started", here!()),
            Ok(Answer::Unknown(seen)) => self.unknown(seen),
            Ok(other @ (Answer::Differs(_) | Answer::Stopped)) => self.look_failed(broken(&other)),
            Err(fault) => self.look_failed(fault),
        }
    }

    fn observed(&self, result: Result<Answer, Fault>) -> Verdict {
        let scanning = self.run.progress.scan.is_some();
        match result {
            Ok(Answer::Done(outcome)) if scanning => self.adopt_up_to_here(outcome),
            Ok(Answer::Done(outcome)) => {
                let mut verdict = self.succeed(outcome, "adopted: ");
                verdict.progress.adopted = true;
                verdict
            }
            Ok(Answer::Differs(seen)) if scanning => self.scan_back(&seen),
            Ok(Answer::Differs(seen)) => {
                self.not_adoptable(format!("step {} cannot be adopted: {seen}", self.name))
            }
            Ok(
                other @ (Answer::UnderWay
                | Answer::NeverStarted
                | Answer::Unknown(_)
                | Answer::Stopped),
            ) => self.look_failed(broken(&other)),
            Err(fault) => self.look_failed(fault),
        }
    }

    fn stopped(&self, result: Result<Answer, Fault>) -> Verdict {
        let halting = self.run.progress.halting();
        match result {
            Ok(Answer::Done(outcome)) => self.succeed(outcome, ""),
            Ok(Answer::Stopped) if halting => {
                let mut verdict = self.halted();
                // The key is stopped for good; a resumed run needs a new attempt.
                let index = self.run.progress.scan.unwrap_or(self.run.progress.at);
                if let Some(step) = verdict.progress.steps.get_mut(index) {
                    step.open = false;
                }
                verdict
            }
            Ok(Answer::Stopped) => match &self.step.doubt {
                Some(fault) => self.attempt_failed(self.plainly(fault)),
                None => self.attempt_failed(Fault::new(Code::EffectFailed, "it was stopped")),
            },
            Ok(Answer::Unknown(seen)) => self.unknown(seen),
            Ok(Answer::UnderWay) => self.unstoppable(),
            Ok(other @ (Answer::NeverStarted | Answer::Differs(_))) => {
                self.look_failed(broken(&other))
            }
            Err(fault) => self.look_failed(fault),
        }
    }

    /// The work cannot be stopped, so the run waits for its end: no other operation may touch a
    /// half-written device. Child runs have deadlines of their own and are waited for without
    /// limit; anything else until the step's deadline.
    fn unstoppable(&self) -> Verdict {
        let said = "it cannot be stopped any more, and is seen through";
        let ends_by_itself = self.run.effect(self.step).is_some_and(|one| one.group().is_some());
        if !ends_by_itself && self.now >= self.deadline() {
            return self.look_failed(Fault::new(Code::StepTimeout, said));
        }
        let mut verdict = self.pursue(Verb::Stop, said, here!());
        if let Some(step) = verdict.progress.current_mut() {
            step.message = said.into();
            step.not_before = Some(self.now + self.rest());
        }
        verdict
    }

    /// The work is still in progress: follow it, or stop it when its deadline has passed or the run
    /// has to stop.
    fn under_way(&self) -> Verdict {
        let deadline = self.deadline();
        if self.run.progress.halting() || self.now >= deadline {
            return self.pursue(Verb::Stop, "it is under way and must stop", here!());
        }
        let mut verdict = self.pursue(Verb::Follow, "it is under way", here!());
        if let (Some(_), Some(step)) = (&self.step.doubt, verdict.progress.current_mut()) {
            // The connection was just lost; an immediate call would probably fail again.
            step.not_before = Some(deadline.min(self.now + self.rest()));
        }
        verdict
    }

    /// The deadline of the current attempt.
    fn deadline(&self) -> Timestamp {
        let timeout = self.run.plan_step(self.step).map_or(Duration::ZERO, RunStep::timeout);
        self.step.attempt_since + timeout
    }

    /// The delay before following again. It grows with the age of the attempt.
    fn rest(&self) -> Duration {
        let first = self.policy.backoff.first.as_millis().max(1);
        let going = self.now.since(self.step.attempt_since).as_millis() / first;
        let failures = (going.max(1).ilog2() + 1).min(MAX_RESTS);
        self.policy.backoff.delay(failures, &self.seed())
    }

    fn unknown(&self, seen: String) -> Verdict {
        let said = format!("nobody can tell whether step {} took effect: {seen}", self.name);
        if self.destructive() {
            return self.step_failed(Fault::new(Code::OutcomeUnknown, said));
        }
        if self.run.progress.halting() {
            return self.halted();
        }
        self.attempt_failed(Fault::new(Code::EffectFailed, said))
    }

    /// The effect may have happened. The only legal follow-up is to get the status.
    fn doubt(&self, fault: Fault) -> Verdict {
        let note = Note::new(format!("step {}: {}; looking", self.name, fault.said), here!());
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            step.pursuit = Verb::GetStatus;
            step.looks = 0;
            step.message = fault.said.clone();
            step.doubt = Some(fault);
        }
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    fn pursue(&self, verb: Verb, said: &str, line: &'static str) -> Verdict {
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            step.pursuit = verb;
            step.looks = 0;
            step.not_before = None;
        }
        let note = Note::new(format!("step {}: {said}", self.name), line);
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    /// A status call failed. It is repeated with backoff, at most `MAX_LOOKS` times.
    fn look_failed(&self, fault: Fault) -> Verdict {
        let looks = self.step.looks + 1;
        if looks >= MAX_LOOKS {
            return self.gave_up_looking(fault);
        }
        let mut progress = self.progress();
        let note = Note::new(format!("step {}: {}; asking again", self.name, fault.said), here!());
        if let Some(step) = progress.current_mut() {
            step.looks = looks;
            step.message = fault.said;
            step.not_before = Some(self.now + self.policy.backoff.delay(looks, &self.seed()));
        }
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    fn gave_up_looking(&self, fault: Fault) -> Verdict {
        let said =
            format!("no answer about step {} after {MAX_LOOKS} tries: {}", self.name, fault.said);
        match self.step.pursuit {
            Verb::Observe if self.run.progress.scan.is_some() => self.scan_back(&fault.said),
            Verb::Observe => self.not_adoptable(said),
            Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Stop if self.destructive() => {
                self.step_failed(Fault::new(Code::OutcomeUnknown, said))
            }
            Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Stop
                if self.run.progress.halting() =>
            {
                self.halted()
            }
            Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Stop => {
                self.attempt_failed(Fault::new(Code::EffectFailed, said))
            }
        }
    }

    /// The observed state is not the goal of the step. That fails the run, unless it has to stop
    /// anyway; then the status of an open attempt must still be read.
    fn not_adoptable(&self, said: String) -> Verdict {
        match (self.run.progress.halting(), self.step.open) {
            (true, true) => self.pursue(Verb::GetStatus, "looking what became of it", here!()),
            (true, false) => self.halted(),
            (false, _) => self.step_failed(Fault::new(Code::NotAdoptable, said)),
        }
    }

    /// The attempt ended without success: retry if the budget allows, else the step fails.
    fn attempt_failed(&self, fault: Fault) -> Verdict {
        if self.run.progress.halting() {
            return self.halted();
        }
        let again = fault.class() == Class::Retryable && self.step.attempt < self.step.budget;
        if !again {
            let mut verdict = self.step_failed(fault);
            // This attempt is concluded; continuing needs a new one.
            if let Some(step) = verdict.progress.steps.get_mut(self.run.progress.at) {
                step.open = false;
            }
            return verdict;
        }
        let mut progress = self.progress();
        let note = Note::new(format!("step {}: {}; trying again", self.name, fault.said), here!());
        if let Some(step) = progress.current_mut() {
            step.open = false;
            step.pursuit = Verb::Perform;
            step.doubt = None;
            step.looks = 0;
            step.not_before =
                Some(self.now + self.policy.backoff.delay(step.attempt, &self.seed()));
            step.message = fault.said;
        }
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    fn step_failed(&self, fault: Fault) -> Verdict {
        let canceling = self.run.progress.halt.as_ref().is_some_and(|halt| halt.undoing);
        if self.step.undo && canceling {
            return self.undo_failed(fault);
        }
        let mut progress = self.progress();
        let note = Note::new(format!("step {} failed: {}", self.name, fault.said), here!());
        progress.scan = None;
        fail(self.run, &mut progress, fault, self.now);
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    /// A canceled run continues with its remaining undo steps; the failure is kept for the
    /// operator.
    fn undo_failed(&self, fault: Fault) -> Verdict {
        let mut progress = self.progress();
        let said = format!("step {} failed: {}", self.name, fault.said);
        close_step(&mut progress, StepPhase::Failed, &fault.said, self.now);
        progress.failure = Some(super::Failure {
            fault: Fault::new(Code::UndoFailed, said.clone()),
            step: self.name.clone(),
            attempts: self.step.attempt,
        });
        progress.at += 1;
        Verdict { progress, note: Note::new(said, here!()), evidence: Vec::new(), facts: None }
    }

    fn succeed(&self, outcome: Outcome, how: &str) -> Verdict {
        let mut progress = self.progress();
        let said = format!("{how}{}", outcome.said);
        close_step(&mut progress, StepPhase::Succeeded, &said, self.now);
        if let Some(step) = progress.current_mut() {
            step.open = false;
            step.doubt = None;
        }
        progress.at += 1;
        if progress.at < progress.steps.len() {
            progress.workflow = moving(&progress);
        }
        let note = Note::new(format!("step {} succeeded: {said}", self.name), here!());
        Verdict { progress, note, evidence: outcome.evidence, facts: outcome.facts }
    }

    /// A rerun found the last step whose goal holds: this step and all before it are skipped.
    fn adopt_up_to_here(&self, outcome: Outcome) -> Verdict {
        let mut progress = self.progress();
        let last = progress.scan.take().unwrap_or_default();
        for (index, step) in progress.steps.iter_mut().enumerate().take(last + 1) {
            step.state = StepPhase::Succeeded;
            step.started_at = step.started_at.or(Some(self.now));
            step.finished_at = Some(self.now);
            step.message = match index {
                _ if index == last => format!("adopted: {}", outcome.said),
                _ => format!("adopted: implied by step {}", self.name),
            };
        }
        progress.at = last + 1;
        let note = Note::new(format!("adopted everything up to step {}", self.name), here!());
        Verdict { progress, note, evidence: outcome.evidence, facts: outcome.facts }
    }

    /// The goal of this step does not hold; the scan continues with the step before it.
    fn scan_back(&self, seen: &str) -> Verdict {
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            let of = step.of;
            let retries = self.run.plan_step(step).map_or(0, |plan| plan.max_retries);
            *step = StepState::new(of, false, retries);
        }
        progress.scan = match progress.scan {
            Some(0) | None => None,
            Some(index) => Some(index - 1),
        };
        if progress.scan.is_some()
            && let Some(step) = progress.current_mut()
        {
            step.pursuit = Verb::Observe;
        }
        let note = Note::new(format!("step {} is not adopted: {seen}", self.name), here!());
        Verdict { progress, note, evidence: Vec::new(), facts: None }
    }

    fn halted(&self) -> Verdict {
        let step = halted(self.run, self.now);
        Verdict { progress: step.progress, note: step.note, evidence: Vec::new(), facts: None }
    }

    fn progress(&self) -> Progress {
        self.run.progress.clone()
    }

    fn seed(&self) -> String {
        self.run.key(self.step).to_string()
    }

    fn destructive(&self) -> bool {
        self.run.effect(self.step).is_some_and(|effect| effect.destructive())
    }

    /// The effect is now known not to have happened: reports the fault as an ordinary failure.
    fn plainly(&self, fault: &Fault) -> Fault {
        let code = match fault.code.class() {
            Class::Retryable => Code::EffectFailed,
            Class::NeedsIntervention | Class::Rejected | Class::Bug => fault.code,
        };
        Fault::new(if fault.code == Code::StepTimeout { fault.code } else { code }, &fault.said)
    }
}

fn broken(answer: &Answer) -> Fault {
    Fault::new(
        Code::ProtocolBroken,
        format!("the provider gave an answer out of place: {answer:?}"),
    )
}
