//! Predicts what a device does by itself from here on, if all its runs succeed. It walks the real
//! lifecycle, so a dry run never shows a step that would not happen.

use super::Device;
use crate::lifecycle::{DeviceContext, LifecycleChange, LifecycleDecision, NewRun};
use crate::run::{Run, Workflow};
use crate::time::Timestamp;

/// The limit of transitions; more would be a cycle in the rules.
const MAX_PREDICTED: usize = 32;

/// The steps of its runs in order, each with the state that waits for it, and finally the reason
/// why the device is idle.
pub fn predict_steps<D: Device<TurnInput = DeviceContext>>(
    device: &D,
    observed: DeviceContext,
    now: Timestamp,
) -> Vec<String> {
    let (mut device, mut observed) = (device.clone(), observed);
    let mut message = Vec::new();
    for _ in 0..MAX_PREDICTED {
        match device.next(&observed, now) {
            LifecycleDecision::Idle(why) | LifecycleDecision::IdleUntil(_, why) => {
                message.push(format!("{}: {}", device.state_name(), why.0));
                return message;
            }
            LifecycleDecision::Remove(note) => {
                message.push(note.message);
                return message;
            }
            LifecycleDecision::Transition(change) => {
                let LifecycleChange { record, mut start, .. } = *change;
                device = record;
                for step in start.iter().flat_map(|new| &new.steps) {
                    message.push(format!("{}: step {}", device.state_name(), step.name));
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
    message
}

fn succeeded(new: NewRun, now: Timestamp) -> Run {
    let mut run = new.into_run(now);
    run.progress.workflow = Workflow::Completed;
    run
}
