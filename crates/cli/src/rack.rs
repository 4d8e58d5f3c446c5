//! Racks: create, show, update and delete them. The operations on racks are in `maintenance`.

mod elevation;
mod maintenance;

use crate::args::{RackCommand, RackDeleteArgs, RackListArgs, RackSpecArgs, RackUpdateArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::FilterText;
use crate::health;
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use crate::update::{Updated, changes};
use crate::watch::watch_racks;
use elevation::format_elevation;
use proto::field_mask::differences;
use proto::v1::{
    CreateRackRequest, DeleteRackRequest, GetRackRequest, ListRacksRequest, Rack, RackCounts,
    RackDevice, RackLocation, RackStatus, TargetKind, UpdateRackRequest,
};
use proto::words::WireEnum;

pub async fn run(client: &Client, screen: &mut Screen, command: RackCommand) -> Result<Exit> {
    match command {
        RackCommand::Create(args) => {
            let mut rack = Rack { rack_id: args.rack_id, ..Default::default() };
            apply_spec(&mut rack, args.spec);
            let dry_run = client.is_dry_run();
            let request = CreateRackRequest { rack: Some(rack), dry_run };
            let made = client.call(client.racks().create_rack(request)).await?;
            screen.print_record(&made, |rack| match (one_line(&rack.rack_id), dry_run) {
                (id, false) => format!("{id} created\n"),
                (id, true) => format!("would create {id}\n{}", format_follow_ups(&status(rack))),
            })?;
        }
        RackCommand::List(args) => list(client, screen, args).await?,
        RackCommand::Get(args) => {
            let rack = fetch(client, &args.rack_id).await?;
            let (clock, colors) = (Clock::system(), screen.color_mode());
            screen.print_record(&rack, |rack| describe(rack, &clock, colors))?;
        }
        RackCommand::Update(args) => update(client, screen, args).await?,
        RackCommand::Delete(args) => delete(client, screen, args).await?,
        RackCommand::Watch(args) => return watch_racks(client, screen, args.filter).await,
        RackCommand::Reprovision(args) => {
            return maintenance::reprovision(client, screen, args).await;
        }
        RackCommand::Maintenance(command) => {
            return maintenance::run(client, screen, command).await;
        }
    }
    Ok(Exit::Success)
}

async fn fetch(client: &Client, rack_id: &str) -> Result<Rack> {
    let request = GetRackRequest { rack_id: rack_id.to_string() };
    client.call(client.racks().get_rack(request)).await
}

/// Overwrites the fields of the rack that are given.
fn apply_spec(rack: &mut Rack, given: RackSpecArgs) {
    if let Some(hardware_type) = given.hardware_type {
        rack.hardware_type = hardware_type;
    }
    let expected = rack.expected.get_or_insert_with(RackCounts::default);
    let counts = [
        (&mut expected.machines, given.expect_machines),
        (&mut expected.switches, given.expect_switches),
        (&mut expected.power_shelves, given.expect_power_shelves),
    ];
    for (count, value) in counts {
        if let Some(value) = value {
            *count = i32::try_from(value).unwrap_or(i32::MAX);
        }
    }
    let location = rack.location.get_or_insert_with(RackLocation::default);
    let place = [
        (&mut location.room, given.room),
        (&mut location.row, given.row),
        (&mut location.position, given.position),
    ];
    for (field, value) in place {
        if let Some(value) = value {
            *field = value;
        }
    }
    rack.labels.extend(given.labels);
}

/// The known parts of the location; empty if there are none.
fn format_location(rack: &Rack) -> String {
    let RackLocation { room, row, position } = rack.location.clone().unwrap_or_default();
    let parts = [("room", room), ("row", row), ("position", position)].into_iter();
    let known = parts.filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

async fn list(client: &Client, screen: &mut Screen, args: RackListArgs) -> Result<()> {
    let filter = FilterText::typed(&args.filter)
        .any_of("state", &args.states)
        .any_of("hardware_type", &args.hardware_types);
    let labels = args.labels.iter().map(|label| label.split_once('=').unwrap_or((label, "")));
    let filter = labels.fold(filter, |filter, (key, value)| filter.label(key, value)).build();
    let racks = fetch_pages(args.limit, async |page_size, page_token| {
        let (filter, order_by) = (filter.clone(), args.sort.order_by.clone());
        let request = ListRacksRequest { filter, page_size, page_token, order_by };
        let page = client.call(client.racks().list_racks(request)).await?;
        Ok((page.racks, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let clock = Clock::system();
    let none = "no racks match; make one with `farrier rack create rack-1`";
    screen.print_list(&racks, |racks, wide| table(racks, wide, &clock), none)
}

async fn update(client: &Client, screen: &mut Screen, args: RackUpdateArgs) -> Result<()> {
    let updated = update_rack(client, args).await?;
    screen.print_record(&updated.object, |rack| match client.is_dry_run() {
        true if updated.is_changed() => format_update_preview(&updated),
        true | false => format!("{}\n", updated.describe(client, &rack.rack_id)),
    })
}

/// Sends only what the arguments change.
async fn update_rack(client: &Client, args: RackUpdateArgs) -> Result<Updated<Rack>> {
    let before = fetch(client, &args.rack_id).await?;
    let mut rack = before.clone();
    apply_spec(&mut rack, args.spec);
    for key in &args.remove_labels {
        rack.labels.remove(key);
    }
    let writable = ["labels", "hardware_type", "expected", "location"];
    let differences = differences(&before, &rack, &writable);
    let update_mask = changes(&before, &rack, &writable, args.version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateRackRequest {
        rack: Some(rack),
        expected_version: args.version.or_any(),
        dry_run: client.is_dry_run(),
        update_mask,
    };
    let object = client.call(client.racks().update_rack(request)).await?;
    Ok(Updated { object, differences })
}

/// Shows every field that changes, and the resulting rack, so that a typing error is visible before
/// it is stored.
fn format_update_preview(updated: &Updated<Rack>) -> String {
    let rack = &updated.object;
    let expected = rack.expected.unwrap_or_default();
    let counts = format!(
        "{} machines, {} switches, {} power shelves",
        expected.machines, expected.switches, expected.power_shelves
    );
    let mut facts = vec![
        ("Hardware type:", rack.hardware_type.clone()),
        ("Location:", format_location(rack)),
        ("Labels:", join_pairs(&rack.labels, ",")),
        ("Expected:", counts),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let (id, fields) = (one_line(&rack.rack_id), updated.fields());
    let follows = format_follow_ups(&status(rack));
    format!("would update {id}\n{fields}\n\n{}{follows}", format_pairs(&facts))
}

fn format_follow_ups(status: &RackStatus) -> String {
    crate::device::format_follow_ups(&status.would_follow)
}

async fn delete(client: &Client, screen: &mut Screen, args: RackDeleteArgs) -> Result<()> {
    let RackDeleteArgs { rack_id, overrides, version } = args;
    let dry_run = client.is_dry_run();
    let (gate_override, expected_version) = (overrides.to_message(), version.or_any());
    let request = DeleteRackRequest { rack_id, dry_run, gate_override, expected_version };
    let rack = client.call(client.racks().delete_rack(request)).await?;
    screen.print_record(&rack, |rack| {
        let id = one_line(&rack.rack_id);
        let devices = status(rack).devices;
        if !dry_run {
            return format!("{id} is being deleted\n");
        }
        let mut text = format!("would delete {id}\n");
        for device in &devices {
            text.push_str(&format!("{} would be taken out of it\n", one_line(&device.id)));
        }
        let operations = status(rack).active_operations;
        if !operations.is_empty() {
            text.push_str(&format!("it would wait for {}\n", one_line(&operations.join(", "))));
        }
        text
    })
}

fn status(rack: &Rack) -> RackStatus {
    rack.status.clone().unwrap_or_default()
}

/// The state, with its stage if it has one.
fn format_state(status: &RackStatus) -> String {
    match status.stage().word() {
        "" => status.state().word().to_string(),
        stage => format!("{} ({stage})", status.state().word()),
    }
}

pub fn state_tone(state: &str) -> Tone {
    match state {
        "Ready" | "IDLE" => Tone::Good,
        "Error" | "BLOCKED" => Tone::Bad,
        "ATTENTION" => Tone::Warn,
        "Maintenance" | "Validating" | "ReProvisioning" | "BUSY" => Tone::Busy,
        _ => Tone::Plain,
    }
}

fn table(racks: &[Rack], wide: bool, clock: &Clock) -> Table {
    let names = ["RACK_ID", "STATE", "STAGE", "SINCE", "HARDWARE", "OPERATIONS"];
    let more = ["LOCATION", "LABELS", "ERROR"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for rack in racks {
        let status = status(rack);
        let mut row: Vec<Cell> = vec![
            (&rack.rack_id).into(),
            Cell::with_tone(status.state().word(), state_tone(status.state().word())),
            status.stage().word().into(),
            clock.ago(status.since.as_ref()).into(),
            (&rack.hardware_type).into(),
            list_operations(&status).join(",").into(),
        ];
        if wide {
            row.push(format_location(rack).into());
            row.push(join_pairs(&rack.labels, ",").into());
            row.push(status.error.map(|error| error.message).unwrap_or_default().into());
        }
        table.add_row(row);
    }
    table
}

/// The active operations, then the pending ones.
fn list_operations(status: &RackStatus) -> Vec<String> {
    let mut all = status.active_operations.clone();
    all.extend(status.maintenance_requested.iter().map(|id| format!("{id} (pending)")));
    if !status.reprovision_requested.is_empty() {
        all.push(format!("{} (pending reprovision)", status.reprovision_requested));
    }
    all
}

/// The number of devices in the rack, and how many are expected.
fn format_counts(rack: &Rack, devices: &[RackDevice]) -> String {
    let expected = rack.expected.unwrap_or_default();
    let kinds = [
        (TargetKind::Machine, "machines", expected.machines),
        (TargetKind::Switch, "switches", expected.switches),
        (TargetKind::PowerShelf, "power shelves", expected.power_shelves),
    ];
    let words = kinds.map(|(kind, noun, desired)| {
        let there = devices.iter().filter(|device| device.kind() == kind).count();
        match desired {
            0 => format!("{there} {noun}"),
            desired => format!("{there} of {desired} {noun}"),
        }
    });
    words.join(", ")
}

/// Formats all details of one rack.
fn describe(rack: &Rack, clock: &Clock, colors: ColorMode) -> String {
    let status = status(rack);
    let since = clock.ago(status.since.as_ref());
    let mut facts = vec![
        ("Rack:", rack.rack_id.clone()),
        ("State:", format!("{}, since {since}", format_state(&status))),
        ("Waiting for:", status.waiting_for.clone()),
        ("Hardware type:", rack.hardware_type.clone()),
        ("Location:", format_location(rack)),
        ("Labels:", join_pairs(&rack.labels, ",")),
        ("Devices:", format_counts(rack, &status.devices)),
        ("Operations:", list_operations(&status).join(", ")),
    ];
    if let Some(error) = &status.error {
        let device = match error.device_id.as_str() {
            "" => String::new(),
            id => format!("{id}: "),
        };
        facts.push(("Error:", format!("{}: {device}{}", error.during().word(), error.message)));
        facts.push(("Operation:", error.operation_id.clone()));
        facts.push(("Next:", error.next_command.clone()));
    }
    for one in &status.not_ingested {
        facts.push(("Not ingested:", format!("{}, in service at the time", one.machine_id)));
        facts.push(("Next:", one.next_command.clone()));
    }
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format_pairs(&facts);
    text.push_str(&health::optional_section(status.health.as_ref(), clock));
    text.push('\n');
    text.push_str(&format_elevation(&rack.rack_id, &status.devices, colors));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::RackError;
    use proto::v1::{RackErrorPhase, RackState};

    #[test]
    fn a_rack_in_full() {
        let status = RackStatus {
            state: RackState::Error.into(),
            since: Some(Timestamp { seconds: 40, nanos: 0 }),
            error: Some(RackError {
                during: RackErrorPhase::PowerSequence.into(),
                device_id: "m-2".into(),
                message: "it is broken".into(),
                operation_id: "op-2".into(),
                next_command: "farrier operation retry-step op-1".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let rack = Rack {
            rack_id: "rack-1".into(),
            expected: Some(RackCounts { machines: 2, ..Default::default() }),
            location: Some(RackLocation {
                room: "hall-2".into(),
                position: "7".into(),
                ..Default::default()
            }),
            status: Some(status),
            ..Default::default()
        };
        let text = describe(&rack, &Clock::fixed(100), ColorMode { enabled: false });
        assert!(
            text.starts_with(
                "\
Rack:       rack-1
State:      Error, since 1m 0s ago
Location:   room hall-2, position 7
Devices:    0 of 2 machines, 0 switches, 0 power shelves
Error:      PowerSequence: m-2: it is broken
Operation:  op-2
Next:       farrier operation retry-step op-1
"
            ),
            "{text}"
        );
    }
}
