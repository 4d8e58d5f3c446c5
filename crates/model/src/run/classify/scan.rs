//! The scan of a rerun: it searches backwards for the last step whose goal holds.
//!
//! That step implies the steps before it, except a write of the disk: that a host is a member of
//! its cluster does not tell which image it runs. So the last disk write before it is observed too.

use super::{AnswerClassification, AnswerContext};
use crate::effect::{CallOutcome, CallVerb};
use crate::note;
use crate::run::{Progress, StepPhase, StepState};

impl AnswerContext<'_> {
    /// The goal of this step holds: this step and all before it are skipped, once the last disk
    /// write before it is observed as well.
    pub(super) fn adopt_up_to_here(&self, outcome: CallOutcome) -> AnswerClassification {
        let mut progress = self.progress();
        let here = progress.scan_index.take().unwrap_or_default();
        self.adopt(&mut progress, here, &outcome.message);
        let write = self.disk_write_before(here);
        let note = match write {
            Some(index) => {
                progress.scan_index = Some(index);
                observe_next(&mut progress);
                note!("step {} holds; asking for the disk write before it", self.name)
            }
            None => {
                let last = self.adopt_implied(&mut progress, here);
                note!("adopted everything up to step {last}")
            }
        };
        AnswerClassification { progress, note, evidence: outcome.evidence, facts: outcome.facts }
    }

    /// The goal of this step does not hold; the scan continues with the step before it. Later steps
    /// that hold were reached on another disk, so they are executed as well.
    pub(super) fn scan_back(&self, observed: &str) -> AnswerClassification {
        let mut progress = self.progress();
        let here = progress.scan_index.take().unwrap_or_default();
        for (index, step) in progress.steps.iter_mut().enumerate().skip(here) {
            if index == here || step.state == StepPhase::Succeeded {
                let retries = self.run.plan_step(step).map_or(0, |plan| plan.max_retries);
                *step = StepState::new(step.plan_step, false, retries);
            }
        }
        progress.scan_index = here.checked_sub(1);
        if progress.scan_index.is_some() {
            observe_next(&mut progress);
        }
        let note = note!("step {} is not adopted: {observed}", self.name);
        AnswerClassification::new(progress, note)
    }

    fn adopt(&self, progress: &mut Progress, index: usize, message: &str) {
        if let Some(step) = progress.steps.get_mut(index) {
            step.state = StepPhase::Succeeded;
            step.started_at = step.started_at.or(Some(self.now));
            step.finished_at = Some(self.now);
            step.message = format!("adopted: {message}");
        }
    }

    /// Adopts the steps that the last step with an observed goal implies; returns its name.
    fn adopt_implied(&self, progress: &mut Progress, here: usize) -> String {
        let holds = |step: &StepState| step.state == StepPhase::Succeeded;
        let last = progress.steps.iter().rposition(holds).unwrap_or(here);
        let name = progress.steps.get(last).map(|step| self.run.step_name(step));
        let name = name.unwrap_or_default();
        let implied = format!("implied by step {name}");
        for index in 0..last {
            if progress.steps.get(index).is_some_and(|step| !holds(step)) {
                self.adopt(progress, index, &implied);
            }
        }
        progress.step_index = last + 1;
        name
    }

    /// The last step before this one that writes the disk. None if this one writes it: its
    /// observation says what is on the disk.
    fn disk_write_before(&self, here: usize) -> Option<usize> {
        let writes = |step: &StepState| {
            self.run.effect(step).is_some_and(|effect| effect.facts().disk.is_some())
        };
        let steps = self.run.progress.steps.get(..=here)?;
        steps.iter().rposition(writes).filter(|index| *index < here)
    }
}

/// The next call asks whether the goal of the scanned step holds.
fn observe_next(progress: &mut Progress) {
    if let Some(step) = progress.current_mut() {
        step.next_verb = CallVerb::Observe;
    }
}
