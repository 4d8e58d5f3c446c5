//! The predicted steps of a device.

use model::device::{Device, predict_steps};
use model::id::RunId;
use model::lifecycle::{DeviceContext, DeviceFailure, DeviceSpec, RecordHeader};
use model::machine::Labels;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::switch::{Switch, SwitchState};
use model::time::Timestamp;

const AT: Timestamp = Timestamp::from_millis(1);

fn told<D: Device<TurnInput = DeviceContext>>(device: &D) -> Vec<String> {
    let fresh = RunId::trusted("op-1");
    let predicted = predict_steps(device, DeviceContext { fresh, run: None, against: None }, AT);
    // Whatever names a step has the step, for its time.
    for one in &predicted {
        let named = one.step.as_ref().is_some_and(|(_, step)| one.message.ends_with(&step.name));
        assert_eq!(one.message.contains(": step "), named, "{one:?}");
    }
    predicted.into_iter().map(|one| one.message).collect()
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
            "Ready: no request is pending",
        ]
    );
    assert_eq!(
        told(&shelf(PowerShelfState::Initializing)),
        [
            &format!("FetchingData: {read}"),
            "Configuring: step configure",
            "Ready: no request is pending",
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
