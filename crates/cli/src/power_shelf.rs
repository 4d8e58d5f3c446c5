//! Power shelves: list, register, update, delete and retry them, and switch their power.

use crate::args::{
    DeviceListArgs, PowerShelfActionArgs, PowerShelfCommand, PowerShelfDeleteArgs,
    PowerShelfMaintenanceArgs, PowerShelfMaintenanceCommand, PowerShelfRegisterArgs,
    PowerShelfUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::device::{
    DeviceChange, DeviceView, apply_spec, apply_update, describe, filter, format_change, table,
};
use crate::exit::{Exit, Result, eprintln_quietly};
use crate::operation::time_line;
use crate::output::Screen;
use crate::text::one_line;
use crate::time::Clock;
use crate::update::{Updated, WRITABLE, changes};
use proto::field_mask::differences;
use proto::v1::{
    AffectedMachine, DeletePowerShelfRequest, DeviceSpec, GateOverride, GetPowerShelfRequest,
    ListPowerShelvesRequest, PowerShelf, PowerShelfId, PowerShelfMaintenanceOperation as Operation,
    PowerShelfMaintenancePreview, PowerShelfMaintenanceRequest, RegisterPowerShelfRequest,
    RetryPowerShelfRequest, UpdatePowerShelfRequest,
};
use proto::words::WireEnum;
use std::collections::BTreeSet;

/// The response metadata with warnings for the user.
const WARNING_METADATA: &str = "farrier-warning";

pub async fn run(client: &Client, screen: &mut Screen, command: PowerShelfCommand) -> Result<Exit> {
    match command {
        PowerShelfCommand::List(args) => list(client, screen, &args).await?,
        PowerShelfCommand::Get(args) => {
            let shelf = fetch(client, args.power_shelf_id).await?;
            screen.print_record(&shelf, |shelf| format_power_shelf(shelf, &Clock::system()))?;
        }
        PowerShelfCommand::Register(args) => {
            let dry_run = client.is_dry_run();
            let changed = register(client, args).await?;
            print_change(screen, &changed, DeviceChange::Registered, dry_run)?;
        }
        PowerShelfCommand::Update(args) => {
            let updated = update_power_shelf(client, args).await?;
            let change = DeviceChange::of_update(&updated);
            print_change(screen, &updated.object, change, client.is_dry_run())?;
        }
        PowerShelfCommand::Delete(args) => {
            let PowerShelfDeleteArgs { power_shelf_id, version } = args;
            let dry_run = client.is_dry_run();
            let expected_version = version.or_any();
            let request = DeletePowerShelfRequest { power_shelf_id, dry_run, expected_version };
            let shelf = client.call(client.power_shelves().delete_power_shelf(request)).await?;
            print_change(screen, &shelf, DeviceChange::MarkedForDeletion, dry_run)?;
        }
        PowerShelfCommand::Retry(args) => {
            let PowerShelfActionArgs { power_shelf_id } = args;
            let dry_run = client.is_dry_run();
            let request = RetryPowerShelfRequest { power_shelf_id, dry_run };
            let shelf = client.call(client.power_shelves().retry_power_shelf(request)).await?;
            print_change(screen, &shelf, DeviceChange::Retried, dry_run)?;
        }
        PowerShelfCommand::Maintenance(PowerShelfMaintenanceCommand::PowerOn(args)) => {
            return request_maintenance(client, screen, args, Operation::PowerOn).await;
        }
        PowerShelfCommand::Maintenance(PowerShelfMaintenanceCommand::PowerOff(args)) => {
            return request_maintenance(client, screen, args, Operation::PowerOff).await;
        }
    }
    Ok(Exit::Success)
}

fn print_change(
    screen: &mut Screen,
    shelf: &PowerShelf,
    change: DeviceChange,
    dry_run: bool,
) -> Result<()> {
    screen.print_record(shelf, |shelf| format_change(&device_view(shelf), &change, dry_run))
}

async fn fetch(client: &Client, power_shelf_id: String) -> Result<PowerShelf> {
    let request = GetPowerShelfRequest { power_shelf_id };
    client.call(client.power_shelves().get_power_shelf(request)).await
}

async fn list(client: &Client, screen: &mut Screen, args: &DeviceListArgs) -> Result<()> {
    let shelves = fetch_pages(args.limit, async |page_size, page_token| {
        let (filter, order_by) = (filter(args), args.sort.order_by.clone());
        let request = ListPowerShelvesRequest { filter, page_size, page_token, order_by };
        let page = client.call(client.power_shelves().list_power_shelves(request)).await?;
        Ok((page.power_shelves, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let rows = |shelves: &[PowerShelf], wide| {
        table("POWER_SHELF_ID", &shelves.iter().map(device_view).collect::<Vec<_>>(), wide)
    };
    let none = "no power shelves; register one with `farrier power-shelf register ps-…`";
    screen.print_list(&shelves, rows, none)
}

async fn register(client: &Client, args: PowerShelfRegisterArgs) -> Result<PowerShelf> {
    let power_shelf_id = args.power_shelf_id.unwrap_or_default();
    let mut shelf = PowerShelf { power_shelf_id, ..Default::default() };
    apply_spec(shelf.spec.get_or_insert_with(DeviceSpec::default), &mut shelf.labels, args.spec);
    let dry_run = client.is_dry_run();
    let request = RegisterPowerShelfRequest { power_shelf: Some(shelf), dry_run };
    client.call(client.power_shelves().register_power_shelf(request)).await
}

/// Sends only what the arguments change.
async fn update_power_shelf(
    client: &Client,
    args: PowerShelfUpdateArgs,
) -> Result<Updated<PowerShelf>> {
    let before = fetch(client, args.power_shelf_id).await?;
    let mut shelf = before.clone();
    let (version, dry_run) = (args.update.version, client.is_dry_run());
    apply_update(&mut shelf.spec, &mut shelf.labels, args.update);
    let differences = differences(&before, &shelf, WRITABLE);
    let update_mask = changes(&before, &shelf, WRITABLE, version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdatePowerShelfRequest {
        power_shelf: Some(shelf),
        expected_version: version.or_any(),
        dry_run,
        update_mask,
    };
    let object = client.call(client.power_shelves().update_power_shelf(request)).await?;
    Ok(Updated { object, differences })
}

/// Requests a power change of the shelves, or previews it.
async fn request_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: PowerShelfMaintenanceArgs,
    operation: Operation,
) -> Result<Exit> {
    let ids: BTreeSet<String> = args.power_shelf_ids.into_iter().collect();
    let count = ids.len();
    let request = PowerShelfMaintenanceRequest {
        power_shelf_ids: ids.into_iter().map(|id| PowerShelfId { id }).collect(),
        operation: operation.into(),
        reference: args.reference,
        gate_override: args.overrides.to_message(),
        dry_run: None,
        request_id: args.request_id,
    };
    let mut shelves = client.power_shelves();
    if client.is_dry_run() {
        let preview = client.call(shelves.preview_power_shelf_maintenance(request)).await?;
        screen.print_record(&preview, format_preview)?;
        return Ok(if preview.refusals.is_empty() { Exit::Success } else { Exit::Refused });
    }
    let answer = shelves.set_power_shelf_maintenance(request.clone()).await;
    let warnings: Vec<String> = answer.as_ref().map(read_warnings).unwrap_or_default();
    client.call(std::future::ready(answer)).await?;
    for warning in warnings {
        eprintln_quietly(&format!("warning: {}", one_line(&warning)));
    }
    // The response is empty by specification, so JSON and YAML output shows the accepted request.
    screen.print_record(&request, |_| {
        format!("Power shelf maintenance request submitted for {count} power shelves.\n")
    })?;
    Ok(Exit::Success)
}

fn read_warnings<T>(answer: &tonic::Response<T>) -> Vec<String> {
    let message = answer.metadata().get_all(WARNING_METADATA).iter();
    message.filter_map(|value| value.to_str().ok()).map(String::from).collect()
}

/// Formats the preview of a request.
fn format_preview(preview: &PowerShelfMaintenancePreview) -> String {
    let mut text = String::from("Power shelves:\n");
    for shelf in &preview.shelves {
        let steps = match shelf.steps.is_empty() {
            true => "nothing to do".to_string(),
            false => shelf.steps.join(", "),
        };
        let id = one_line(&shelf.power_shelf_id);
        let status = match (shelf.state().word(), shelf.power().word()) {
            ("", _) => "not known".to_string(),
            (state, "") => format!("{state}, power not known"),
            (state, power) => format!("{state}, power {}", power.to_lowercase()),
        };
        text.push_str(&format!("  {id} ({status}): {}\n", one_line(&steps)));
    }
    let named = |one: &AffectedMachine| match one.against.as_str() {
        "" => one.machine_id.clone(),
        against => format!("{}  ({against})", one.machine_id),
    };
    let sections = [
        ("Affected machines:", preview.affected.iter().map(named).collect::<Vec<_>>()),
        ("Machines that lose the fabric:", preview.fabric_loss.iter().map(named).collect()),
        ("Because:", preview.rules.clone()),
        ("Warnings:", preview.warnings.clone()),
        ("Would be refused:", preview.refusals.clone()),
    ];
    for (title, lines) in sections {
        if !lines.is_empty() {
            text.push_str(&format!("\n{title}\n"));
        }
        for line in lines {
            text.push_str(&format!("  {}\n", one_line(&line)));
        }
    }
    if preview.limit_seconds > 0 {
        let usual = (preview.usual_ms, preview.usual_p95_ms);
        text.push_str(&format!("\n{}", time_line(usual, preview.limit_seconds)));
    }
    text
}

fn device_view(shelf: &PowerShelf) -> DeviceView<'_> {
    DeviceView {
        id: &shelf.power_shelf_id,
        labels: &shelf.labels,
        spec: shelf.spec.as_ref(),
        status: shelf.status.as_ref(),
    }
}

fn format_power_shelf(shelf: &PowerShelf, clock: &Clock) -> String {
    let requested = shelf.maintenance_requested.as_ref().map(|requested| {
        let what = match requested.operation() {
            Operation::PowerOn => "PowerOn",
            Operation::PowerOff => "PowerOff",
            Operation::Unspecified => "?",
        };
        let passed = match &requested.gate_override {
            None => String::new(),
            Some(GateOverride { gates, reason }) => {
                format!(", overriding {}: {reason}", gates.join(", "))
            }
        };
        let when = clock.ago(requested.requested_at.as_ref());
        ("Requested:", format!("{what} by {}, {when}{passed}", requested.initiator))
    });
    describe("Power shelf:", &device_view(shelf), requested.into_iter().collect(), clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::{DeviceState, PowerShelfMaintenanceStep, PowerState};

    #[test]
    fn a_dry_run_reads_from_top_to_bottom() {
        let preview = PowerShelfMaintenancePreview {
            shelves: vec![PowerShelfMaintenanceStep {
                power_shelf_id: "ps-1".into(),
                state: DeviceState::Ready.into(),
                power: PowerState::On.into(),
                steps: vec!["power-off".into()],
            }],
            affected: vec![
                AffectedMachine { machine_id: "m-1".into(), against: "m-1 is READY".into() },
                AffectedMachine { machine_id: "m-2".into(), against: String::new() },
            ],
            refusals: vec!["it would take power".into()],
            warnings: Vec::new(),
            rules: vec!["no other shelf".into()],
            fabric_loss: vec![AffectedMachine { machine_id: "m-3".into(), ..Default::default() }],
            limit_seconds: 600,
            usual_ms: 4_000,
            usual_p95_ms: 6_000,
        };
        assert_eq!(
            format_preview(&preview),
            "\
Power shelves:
  ps-1 (Ready, power on): power-off

Affected machines:
  m-1  (m-1 is READY)
  m-2

Machines that lose the fabric:
  m-3

Because:
  no other shelf

Would be refused:
  it would take power

time: usually 4s, up to 6s
"
        );
    }
}
