//! Explanations of switches and power shelves.

use super::Explanation;
use crate::device::{Device, DeviceReachability};
use crate::effect::DesiredPower;
use crate::fault::FaultCode;
use crate::id::SwitchId;
use crate::lifecycle::{DeviceFailure, Lifecycle, LifecycleDecision};
use crate::rack::RackPowerOn;
use crate::target::TargetKind;
use crate::time::{Timestamp, format_duration};

/// `next` is what the device's lifecycle would do now.
pub fn explain_device<D: Device>(
    device: &D,
    next: &LifecycleDecision<D>,
    now: Timestamp,
) -> Explanation {
    let head = device.head();
    explain_state(device, next, now).with_health(&head.id, &head.health)
}

fn explain_state<D: Device>(
    device: &D,
    next: &LifecycleDecision<D>,
    now: Timestamp,
) -> Explanation {
    let head = device.head();
    let id = &head.id;
    let off = device.facts().power == Some(DesiredPower::Off);
    let detail = match device.power_change() {
        None if off => ", and switched off",
        None => "",
        Some(DesiredPower::On) => " (PowerOn)",
        Some(DesiredPower::Off) => " (PowerOff)",
    };
    let marked = if head.deleted { ", marked for deletion" } else { "" };
    let state = format!("{id} is {}{detail}{marked}", device.state_name());
    let get = format!("farrier {} get {id}", D::COMMAND);
    if let (Some(cause), None) = (device.failure(), &head.active_run) {
        return in_error::<D>(id, &state, cause, head.since, get);
    }
    let waiting_for = match next {
        LifecycleDecision::Idle(why) | LifecycleDecision::IdleUntil(_, why) => why.0.clone(),
        LifecycleDecision::Transition(change) => change.note.message.clone(),
        LifecycleDecision::Remove(note) => note.message.clone(),
    };
    let mut next_commands: Vec<String> =
        head.active_run.iter().map(|run| format!("farrier why {run}")).collect();
    next_commands.extend(switch_on(device).filter(|_| head.active_run.is_none()));
    next_commands.push(get);
    match device.normal_duration() {
        Some(timeout) => Explanation {
            headline: state,
            waiting_for,
            since: Some(head.since),
            normal: format!("up to {}", format_duration(timeout)),
            overdue: record_overdue(device, now),
            next_commands,
            ..Explanation::default()
        },
        None => Explanation {
            headline: match unreachable(device) {
                Some(observed) => format!("{state}, but cannot be reached: {}", observed.message),
                None => format!("{state}: {waiting_for}"),
            },
            since: Some(unreachable(device).map_or(head.since, |observed| observed.at)),
            next_commands,
            ..Explanation::default()
        },
    }
}

/// The command that switches on a device that is off. A switch is switched on by its rack.
fn switch_on<D: Device>(device: &D) -> Option<String> {
    let head = device.head();
    let id = &head.id;
    if device.facts().power != Some(DesiredPower::Off) || !device.is_polled() {
        return None;
    }
    match D::TARGET {
        TargetKind::PowerShelf => {
            Some(format!("farrier power-shelf maintenance power-on --id {id}"))
        }
        TargetKind::Switch => {
            let switch = Some(SwitchId::trusted(id));
            head.rack.clone().map(|rack| RackPowerOn { rack, switch }.to_string())
        }
        TargetKind::Machine | TargetKind::Rack => None,
    }
}

fn unreachable<D: Device>(device: &D) -> Option<&DeviceReachability> {
    device.observed().filter(|observed| !observed.reachable)
}

fn in_error<D: Device>(
    id: &str,
    state: &str,
    cause: &DeviceFailure,
    since: Timestamp,
    get: String,
) -> Explanation {
    let command = D::COMMAND;
    let mut next_commands = vec![format!("farrier {command} retry {id}")];
    next_commands.extend(cause.run.iter().map(|run| format!("farrier logs {run}")));
    next_commands.push(get);
    Explanation {
        headline: format!("{state}: {}", cause.message),
        waiting_for: "a person".into(),
        since: Some(since),
        failed: cause.message.clone(),
        fault: FaultCode::parse(&cause.code),
        next_commands,
        ..Explanation::default()
    }
}

/// True if a record has been in its state longer than normal.
pub fn record_overdue<R: Lifecycle>(record: &R, now: Timestamp) -> bool {
    record.normal_duration().is_some_and(|normal| now.since(record.head().since) > normal)
}
