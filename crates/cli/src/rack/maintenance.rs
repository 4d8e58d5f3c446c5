//! The maintenance of a rack: start, preview, follow and cancel it.

use crate::args::{
    OperationActionArgs, PowerSequenceArg, RackActivityArg, RackMaintenanceCancelArgs,
    RackMaintenanceCommand, RackMaintenanceStartArgs, RackMaintenanceWatchArgs,
    RackReprovisionArgs, RackSubmitArgs, SubmitArgs,
};
use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Failure, Result};
use crate::follow::summary::phase_label;
use crate::operation::{
    AcceptedOperation, ExpectedEnd, RunOrigin, cancel, fetch_run, follow_or_report, follow_to_end,
    request_id_unless_dry_run, time_line, usual_cell,
};
use crate::output::Screen;
use crate::plan::destructive_cell;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::{MAX_IN_CELL, join_names, one_line};
use crate::time::Clock;
use crate::watch;
use model::blast_radius::MAX_NAMED;
use model::time::format_duration;
use proto::v1::maintenance_activity_config::Activity;
use proto::v1::step_status::State;
use proto::v1::{
    CancelOperationRequest, ConfigureNmxClusterActivity, FirmwareUpgradeActivity,
    GetRackMaintenanceStatusRequest, MaintenanceActivityConfig, PowerSequence,
    PowerSequenceActivity, RackChildRunState, RackId, RackMaintenanceChildRun,
    RackMaintenanceOnDemandRequest, RackMaintenanceOnDemandResponse, RackMaintenancePreview,
    RackMaintenanceScope, RackMaintenanceStatus, RackMaintenanceStep, ReprovisionRackRequest,
    run::Phase,
};
use proto::words::WireEnum;

/// The prefix of rack IDs; no other ID starts with it.
const RACK_PREFIX: &str = "rack-";

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: RackMaintenanceCommand,
) -> Result<Exit> {
    match command {
        RackMaintenanceCommand::Start(args) => start(client, screen, args).await,
        RackMaintenanceCommand::Status(args) => {
            let found = fetch_statuses(client, &args.id).await?;
            let (wide, colors) = (screen.is_wide(), screen.color_mode());
            screen.print_records(&found, |found| format_statuses(found, wide, colors))?;
            Ok(Exit::Success)
        }
        RackMaintenanceCommand::Watch(args) => watch_maintenance(client, screen, args).await,
        RackMaintenanceCommand::Cancel(args) => cancel_maintenance(client, screen, args).await,
    }
}

async fn start(
    client: &Client,
    screen: &mut Screen,
    args: RackMaintenanceStartArgs,
) -> Result<Exit> {
    let activities = requested_activities(&args)?;
    let scope = RackMaintenanceScope {
        machine_ids: args.machines,
        switch_ids: args.switches,
        power_shelf_ids: args.power_shelves,
        activities,
    };
    let RackSubmitArgs { overrides, reference, submit } = args.options;
    let dry_run = client.is_dry_run();
    let request = RackMaintenanceOnDemandRequest {
        rack_id: Some(RackId { id: args.rack_id }),
        scope: Some(scope),
        request_id: request_id_unless_dry_run(client, screen, &submit)?,
        reference,
        dry_run,
        gate_override: overrides.to_message(),
    };
    let answer = client.call(client.racks().on_demand_rack_maintenance(request)).await?;
    report_operation(client, screen, answer, &submit).await
}

pub async fn reprovision(
    client: &Client,
    screen: &mut Screen,
    args: RackReprovisionArgs,
) -> Result<Exit> {
    let RackSubmitArgs { overrides, reference, submit } = args.options;
    let dry_run = client.is_dry_run();
    let request = ReprovisionRackRequest {
        rack_id: args.rack_id,
        request_id: request_id_unless_dry_run(client, screen, &submit)?,
        reference,
        dry_run,
        gate_override: overrides.to_message(),
    };
    let answer = client.call(client.racks().reprovision_rack(request)).await?;
    report_operation(client, screen, answer, &submit).await
}

/// The requested activities. An option implies its activity. An empty list means all activities.
fn requested_activities(args: &RackMaintenanceStartArgs) -> Result<Vec<MaintenanceActivityConfig>> {
    let by_setting = [
        (RackActivityArg::Firmware, !args.firmware_version.is_empty()),
        (RackActivityArg::Power, args.power.is_some()),
    ];
    let desired: Vec<RackActivityArg> = match args.activities.is_empty() {
        true => by_setting.into_iter().filter(|(_, set)| *set).map(|(one, _)| one).collect(),
        false => args.activities.clone(),
    };
    if desired.is_empty() {
        return Ok(Vec::new());
    }
    let lacks = |activity| !desired.contains(&activity);
    if !args.firmware_version.is_empty() && lacks(RackActivityArg::Firmware) {
        return Err(Failure::refused("--firmware-version needs --activity firmware"));
    }
    if args.power.is_some() && lacks(RackActivityArg::Power) {
        return Err(Failure::refused("--power needs --activity power"));
    }
    let activity = |desired: &RackActivityArg| match desired {
        RackActivityArg::Firmware => Activity::FirmwareUpgrade(FirmwareUpgradeActivity {
            firmware_version: args.firmware_version.clone(),
        }),
        RackActivityArg::NmxCluster => {
            Activity::ConfigureNmxCluster(ConfigureNmxClusterActivity {})
        }
        RackActivityArg::Power => {
            let sequence = match args.power {
                None => PowerSequence::Unspecified,
                Some(PowerSequenceArg::On) => PowerSequence::On,
                Some(PowerSequenceArg::Off) => PowerSequence::Off,
                Some(PowerSequenceArg::Reset) => PowerSequence::Reset,
            };
            Activity::PowerSequence(PowerSequenceActivity { sequence: sequence.into() })
        }
    };
    let config = |desired| MaintenanceActivityConfig { activity: Some(activity(desired)) };
    Ok(desired.iter().map(config).collect())
}

/// Prints the preview, or follows the operation to its end.
async fn report_operation(
    client: &Client,
    screen: &mut Screen,
    answer: RackMaintenanceOnDemandResponse,
    submit: &SubmitArgs,
) -> Result<Exit> {
    if client.is_dry_run() {
        let colors = screen.color_mode();
        screen.print_record(&answer, |answer| match &answer.preview {
            Some(preview) => format_preview(preview, colors),
            None => format!("{} was made by this request before\n", one_line(&answer.operation_id)),
        })?;
        let refused = answer.preview.is_some_and(|preview| !preview.refusals.is_empty());
        return Ok(if refused { Exit::Refused } else { Exit::Success });
    }
    for note in answer.preview.iter().flat_map(|preview| &preview.notes) {
        screen.print_notice(&format!("note: {}", one_line(note)))?;
    }
    let run = fetch_run(client, &answer.operation_id).await?;
    let origin = RunOrigin::Submitted { replayed: answer.preview.is_none() };
    let expected_end = ExpectedEnd::Succeeded;
    let accepted = AcceptedOperation { run, expected_end, origin, before: None };
    follow_or_report(client, screen, accepted, &submit.wait).await
}

fn format_preview(preview: &RackMaintenancePreview, colors: ColorMode) -> String {
    let firmware = match (preview.firmware_id.as_str(), preview.firmware_skipped.as_str()) {
        ("", "") => String::new(),
        ("", why) => format!("none: {why}"),
        (id, _) => id.to_string(),
    };
    let mut facts = vec![
        (
            "Devices:",
            join_names(preview.devices.iter().map(|device| device.id.as_str()), MAX_NAMED),
        ),
        ("Firmware:", firmware),
        (
            "Taken down:",
            join_names(preview.affected_machine_ids.iter().map(String::as_str), MAX_NAMED),
        ),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format!("{}\n", format_pairs(&facts).trim_end());
    for note in &preview.notes {
        text.push_str(&format!("Note: {}\n", one_line(note)));
    }
    text.push('\n');
    let names = ["STEP", "ACTIVITY", "AT_ONCE", "TIMEOUT", "USUAL", "DESTRUCTIVE", "DEVICES"];
    let mut table = Table::new(&names);
    for rack_step in &preview.steps {
        let devices =
            join_names(rack_step.child_runs.iter().map(|part| part.id.as_str()), MAX_IN_CELL);
        table.add_row(vec![
            (&rack_step.name).into(),
            rack_step.activity().word().into(),
            rack_step.max_concurrent.to_string().into(),
            format!("{}s", rack_step.limit_seconds).into(),
            usual_cell(rack_step.usual_ms, rack_step.usual_p95_ms).into(),
            destructive_cell(rack_step.destructive),
            devices.into(),
        ]);
    }
    text.push_str(&table.render(colors));
    text.push('\n');
    if !preview.steps.is_empty() {
        let usual = (preview.usual_ms, preview.usual_p95_ms);
        text.push_str(&time_line(usual, preview.limit_seconds));
    }
    for gate in &preview.refusals {
        let refused = colors.apply(Tone::Bad, "would be refused:");
        text.push_str(&format!("{refused} {}\n", one_line(&gate.message)));
        if !gate.next_command.is_empty() {
            text.push_str(&format!("  next: {}\n", one_line(&gate.next_command)));
        }
    }
    if preview.refusals.is_empty() {
        text.push_str("no gate refuses it\n");
    }
    text
}

async fn fetch_statuses(client: &Client, id: &str) -> Result<Vec<RackMaintenanceStatus>> {
    let request = GetRackMaintenanceStatusRequest { id: id.to_string() };
    let answer = client.call(client.racks().get_rack_maintenance_status(request)).await?;
    Ok(answer.operations)
}

fn format_statuses(all: &[RackMaintenanceStatus], wide: bool, colors: ColorMode) -> String {
    if all.is_empty() {
        return "it has had no maintenance yet\n".into();
    }
    let one = |status: &RackMaintenanceStatus| format_status(status, wide, colors);
    all.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn format_status(status: &RackMaintenanceStatus, wide: bool, colors: ColorMode) -> String {
    let run = status.operation.clone().unwrap_or_default();
    let clock = Clock::system();
    let (tone, words) = phase_label(run.phase());
    let firmware = match (status.firmware_id.as_str(), status.firmware_skipped.as_str()) {
        ("", "") => String::new(),
        ("", why) => format!("skipped: {why}"),
        (id, _) => id.to_string(),
    };
    let mut facts = vec![
        ("Operation:", run.run_id.clone()),
        ("Rack:", run.target_id.clone()),
        ("Phase:", words.to_string()),
        ("Initiator:", run.initiator.clone()),
        ("Firmware:", firmware),
        ("Duration:", clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref())),
        ("Error:", run.error.clone().map(|error| error.message).unwrap_or_default()),
        ("Next:", run.error.map(|error| error.next_command).unwrap_or_default()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format_pairs(&facts).replacen(words, &colors.apply(tone, words), 1);
    for note in &status.notes {
        text.push_str(&format!("Note: {}\n", one_line(note)));
    }
    text.push('\n');
    let mut table = Table::new(&["STEP", "ACTIVITY", "STATE", "DEVICES", "OPERATION", "MESSAGE"]);
    for rack_step in &status.steps {
        add_step_rows(&mut table, rack_step, wide);
    }
    text.push_str(&table.render(colors));
    text
}

/// Adds the row of a rack step, and the rows of its devices if it is running or failed, or if
/// `wide`.
fn add_step_rows(table: &mut Table, rack_step: &RackMaintenanceStep, wide: bool) {
    let done = rack_step
        .child_runs
        .iter()
        .filter(|part| part.state() == RackChildRunState::Succeeded)
        .count();
    table.add_row(vec![
        (&rack_step.name).into(),
        rack_step.activity().word().into(),
        state_cell(rack_step.state().as_str_name()),
        format!("{done}/{}", rack_step.child_runs.len()).into(),
        "".into(),
        (&rack_step.message).into(),
    ]);
    let open = matches!(rack_step.state(), State::Running | State::Failed);
    if open || wide {
        rack_step.child_runs.iter().for_each(|part| table.add_row(device_row(part)));
    }
}

fn device_row(part: &RackMaintenanceChildRun) -> Vec<Cell> {
    vec![
        "".into(),
        "".into(),
        state_cell(part.state().word()),
        (&part.id).into(),
        (&part.operation_id).into(),
        (&part.message).into(),
    ]
}

fn state_cell(state: &str) -> Cell {
    let tone = match state {
        "SUCCEEDED" => Tone::Good,
        "FAILED" => Tone::Bad,
        "CANCELED" => Tone::Warn,
        "RUNNING" | "PENDING" => Tone::Busy,
        _ => Tone::Dim,
    };
    Cell::with_tone(state, tone)
}

/// The active operations that an ID refers to; an operation ID refers to itself.
async fn active_operation_ids(client: &Client, id: &str) -> Result<Vec<String>> {
    if !id.starts_with(RACK_PREFIX) {
        return Ok(vec![id.to_string()]);
    }
    let found = fetch_statuses(client, id).await?;
    let runs = found.into_iter().filter_map(|status| status.operation);
    let going = runs.filter(|run| matches!(run.phase(), Phase::Pending | Phase::Running));
    Ok(going.map(|run| run.run_id).collect())
}

async fn watch_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: RackMaintenanceWatchArgs,
) -> Result<Exit> {
    let going = active_operation_ids(client, &args.id).await?;
    let [id] = going.as_slice() else {
        let filter = build_id_filter("machine_id", &args.id, "")?.replacen('=', "=rack:", 1);
        let watching = watch::watch_runs(client, screen, filter, false);
        return tokio::time::timeout(args.timeout, watching).await.unwrap_or_else(|_| {
            let message =
                format!("{} was watched for {}", one_line(&args.id), format_duration(args.timeout));
            Err(Failure::new(Exit::TimedOut, message))
        });
    };
    let run = fetch_run(client, id).await?;
    let (expected_end, origin) = (ExpectedEnd::Succeeded, RunOrigin::Watched);
    let accepted = AcceptedOperation { run, expected_end, origin, before: None };
    follow_to_end(client, screen, accepted, args.timeout).await
}

async fn cancel_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: RackMaintenanceCancelArgs,
) -> Result<Exit> {
    let going = active_operation_ids(client, &args.id).await?;
    let operation_id = match going.as_slice() {
        [] => return Err(Failure::refused(format!("{} has nothing to cancel", args.id))),
        [id] => id.clone(),
        several => {
            let message = format!("{} has several; name one: {}", args.id, several.join(", "));
            return Err(Failure::refused(message));
        }
    };
    if client.is_dry_run() {
        return preview_cancel(client, screen, operation_id, args.reason).await;
    }
    let args = OperationActionArgs { operation_id, reason: args.reason, wait: args.wait };
    cancel(client, screen, &args).await
}

/// Shows what a cancel would stop. The server runs the request and rolls it back.
async fn preview_cancel(
    client: &Client,
    screen: &mut Screen,
    operation_id: String,
    reason: String,
) -> Result<Exit> {
    let found = fetch_statuses(client, &operation_id).await?;
    let request = CancelOperationRequest { operation_id, reason, dry_run: true };
    let operation = client.call(client.machines().cancel_operation(request)).await?;
    screen.print_record(&operation, |operation| {
        let id = one_line(&operation.operation_id);
        let rack = one_line(&operation.target_id);
        let mut text = format!("would cancel {id}\n");
        for rack_step in found.iter().flat_map(|status| &status.steps) {
            text.push_str(&format_stopped_devices(rack_step));
        }
        for note in operation.preview.iter().flat_map(|preview| &preview.notes) {
            text.push_str(&format!("{}\n", one_line(note)));
        }
        // A pending operation is only removed from the rack; the rack does not enter Error.
        let begun = found.iter().filter_map(|status| status.operation.as_ref());
        if begun.into_iter().any(|run| run.phase() == Phase::Running) {
            text.push_str(&format!("{rack} would wait in Error for a person\n"));
        }
        text
    })?;
    Ok(Exit::Success)
}

/// The line about a running rack step that would be stopped; empty for any other step.
fn format_stopped_devices(rack_step: &RackMaintenanceStep) -> String {
    if rack_step.state() != State::Running {
        return String::new();
    }
    let at_work = rack_step.child_runs.iter().filter(|part| {
        matches!(part.state(), RackChildRunState::Running | RackChildRunState::Pending)
    });
    let devices = join_names(at_work.map(|part| part.id.as_str()), MAX_IN_CELL);
    format!("{} would be stopped on {devices}\n", one_line(&rack_step.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, ClientCommand, Command, RackCommand};
    use clap::Parser;
    use proto::v1::RackDevice;

    fn typed(words: &str) -> RackMaintenanceStartArgs {
        let line = format!("farrier rack maintenance start rack-1{words}");
        let command = Cli::try_parse_from(line.split(' ')).unwrap().command;
        let Command::Client(ClientCommand::Rack(RackCommand::Maintenance(
            RackMaintenanceCommand::Start(args),
        ))) = command
        else {
            panic!("{words} is not the start of a maintenance")
        };
        args
    }

    #[test]
    fn a_setting_brings_its_activity() {
        for (words, count) in [
            ("", Some(0)),
            (" --firmware-version fw-1", Some(1)),
            (" --power reset", Some(1)),
            (" --firmware-version fw-1 --power on", Some(2)),
            (" --activity power --power off", Some(1)),
            (" --activity power,firmware", Some(2)),
            (" --activity power --firmware-version fw-1", None),
            (" --activity firmware --power on", None),
        ] {
            let made = requested_activities(&typed(words)).ok().map(|all| all.len());
            assert_eq!(made, count, "{words}");
        }
    }

    #[test]
    fn a_dry_run_names_every_machine_of_a_rack_that_is_taken_down() {
        let ids: Vec<String> = (1..=18).map(|n| format!("m-{n}")).collect();
        let device = |id: &String| RackDevice { id: id.clone(), ..Default::default() };
        let part = |id: &String| RackMaintenanceChildRun { id: id.clone(), ..Default::default() };
        let rack_step = RackMaintenanceStep {
            name: "power-off-machines".into(),
            child_runs: ids.iter().map(part).collect(),
            ..Default::default()
        };
        let preview = RackMaintenancePreview {
            devices: ids.iter().map(device).collect(),
            steps: vec![rack_step],
            affected_machine_ids: ids.clone(),
            ..Default::default()
        };
        let message = format_preview(&preview, ColorMode { enabled: false });
        let all = ids.join(", ");
        assert!(message.contains(&format!("Devices:     {all}\n")), "{message}");
        assert!(message.contains(&format!("Taken down:  {all}\n")), "{message}");
        assert!(message.contains("m-12, and 6 more"), "{message}");
    }
}
