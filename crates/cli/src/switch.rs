//! Switches: list, register, update, delete and retry them.

use crate::args::{
    DeviceListArgs, SwitchActionArgs, SwitchCommand, SwitchRegisterArgs, SwitchUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::device::{Done, Shown, apply, change, describe, filter, table, told, update};
use crate::exit::{Exit, Failure};
use crate::output::Screen;
use crate::time::Clock;
use proto::v1::{
    DeleteSwitchRequest, DeviceSpec, GetSwitchRequest, ListSwitchesRequest, RegisterSwitchRequest,
    RetrySwitchRequest, Switch, UpdateSwitchRequest,
};

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: SwitchCommand,
) -> Result<Exit, Failure> {
    match command {
        SwitchCommand::List(args) => list(client, screen, &args).await?,
        SwitchCommand::Get(args) => {
            let switch = fetch(client, args.switch_id).await?;
            let words =
                |switch: &Switch| describe("Switch:", &shown(switch), Vec::new(), &Clock::system());
            screen.print_record(&switch, words)?;
        }
        SwitchCommand::Register(args) => {
            let dry_run = args.dry_run;
            say(screen, &register(client, args).await?, Done::Registered, dry_run)?;
        }
        SwitchCommand::Update(args) => {
            let dry_run = args.update.dry_run;
            say(screen, &changed(client, args).await?, Done::Updated, dry_run)?;
        }
        SwitchCommand::Delete(args) => {
            let SwitchActionArgs { switch_id, dry_run } = args;
            let request = DeleteSwitchRequest { switch_id, dry_run };
            let switch = client.call(client.switches().delete_switch(request)).await?;
            say(screen, &switch, Done::MarkedForDeletion, dry_run)?;
        }
        SwitchCommand::Retry(args) => {
            let SwitchActionArgs { switch_id, dry_run } = args;
            let request = RetrySwitchRequest { switch_id, dry_run };
            let switch = client.call(client.switches().retry_switch(request)).await?;
            say(screen, &switch, Done::TriedAgain, dry_run)?;
        }
    }
    Ok(Exit::Success)
}

fn say(screen: &mut Screen, switch: &Switch, done: Done, dry_run: bool) -> Result<(), Failure> {
    screen.print_record(switch, |switch| told(&shown(switch), done, dry_run))
}

async fn fetch(client: &Client, switch_id: String) -> Result<Switch, Failure> {
    client.call(client.switches().get_switch(GetSwitchRequest { switch_id })).await
}

async fn list(client: &Client, screen: &mut Screen, args: &DeviceListArgs) -> Result<(), Failure> {
    let switches = fetch_pages(args.limit, async |page_size, page_token| {
        let request = ListSwitchesRequest { filter: Some(filter(args)), page_size, page_token };
        let page = client.call(client.switches().list_switches(request)).await?;
        Ok((page.switches, page.next_page_token))
    })
    .await?;
    let rows = |switches: &[Switch], wide| {
        table("SWITCH_ID", &switches.iter().map(shown).collect::<Vec<_>>(), wide)
    };
    screen.print_list(
        &switches,
        rows,
        "no switches; register one with `farrier switch register sw-…`",
    )
}

async fn register(client: &Client, args: SwitchRegisterArgs) -> Result<Switch, Failure> {
    let mut switch = Switch { switch_id: args.switch_id.unwrap_or_default(), ..Default::default() };
    apply(switch.spec.get_or_insert_with(DeviceSpec::default), &mut switch.labels, args.spec);
    let request = RegisterSwitchRequest { switch: Some(switch), dry_run: args.dry_run };
    client.call(client.switches().register_switch(request)).await
}

/// The server replaces spec and labels, so values that are not given are copied from the current
/// record.
async fn changed(client: &Client, args: SwitchUpdateArgs) -> Result<Switch, Failure> {
    let attempt = async || {
        let mut switch = fetch(client, args.switch_id.clone()).await?;
        let expected_version = switch.status.take().map_or(0, |status| status.version);
        change(&mut switch.spec, &mut switch.labels, args.update.clone());
        let dry_run = args.update.dry_run;
        let request = UpdateSwitchRequest { switch: Some(switch), expected_version, dry_run };
        let answer = client.switches().update_switch(request).await;
        Ok(answer.map(tonic::Response::into_inner))
    };
    update(attempt, |status| client.failure(status)).await
}

fn shown(switch: &Switch) -> Shown<'_> {
    Shown {
        id: &switch.switch_id,
        labels: &switch.labels,
        spec: switch.spec.as_ref(),
        status: switch.status.as_ref(),
    }
}
