//! Watching: one line per event, of one machine or of the whole fleet, until interrupted.

use crate::args::WatchArgs;
use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Result};
use crate::follow::CONNECTION_LOST;
use crate::follow::feed::{
    self, FeedMessage, FeedSource, OperationEventSource, ReconnectPolicy, RunEventSource,
};
use crate::follow::summary::phase_label;
use crate::operation::{phase_name, target_name, type_label, type_name, workflow_name};
use crate::output::Screen;
use crate::table::{ColorMode, Tone};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    GetMachineRequest, OperationEvent, RunEvent, WatchOperationsRequest, WatchRunsRequest,
    run::Phase,
};
use serde::Serialize;

/// The width of the longest operation type, which aligns the phases.
const TYPE_WIDTH: usize = "ENTER_MAINTENANCE".len();
/// Printed at the start, because an idle fleet sends no events.
const WATCH_NOTICE: &str = "watching; Ctrl-C ends it";

pub async fn watch_operations(
    client: &Client,
    screen: &mut Screen,
    args: WatchArgs,
) -> Result<Exit> {
    let filter = match &args.machine_id {
        Some(machine_id) => {
            // An unknown machine ID would be watched forever without an event.
            let request = GetMachineRequest { machine_id: machine_id.clone() };
            client.call(client.machines().get_machine(request)).await?;
            build_id_filter("machine_id", machine_id, &args.filter)?
        }
        None => args.filter,
    };
    let request = WatchOperationsRequest { filter, skip_ended: !args.all, ..Default::default() };
    let source = OperationEventSource { client: client.clone(), request };
    let (clock, colors) = (Clock::system(), screen.color_mode());
    print_stream(client, screen, source, |event| operation_line(event, &clock, colors)).await
}

pub async fn watch_runs(
    client: &Client,
    screen: &mut Screen,
    filter: String,
    all: bool,
) -> Result<Exit> {
    let request = WatchRunsRequest { filter, skip_ended: !all, ..Default::default() };
    let source = RunEventSource { client: client.clone(), request };
    let (clock, colors) = (Clock::system(), screen.color_mode());
    print_stream(client, screen, source, |event| run_line(event, &clock, colors)).await
}

async fn print_stream<S: FeedSource>(
    client: &Client,
    screen: &mut Screen,
    source: S,
    format_event: impl Fn(&S::Item) -> String,
) -> Result<Exit>
where
    S::Item: Serialize,
{
    if screen.is_human() && screen.is_terminal() {
        screen.print_toned_line(Tone::Dim, WATCH_NOTICE)?;
    }
    let mut feed = feed::spawn(source, ReconnectPolicy::AfterFirstResponse);
    let mut lost = false;
    while let Some(message) = feed.recv().await {
        match message {
            FeedMessage::Item(event) => screen.print_event(&event, &format_event)?,
            FeedMessage::Reconnected => lost = false,
            FeedMessage::Disconnected if lost => {}
            FeedMessage::Disconnected => {
                lost = true;
                screen.print_toned_line(Tone::Dim, CONNECTION_LOST)?;
            }
            FeedMessage::Failed(status) => return Err(client.failure(status)),
            FeedMessage::Ended => break,
        }
    }
    Ok(Exit::Success)
}

fn operation_line(event: &OperationEvent, clock: &Clock, colors: ColorMode) -> String {
    let operation = event.snapshot.clone().unwrap_or_default();
    let (tone, _) = phase_label(Phase::try_from(operation.phase).unwrap_or_default());
    let mut line = format!(
        "[{}] {}  {}  {:<TYPE_WIDTH$}  {}",
        clock.time_of_day(event.ts.as_ref()),
        one_line(target_name(&operation.machine_id, &operation.target_id)),
        one_line(&operation.operation_id),
        type_name(&operation),
        colors.apply(tone, phase_name(&operation)),
    );
    // One phase has many events; the step distinguishes them.
    if !operation.current_step.is_empty() {
        line.push_str(&format!("  {}", one_line(&operation.current_step)));
    }
    line
}

fn run_line(event: &RunEvent, clock: &Clock, colors: ColorMode) -> String {
    let run = event.snapshot.clone().unwrap_or_default();
    let (tone, _) = phase_label(run.phase());
    let mut line = format!(
        "[{}] {}  {}  {:<TYPE_WIDTH$}  {}",
        clock.time_of_day(event.ts.as_ref()),
        one_line(target_name(&run.machine_id, &run.target_id)),
        one_line(&run.run_id),
        one_line(type_label(&run.r#type)),
        colors.apply(tone, workflow_name(&run)),
    );
    for more in [&run.current_step, &event.message] {
        if !more.is_empty() {
            line.push_str(&format!("  {}", one_line(more)));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::{Operation, OperationType, operation};

    #[test]
    fn lines_are_those_of_the_document() {
        let line =
            |seconds, machine: &str, id: &str, kind: OperationType, phase: operation::Phase| {
                let snapshot = Operation {
                    machine_id: machine.into(),
                    operation_id: id.into(),
                    r#type: kind.into(),
                    phase: phase.into(),
                    ..Default::default()
                };
                let ts = Some(Timestamp { seconds, nanos: 0 });
                let event = OperationEvent { ts, snapshot: Some(snapshot), ..Default::default() };
                operation_line(&event, &Clock::fixed(0), ColorMode { enabled: false })
            };
        use operation::Phase::{Pending, Running};
        assert_eq!(
            line(36_001, "machine-1", "op-111", OperationType::EnterMaintenance, Pending),
            "[10:00:01] machine-1  op-111  ENTER_MAINTENANCE  PENDING"
        );
        assert_eq!(
            line(36_011, "machine-2", "op-222", OperationType::Reboot, Running),
            "[10:00:11] machine-2  op-222  REBOOT             RUNNING"
        );
    }
}
