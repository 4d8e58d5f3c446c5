//! Predicts what a device does by itself from here on, if all its runs succeed. It walks the real
//! lifecycle, so a dry run never shows a step that would not happen.

use super::Device;
use crate::lifecycle::{Change, DeviceContext, NewRun, Next};
use crate::run::{Run, Workflow};
use crate::time::Timestamp;

/// The limit of transitions; more would be a cycle in the rules.
const MAX_MOVES: usize = 32;

/// The steps of its runs in order, each with the state that waits for it, and finally the reason
/// why the device is idle.
pub fn ahead<D: Device<Seen = DeviceContext>>(
    device: &D,
    seen: DeviceContext,
    now: Timestamp,
) -> Vec<String> {
    let (mut device, mut seen) = (device.clone(), seen);
    let mut said = Vec::new();
    for _ in 0..MAX_MOVES {
        match device.next(&seen, now) {
            Next::Rest(why) | Next::Until(_, why) => {
                said.push(format!("{}: {}", device.word(), why.0));
                return said;
            }
            Next::Remove(note) => {
                said.push(note.said);
                return said;
            }
            Next::Become(change) => {
                let Change { record, mut start, .. } = *change;
                device = record;
                for step in start.iter().flat_map(|new| &new.steps) {
                    said.push(format!("{}: step {}", device.word(), step.name));
                }
                // A run that succeeded releases the device.
                let done = start.pop().map(|new| succeeded(new, now));
                if done.is_some() {
                    device.head_mut().active_run = None;
                }
                seen.run = done;
            }
        }
    }
    said
}

fn succeeded(new: NewRun, now: Timestamp) -> Run {
    let mut run = new.run(now);
    run.progress.workflow = Workflow::Completed;
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::lifecycle::{DeviceSpec, Head, Trouble};
    use crate::machine::Labels;
    use crate::power_shelf::{PowerShelf, PowerShelfState};
    use crate::switch::{Switch, SwitchState};

    const AT: Timestamp = Timestamp::from_millis(1);

    fn told<D: Device<Seen = DeviceContext>>(device: &D) -> Vec<String> {
        ahead(device, DeviceContext { fresh: RunId::trusted("op-1"), run: None, against: None }, AT)
    }

    fn switch(state: SwitchState) -> Switch {
        let head = Head::new("sw-1", Labels::new(), AT);
        Switch { state, ..Switch::new(head, DeviceSpec::default()) }
    }

    fn shelf(state: PowerShelfState) -> PowerShelf {
        let head = Head::new("ps-1", Labels::new(), AT);
        PowerShelf { state, ..PowerShelf::new(head, DeviceSpec::default()) }
    }

    fn cause() -> Trouble {
        Trouble { said: "it broke".into(), run: None, code: String::new() }
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
        failed.want_retry();
        assert_eq!(told(&failed)[0], "FetchingData: step read");
        let mut failed = switch(SwitchState::Error { cause: cause() });
        failed.want_retry();
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
