//! Request an operation and follow it.
//!
//! Every command that starts or changes an operation uses this module, so that all of them wait,
//! print and exit alike. An operation and a run are the same record, which is followed and printed
//! as a run.

use super::preview::{PreviewedRequest, format_preview};
use super::{describe, fetch_run};
use crate::args::{SubmitArgs, WaitArgs};
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::follow::feed::is_terminal;
use crate::follow::progress::Progress;
use crate::follow::summary::{
    MachineSnapshots, closing_box, error_lines, machine_state_box, opening_box,
};
use crate::follow::{FollowStart, follow};
use crate::machine::{effective_name, fetch_run_machine, phase_name as phase_of};
use crate::output::Screen;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{Machine, Operation, OperationType, Run, TargetKind, run::Phase};

/// The final phase that counts as success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedEnd {
    Succeeded,
    Canceled,
}

impl ExpectedEnd {
    fn exit(self, phase: Phase) -> Exit {
        match (self, phase) {
            (ExpectedEnd::Succeeded, Phase::Succeeded)
            | (ExpectedEnd::Canceled, Phase::Canceled) => Exit::Success,
            (ExpectedEnd::Succeeded | ExpectedEnd::Canceled, _) => Exit::Unsuccessful,
        }
    }
}

/// The reason why the command follows the run.
pub enum RunOrigin {
    /// The command has requested it. `replayed`: an earlier request with the same ID started it.
    Submitted { replayed: bool },
    /// The run existed, and the command has acted on it.
    Acted { printed: Progress, log_offset: i64 },
    /// The command only watches it.
    Watched,
}

/// An accepted request.
pub struct AcceptedOperation {
    pub run: Run,
    pub expected_end: ExpectedEnd,
    pub origin: RunOrigin,
    /// The machine before the request; none if the command does not wait.
    pub before: Option<Machine>,
}

/// Converts an operation to a run; fields that only a run has stay empty.
pub fn operation_to_run(operation: Operation) -> Run {
    Run {
        r#type: type_name(&operation).to_string(),
        run_id: operation.operation_id,
        machine_id: operation.machine_id,
        target_kind: operation.target_kind,
        target_id: operation.target_id,
        request_id: operation.request_id,
        params: operation.params,
        phase: operation.phase,
        current_step: operation.current_step,
        initiator: operation.initiator,
        part_of: operation.part_of,
        error: operation.error,
        created_at: operation.created_at,
        started_at: operation.started_at,
        finished_at: operation.finished_at,
        preview: operation.preview,
        ..Default::default()
    }
}

fn type_name(operation: &Operation) -> &'static str {
    let kind = operation.r#type();
    if kind == OperationType::Unspecified { "-" } else { kind.as_str_name() }
}

/// The target of an operation: its machine, or the ID of another kind of target.
pub fn target_name<'a>(machine_id: &'a str, target_id: &'a str) -> &'a str {
    if machine_id.is_empty() { target_id } else { machine_id }
}

/// The label of the target where one operation is shown.
pub const fn target_label(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Rack => "Rack:",
        TargetKind::Switch => "Switch:",
        TargetKind::PowerShelf => "Power shelf:",
        TargetKind::Machine | TargetKind::Unspecified => "Machine:",
    }
}

/// Returns the given request ID, or generates one and prints it before it is used.
pub fn choose_request_id(screen: &mut Screen, given: Option<&String>) -> Result<String> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    let made = format!("req-{:012x}", rand::random::<u64>() >> 16);
    screen
        .print_notice(&format!("request-id: {made}  (repeat with --request-id to retry safely)"))?;
    Ok(made)
}

/// Like `choose_request_id`, but a dry run needs no generated ID, because it starts nothing.
pub fn request_id_unless_dry_run(
    client: &Client,
    screen: &mut Screen,
    submit: &SubmitArgs,
) -> Result<String> {
    match client.is_dry_run() {
        true => Ok(submit.request_id.clone().unwrap_or_default()),
        false => choose_request_id(screen, submit.request_id.as_ref()),
    }
}

/// Follows the operation if `wait` says so, prints the result, and returns the exit code.
pub async fn follow_or_report(
    client: &Client,
    screen: &mut Screen,
    accepted: AcceptedOperation,
    wait: &WaitArgs,
) -> Result<Exit> {
    if client.is_dry_run() {
        let request = match accepted.expected_end {
            ExpectedEnd::Succeeded => PreviewedRequest::Execute,
            ExpectedEnd::Canceled => PreviewedRequest::Cancel,
        };
        screen.print_record(&accepted.run, |run| format_preview(run, request))?;
        let fails = accepted.run.preview.is_some_and(|preview| !preview.would_fail.is_empty());
        return Ok(if fails { Exit::Unsuccessful } else { Exit::Success });
    }
    let ended = is_terminal(accepted.run.phase());
    match accepted.origin {
        RunOrigin::Submitted { replayed: true } if ended => {
            return report_ended(client, screen, &accepted, "  same operation, no new work").await;
        }
        // A new operation can fail at once.
        RunOrigin::Submitted { replayed: false } if ended && !wait.waits() => {
            return report_ended(client, screen, &accepted, "").await;
        }
        RunOrigin::Submitted { .. } | RunOrigin::Acted { .. } | RunOrigin::Watched => {}
    }
    if !wait.waits() {
        let line = format!(
            "Operation: {} ({})\nnext: farrier operation watch {}",
            one_line(&accepted.run.run_id),
            accepted.run.phase().as_str_name(),
            one_line(&accepted.run.run_id)
        );
        screen.print_line(&line)?;
        print_full_record(client, screen, &accepted.run).await?;
        return Ok(Exit::Success);
    }
    follow_to_end(client, screen, accepted, wait.timeout).await
}

/// Reports an operation that has ended already.
async fn report_ended(
    client: &Client,
    screen: &mut Screen,
    accepted: &AcceptedOperation,
    note: &str,
) -> Result<Exit> {
    let run = &accepted.run;
    let phase = run.phase();
    screen.print_line(&format!(
        "Operation: {} ({}){note}",
        one_line(&run.run_id),
        phase.as_str_name()
    ))?;
    if phase != Phase::Succeeded {
        for line in error_lines(run) {
            screen.print_line(&line)?;
        }
    }
    print_full_record(client, screen, run).await?;
    Ok(accepted.expected_end.exit(phase))
}

/// Follows the operation to its end, with one box before the output and two after it.
pub async fn follow_to_end(
    client: &Client,
    screen: &mut Screen,
    accepted: AcceptedOperation,
    timeout: std::time::Duration,
) -> Result<Exit> {
    let AcceptedOperation { run, expected_end, origin, before } = accepted;
    let long_over = matches!(origin, RunOrigin::Watched) && is_terminal(run.phase());
    let during = match fetch_run_machine(client, &run).await {
        // The operation is accepted, so an unreachable server is waited for below.
        Err(failure) if failure.exit == Exit::Unreachable => {
            Some(before.clone().unwrap_or_default())
        }
        fetched => fetched?,
    };
    let before = before.or_else(|| during.clone());
    let state = before.as_ref().zip(during.as_ref());
    screen.print_line(&opening_box(
        &run,
        state.map(|(was, is)| (phase_of(was), effective_name(is))),
    ))?;
    let (progress, log_offset) = match origin {
        RunOrigin::Acted { printed, log_offset } => (printed, log_offset),
        RunOrigin::Submitted { .. } | RunOrigin::Watched => (Progress::default(), 0),
    };
    let start = FollowStart { run_id: run.run_id, progress, log_offset };
    let run = follow(client, screen, start, timeout).await?;
    let colors = screen.color_mode();
    screen.print_line(&closing_box(&run, &Clock::system(), colors))?;
    // The result is already printed, so an error of this call is ignored.
    let passed = before.as_ref().zip(during.as_ref()).filter(|_| !long_over);
    if let Some((before, during)) = passed
        && let Ok(Some(after)) = fetch_run_machine(client, &run).await
    {
        screen.print_line(&machine_state_box(&MachineSnapshots {
            before,
            during,
            after: &after,
        }))?;
    }
    screen.print_line(&format!("Operation: {} ({})", one_line(&run.run_id), phase_path(&run)))?;
    print_full_record(client, screen, &run).await?;
    Ok(expected_end.exit(run.phase()))
}

/// The phases that the run went through. They come from its timestamps, because a watch may miss
/// the running phase of a fast run.
fn phase_path(run: &Run) -> String {
    let mut phases = vec![Phase::Pending];
    if run.started_at.is_some() {
        phases.push(Phase::Running);
    }
    phases.push(run.phase());
    phases.dedup();
    let names: Vec<&str> = phases.iter().map(Phase::as_str_name).collect();
    names.join(" → ")
}

/// Prints the record in JSON or YAML. It is read again: a command that got an operation has no
/// steps.
async fn print_full_record(client: &Client, screen: &mut Screen, run: &Run) -> Result<()> {
    if screen.is_human() {
        return Ok(());
    }
    let run = fetch_run(client, &run.run_id).await?;
    screen.print_record(&run, |run| describe(run, &Clock::system()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;

    #[test]
    fn only_the_expected_end_is_success() {
        use Phase::{Canceled, Failed, Succeeded};
        for (expected_end, phase, code) in [
            (ExpectedEnd::Succeeded, Succeeded, 0),
            (ExpectedEnd::Succeeded, Failed, 1),
            (ExpectedEnd::Succeeded, Canceled, 1),
            (ExpectedEnd::Canceled, Canceled, 0),
            (ExpectedEnd::Canceled, Succeeded, 1),
        ] {
            assert_eq!(expected_end.exit(phase).code(), code, "{expected_end:?} {phase:?}");
        }
    }

    #[test]
    fn the_path_names_each_phase_once() {
        let mut run = Run { phase: Phase::Succeeded.into(), ..Default::default() };
        assert_eq!(phase_path(&run), "PENDING → SUCCEEDED");
        run.started_at = Some(Timestamp::default());
        assert_eq!(phase_path(&run), "PENDING → RUNNING → SUCCEEDED");
    }
}
