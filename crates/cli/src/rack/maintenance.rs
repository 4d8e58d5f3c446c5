//! The maintenance of a rack: asking for it, looking before it is asked, and following it device by device.

use crate::args::{
    ActivityArg, CancelArgs, CancelRackMaintenanceArgs, RackMaintenanceCommand,
    RackMaintenanceStartArgs, RackMaintenanceWatchArgs, RackReprovisionArgs, RackSubmitArgs,
    SequenceArg, SubmitArgs,
};
use crate::client::{Client, filter_by};
use crate::exit::{Exit, Failure};
use crate::follow::boxes::verdict;
use crate::operation::{Errand, Goal, Origin, View, accompany, asked_as, see_through};
use crate::output::Screen;
use crate::run::{cancel, fetch_run};
use crate::table::{Cell, Paint, Table, Tone, pairs};
use crate::text::{MAX_IN_CELL, names, one_line};
use crate::time::Clock;
use crate::watch;
use model::blast::MAX_NAMED;
use model::time::spoken;
use proto::v1::maintenance_activity_config::Activity;
use proto::v1::{
    CancelOperationRequest, ConfigureNmxClusterActivity, FirmwareUpgradeActivity,
    GetRackMaintenanceStatusRequest, MaintenanceActivityConfig, PowerSequenceActivity, RackId,
    RackMaintenanceLeg, RackMaintenanceOnDemandRequest, RackMaintenanceOnDemandResponse,
    RackMaintenancePart, RackMaintenancePreview, RackMaintenanceScope, RackMaintenanceStatus,
    ReprovisionRackRequest, run::Phase,
};

/// Racks have names of their own; nothing else begins like this.
const RACK_PREFIX: &str = "rack-";

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: RackMaintenanceCommand,
) -> Result<Exit, Failure> {
    match command {
        RackMaintenanceCommand::Start(args) => start(client, screen, args).await,
        RackMaintenanceCommand::Status(args) => {
            let found = statuses(client, &args.id).await?;
            let (wide, paint) = (screen.is_wide(), screen.paint());
            screen.one(&found, |found| status_words(found, wide, paint))?;
            Ok(Exit::Done)
        }
        RackMaintenanceCommand::Watch(args) => follow(client, screen, args).await,
        RackMaintenanceCommand::Cancel(args) => stop(client, screen, args).await,
    }
}

async fn start(
    client: &Client,
    screen: &mut Screen,
    args: RackMaintenanceStartArgs,
) -> Result<Exit, Failure> {
    let activities = activities(&args)?;
    let scope = RackMaintenanceScope {
        machine_ids: args.machines,
        switch_ids: args.switches,
        power_shelf_ids: args.power_shelves,
        activities,
    };
    let RackSubmitArgs { force, reason, reference, dry_run, submit } = args.ask;
    let request = RackMaintenanceOnDemandRequest {
        rack_id: Some(RackId { id: args.rack_id }),
        scope: Some(scope),
        request_id: asked_as(screen, dry_run, &submit)?,
        reference,
        force,
        reason,
        dry_run,
    };
    let answer = client.call(client.racks().on_demand_rack_maintenance(request)).await?;
    show(client, screen, answer, (dry_run, &submit)).await
}

pub async fn reprovision(
    client: &Client,
    screen: &mut Screen,
    args: RackReprovisionArgs,
) -> Result<Exit, Failure> {
    let RackSubmitArgs { force, reason, reference, dry_run, submit } = args.ask;
    let request = ReprovisionRackRequest {
        rack_id: args.rack_id,
        request_id: asked_as(screen, dry_run, &submit)?,
        reference,
        force,
        reason,
        dry_run,
    };
    let answer = client.call(client.racks().reprovision_rack(request)).await?;
    show(client, screen, answer, (dry_run, &submit)).await
}

/// The activities that were typed. A setting names its activity; without either, all of them are wanted.
fn activities(args: &RackMaintenanceStartArgs) -> Result<Vec<MaintenanceActivityConfig>, Failure> {
    let by_setting = [
        (ActivityArg::Firmware, !args.firmware_version.is_empty()),
        (ActivityArg::Power, args.power.is_some()),
    ];
    let wanted: Vec<ActivityArg> = match args.activities.is_empty() {
        true => by_setting.into_iter().filter(|(_, set)| *set).map(|(one, _)| one).collect(),
        false => args.activities.clone(),
    };
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let lacks = |activity| !wanted.contains(&activity);
    if !args.firmware_version.is_empty() && lacks(ActivityArg::Firmware) {
        return Err(Failure::refused("--firmware-version needs --activity firmware"));
    }
    if args.power.is_some() && lacks(ActivityArg::Power) {
        return Err(Failure::refused("--power needs --activity power"));
    }
    let activity = |wanted: &ActivityArg| match wanted {
        ActivityArg::Firmware => Activity::FirmwareUpgrade(FirmwareUpgradeActivity {
            firmware_version: args.firmware_version.clone(),
        }),
        ActivityArg::NmxCluster => Activity::ConfigureNmxCluster(ConfigureNmxClusterActivity {}),
        ActivityArg::Power => {
            let sequence = match args.power {
                None => "",
                Some(SequenceArg::On) => "on",
                Some(SequenceArg::Off) => "off",
                Some(SequenceArg::Reset) => "reset",
            };
            Activity::PowerSequence(PowerSequenceActivity { sequence: sequence.into() })
        }
    };
    let config = |wanted| MaintenanceActivityConfig { activity: Some(activity(wanted)) };
    Ok(wanted.iter().map(config).collect())
}

/// What came of it: the preview, or the operation followed to its end.
async fn show(
    client: &Client,
    screen: &mut Screen,
    answer: RackMaintenanceOnDemandResponse,
    (dry_run, submit): (bool, &SubmitArgs),
) -> Result<Exit, Failure> {
    if dry_run {
        let paint = screen.paint();
        screen.one(&answer, |answer| match &answer.preview {
            Some(preview) => preview_words(preview, paint),
            None => format!("{} was made by this request before\n", one_line(&answer.operation_id)),
        })?;
        let refused = answer.preview.is_some_and(|preview| !preview.refusals.is_empty());
        return Ok(if refused { Exit::Refused } else { Exit::Done });
    }
    for note in answer.preview.iter().flat_map(|preview| &preview.notes) {
        screen.tell(&format!("note: {}", one_line(note)))?;
    }
    let run = fetch_run(client, &answer.operation_id).await?;
    let (view, goal, origin) = (View::Operation, Goal::Succeed, Origin::Submitted);
    let errand = Errand { run, view, goal, origin, before: None };
    see_through(client, screen, errand, &submit.wait).await
}

fn preview_words(preview: &RackMaintenancePreview, paint: Paint) -> String {
    let firmware = match (preview.firmware_id.as_str(), preview.firmware_skipped.as_str()) {
        ("", "") => String::new(),
        ("", why) => format!("none: {why}"),
        (id, _) => id.to_string(),
    };
    let mut facts = vec![
        ("Devices:", names(preview.devices.iter().map(|device| device.id.as_str()), MAX_NAMED)),
        ("Firmware:", firmware),
        ("Taken down:", names(preview.dark_machine_ids.iter().map(String::as_str), MAX_NAMED)),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format!("{}\n", pairs(&facts).trim_end());
    for note in &preview.notes {
        text.push_str(&format!("Note: {}\n", one_line(note)));
    }
    text.push('\n');
    let mut table = Table::new(&["STEP", "ACTIVITY", "DEVICES"]);
    for leg in &preview.legs {
        let devices = names(leg.parts.iter().map(|part| part.id.as_str()), MAX_IN_CELL);
        table.row(vec![(&leg.name).into(), (&leg.activity).into(), devices.into()]);
    }
    text.push_str(&table.render(paint));
    text.push('\n');
    for gate in &preview.refusals {
        let refused = paint.apply(Tone::Bad, "would be refused:");
        text.push_str(&format!("{refused} {}\n", one_line(&gate.message)));
        if !gate.next_command.is_empty() {
            text.push_str(&format!("  next: {}\n", one_line(&gate.next_command)));
        }
    }
    if preview.refusals.is_empty() {
        text.push_str("nothing speaks against it\n");
    }
    text.push_str("dry run: nothing was changed\n");
    text
}

async fn statuses(client: &Client, id: &str) -> Result<Vec<RackMaintenanceStatus>, Failure> {
    let request = GetRackMaintenanceStatusRequest { id: id.to_string() };
    let answer = client.call(client.racks().get_rack_maintenance_status(request)).await?;
    Ok(answer.operations)
}

fn status_words(all: &[RackMaintenanceStatus], wide: bool, paint: Paint) -> String {
    if all.is_empty() {
        return "it has had no maintenance yet\n".into();
    }
    let one = |status: &RackMaintenanceStatus| one_status(status, wide, paint);
    all.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one_status(status: &RackMaintenanceStatus, wide: bool, paint: Paint) -> String {
    let run = status.operation.clone().unwrap_or_default();
    let clock = Clock::system();
    let (tone, words) = verdict(run.phase());
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
        ("Duration:", clock.lasted(run.started_at.as_ref(), run.finished_at.as_ref())),
        ("Error:", run.error.clone().map(|error| error.message).unwrap_or_default()),
        ("Next:", run.error.map(|error| error.next_command).unwrap_or_default()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = pairs(&facts).replacen(words, &paint.apply(tone, words), 1);
    for note in &status.notes {
        text.push_str(&format!("Note: {}\n", one_line(note)));
    }
    text.push('\n');
    let mut table = Table::new(&["STEP", "ACTIVITY", "STATE", "DEVICES", "OPERATION", "MESSAGE"]);
    for leg in &status.legs {
        leg_rows(&mut table, leg, wide);
    }
    text.push_str(&table.render(paint));
    text
}

/// A leg, and its devices where something is to be seen of them.
fn leg_rows(table: &mut Table, leg: &RackMaintenanceLeg, wide: bool) {
    let done = leg.parts.iter().filter(|part| part.state == "SUCCEEDED").count();
    table.row(vec![
        (&leg.name).into(),
        (&leg.activity).into(),
        state_cell(&leg.state),
        format!("{done}/{}", leg.parts.len()).into(),
        "".into(),
        (&leg.message).into(),
    ]);
    let open = matches!(leg.state.as_str(), "RUNNING" | "FAILED");
    if open || wide {
        leg.parts.iter().for_each(|part| table.row(part_row(part)));
    }
}

fn part_row(part: &RackMaintenancePart) -> Vec<Cell> {
    vec![
        "".into(),
        "".into(),
        state_cell(&part.state),
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
    Cell::toned(state, tone)
}

/// The operations that an id leads to and that have not ended.
async fn going(client: &Client, id: &str) -> Result<Vec<String>, Failure> {
    if !id.starts_with(RACK_PREFIX) {
        return Ok(vec![id.to_string()]);
    }
    let found = statuses(client, id).await?;
    let runs = found.into_iter().filter_map(|status| status.operation);
    let going = runs.filter(|run| matches!(run.phase(), Phase::Pending | Phase::Running));
    Ok(going.map(|run| run.run_id).collect())
}

async fn follow(
    client: &Client,
    screen: &mut Screen,
    args: RackMaintenanceWatchArgs,
) -> Result<Exit, Failure> {
    let going = going(client, &args.id).await?;
    let [id] = going.as_slice() else {
        let filter = filter_by("machine_id", &args.id, "")?.replacen('=', "=rack:", 1);
        let watching = watch::runs(client, screen, filter, false);
        return tokio::time::timeout(args.timeout, watching).await.unwrap_or_else(|_| {
            let said = format!("{} was watched for {}", one_line(&args.id), spoken(args.timeout));
            Err(Failure::new(Exit::TimedOut, said))
        });
    };
    let run = fetch_run(client, id).await?;
    let (view, goal, origin) = (View::Operation, Goal::Succeed, Origin::Watched);
    let errand = Errand { run, view, goal, origin, before: None };
    accompany(client, screen, errand, args.timeout).await
}

async fn stop(
    client: &Client,
    screen: &mut Screen,
    args: CancelRackMaintenanceArgs,
) -> Result<Exit, Failure> {
    let going = going(client, &args.id).await?;
    let operation_id = match going.as_slice() {
        [] => return Err(Failure::refused(format!("{} has nothing to cancel", args.id))),
        [id] => id.clone(),
        several => {
            let said = format!("{} has several; name one: {}", args.id, several.join(", "));
            return Err(Failure::refused(said));
        }
    };
    if args.dry_run {
        return would_stop(client, screen, operation_id, args.reason).await;
    }
    let args = CancelArgs { operation_id, reason: args.reason, wait: args.wait };
    cancel(client, screen, &args, View::Operation).await
}

/// The request is made and taken back; what it would stop is told by how the operation stands.
async fn would_stop(
    client: &Client,
    screen: &mut Screen,
    operation_id: String,
    reason: String,
) -> Result<Exit, Failure> {
    let found = statuses(client, &operation_id).await?;
    let request = CancelOperationRequest { operation_id, reason, dry_run: true };
    let operation = client.call(client.machines().cancel_operation(request)).await?;
    screen.one(&operation, |operation| {
        let id = one_line(&operation.operation_id);
        let rack = one_line(&operation.target_id);
        let mut text = format!("would cancel {id}; nothing was changed\n");
        for leg in found.iter().flat_map(|status| &status.legs) {
            text.push_str(&stopped(leg));
        }
        // What has not begun is taken from the rack, and nothing has happened to it.
        let begun = found.iter().filter_map(|status| status.operation.as_ref());
        if begun.into_iter().any(|run| run.phase() == Phase::Running) {
            text.push_str(&format!("{rack} would wait in Error for a person\n"));
        }
        text
    })?;
    Ok(Exit::Done)
}

/// What is in progress of a leg, and would be stopped.
fn stopped(leg: &RackMaintenanceLeg) -> String {
    if leg.state != "RUNNING" {
        return String::new();
    }
    let at_work =
        leg.parts.iter().filter(|part| matches!(part.state.as_str(), "RUNNING" | "PENDING"));
    let devices = names(at_work.map(|part| part.id.as_str()), MAX_IN_CELL);
    format!("{} would be stopped on {devices}\n", one_line(&leg.name))
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
            let made = activities(&typed(words)).ok().map(|all| all.len());
            assert_eq!(made, count, "{words}");
        }
    }

    #[test]
    fn a_dry_run_names_every_machine_of_a_rack_that_is_taken_down() {
        let ids: Vec<String> = (1..=18).map(|n| format!("m-{n}")).collect();
        let device = |id: &String| RackDevice { id: id.clone(), ..Default::default() };
        let part = |id: &String| RackMaintenancePart { id: id.clone(), ..Default::default() };
        let leg = RackMaintenanceLeg {
            name: "power-off-machines".into(),
            parts: ids.iter().map(part).collect(),
            ..Default::default()
        };
        let preview = RackMaintenancePreview {
            devices: ids.iter().map(device).collect(),
            legs: vec![leg],
            dark_machine_ids: ids.clone(),
            ..Default::default()
        };
        let said = preview_words(&preview, Paint { colour: false });
        let all = ids.join(", ");
        assert!(said.contains(&format!("Devices:     {all}\n")), "{said}");
        assert!(said.contains(&format!("Taken down:  {all}\n")), "{said}");
        assert!(said.contains("m-12, and 6 more"), "{said}");
    }
}
