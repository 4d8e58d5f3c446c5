//! Predicts what a device does by itself from here on, if all its runs succeed. It walks the real
//! lifecycle, so a dry run never shows a step that would not happen.

use super::Device;
use crate::id::PlanId;
use crate::lifecycle::{
    DeviceContext, LifecycleChange, LifecycleDecision, NewRun, lifecycle_plan_id,
};
use crate::plan::RunStep;
use crate::run::{Run, Workflow};
use crate::time::Timestamp;

/// The limit of transitions; more would be a cycle in the rules.
const MAX_PREDICTED: usize = 32;

/// A predicted step of a run with the state that waits for it, or the reason why the device is
/// idle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    pub message: String,
    /// The step, and the plan under which its durations are recorded.
    pub step: Option<(PlanId, RunStep)>,
}

impl Prediction {
    fn without_step(message: String) -> Self {
        Self { message, step: None }
    }
}

/// The steps of its runs in order, and finally the reason why the device is idle.
pub fn predict_steps<D: Device<TurnInput = DeviceContext>>(
    device: &D,
    observed: DeviceContext,
    now: Timestamp,
) -> Vec<Prediction> {
    let (mut device, mut observed) = (device.clone(), observed);
    let mut predicted = Vec::new();
    for _ in 0..MAX_PREDICTED {
        match device.next(&observed, now) {
            LifecycleDecision::Idle(why) | LifecycleDecision::IdleUntil(_, why) => {
                let message = format!("{}: {}", device.state_name(), why.0);
                predicted.push(Prediction::without_step(message));
                return predicted;
            }
            LifecycleDecision::Remove(note) => {
                predicted.push(Prediction::without_step(note.message));
                return predicted;
            }
            LifecycleDecision::Transition(change) => {
                let LifecycleChange { record, mut start, .. } = *change;
                device = record;
                for new in &start {
                    let plan = lifecycle_plan_id(new.run_type);
                    predicted.extend(new.steps.iter().map(|step| Prediction {
                        message: format!("{}: step {}", device.state_name(), step.name),
                        step: Some((plan.clone(), step.clone())),
                    }));
                }
                // A run that succeeded releases the device.
                let done = start.pop().map(|new| succeeded(new, now));
                if done.is_some() {
                    device.head_mut().active_run = None;
                }
                observed.run = done;
            }
        }
    }
    predicted
}

fn succeeded(new: NewRun, now: Timestamp) -> Run {
    let mut run = new.into_run(now);
    run.progress.workflow = Workflow::Completed;
    run
}
