//! Probes of a device, and retries after an error.

mod predict;

use model::condition::hysteresis::HysteresisLimits;
use model::device::{Device, DevicePollState, DeviceReachability, retry};
use model::effect::{DesiredPower, DeviceFacts};
use model::fault::{Fault, FaultCode};
use model::lifecycle::{DeviceFailure, DeviceSpec, Lifecycle, RecordHeader};
use model::machine::Labels;
use model::switch::Switch;
use model::time::Timestamp;

const AT: Timestamp = Timestamp::from_millis(1);

fn switch(reachable: Option<bool>, power: Option<DesiredPower>) -> Switch {
    let head = RecordHeader::new("sw-1", Labels::new(), AT);
    let mut switch = Switch::create(head, DeviceSpec::default());
    let message = match reachable {
        Some(true) => "it answers",
        Some(false) | None => "gone",
    };
    let observed = reachable.map(|reachable| DeviceReachability {
        reachable,
        message: message.into(),
        at: AT,
    });
    *switch.observed_mut() = observed;
    switch.merge_facts(&DeviceFacts { power, ..DeviceFacts::default() });
    switch
}

fn saw(power: DesiredPower) -> Result<DeviceFacts, Fault> {
    Ok(DeviceFacts { power: Some(power), ..DeviceFacts::default() })
}

fn lost() -> Result<DeviceFacts, Fault> {
    Err(Fault::new(FaultCode::BmcUnreachable, "gone"))
}

#[test]
fn power_is_believed_at_once_and_silence_after_three_looks() {
    use DesiredPower::{Off, On};
    let up = Some(true);
    for (device, probes, change) in [
        (switch(None, None), vec![saw(On)], vec![Some("it answers, power is on")]),
        (switch(None, None), vec![lost()], vec![Some("gone")]),
        (switch(up, Some(On)), vec![saw(On), saw(On)], vec![None, None]),
        (switch(up, Some(On)), vec![saw(Off)], vec![Some("power is off")]),
        (switch(up, Some(On)), vec![lost(), lost(), lost()], vec![None, None, Some("gone")]),
        (switch(up, Some(On)), vec![lost(), lost(), saw(On), lost()], vec![None; 4]),
        (switch(Some(false), Some(On)), vec![saw(On), saw(On)], vec![None, Some("it answers")]),
        (
            switch(up, None),
            vec![Err(Fault::new(FaultCode::NotSupported, "no")), lost()],
            vec![None, None],
        ),
    ] {
        let mut poll = DevicePollState::default();
        for (probe, expected) in probes.into_iter().zip(change) {
            let reported =
                poll.record_probe(&device, probe.clone(), HysteresisLimits::default(), AT);
            let reported = reported.map(|change| change.message);
            assert_eq!(reported.as_deref(), expected, "{device:?} {probe:?}");
        }
    }
}

#[test]
fn what_was_changed_on_purpose_is_believed_at_once() {
    let mut device = switch(Some(true), Some(DesiredPower::On));
    let mut poll = DevicePollState::default();
    assert_eq!(poll.record_probe(&device, lost(), HysteresisLimits::default(), AT), None);
    device.head.version += 1;
    let change = poll.record_probe(&device, lost(), HysteresisLimits::default(), AT).unwrap();
    assert!(!change.observed.reachable);
}

#[test]
fn only_what_is_in_error_is_tried_again() {
    let mut device = switch(None, None);
    assert_eq!(retry(&mut device).unwrap_err().reason.as_str(), "NOT_IN_ERROR");
    let cause = DeviceFailure { message: "no".into(), run: None, code: String::new() };
    device.state = model::switch::SwitchState::Error { cause };
    retry(&mut device).unwrap();
    assert!(device.retry_requested);
}
