//! Watching: one line per event of operations, machines, racks or nodes, until interrupted.

use crate::args::WatchArgs;
use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Result};
use crate::follow::feed::{
    self, FeedMessage, FeedSource, MachineEventSource, NodeEventSource, RackEventSource,
    ReconnectPolicy, RunEventSource,
};
use crate::follow::notice::ConnectionNotice;
use crate::follow::summary::phase_label;
use crate::machine::{effective_name, phase_name as machine_phase};
use crate::operation::{target_name, type_label, workflow_name};
use crate::output::Screen;
use crate::table::{ColorMode, Tone};
use crate::text::one_line;
use crate::time::Clock;
use proto::Name;
use proto::v1::{
    GetMachineRequest, MachineEvent, NodeEvent, RackEvent, RunEvent, WatchChange,
    WatchMachinesRequest, WatchNodesRequest, WatchRacksRequest, WatchRunsRequest,
};
use proto::words::WireEnum;

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
            let request = GetMachineRequest { machine_id: machine_id.clone(), any_name: false };
            client.call(client.machines().get_machine(request)).await?;
            build_id_filter("machine_id", machine_id, &args.filter)?
        }
        None => args.filter,
    };
    let request = WatchRunsRequest { filter, skip_ended: !args.all, ..Default::default() };
    let source = RunEventSource { client: client.clone(), request };
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

pub async fn watch_machines(client: &Client, screen: &mut Screen, filter: String) -> Result<Exit> {
    let request = WatchMachinesRequest { filter, ..Default::default() };
    let source = MachineEventSource { client: client.clone(), request };
    let (clock, colors) = (Clock::system(), screen.color_mode());
    print_stream(client, screen, source, |event| machine_line(event, &clock, colors)).await
}

pub async fn watch_racks(client: &Client, screen: &mut Screen, filter: String) -> Result<Exit> {
    let request = WatchRacksRequest { filter, ..Default::default() };
    let source = RackEventSource { client: client.clone(), request };
    let (clock, colors) = (Clock::system(), screen.color_mode());
    print_stream(client, screen, source, |event| rack_line(event, &clock, colors)).await
}

pub async fn watch_nodes(client: &Client, screen: &mut Screen, filter: String) -> Result<Exit> {
    let request = WatchNodesRequest { filter, ..Default::default() };
    let source = NodeEventSource { client: client.clone(), request };
    let (clock, colors) = (Clock::system(), screen.color_mode());
    print_stream(client, screen, source, |event| node_line(event, &clock, colors)).await
}

async fn print_stream<S: FeedSource>(
    client: &Client,
    screen: &mut Screen,
    source: S,
    format_event: impl Fn(&S::Item) -> String,
) -> Result<Exit>
where
    S::Item: Name,
{
    if screen.is_human() && screen.is_terminal() {
        screen.print_toned_line(Tone::Dim, WATCH_NOTICE)?;
    }
    let mut feed = feed::spawn(source, ReconnectPolicy::AfterFirstResponse);
    let mut notice = ConnectionNotice::default();
    while let Some(message) = feed.recv().await {
        match message {
            FeedMessage::Item(event) => screen.print_event(&event, &format_event)?,
            FeedMessage::Disconnected => notice.lost(screen)?,
            FeedMessage::Reconnected => notice.back(screen)?,
            FeedMessage::Failed(status) => return Err(client.failure(status)),
            FeedMessage::Ended => break,
        }
    }
    Ok(Exit::Success)
}

fn operation_line(event: &RunEvent, clock: &Clock, colors: ColorMode) -> String {
    let operation = event.snapshot.clone().unwrap_or_default();
    let (tone, _) = phase_label(operation.phase());
    let mut line = format!(
        "[{}] {}  {}  {:<TYPE_WIDTH$}  {}",
        clock.time_of_day(event.ts.as_ref()),
        one_line(target_name(&operation.machine_id, &operation.target_id)),
        one_line(&operation.run_id),
        one_line(type_label(&operation.r#type)),
        colors.apply(tone, operation.phase().as_str_name()),
    );
    // One phase has many events; the step distinguishes them.
    if !operation.current_step.is_empty() {
        line.push_str(&format!("  {}", one_line(&operation.current_step)));
    }
    line.push_str(unmatched(event.change()));
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
    line.push_str(unmatched(event.change()));
    line
}

/// The end of the last line about an object that no longer matches the filter.
const fn unmatched(change: WatchChange) -> &'static str {
    match change {
        WatchChange::NoLongerMatches => "  (no longer matches the filter)",
        WatchChange::Unspecified
        | WatchChange::Snapshot
        | WatchChange::Changed
        | WatchChange::Deleted
        | WatchChange::Bookmark => "",
    }
}

/// One line about an object that is no run: time, id, state, and what happened.
struct ObjectLine<'a> {
    time: String,
    id: &'a str,
    state: String,
    deleted: bool,
    message: &'a str,
    change: WatchChange,
}

impl ObjectLine<'_> {
    fn format(&self, colors: ColorMode) -> String {
        let state = match self.deleted {
            true => colors.apply(Tone::Dim, "deleted"),
            false => one_line(&self.state).into_owned(),
        };
        let mut line = format!("[{}] {}  {state}", self.time, one_line(self.id));
        if !self.message.is_empty() {
            line.push_str(&format!("  {}", one_line(self.message)));
        }
        line.push_str(unmatched(self.change));
        line
    }
}

fn machine_line(event: &MachineEvent, clock: &Clock, colors: ColorMode) -> String {
    let machine = event.snapshot.clone().unwrap_or_default();
    ObjectLine {
        time: clock.time_of_day(event.ts.as_ref()),
        id: &machine.machine_id,
        state: format!("{}  {}", machine_phase(&machine), effective_name(&machine)),
        deleted: event.deleted,
        message: &event.message,
        change: event.change(),
    }
    .format(colors)
}

fn rack_line(event: &RackEvent, clock: &Clock, colors: ColorMode) -> String {
    let rack = event.snapshot.clone().unwrap_or_default();
    let status = rack.status.unwrap_or_default();
    let state = match status.stage().word() {
        "" => status.state().word().to_string(),
        stage => format!("{}  {stage}", status.state().word()),
    };
    ObjectLine {
        time: clock.time_of_day(event.ts.as_ref()),
        id: &rack.rack_id,
        state,
        deleted: event.deleted,
        message: &event.message,
        change: event.change(),
    }
    .format(colors)
}

fn node_line(event: &NodeEvent, clock: &Clock, colors: ColorMode) -> String {
    let node = event.snapshot.clone().unwrap_or_default();
    ObjectLine {
        time: clock.time_of_day(event.ts.as_ref()),
        id: &node.node_id,
        state: format!("{}  {}", node.machine_id, node.state().word()),
        deleted: event.deleted,
        message: &event.message,
        change: event.change(),
    }
    .format(colors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::{Machine, Rack, RackState, RackStatus, Run, run::Phase};

    #[test]
    fn lines_of_objects_say_what_happened() {
        let (clock, colors) = (Clock::fixed(0), ColorMode { enabled: false });
        let ts = Some(Timestamp { seconds: 36_001, nanos: 0 });
        let machine = Machine { machine_id: "m-1".into(), ..Default::default() };
        let mut event = MachineEvent { ts, snapshot: Some(machine), ..Default::default() };
        assert_eq!(machine_line(&event, &clock, colors), "[10:00:01] m-1  -  -");
        (event.deleted, event.message) = (true, "deleted by\nada".into());
        let line = machine_line(&event, &clock, colors);
        assert!(line.starts_with("[10:00:01] m-1  deleted  deleted by"), "{line}");
        assert!(!line.contains('\n'), "{line}");
        let status = RackStatus { state: RackState::Ready.into(), ..Default::default() };
        let rack = Rack { rack_id: "rack-1".into(), status: Some(status), ..Default::default() };
        let event =
            RackEvent { ts, snapshot: Some(rack), message: "m".into(), ..Default::default() };
        assert_eq!(rack_line(&event, &clock, colors), "[10:00:01] rack-1  Ready  m");
        let event = RackEvent { change: WatchChange::NoLongerMatches.into(), ..event };
        let line = rack_line(&event, &clock, colors);
        assert_eq!(line, "[10:00:01] rack-1  Ready  m  (no longer matches the filter)");
    }

    #[test]
    fn lines_are_those_of_the_document() {
        let line = |seconds, machine: &str, id: &str, kind: &str, phase: Phase| {
            let snapshot = Run {
                machine_id: machine.into(),
                run_id: id.into(),
                r#type: kind.into(),
                phase: phase.into(),
                ..Default::default()
            };
            let ts = Some(Timestamp { seconds, nanos: 0 });
            let event = RunEvent { ts, snapshot: Some(snapshot), ..Default::default() };
            operation_line(&event, &Clock::fixed(0), ColorMode { enabled: false })
        };
        use Phase::{Pending, Running};
        assert_eq!(
            line(36_001, "machine-1", "op-111", "ENTER_MAINTENANCE", Pending),
            "[10:00:01] machine-1  op-111  ENTER_MAINTENANCE  PENDING"
        );
        assert_eq!(
            line(36_011, "machine-2", "op-222", "REPAVE", Running),
            "[10:00:11] machine-2  op-222  REIMAGE            RUNNING"
        );
    }
}
