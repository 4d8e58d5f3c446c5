//! Switches: list, register, update, delete and retry them.

use crate::args::{
    DeviceListArgs, SwitchActionArgs, SwitchCommand, SwitchDeleteArgs, SwitchRegisterArgs,
    SwitchUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::device::{
    DeviceChange, DeviceView, apply_spec, apply_update, describe, filter, format_change, table,
};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::time::Clock;
use crate::update::{Updated, WRITABLE, changes};
use proto::field_mask::differences;
use proto::v1::{
    DeleteSwitchRequest, DeviceSpec, GetSwitchRequest, ListSwitchesRequest, RegisterSwitchRequest,
    RetrySwitchRequest, Switch, UpdateSwitchRequest,
};

pub async fn run(client: &Client, screen: &mut Screen, command: SwitchCommand) -> Result<Exit> {
    match command {
        SwitchCommand::List(args) => list(client, screen, &args).await?,
        SwitchCommand::Get(args) => {
            let switch = fetch(client, args.switch_id).await?;
            let words = |switch: &Switch| {
                describe("Switch:", &device_view(switch), Vec::new(), &Clock::system())
            };
            screen.print_record(&switch, words)?;
        }
        SwitchCommand::Register(args) => {
            let dry_run = client.is_dry_run();
            let changed = register(client, args).await?;
            print_change(screen, &changed, DeviceChange::Registered, dry_run)?;
        }
        SwitchCommand::Update(args) => {
            let updated = update_switch(client, args).await?;
            let change = DeviceChange::of_update(&updated);
            print_change(screen, &updated.object, change, client.is_dry_run())?;
        }
        SwitchCommand::Delete(args) => {
            let SwitchDeleteArgs { switch_id, version } = args;
            let dry_run = client.is_dry_run();
            let expected_version = version.or_any();
            let request = DeleteSwitchRequest { switch_id, dry_run, expected_version };
            let switch = client.call(client.switches().delete_switch(request)).await?;
            print_change(screen, &switch, DeviceChange::MarkedForDeletion, dry_run)?;
        }
        SwitchCommand::Retry(args) => {
            let SwitchActionArgs { switch_id } = args;
            let dry_run = client.is_dry_run();
            let request = RetrySwitchRequest { switch_id, dry_run };
            let switch = client.call(client.switches().retry_switch(request)).await?;
            print_change(screen, &switch, DeviceChange::Retried, dry_run)?;
        }
    }
    Ok(Exit::Success)
}

fn print_change(
    screen: &mut Screen,
    switch: &Switch,
    change: DeviceChange,
    dry_run: bool,
) -> Result<()> {
    screen.print_record(switch, |switch| format_change(&device_view(switch), &change, dry_run))
}

async fn fetch(client: &Client, switch_id: String) -> Result<Switch> {
    client.call(client.switches().get_switch(GetSwitchRequest { switch_id })).await
}

async fn list(client: &Client, screen: &mut Screen, args: &DeviceListArgs) -> Result<()> {
    let switches = fetch_pages(args.limit, async |page_size, page_token| {
        let (filter, order_by) = (filter(args), args.sort.order_by.clone());
        let request = ListSwitchesRequest { filter, page_size, page_token, order_by };
        let page = client.call(client.switches().list_switches(request)).await?;
        Ok((page.switches, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let rows = |switches: &[Switch], wide| {
        table("SWITCH_ID", &switches.iter().map(device_view).collect::<Vec<_>>(), wide)
    };
    let none = "no switches; register one with `farrier switch register sw-…`";
    screen.print_list(&switches, rows, none)
}

async fn register(client: &Client, args: SwitchRegisterArgs) -> Result<Switch> {
    let mut switch = Switch { switch_id: args.switch_id.unwrap_or_default(), ..Default::default() };
    apply_spec(switch.spec.get_or_insert_with(DeviceSpec::default), &mut switch.labels, args.spec);
    let request = RegisterSwitchRequest { switch: Some(switch), dry_run: client.is_dry_run() };
    client.call(client.switches().register_switch(request)).await
}

/// Sends only what the arguments change.
async fn update_switch(client: &Client, args: SwitchUpdateArgs) -> Result<Updated<Switch>> {
    let before = fetch(client, args.switch_id).await?;
    let mut switch = before.clone();
    let (version, dry_run) = (args.update.version, client.is_dry_run());
    apply_update(&mut switch.spec, &mut switch.labels, args.update);
    let differences = differences(&before, &switch, WRITABLE);
    let update_mask = changes(&before, &switch, WRITABLE, version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateSwitchRequest {
        switch: Some(switch),
        expected_version: version.or_any(),
        dry_run,
        update_mask,
    };
    let object = client.call(client.switches().update_switch(request)).await?;
    Ok(Updated { object, differences })
}

fn device_view(switch: &Switch) -> DeviceView<'_> {
    DeviceView {
        id: &switch.switch_id,
        labels: &switch.labels,
        spec: switch.spec.as_ref(),
        status: switch.status.as_ref(),
    }
}
