//! What an answer from the world means for a run.
//!
//! The rules of doubt live here. A fault after which the effect may have happened is never followed
//! by another try, only by a look. A look that cannot find out stops for a person when doing the
//! effect twice would do harm.

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

/// How often a look may fail in a row before a person is asked.
pub const MAX_LOOKS: u32 = 8;

/// Following is taken up again after a rest that has doubled no more often than this.
const MAX_RESTS: u32 = 4;

/// What the server's configuration says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    pub backoff: Backoff,
}

/// A judgement: the new progress, what to say, and what it proves about the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub progress: Progress,
    pub note: Note,
    pub evidence: Vec<Evidence>,
    /// What was read of a device.
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
        Verb::Inquire => case.inquired(result),
        Verb::Observe => case.observed(result),
        Verb::Stop => case.stopped(result),
    };
    // Whatever was decided, the order that was answered is settled.
    let index = run.progress.scan.unwrap_or(run.progress.at);
    if let Some(step) = verdict.progress.steps.get_mut(index) {
        step.asked = None;
    }
    verdict
}

/// The order in hand was left alone because the run is to stop: ask the world to stop it.
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

    /// Not being able to see the work says nothing about the work.
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
            // An order that is still on its way, from a worker that lost its claim, must find the key
            // barred before this run ends or goes on under another key.
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
                // The key is barred: whoever takes the run up again needs another one.
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

    /// It cannot be called back: it is seen through, so that nobody else comes to a device that is half written. What has its own
    /// deadline, as the parts of a group have, is waited for; anything else until its time is up.
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

    /// It is still being done: see it through, or stop it when its time is up or the run is to stop.
    fn under_way(&self) -> Verdict {
        let deadline = self.deadline();
        if self.run.progress.halting() || self.now >= deadline {
            return self.pursue(Verb::Stop, "it is under way and must stop", here!());
        }
        let mut verdict = self.pursue(Verb::Follow, "it is under way", here!());
        if let (Some(_), Some(step)) = (&self.step.doubt, verdict.progress.current_mut()) {
            // Who has just lost sight of it would lose it again at once.
            step.not_before = Some(deadline.min(self.now + self.rest()));
        }
        verdict
    }

    /// When the attempt in hand has used up its time.
    fn deadline(&self) -> Timestamp {
        let timeout = self.run.plan_step(self.step).map_or(Duration::ZERO, RunStep::timeout);
        self.step.attempt_since + timeout
    }

    /// How long to wait before following it again: the longer it has been going on, the longer.
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

    /// The effect may have happened. The only thing to do is to look.
    fn doubt(&self, fault: Fault) -> Verdict {
        let note = Note::new(format!("step {}: {}; looking", self.name, fault.said), here!());
        let mut progress = self.progress();
        if let Some(step) = progress.current_mut() {
            step.pursuit = Verb::Inquire;
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

    /// A question went unanswered. Asked again later, and in the end a person is asked.
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
            Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Stop if self.destructive() => {
                self.step_failed(Fault::new(Code::OutcomeUnknown, said))
            }
            Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Stop
                if self.run.progress.halting() =>
            {
                self.halted()
            }
            Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Stop => {
                self.attempt_failed(Fault::new(Code::EffectFailed, said))
            }
        }
    }

    /// The observed state is not what the step wants. That fails the run, unless it is to stop
    /// anyway; what an earlier attempt did must then still be found out.
    fn not_adoptable(&self, said: String) -> Verdict {
        match (self.run.progress.halting(), self.step.open) {
            (true, true) => self.pursue(Verb::Inquire, "looking what became of it", here!()),
            (true, false) => self.halted(),
            (false, _) => self.step_failed(Fault::new(Code::NotAdoptable, said)),
        }
    }

    /// The attempt is over and did not work: another one if the budget allows, else the step failed.
    fn attempt_failed(&self, fault: Fault) -> Verdict {
        if self.run.progress.halting() {
            return self.halted();
        }
        let again = fault.class() == Class::Retryable && self.step.attempt < self.step.budget;
        if !again {
            let mut verdict = self.step_failed(fault);
            // This attempt is concluded; only a fresh one can go on from here.
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

    /// A canceled run goes on undoing the rest; the failure is kept for the person who must look.
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

    /// A rerun found the last step whose goal holds: it and all before it need not be done again.
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

    /// This step's goal does not hold; perhaps that of the one before it does.
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

    /// A doubt that was cleared up is an ordinary failure: the effect did not happen.
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
