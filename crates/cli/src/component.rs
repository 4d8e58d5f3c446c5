//! Components: the firmware of compute trays, switches and power shelves, several at once.

use crate::args::{ComponentArgs, ComponentCommand, ComponentFirmwareCommand, ComponentUpdateArgs};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::operation::request_id;
use crate::output::Screen;
use crate::table::{Cell, Table, Tone};
use proto::v1::{
    ComponentFirmwareStatus, ComponentFirmwareVersions, ComponentOutcome, ComponentResult,
    ComputeTrays, GetComponentFirmwareStatusRequest, ListComponentFirmwareVersionsRequest,
    PowerShelves, Switches, UpdateComponentFirmwareRequest,
};
use std::collections::HashMap;

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: ComponentCommand,
) -> Result<Exit, Failure> {
    let ComponentCommand::Firmware(command) = command;
    match command {
        ComponentFirmwareCommand::Update(args) => update(client, screen, args).await,
        ComponentFirmwareCommand::Status(args) => {
            let (compute_trays, switches, power_shelves) = devices(args.devices);
            let target_version = args.target_version;
            let request = GetComponentFirmwareStatusRequest {
                compute_trays,
                switches,
                power_shelves,
                target_version,
            };
            let mut components = client.components();
            let found = client.call(components.get_component_firmware_status(request)).await?;
            screen.many(&found.components, statuses, "no devices")?;
            Ok(Exit::Done)
        }
        ComponentFirmwareCommand::Versions(args) => {
            let (compute_trays, switches, power_shelves) = devices(args);
            let request =
                ListComponentFirmwareVersionsRequest { compute_trays, switches, power_shelves };
            let mut components = client.components();
            let found = client.call(components.list_component_firmware_versions(request)).await?;
            screen.many(&found.components, versions, "no devices")?;
            Ok(Exit::Done)
        }
    }
}

type Devices = (Option<ComputeTrays>, Option<Switches>, Option<PowerShelves>);

fn devices(args: ComponentArgs) -> Devices {
    (
        Some(ComputeTrays { machine_ids: args.compute_trays }),
        Some(Switches { switch_ids: args.switches }),
        Some(PowerShelves { power_shelf_ids: args.power_shelves }),
    )
}

/// Refused devices make the command fail, as no operation upgrades them.
async fn update(
    client: &Client,
    screen: &mut Screen,
    args: ComponentUpdateArgs,
) -> Result<Exit, Failure> {
    let dry_run = args.dry_run;
    let request_id = match dry_run {
        true => String::new(),
        false => request_id(screen, args.request_id.as_ref())?,
    };
    let (compute_trays, switches, power_shelves) = devices(args.devices);
    let request = UpdateComponentFirmwareRequest {
        compute_trays,
        switches,
        power_shelves,
        target_version: args.target_version,
        request_id,
        force: args.force,
        reason: args.reason,
        reference: args.reference,
        dry_run,
    };
    let done = client.call(client.components().update_component_firmware(request)).await?.results;
    screen.many(&done, results, "no devices")?;
    if dry_run {
        screen.say("\ndry run: nothing was changed")?;
    }
    Ok(if done.iter().all(|one| one.success) { Exit::Done } else { Exit::Refused })
}

fn results(all: &[ComponentResult], wide: bool) -> Table {
    let names = ["DEVICE", "RACK", "RESULT", "OPERATION", "MESSAGE"];
    let more = ["STEPS", "NEXT"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let result = match one.outcome() {
            ComponentOutcome::Unspecified => Cell::from("-"),
            ComponentOutcome::Started => Cell::toned("started", Tone::Busy),
            ComponentOutcome::Refused => Cell::toned("refused", Tone::Bad),
            ComponentOutcome::WouldStart => Cell::toned("would start", Tone::Dim),
        };
        let mut row: Vec<Cell> = vec![
            (&one.device_id).into(),
            (&one.rack_id).into(),
            result,
            (&one.operation_id).into(),
            (&one.message).into(),
        ];
        if wide {
            row.push(one.steps.join(",").into());
            row.push((&one.next).into());
        }
        table.row(row);
    }
    table
}

fn statuses(all: &[ComponentFirmwareStatus], wide: bool) -> Table {
    let names = ["DEVICE", "CURRENT", "WANTED", "FIRMWARE_ID", "OPERATION"];
    let more = ["RACK", "DIFFERS"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let mut row: Vec<Cell> = vec![
            (&one.device_id).into(),
            listed(&one.current).into(),
            listed(&one.wanted).into(),
            (&one.firmware_id).into(),
            (&one.operation_id).into(),
        ];
        if wide {
            row.push((&one.rack_id).into());
            row.push(one.differs.join("; ").into());
        }
        table.row(row);
    }
    table
}

fn versions(all: &[ComponentFirmwareVersions], _wide: bool) -> Table {
    let names =
        ["DEVICE", "HARDWARE_TYPE", "FIRMWARE_ID", "VERSIONS", "DEFAULT", "AVAILABLE", "INSTALLED"];
    let mut table = Table::new(&names);
    let mark = |yes: bool| if yes { "✓" } else { "-" };
    for device in all {
        let (id, hardware_type) = (&device.device_id, &device.hardware_type);
        if device.versions.is_empty() {
            let nothing = || Cell::from("-");
            let mut row: Vec<Cell> = vec![id.into(), hardware_type.into(), "none".into()];
            row.extend([nothing(), nothing(), nothing(), nothing()]);
            table.row(row);
        }
        for one in &device.versions {
            table.row(vec![
                id.into(),
                hardware_type.into(),
                (&one.firmware_id).into(),
                listed(&one.components).into(),
                mark(one.is_default).into(),
                mark(one.available).into(),
                mark(one.installed).into(),
            ]);
        }
    }
    table
}

fn listed(versions: &HashMap<String, String>) -> String {
    let mut all: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    all.sort();
    all.join(", ")
}
