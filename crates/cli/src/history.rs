//! `farrier history`: the transitions of one object, with their causes.

use crate::args::HistoryArgs;
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Cell, Table};
use crate::time::Clock;
use proto::v1::{HistoryEntry, ListHistoryRequest};
use proto::words::WireEnum;

pub async fn list(client: &Client, screen: &mut Screen, args: &HistoryArgs) -> Result<Exit> {
    let entries = fetch_pages(args.list.limit, async |page_size, page_token| {
        let (id, filter) = (args.id.clone(), args.list.filter.clone());
        let order_by = args.sort.order_by.clone();
        let request = ListHistoryRequest { id, page_size, page_token, filter, order_by };
        let answer = client.call(client.explain().list_history(request)).await?;
        Ok((answer.entries, answer.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.print_list(
        &entries,
        |entries, wide| table(entries, wide, &clock),
        empty_list_note(&args.list.filter, "nothing has happened yet"),
    )?;
    Ok(Exit::Success)
}

fn table(entries: &[HistoryEntry], wide: bool, clock: &Clock) -> Table {
    let names = ["TIME", "STATE", "CAUSE", "ACTOR", "MESSAGE"];
    let more = ["OBJECT", "VERSION", "DECIDED_BY"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for entry in entries {
        let mut row: Vec<Cell> = vec![
            clock.absolute(entry.ts.as_ref()).into(),
            (&entry.state).into(),
            entry.cause().word().into(),
            (&entry.actor).into(),
            (&entry.message).into(),
        ];
        if wide {
            let version = entry.version.to_string();
            row.extend([(&entry.object_id).into(), version.into(), (&entry.decided_by).into()]);
        }
        table.add_row(row);
    }
    table
}
