//! Explanations of switches and power shelves.

use super::Explanation;
use crate::device::Device;
use crate::fault::Code;
use crate::lifecycle::{Next, Trouble};
use crate::time::{Timestamp, spoken};

/// `next` is what the device's lifecycle would do now.
pub fn explain_device<D: Device>(device: &D, next: &Next<D>, now: Timestamp) -> Explanation {
    let head = device.head();
    explain_state(device, next, now).with_health(&head.id, &head.health)
}

fn explain_state<D: Device>(device: &D, next: &Next<D>, now: Timestamp) -> Explanation {
    let head = device.head();
    let id = &head.id;
    let detail = match device.detail() {
        detail if detail.is_empty() => String::new(),
        detail => format!(" ({detail})"),
    };
    let marked = if head.deleted { ", marked for deletion" } else { "" };
    let state = format!("{id} is {}{detail}{marked}", device.word());
    let get = format!("farrier {} get {id}", D::COMMAND);
    if let (Some(cause), None) = (device.trouble(), &head.active_run) {
        return in_error::<D>(id, &state, cause, head.since, get);
    }
    let waiting_for = match next {
        Next::Rest(why) | Next::Until(_, why) => why.0.clone(),
        Next::Become(change) => change.note.said.clone(),
        Next::Remove(note) => note.said.clone(),
    };
    let mut next_commands: Vec<String> =
        head.active_run.iter().map(|run| format!("farrier why {run}")).collect();
    next_commands.push(get);
    match device.patience() {
        Some(patience) => Explanation {
            headline: state,
            waiting_for,
            since: Some(head.since),
            normal: format!("up to {}", spoken(patience)),
            overdue: device_overdue(device, now),
            next_commands,
            ..Explanation::default()
        },
        None => Explanation {
            headline: match unreachable(device) {
                Some(said) => format!("{state}, but cannot be reached: {said}"),
                None => format!("{state}: {waiting_for}"),
            },
            since: Some(head.since),
            next_commands,
            ..Explanation::default()
        },
    }
}

fn unreachable<D: Device>(device: &D) -> Option<String> {
    device.observed().filter(|seen| !seen.reachable).map(|seen| seen.said.clone())
}

fn in_error<D: Device>(
    id: &str,
    state: &str,
    cause: &Trouble,
    since: Timestamp,
    get: String,
) -> Explanation {
    let command = D::COMMAND;
    let mut next_commands = vec![format!("farrier {command} retry {id}")];
    next_commands.extend(cause.run.iter().map(|run| format!("farrier logs {run}")));
    next_commands.push(get);
    Explanation {
        headline: format!("{state}: {}", cause.said),
        waiting_for: "a person".into(),
        since: Some(since),
        failed: cause.said.clone(),
        fault: Code::parse(&cause.code),
        next_commands,
        ..Explanation::default()
    }
}

/// True if a device has been in its state longer than normal.
pub fn device_overdue<D: Device>(device: &D, now: Timestamp) -> bool {
    device.patience().is_some_and(|patience| now.since(device.head().since) > patience)
}
