//! `farrier db`: rows that cannot be read, with or without a server.

use crate::args::{DatabaseArgs, DbCommand, RowArgs};
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::{ColorMode, Table};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    CheckDatabaseRequest, CheckDatabaseResponse, PutBackRowRequest, RowKind, RowSetAside,
    SetAsideRowRequest,
};
use proto::words::{self, WireEnum};
use server::OfflineDatabase;

pub async fn run(client: &Client, screen: &mut Screen, command: DbCommand) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    match command {
        DbCommand::Check(args) => check(client, screen, args).await,
        DbCommand::SetAside(args) => {
            let RowArgs { kind, id, reason, database } = args;
            let kind = words::value::<RowKind>(&kind);
            let request = SetAsideRowRequest { kind, id, reason, dry_run };
            let moved = match open(client, database).await? {
                Some(database) => database.set_aside(request).await?,
                None => client.call(client.admin().set_aside_row(request)).await?,
            };
            print_moved(screen, &moved, "set aside", dry_run)
        }
        DbCommand::PutBack(args) => {
            let RowArgs { kind, id, reason, database } = args;
            let kind = words::value::<RowKind>(&kind);
            let request = PutBackRowRequest { kind, id, reason, dry_run };
            let moved = match open(client, database).await? {
                Some(database) => database.put_back(request).await?,
                None => client.call(client.admin().put_back_row(request)).await?,
            };
            print_moved(screen, &moved, "put back", dry_run)
        }
    }
}

/// The named database; none: the server is asked.
async fn open(client: &Client, args: DatabaseArgs) -> Result<Option<OfflineDatabase>> {
    match args.database {
        None => Ok(None),
        Some(location) => Ok(Some(OfflineDatabase::open(&location, client.initiator()).await?)),
    }
}

async fn check(client: &Client, screen: &mut Screen, args: DatabaseArgs) -> Result<Exit> {
    let found = match open(client, args).await? {
        Some(database) => database.check().await?,
        None => {
            client.call_hardware(client.admin().check_database(CheckDatabaseRequest {})).await?
        }
    };
    let colors = screen.color_mode();
    screen.print_record(&found, |found| format_check(found, &Clock::system(), colors))?;
    Ok(if found.unreadable.is_empty() { Exit::Success } else { Exit::Unsuccessful })
}

fn format_check(found: &CheckDatabaseResponse, clock: &Clock, colors: ColorMode) -> String {
    let rows = found.rows_checked;
    let mut text = match (found.unreadable.len(), found.more) {
        (0, _) => format!("{rows} rows checked, all can be read\n"),
        (count, more) => {
            let more = if more { "more than " } else { "" };
            format!("{rows} rows checked, {more}{count} cannot be read\n\n")
        }
    };
    if let Some(first) = found.unreadable.first() {
        let mut table = Table::new(&["KIND", "ID", "PROBLEM"]);
        for row in &found.unreadable {
            table.add_row(vec![row.kind().word().into(), (&row.id).into(), (&row.problem).into()]);
        }
        text.push_str(&table.render(colors));
        let (kind, id) = (first.kind().word(), one_line(&first.id));
        text.push_str(&format!(
            "\nA newer farrier may have written them: start it again. Otherwise move them out of \
             the way:\n  farrier db set-aside {kind} {id} --reason …\n"
        ));
    }
    if !found.set_aside.is_empty() {
        let mut table = Table::new(&["KIND", "ID", "SET_ASIDE", "BY", "REASON", "PROBLEM"]);
        for row in &found.set_aside {
            table.add_row(vec![
                row.kind().word().into(),
                (&row.id).into(),
                clock.ago(row.set_aside_at.as_ref()).into(),
                (&row.actor).into(),
                (&row.reason).into(),
                (&row.problem).into(),
            ]);
        }
        text.push_str(&format!("\nSet aside:\n{}", table.render(colors)));
    }
    text
}

fn print_moved(
    screen: &mut Screen,
    moved: &RowSetAside,
    done: &str,
    dry_run: bool,
) -> Result<Exit> {
    screen.print_record(moved, |moved| {
        let (kind, id) = (moved.kind().word(), one_line(&moved.id));
        match dry_run {
            true => format!("{kind} {id}: would be {done}\n"),
            false => format!("{kind} {id}: {done}\n"),
        }
    })?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::UnreadableRow;

    #[test]
    fn a_check_names_rows_and_commands() {
        let clock = Clock::fixed(60);
        let clean = CheckDatabaseResponse { rows_checked: 7, ..Default::default() };
        assert_eq!(
            format_check(&clean, &clock, ColorMode { enabled: false }),
            "7 rows checked, all can be read\n"
        );
        let row = UnreadableRow {
            kind: RowKind::Machine.into(),
            id: "m-1".into(),
            problem: "EOF".into(),
        };
        let aside = RowSetAside {
            kind: RowKind::Run.into(),
            id: "op-1".into(),
            problem: "EOF".into(),
            actor: "alice".into(),
            reason: "damaged".into(),
            set_aside_at: Some(Timestamp { seconds: 30, nanos: 0 }),
        };
        let found =
            CheckDatabaseResponse { unreadable: vec![row], set_aside: vec![aside], ..clean };
        let text = format_check(&found, &clock, ColorMode { enabled: false });
        for expected in [
            "7 rows checked, 1 cannot be read",
            "machine  m-1  EOF",
            "farrier db set-aside machine m-1 --reason",
            "op-1  30s ago    alice  damaged  EOF",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
        }
    }
}
