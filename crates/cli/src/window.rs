//! Windows and freezes: when operations may start.

use crate::args::{
    FreezeCommand, FreezeCreateArgs, FreezeEndArgs, StartRuleListArgs, WindowCommand,
    WindowCreateArgs, WindowDeleteArgs, WindowUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Cell, Table, Tone, format_pairs};
use crate::text::{one_line, or_dash};
use crate::time::{Clock, to_message};
use proto::FieldMask;
use proto::v1::{
    CreateFreezeRequest, CreateWindowRequest, DeleteWindowRequest, EndFreezeRequest, Freeze,
    GetWindowRequest, ListFreezesRequest, ListWindowsRequest, UpdateWindowRequest, Window,
};

pub async fn run(client: &Client, screen: &mut Screen, command: WindowCommand) -> Result<Exit> {
    match command {
        WindowCommand::Create(args) => create(client, screen, args).await?,
        WindowCommand::List(args) => list(client, screen, &args).await?,
        WindowCommand::Get(args) => {
            let request = GetWindowRequest { window_id: args.window_id };
            let found = client.call(client.windows().get_window(request)).await?;
            screen.print_record(&found, describe)?;
        }
        WindowCommand::Update(args) => update(client, screen, args).await?,
        WindowCommand::Delete(args) => {
            let WindowDeleteArgs { window_id, version } = args;
            let (dry_run, expected_version) = (client.is_dry_run(), version.or_any());
            let request = DeleteWindowRequest { window_id, dry_run, expected_version };
            let gone = client.call(client.windows().delete_window(request)).await?;
            screen.print_record(&gone, |gone| {
                changed("window", &gone.window_id, dry_run, "deleted")
            })?;
        }
    }
    Ok(Exit::Success)
}

pub async fn run_freeze(
    client: &Client,
    screen: &mut Screen,
    command: FreezeCommand,
) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    match command {
        FreezeCommand::Create(args) => {
            let FreezeCreateArgs { freeze_id, filter, until, reason, holds_for } = args;
            let until = Some(to_message(until));
            let freeze =
                Freeze { freeze_id, filter, until, reason, holds_for, ..Default::default() };
            let request = CreateFreezeRequest { freeze: Some(freeze), dry_run };
            let made = client.call(client.windows().create_freeze(request)).await?;
            screen.print_record(&made, |made| {
                let said = changed("freeze", &made.freeze_id, dry_run, "created");
                format!("{said}\n{}", describe_freeze(made))
            })?;
        }
        FreezeCommand::List(args) => list_freezes(client, screen, &args).await?,
        FreezeCommand::End(args) => {
            let FreezeEndArgs { freeze_id, version } = args;
            let request =
                EndFreezeRequest { freeze_id, dry_run, expected_version: version.or_any() };
            let gone = client.call(client.windows().end_freeze(request)).await?;
            screen
                .print_record(&gone, |gone| changed("freeze", &gone.freeze_id, dry_run, "ended"))?;
        }
    }
    Ok(Exit::Success)
}

/// A change, done or (in a dry run) planned.
fn changed(kind: &str, id: &str, dry_run: bool, what: &str) -> String {
    let how = if dry_run { "would be" } else { "is" };
    format!("{kind} {} {how} {what}\n", one_line(id))
}

async fn create(client: &Client, screen: &mut Screen, args: WindowCreateArgs) -> Result<()> {
    let WindowCreateArgs { window_id, filter, open, holds_for } = args;
    let window = Window { window_id, filter, open, holds_for, ..Default::default() };
    let dry_run = client.is_dry_run();
    let request = CreateWindowRequest { window: Some(window), dry_run };
    let made = client.call(client.windows().create_window(request)).await?;
    screen.print_record(&made, |made| {
        format!("{}\n{}", changed("window", &made.window_id, dry_run, "created"), describe(made))
    })
}

async fn update(client: &Client, screen: &mut Screen, args: WindowUpdateArgs) -> Result<()> {
    let WindowUpdateArgs { window_id, filter, open, holds_for, version } = args;
    let given = [
        ("filter", filter.is_some()),
        ("open", open.is_some()),
        ("holds_for", holds_for.is_some()),
    ];
    let paths = given.iter().filter(|(_, given)| *given).map(|(name, _)| name.to_string());
    let dry_run = client.is_dry_run();
    let request = UpdateWindowRequest {
        update_mask: Some(FieldMask { paths: paths.collect() }),
        window: Some(Window {
            window_id,
            filter: filter.unwrap_or_default(),
            open: open.unwrap_or_default(),
            holds_for: holds_for.unwrap_or_default(),
            ..Default::default()
        }),
        expected_version: version.or_any(),
        dry_run,
    };
    let done = client.call(client.windows().update_window(request)).await?;
    screen.print_record(&done, |done| {
        format!("{}\n{}", changed("window", &done.window_id, dry_run, "changed"), describe(done))
    })
}

async fn list(client: &Client, screen: &mut Screen, args: &StartRuleListArgs) -> Result<()> {
    let filter = &args.list.filter;
    let found = fetch_pages(args.list.limit, async |page_size, page_token| {
        let request = ListWindowsRequest { page_size, page_token, filter: filter.clone() };
        let page = client.call(client.windows().list_windows(request)).await?;
        Ok((page.windows, page.next_page_token))
    })
    .await?;
    let none = "no windows; make one with `farrier window create`";
    screen.print_list(&found, table, empty_list_note(filter, none))
}

fn table(all: &[Window], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["WINDOW_ID", "STATE", "UNTIL", "FOR", "OPEN", "FILTER"];
    let more = ["VERSION", "UPDATED", "BY"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let mut row: Vec<Cell> = vec![
            (&one.window_id).into(),
            state(one),
            clock.absolute(one.changes_at.as_ref()).into(),
            (&one.holds_for).into(),
            (&one.open).into(),
            or_dash(&one.filter).into(),
        ];
        if wide {
            row.push(one.version.to_string().into());
            row.push(clock.ago(one.updated_at.as_ref()).into());
            row.push((&one.created_by).into());
        }
        table.add_row(row);
    }
    table
}

fn state(one: &Window) -> Cell {
    match one.is_open {
        true => Cell::with_tone("open".to_string(), Tone::Good),
        false => Cell::with_tone("closed".to_string(), Tone::Dim),
    }
}

async fn list_freezes(
    client: &Client,
    screen: &mut Screen,
    args: &StartRuleListArgs,
) -> Result<()> {
    let filter = &args.list.filter;
    let found = fetch_pages(args.list.limit, async |page_size, page_token| {
        let request = ListFreezesRequest { page_size, page_token, filter: filter.clone() };
        let page = client.call(client.windows().list_freezes(request)).await?;
        Ok((page.freezes, page.next_page_token))
    })
    .await?;
    let none = "no freezes; make one with `farrier freeze create`";
    screen.print_list(&found, freeze_table, empty_list_note(filter, none))
}

fn freeze_table(all: &[Freeze], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["FREEZE_ID", "STATE", "UNTIL", "FOR", "FILTER", "REASON"];
    let more = ["VERSION", "CREATED", "BY"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let state = match one.has_ended {
            true => Cell::with_tone("ended".to_string(), Tone::Dim),
            false => Cell::with_tone("frozen".to_string(), Tone::Bad),
        };
        let mut row: Vec<Cell> = vec![
            (&one.freeze_id).into(),
            state,
            clock.absolute(one.until.as_ref()).into(),
            (&one.holds_for).into(),
            or_dash(&one.filter).into(),
            (&one.reason).into(),
        ];
        if wide {
            row.push(one.version.to_string().into());
            row.push(clock.ago(one.created_at.as_ref()).into());
            row.push((&one.created_by).into());
        }
        table.add_row(row);
    }
    table
}

fn all_machines(filter: &str) -> String {
    if filter.is_empty() { "all machines".into() } else { filter.into() }
}

fn describe(one: &Window) -> String {
    let clock = Clock::system();
    let changes = match (one.is_open, one.changes_at.is_some()) {
        (true, true) => "Closes:",
        (false, true) => "Opens:",
        (_, false) => "",
    };
    let mut facts = vec![
        ("Window:", one.window_id.clone()),
        ("Filter:", all_machines(&one.filter)),
        ("Open:", one.open.clone()),
        ("For:", one.holds_for.clone()),
        ("State:", if one.is_open { "open".into() } else { "closed".into() }),
        (changes, clock.absolute(one.changes_at.as_ref())),
        ("Created:", format!("{} by {}", clock.ago(one.created_at.as_ref()), one.created_by)),
        ("Updated:", clock.ago(one.updated_at.as_ref())),
        ("Version:", one.version.to_string()),
    ];
    facts.retain(|(name, _)| !name.is_empty());
    format_pairs(&facts)
}

fn describe_freeze(one: &Freeze) -> String {
    let clock = Clock::system();
    format_pairs(&[
        ("Freeze:", one.freeze_id.clone()),
        ("Filter:", all_machines(&one.filter)),
        ("Until:", clock.absolute(one.until.as_ref())),
        ("For:", one.holds_for.clone()),
        ("Reason:", one.reason.clone()),
        ("Version:", one.version.to_string()),
    ])
}
