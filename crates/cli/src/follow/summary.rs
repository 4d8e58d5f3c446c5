//! The boxes around a followed operation: the request, the result, and the machine's state after
//! it.

use crate::machine::{effective_name, phase_name};
use crate::operation::{target_label, target_name, type_label};
use crate::table::{ColorMode, Tone};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{Condition, Machine, Run, run::Phase};

const WIDTH: usize = 61;

fn draw_box(lines: &[String]) -> String {
    let rule = "─".repeat(WIDTH);
    let mut text = format!("┌{rule}\n");
    for line in lines {
        text.push_str(&format!("│ {line}\n"));
    }
    text.push_str(&format!("└{rule}\n"));
    text
}

/// The box before the output: what is being followed.
pub fn opening_box(run: &Run, machine: Option<(&str, &str)>) -> String {
    let target = target_name(&run.machine_id, &run.target_id);
    let mut lines = vec![
        format!("Operation: {}", one_line(&run.run_id)),
        format!("{} {}", target_label(run.target_kind()), one_line(target)),
        format!("Type: {}", one_line(type_label(&run.r#type))),
    ];
    if let Some((phase, effective)) = machine {
        lines.push(format!("Phase: {phase} → EffectiveState: {effective}"));
    }
    draw_box(&lines)
}

/// The colour and text of a phase.
pub fn phase_label(phase: Phase) -> (Tone, &'static str) {
    match phase {
        Phase::Succeeded => (Tone::Good, "✓ SUCCEEDED"),
        Phase::Failed => (Tone::Bad, "✗ FAILED"),
        Phase::Canceled => (Tone::Warn, "⊘ CANCELED"),
        Phase::Running => (Tone::Busy, "→ RUNNING"),
        Phase::Pending => (Tone::Plain, "→ PENDING"),
        Phase::Unspecified => (Tone::Plain, "-"),
    }
}

/// The box after the output: the result, and on failure the next command.
pub fn closing_box(run: &Run, clock: &Clock, colors: ColorMode) -> String {
    let (tone, words) = phase_label(run.phase());
    let begun = run.started_at.as_ref().or(run.created_at.as_ref());
    let mut lines = vec![
        colors.apply(tone, words),
        format!("Duration: {}", clock.elapsed(begun, run.finished_at.as_ref())),
    ];
    if run.phase() != Phase::Succeeded {
        lines.extend(error_lines(run));
    }
    draw_box(&lines)
}

/// The error, its fault code and the next command, as far as they are known.
pub fn error_lines(run: &Run) -> Vec<String> {
    let Some(error) = &run.error else { return Vec::new() };
    let mut lines = Vec::new();
    if !error.message.is_empty() {
        lines.push(format!("Error: {}", one_line(&error.message)));
    }
    if let Some(fault) = error.details.get("fault").filter(|fault| !fault.is_empty()) {
        let fault = one_line(fault);
        lines.push(format!("Fault: {fault}  (farrier fault {fault})"));
    }
    if !error.next_command.is_empty() {
        lines.push(format!("Next: {}", one_line(&error.next_command)));
    }
    lines
}

/// The machine before the operation, when the operation was accepted, and after it.
pub struct MachineSnapshots<'a> {
    pub before: &'a Machine,
    pub during: &'a Machine,
    pub after: &'a Machine,
}

/// The box that compares the machine after the operation with before.
pub fn machine_state_box(snapshots: &MachineSnapshots) -> String {
    let MachineSnapshots { before, during, after } = snapshots;
    let active = after.status.as_ref().map_or("", |status| status.active_operation_id.as_str());
    let mut lines = vec![
        format!("Phase: {}", describe_change(phase_name(after), phase_name(before))),
        format!(
            "EffectiveState: {}",
            describe_change(effective_name(after), effective_name(during))
        ),
        format!("Conditions: {}", changed_conditions(before, after)),
        format!(
            "ActiveOperationId: {}",
            if active.is_empty() { "(cleared)".into() } else { one_line(active) }
        ),
    ];
    let problem = after.status.as_ref().map_or("", |status| status.problem.as_str());
    if !problem.is_empty() {
        let id = one_line(&after.machine_id);
        lines.push(format!("Problem: {}  (farrier why {id})", one_line(problem)));
    }
    format!("Machine state after operation:\n{}", draw_box(&lines))
}

fn describe_change(now: &str, was: &str) -> String {
    if now == was { format!("{now} (unchanged)") } else { format!("{now} (was {was})") }
}

/// The conditions that changed, in the server's order.
fn changed_conditions(before: &Machine, after: &Machine) -> String {
    let was = |name: &str| {
        conditions(before).iter().any(|condition| condition.r#type == name && condition.status)
    };
    let changed = |desired: bool| -> Vec<String> {
        let mark = if desired { "✓" } else { "✗" };
        conditions(after)
            .iter()
            .filter(|condition| condition.status == desired && was(&condition.r#type) != desired)
            .map(|condition| format!("{}={mark}", one_line(&condition.r#type)))
            .collect()
    };
    let (set, cleared) = (changed(true), changed(false));
    let mut parts = Vec::new();
    if !set.is_empty() {
        parts.push(format!("{} (newly set)", set.join(", ")));
    }
    if !cleared.is_empty() {
        parts.push(format!("{} (cleared)", cleared.join(", ")));
    }
    if parts.is_empty() { "(unchanged)".into() } else { parts.join("; ") }
}

fn conditions(machine: &Machine) -> &[Condition] {
    machine.status.as_ref().map_or(&[], |status| &status.conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::{EffectiveState, ErrorStatus, MachineStatus, machine_status};

    fn machine(effective: EffectiveState, conditions: &[(&str, bool)]) -> Machine {
        let conditions = conditions.iter().map(|(name, status)| Condition {
            r#type: (*name).into(),
            status: *status,
            ..Default::default()
        });
        let status = MachineStatus {
            phase: machine_status::Phase::Maintenance.into(),
            effective_state: effective.into(),
            conditions: conditions.collect(),
            ..Default::default()
        };
        Machine { machine_id: "machine-1".into(), status: Some(status), ..Default::default() }
    }

    fn run(phase: Phase) -> Run {
        Run {
            run_id: "op-abc123".into(),
            machine_id: "machine-1".into(),
            r#type: "REIMAGE".into(),
            phase: phase.into(),
            started_at: Some(Timestamp { seconds: 1_000, nanos: 0 }),
            finished_at: Some(Timestamp { seconds: 1_272, nanos: 0 }),
            ..Default::default()
        }
    }

    #[test]
    fn boxes_are_those_of_the_document() {
        assert_eq!(
            opening_box(&run(Phase::Pending), Some(("MAINTENANCE", "BUSY"))),
            "\
┌─────────────────────────────────────────────────────────────
│ Operation: op-abc123
│ Machine: machine-1
│ Type: REIMAGE
│ Phase: MAINTENANCE → EffectiveState: BUSY
└─────────────────────────────────────────────────────────────
"
        );
        let closed =
            closing_box(&run(Phase::Succeeded), &Clock::fixed(0), ColorMode { enabled: false });
        assert_eq!(
            closed,
            "\
┌─────────────────────────────────────────────────────────────
│ ✓ SUCCEEDED
│ Duration: 4m 32s
└─────────────────────────────────────────────────────────────
"
        );
    }

    #[test]
    fn the_aftermath_is_that_of_the_document() {
        let before = machine(EffectiveState::Maintenance, &[("Reachable", true)]);
        let during = machine(EffectiveState::Busy, &[]);
        let after = machine(
            EffectiveState::Maintenance,
            &[
                ("Provisioned", true),
                ("InCustomerCluster", true),
                ("Reachable", true),
                ("RMA", false),
            ],
        );
        assert_eq!(
            machine_state_box(&MachineSnapshots {
                before: &before,
                during: &during,
                after: &after
            }),
            "\
Machine state after operation:
┌─────────────────────────────────────────────────────────────
│ Phase: MAINTENANCE (unchanged)
│ EffectiveState: MAINTENANCE (was BUSY)
│ Conditions: Provisioned=✓, InCustomerCluster=✓ (newly set)
│ ActiveOperationId: (cleared)
└─────────────────────────────────────────────────────────────
"
        );
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let mut failed = run(Phase::Failed);
        failed.error = Some(ErrorStatus {
            message: "SSH connection refused after 3 retries".into(),
            details: [("fault".to_string(), "ssh-refused".to_string())].into(),
            next_command: "farrier operation retry-step op-abc123".into(),
            ..Default::default()
        });
        let text = closing_box(&failed, &Clock::fixed(0), ColorMode { enabled: false });
        let lines: Vec<&str> = text.lines().skip(1).take(5).collect();
        assert_eq!(
            lines,
            [
                "│ ✗ FAILED",
                "│ Duration: 4m 32s",
                "│ Error: SSH connection refused after 3 retries",
                "│ Fault: ssh-refused  (farrier fault ssh-refused)",
                "│ Next: farrier operation retry-step op-abc123",
            ]
        );
    }
}
