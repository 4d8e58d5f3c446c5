//! Previews of runs, for dry runs: what a run would do after a request.

use super::Runs;
use crate::fan_out::child_runs;
use model::effect::Effect;
use model::run::{
    AfterCommit, CallResult, RemainingStep, Run, StepPhase, decide, describe_stop, remaining_steps,
};
use model::why::{UsualDuration, named_duration_key};
use store::{Result, Tx};

/// What a run would do.
#[derive(Debug, Clone)]
pub struct RunPreview {
    pub steps: Vec<PreviewedStep>,
    /// What becomes of the effect in progress, and of the step that is adopted.
    pub notes: Vec<String>,
    /// Why the run would fail at once.
    pub would_fail: Option<String>,
}

/// A step that would be executed, and the time that it usually takes on this hardware model.
#[derive(Debug, Clone)]
pub struct PreviewedStep {
    pub left: RemainingStep,
    pub usual: Option<UsualDuration>,
}

impl Runs {
    /// Previews a run as a dry run of a request has left it.
    pub async fn preview(&self, run: &Run) -> Result<RunPreview> {
        self.0.store().read(run.clone(), |run, tx| Box::pin(load_preview(tx, run))).await
    }

    /// Previews a run after a dry run of an adoption: asks the device, as the run would, whether
    /// the goal of the current step holds.
    pub async fn preview_adoption(&self, adopting: &Run) -> Result<RunPreview> {
        let (policy, now) = (self.0.policy(), self.0.now());
        let asks = decide(adopting, 0, None, policy, now);
        let AfterCommit::CallProvider(call, limit) = asks.then else {
            return self.preview(&asks.run).await;
        };
        let verb = call.verb;
        let answer = self.0.observe(&asks.run, &call, limit).await;
        let given = CallResult::Answered(verb, answer);
        let index = asks.run.progress.step_index;
        let after = decide(&asks.run, 0, Some(&given), policy, now).run;
        let mut preview = self.preview(&after).await?;
        match after.progress.failure.as_ref().filter(|_| after.ended()) {
            Some(failure) => preview.would_fail = Some(failure.fault.message.clone()),
            None => preview.notes.extend(describe_adoption(&after, index)),
        }
        Ok(preview)
    }
}

/// The step that would be adopted, or why that is not known now.
fn describe_adoption(after: &Run, index: usize) -> Option<String> {
    let step = after.progress.steps.get(index)?;
    let name = after.step_name(step);
    Some(match step.state {
        StepPhase::Succeeded => format!("{name} would be {}", step.message),
        StepPhase::Waiting | StepPhase::Running | StepPhase::Failed => {
            format!("whether {name} holds cannot be read now: {}", step.message)
        }
    })
}

async fn load_preview(tx: &mut Tx, run: &Run) -> Result<RunPreview> {
    let left = remaining_steps(run);
    let keys: Vec<String> =
        left.iter().map(|one| named_duration_key(run, &one.step.name)).collect();
    let model = match run.spec.target.machine() {
        Some(id) => tx.hardware_model(&id).await?,
        None => String::new(),
    };
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut recorded = tx.step_durations(&names).await?;
    let steps = left.into_iter().zip(keys).map(|(left, key)| {
        let durations = recorded.remove(&(key, model.clone())).unwrap_or_default();
        PreviewedStep { left, usual: UsualDuration::of(durations, &model) }
    });
    let steps = steps.collect();
    let stops = run.progress.stop_request.as_ref().is_some_and(|stop| !stop.undoing);
    let notes = if stops { describe_stops(tx, run).await? } else { Vec::new() };
    Ok(RunPreview { steps, notes, would_fail: None })
}

/// What a stop does to the effects in progress: that of the run, and those of its child runs.
async fn describe_stops(tx: &mut Tx, run: &Run) -> Result<Vec<String>> {
    let mut notes: Vec<String> = describe_one(tx, run).await?.into_iter().collect();
    let Some(step) = run.progress.current() else { return Ok(notes) };
    if let Some(group) = run.effect(step).as_ref().and_then(Effect::group) {
        for child in child_runs(tx, &run.key(step), group).await?.into_values() {
            notes.extend(describe_one(tx, &child).await?);
        }
    }
    Ok(notes)
}

async fn describe_one(tx: &mut Tx, run: &Run) -> Result<Option<String>> {
    let machine = match run.spec.target.machine() {
        Some(id) => tx.machine(&id).await?,
        None => None,
    };
    Ok(describe_stop(run, machine.and_then(|machine| machine.open_disk_write).as_ref()))
}
