//! Predicts what a device does by itself from here on, if all its runs succeed. It walks the real
//! lifecycle, so a dry run never shows a step that would not happen.

use super::Device;
use crate::lifecycle::{DeviceContext, LifecycleChange, LifecycleDecision, NewRun};
use crate::run::{Run, Workflow};
use crate::time::Timestamp;

/// The limit of transitions; more would be a cycle in the rules.
const MAX_MOVES: usize = 32;

/// The steps of its runs in order, each with the state that waits for it, and finally the reason
/// why the device is idle.
pub fn predict_steps<D: Device<TurnInput = DeviceContext>>(
    device: &D,
    observed: DeviceContext,
    now: Timestamp,
) -> Vec<String> {
    let (mut device, mut observed) = (device.clone(), observed);
    let mut message = Vec::new();
    for _ in 0..MAX_MOVES {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::lifecycle::{DeviceFailure, DeviceSpec, RecordHeader};
    use crate::machine::Labels;
    use crate::power_shelf::{PowerShelf, PowerShelfState};
    use crate::switch::{Switch, SwitchState};

    const AT: Timestamp = Timestamp::from_millis(1);

    fn told<D: Device<TurnInput = DeviceContext>>(device: &D) -> Vec<String> {
        predict_steps(
            device,
            DeviceContext { fresh: RunId::trusted("op-1"), run: None, against: None },
            AT,
        )
    }

    fn switch(state: SwitchState) -> Switch {
        let head = RecordHeader::new("sw-1", Labels::new(), AT);
        Switch { state, ..Switch::new(head, DeviceSpec::default()) }
    }

    fn shelf(state: PowerShelfState) -> PowerShelf {
        let head = RecordHeader::new("ps-1", Labels::new(), AT);
        PowerShelf { state, ..PowerShelf::new(head, DeviceSpec::default()) }
    }

    fn cause() -> DeviceFailure {
        DeviceFailure { message: "it broke".into(), run: None, code: String::new() }
    }

    #[test]
    fn the_steps_of_a_new_device_are_foretold_to_the_end() {
        let read = "step read";
        assert_eq!(
            told(&switch(SwitchState::Created)),
            [
                &format!("Initializing: {read}"),
                "Configuring: step configure",
                "Validating: step validate",
                "Ready: nothing is asked of it",
            ]
        );
        assert_eq!(
            told(&shelf(PowerShelfState::Initializing)),
            [
                &format!("FetchingData: {read}"),
                "Configuring: step configure",
                "Ready: nothing is asked of it",
            ]
        );
    }

    #[test]
    fn what_failed_rests_until_it_is_tried_again() {
        let mut failed = shelf(PowerShelfState::Error { cause: cause() });
        assert_eq!(told(&failed), ["Error: it broke"]);
        failed.request_retry();
        assert_eq!(told(&failed)[0], "FetchingData: step read");
        let mut failed = switch(SwitchState::Error { cause: cause() });
        failed.request_retry();
        assert_eq!(told(&failed).len(), 4);
    }

    #[test]
    fn what_is_deleted_goes_once_nobody_holds_it() {
        let mut free = shelf(PowerShelfState::Ready);
        free.head.deleted = true;
        assert_eq!(told(&free), ["removed"]);
        free.head.active_run = Some(RunId::trusted("op-9"));
        assert_eq!(told(&free), ["Deleting: it is held by operation op-9"]);
    }
}
