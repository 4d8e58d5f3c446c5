//! `farrier audit`: who asked for what, and whether the log is whole.

use crate::args::{AuditCommand, AuditListArgs, AuditVerifyArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{AuditEntry, AuditStatus, GetAuditStatusRequest, ListAuditEntriesRequest};

pub async fn run(client: &Client, screen: &mut Screen, command: AuditCommand) -> Result<Exit> {
    match command {
        AuditCommand::List(args) => list(client, screen, &args).await,
        AuditCommand::Verify(args) => verify(client, screen, args).await,
    }
}

async fn list(client: &Client, screen: &mut Screen, args: &AuditListArgs) -> Result<Exit> {
    let clock = Clock::system();
    let since = args.since.map(|ago| clock.before(ago));
    let entries = fetch_pages(Some(args.limit), async |page_size, page_token| {
        let request = ListAuditEntriesRequest {
            since,
            user: args.user.clone(),
            object_id: args.object.clone(),
            page_size,
            page_token,
        };
        let answer = client.call(client.audit().list_audit_entries(request)).await?;
        Ok((answer.entries, answer.next_page_token))
    })
    .await?;
    screen.print_list(&entries, |entries, wide| table(entries, wide, &clock), "no entries")?;
    Ok(Exit::Success)
}

fn table(entries: &[AuditEntry], wide: bool, clock: &Clock) -> Table {
    let names = ["TIME", "USER", "CALL", "OBJECTS", "OUTCOME", "OPERATION"];
    let more = ["TOKEN", "PEER", "REFERENCE", "REMARK", "POSITION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for entry in entries {
        let outcome = match (entry.accepted, entry.count) {
            (true, _) => "accepted".to_string(),
            (false, 1) => entry.refusal_reason.clone(),
            (false, count) => format!("{} ({count} times)", entry.refusal_reason),
        };
        let mut row = vec![
            clock.absolute(entry.at.as_ref()).into(),
            (&entry.user).into(),
            entry.call.trim_start_matches("farrier.v1.").into(),
            entry.object_ids.join(" ").into(),
            outcome.into(),
            (&entry.operation_id).into(),
        ];
        if wide {
            row.extend([
                (&entry.token_id).into(),
                (&entry.peer).into(),
                (&entry.reference).into(),
                (&entry.remark).into(),
                entry.position.to_string().into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

async fn verify(client: &Client, screen: &mut Screen, args: AuditVerifyArgs) -> Result<Exit> {
    let (checkpoint_position, checkpoint_seal) = args.checkpoint.unwrap_or_default();
    let request = GetAuditStatusRequest { checkpoint_position, checkpoint_seal };
    let status = client.call_hardware(client.audit().get_audit_status(request)).await?;
    screen.print_record(&status, describe)?;
    Ok(if status.problems.is_empty() { Exit::Success } else { Exit::Unsuccessful })
}

fn describe(status: &AuditStatus) -> String {
    let AuditStatus { position, seal, unsealed, problems } = status;
    let mut text = match problems.is_empty() {
        true => format!("{position} entries, all as they were written"),
        false => format!("{position} entries, and the log is damaged"),
    };
    if *unsealed > 0 {
        text += &format!("; {unsealed} more are not sealed yet");
    }
    text.push('\n');
    for problem in problems {
        text += &format!("- {}\n", one_line(problem));
    }
    if *position > 0 {
        text += &format!("Checkpoint: {position}:{}\n", one_line(seal));
    }
    text
}
