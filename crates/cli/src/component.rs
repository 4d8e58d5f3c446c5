//! `farrier component`: the firmware of several compute trays, switches and power shelves at once.

use crate::args::{ComponentArgs, ComponentCommand, ComponentFirmwareCommand, ComponentUpdateArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::operation::{choose_request_id, time_line};
use crate::output::Screen;
use crate::table::{Cell, Table, Tone};
use crate::text::{join_names, one_line};
use model::blast_radius::MAX_NAMED;
use proto::v1::{
    ComponentFirmwareStatus, ComponentFirmwareVersions, ComponentOutcome, ComponentResult,
    ComputeTrays, GetComponentFirmwareStatusRequest, ListComponentFirmwareVersionsRequest,
    PowerShelves, Switches, UpdateComponentFirmwareRequest,
};
use std::collections::{BTreeMap, HashMap};

pub async fn run(client: &Client, screen: &mut Screen, command: ComponentCommand) -> Result<Exit> {
    let ComponentCommand::Firmware(command) = command;
    match command {
        ComponentFirmwareCommand::Update(args) => update(client, screen, args).await,
        ComponentFirmwareCommand::Status(args) => {
            let (compute_trays, switches, power_shelves) = select_devices(args.devices);
            let target_version = args.target_version;
            let request = GetComponentFirmwareStatusRequest {
                compute_trays,
                switches,
                power_shelves,
                target_version,
            };
            let mut components = client.components();
            let found = client.call(components.get_component_firmware_status(request)).await?;
            screen.print_list(&found.components, status_table, "no devices")?;
            Ok(Exit::Success)
        }
        ComponentFirmwareCommand::Versions(args) => {
            let found = fetch_pages(args.list.limit, async |page_size, page_token| {
                let (compute_trays, switches, power_shelves) = select_devices(args.devices.clone());
                let request = ListComponentFirmwareVersionsRequest {
                    compute_trays,
                    switches,
                    power_shelves,
                    page_size,
                    page_token,
                    filter: args.list.filter.clone(),
                };
                let mut components = client.components();
                let page = client.call(components.list_component_firmware_versions(request));
                let page = page.await?;
                Ok((page.components, page.next_page_token))
            })
            .await?;
            screen.print_list(&found, version_table, "no devices")?;
            Ok(Exit::Success)
        }
    }
}

type DeviceSelection = (Option<ComputeTrays>, Option<Switches>, Option<PowerShelves>);

fn select_devices(args: ComponentArgs) -> DeviceSelection {
    (
        Some(ComputeTrays { machine_ids: args.compute_trays }),
        Some(Switches { switch_ids: args.switches }),
        Some(PowerShelves { power_shelf_ids: args.power_shelves }),
    )
}

/// Fails if a device is refused, because no operation upgrades it.
async fn update(client: &Client, screen: &mut Screen, args: ComponentUpdateArgs) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    let request_id = match dry_run {
        true => String::new(),
        false => choose_request_id(screen, args.request_id.as_ref())?,
    };
    let (compute_trays, switches, power_shelves) = select_devices(args.devices);
    let request = UpdateComponentFirmwareRequest {
        compute_trays,
        switches,
        power_shelves,
        target_version: args.target_version,
        request_id,
        gate_override: args.overrides.to_message(),
        reference: args.reference,
        dry_run,
    };
    let done = client.call(client.components().update_component_firmware(request)).await?.results;
    screen.print_list(&done, |all, wide| result_table(all, wide, dry_run), "no devices")?;
    if dry_run {
        screen.print_line(&format_impact(&done))?;
    }
    Ok(if done.iter().all(|one| one.success) { Exit::Success } else { Exit::Refused })
}

/// The impact of a dry run, once per rack: affected machines, notes, and all refusals.
fn format_impact(all: &[ComponentResult]) -> String {
    let racks: BTreeMap<&str, &ComponentResult> =
        all.iter().rev().map(|one| (one.rack_id.as_str(), one)).collect();
    let mut text = String::new();
    for (rack, one) in racks {
        let mut lines = Vec::new();
        if !one.affected_machine_ids.is_empty() {
            let affected =
                join_names(one.affected_machine_ids.iter().map(String::as_str), MAX_NAMED);
            lines.push(format!("affected machines: {affected}"));
        }
        if one.limit_seconds > 0 {
            let time = time_line((one.usual_ms, one.usual_p95_ms), one.limit_seconds);
            lines.push(time.trim_end().to_string());
        }
        lines.extend(one.notes.iter().map(|note| format!("note: {}", one_line(note))));
        for gate in &one.refusals {
            lines.push(format!("would be refused: {}", one_line(&gate.message)));
            if !gate.next_command.is_empty() {
                lines.push(format!("  next: {}", one_line(&gate.next_command)));
            }
        }
        if !lines.is_empty() {
            text.push_str(&format!("\n{}:\n  {}\n", one_line(rack), lines.join("\n  ")));
        }
    }
    text
}

fn result_table(all: &[ComponentResult], wide: bool, dry_run: bool) -> Table {
    let mut names = vec!["DEVICE", "RACK", "RESULT", "OPERATION", "MESSAGE"];
    // A dry run always shows the steps.
    names.extend((wide || dry_run).then_some("STEPS"));
    names.extend(wide.then_some("NEXT"));
    let mut table = Table::new(&names);
    for one in all {
        let result = match one.outcome() {
            ComponentOutcome::Unspecified => Cell::from("-"),
            ComponentOutcome::Started => Cell::with_tone("started", Tone::Busy),
            ComponentOutcome::Refused => Cell::with_tone("refused", Tone::Bad),
            ComponentOutcome::WouldStart => Cell::with_tone("would start", Tone::Dim),
        };
        let mut row: Vec<Cell> = vec![
            (&one.device_id).into(),
            (&one.rack_id).into(),
            result,
            (&one.operation_id).into(),
            (&one.message).into(),
        ];
        if wide || dry_run {
            row.push(one.steps.join(",").into());
        }
        if wide {
            row.push((&one.next).into());
        }
        table.add_row(row);
    }
    table
}

fn status_table(all: &[ComponentFirmwareStatus], wide: bool) -> Table {
    let names = ["DEVICE", "CURRENT", "WANTED", "FIRMWARE_ID", "OPERATION"];
    let more = ["RACK", "DIFFERS"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let mut row: Vec<Cell> = vec![
            (&one.device_id).into(),
            join_versions(&one.current).into(),
            join_versions(&one.desired).into(),
            (&one.firmware_id).into(),
            (&one.operation_id).into(),
        ];
        if wide {
            row.push((&one.rack_id).into());
            row.push(one.differs.join("; ").into());
        }
        table.add_row(row);
    }
    table
}

fn version_table(all: &[ComponentFirmwareVersions], _wide: bool) -> Table {
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
            table.add_row(row);
        }
        for one in &device.versions {
            table.add_row(vec![
                id.into(),
                hardware_type.into(),
                (&one.firmware_id).into(),
                join_versions(&one.components).into(),
                mark(one.is_default).into(),
                mark(one.available).into(),
                mark(one.installed).into(),
            ]);
        }
    }
    table
}

fn join_versions(versions: &HashMap<String, String>) -> String {
    let mut all: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    all.sort();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColorMode;
    use proto::v1::RackMaintenanceGate;

    #[test]
    fn a_dry_run_shows_steps_and_refusals() {
        let gate = |message: &str, next: &str| RackMaintenanceGate {
            message: message.into(),
            next_command: next.into(),
            ..Default::default()
        };
        let tray = |id: &str| ComponentResult {
            device_id: id.into(),
            rack_id: "rack-1".into(),
            outcome: ComponentOutcome::Refused.into(),
            message: "first".into(),
            steps: vec!["firmware-machines".into(), "validate".into()],
            refusals: vec![gate("first", ""), gate("second", "farrier why rack-1")],
            affected_machine_ids: vec!["m-1".into(), "m-2".into()],
            notes: vec!["mind the gap".into()],
            ..Default::default()
        };
        let shelf = ComponentResult { device_id: "ps-1".into(), ..Default::default() };
        let all = [tray("m-1"), tray("m-2"), shelf];
        assert_eq!(
            format_impact(&all),
            "
rack-1:
  affected machines: m-1, m-2
  note: mind the gap
  would be refused: first
  would be refused: second
    next: farrier why rack-1
"
        );
        let shown =
            |dry_run| result_table(&all, false, dry_run).render(ColorMode { enabled: false });
        assert!(shown(true).contains("firmware-machines,validate"));
        assert!(!shown(false).contains("firmware-machines"));
    }
}
