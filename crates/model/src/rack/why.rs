//! Explains the state of a rack.

use super::{
    MAX_NAMED, NotIngested, Rack, RackDevice, RackFailure, RackFailurePhase, RackPowerOn,
    RackState, some_of,
};
use crate::blast_radius::{AffectedMachine, ImpactObjection};
use crate::effect::DesiredPower;
use crate::fault::{FaultCode, Repair};
use crate::gate::{Gate, Overrides};
use crate::lifecycle::Lifecycle;
use crate::run::actions::{Action, RestartMode};
use crate::time::{Timestamp, format_duration};
use crate::why::{Explanation, record_overdue};

/// Facts about a rack that its record does not hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct RackContext<'a> {
    /// The condition that its lifecycle waits for.
    pub waits_for: &'a str,
    /// The machines that it has not ingested.
    pub left_out: &'a [NotIngested],
    pub devices: &'a [RackDevice],
    /// The explanation of its operation at work that waits longest.
    pub operation: Option<&'a Explanation>,
    /// The rows of its operations that cannot be read.
    pub unreadable: &'a [String],
}

pub fn explain(rack: &Rack, context: RackContext, now: Timestamp) -> Explanation {
    let id = &rack.head.id;
    let mut reported = explain_state(rack, context, now);
    let machines: Vec<String> =
        context.left_out.iter().map(|one| one.machine.to_string()).collect();
    if !machines.is_empty() {
        reported.notes.push(format!(
            "in service when {id} was ingested, and left out: {}",
            some_of(&machines)
        ));
    }
    let off: Vec<&RackDevice> = context.devices.iter().filter(|one| is_off(one)).collect();
    if !off.is_empty() {
        let names: Vec<String> = off.iter().map(|one| one.target.to_string()).collect();
        reported.notes.push(format!("switched off: {}", some_of(&names)));
    }
    let on = off.iter().take(MAX_NAMED).map(|one| format!("farrier why {}", one.target));
    let ingest = context.left_out.iter().take(MAX_NAMED).map(|one| one.next_command.clone());
    reported.next_commands.extend(ingest.chain(on));
    if !context.unreadable.is_empty() {
        reported.failed = context.unreadable.join("; ");
        reported.fault = Some(FaultCode::RecordUnreadable);
        reported.next_commands.insert(0, "farrier db check".into());
    }
    reported.with_health(id, &rack.head.health)
}

/// True for a switch or a power shelf that is off. Machines are switched off one by one, and each
/// one's own explanation says so.
fn is_off(device: &RackDevice) -> bool {
    device.power == Some(DesiredPower::Off) && device.target.machine().is_none()
}

fn explain_state(rack: &Rack, context: RackContext, now: Timestamp) -> Explanation {
    let waits_for = context.waits_for;
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
                // For a rack of which fewer devices are expected.
                format!("farrier rack update {id} --help"),
            ],
            ..reported
        },
        RackState::Maintenance { .. } | RackState::Validating => {
            let reported = Explanation {
                headline: format!("{id} is in {}", rack.state_words()),
                normal: "as long as its operations take; each of their steps has a deadline".into(),
                next_commands: vec![
                    status(),
                    format!("farrier rack maintenance watch {id}"),
                    format!("farrier rack maintenance cancel {id}"),
                ],
                ..reported
            };
            match context.operation.filter(|operation| !operation.waiting_for.is_empty()) {
                Some(operation) => at_work(reported, operation),
                None => reported,
            }
        }
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

/// A rack waits for its active operation, which names the slowest device.
fn at_work(reported: Explanation, operation: &Explanation) -> Explanation {
    let device =
        operation.next_commands.iter().find(|one| one.starts_with("farrier why ")).cloned();
    Explanation {
        waiting_for: operation.waiting_for.clone(),
        last_word: operation.last_word.clone(),
        since: operation.since,
        normal: operation.normal.clone(),
        overdue: operation.overdue,
        requested_by: operation.requested_by.clone(),
        next_commands: device.into_iter().chain(reported.next_commands.clone()).collect(),
        ..reported
    }
}

/// Names the device, the activity and the next command.
fn in_error(rack: &Rack, cause: &RackFailure, reported: Explanation) -> Explanation {
    let id = &rack.head.id;
    let device = cause.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default();
    let phase = cause.phase.as_str();
    let headline = match (&cause.failure.run, cause.canceled) {
        (Some(run), true) => format!("{id} is in Error: {run} was canceled during {phase}"),
        (Some(_) | None, _) => format!("{id} is in Error: {phase}{device} failed"),
    };
    // An older version stored a second command after `   #`.
    let repair = cause.next_command.split("   #").next().unwrap_or_default().to_string();
    // A retry is refused once another operation has followed on one of the devices.
    let anew = repair.strip_prefix(Repair::Act(Action::RetryStep).words());
    let anew = anew.map(|run| format!("{}{run}", Repair::Restart(RestartMode::Rerun).words()));
    // A sequence that stopped may have left devices off, and a rerun switches off again.
    let stopped = cause.phase == RackFailurePhase::PowerSequence;
    let on = stopped.then(|| RackPowerOn::of_rack(rack.id()).to_string());
    let repairs = if cause.canceled { [on, Some(repair)] } else { [Some(repair), on] };
    Explanation {
        headline,
        failed: cause.failure.message.clone(),
        fault: FaultCode::parse(&cause.failure.code),
        normal: "it stays so until an operator resumes it or requests it again".into(),
        next_commands: repairs
            .into_iter()
            .flatten()
            .chain(anew)
            .chain([
                format!("farrier rack maintenance status {id}"),
                format!("farrier rack get {id}"),
            ])
            .collect(),
        ..reported
    }
}

impl Explanation {
    /// Names the machines in service that keep an operation of a rack from being repeated. Returns
    /// the commands that lead past them: first those that move their work away, then `again`, which
    /// repeats it, with the override.
    pub fn add_needed_machines(&mut self, needed: &[AffectedMachine], again: &str) -> Vec<String> {
        let names: Vec<String> = needed.iter().map(|one| one.machine.to_string()).collect();
        let affects = "machines that are needed, which a repetition would affect:";
        self.headline = format!("{}; {affects} {}", self.headline, some_of(&names));
        self.notes.extend(needed.iter().filter_map(AffectedMachine::said));
        let way_out = |one: &AffectedMachine| {
            Some(match one.objection.as_ref()? {
                ImpactObjection::InService => {
                    format!("farrier enter-maintenance {} --drain", one.machine)
                }
                ImpactObjection::Serves(node) => format!("farrier node drain {node}"),
                ImpactObjection::HeldBy(run) => format!("farrier why {run}"),
                ImpactObjection::Unreadable => "farrier db check".into(),
            })
        };
        let flags = Overrides::default().flags_with(Gate::InService);
        let again = format!("{again} {flags}");
        needed.iter().take(MAX_NAMED).filter_map(way_out).chain([again]).collect()
    }
}

fn has_request(rack: &Rack) -> bool {
    rack.topology_changed
        || rack.reprovision_requested.is_some()
        || !rack.maintenance_requested.is_empty()
}
