//! Explains the state of a rack.

use super::{MAX_NAMED, NotIngested, Rack, RackFailure, RackState, some_of};
use crate::fault::FaultCode;
use crate::lifecycle::Lifecycle;
use crate::time::{Timestamp, format_duration};
use crate::why::{Explanation, record_overdue};

/// `waits_for` is what its lifecycle waits for, `left_out` the machines that it has not ingested.
pub fn explain(
    rack: &Rack,
    waits_for: &str,
    left_out: &[NotIngested],
    now: Timestamp,
) -> Explanation {
    let id = &rack.head.id;
    let mut reported = explain_state(rack, waits_for, now);
    let machines: Vec<String> = left_out.iter().map(|one| one.machine.to_string()).collect();
    if !machines.is_empty() {
        reported.notes.push(format!(
            "in service when {id} was ingested, and left out: {}",
            some_of(&machines)
        ));
    }
    let commands = left_out.iter().take(MAX_NAMED).map(|one| one.next_command.clone());
    reported.next_commands.extend(commands);
    reported.with_health(id, &rack.head.health)
}

fn explain_state(rack: &Rack, waits_for: &str, now: Timestamp) -> Explanation {
    let id = &rack.head.id;
    let get = format!("farrier rack get {id}");
    let reported = Explanation {
        waiting_for: waits_for.to_string(),
        since: Some(rack.head.since),
        normal: rack
            .normal_duration()
            .map_or_else(String::new, |normal| format!("up to {}", format_duration(normal))),
        overdue: record_overdue(rack, now),
        ..Explanation::default()
    };
    let status = || format!("farrier rack maintenance status {id}");
    match &rack.state {
        RackState::Created => Explanation {
            headline: format!("{id} was made, and looks for its devices next"),
            next_commands: vec![get],
            ..reported
        },
        RackState::Discovering => Explanation {
            headline: format!("{id} looks for its devices"),
            next_commands: vec![
                get,
                format!(
                    "farrier rack update {id} --help   # where fewer devices are expected of it"
                ),
            ],
            ..reported
        },
        RackState::Maintenance { .. } | RackState::Validating => Explanation {
            headline: format!("{id} is in {}", rack.state_words()),
            normal: "as long as its operations take; each of their steps has a deadline".into(),
            next_commands: vec![
                status(),
                format!("farrier rack maintenance watch {id}"),
                format!("farrier rack maintenance cancel {id}"),
            ],
            ..reported
        },
        RackState::Ready => Explanation {
            headline: format!("{id} is Ready"),
            // A request to a rack in Ready begins with its next turn, unless its devices are held.
            waiting_for: match has_request(rack) {
                true => waits_for.to_string(),
                false => String::new(),
            },
            next_commands: vec![get, format!("farrier rack maintenance start {id} --dry-run")],
            ..reported
        },
        RackState::Error { cause } => in_error(rack, cause, reported),
        RackState::Deleting => Explanation {
            headline: format!("{id} is being deleted"),
            normal: "until its operations have ended".into(),
            next_commands: vec![status()],
            ..reported
        },
    }
}

/// Names the device, the activity and the next command.
fn in_error(rack: &Rack, cause: &RackFailure, reported: Explanation) -> Explanation {
    let id = &rack.head.id;
    let device = cause.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default();
    Explanation {
        headline: format!("{id} is in Error: {}{device} failed", cause.phase.as_str()),
        failed: cause.failure.message.clone(),
        fault: FaultCode::parse(&cause.failure.code),
        normal: "it stays so until an operator resumes it or requests it again".into(),
        next_commands: vec![
            cause.next_command.clone(),
            format!("farrier rack maintenance status {id}"),
            format!("farrier rack get {id}"),
        ],
        ..reported
    }
}

fn has_request(rack: &Rack) -> bool {
    rack.topology_changed
        || rack.reprovision_requested.is_some()
        || !rack.maintenance_requested.is_empty()
}
