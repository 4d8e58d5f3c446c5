//! `farrier audit`: who asked for what, and whether the log is whole.

use crate::args::{AuditArgs, AuditCommand, AuditListArgs, AuditVerifyArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    AuditEntry, AuditStatus, AuditStream, GetAuditStatusRequest, ListAuditEntriesRequest,
};
use std::time::Duration;
use tonic::Code;

/// Entries are sealed twice a second.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The pause while the server does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The number of entries of one call that follows the log.
const PAGE_SIZE: i32 = 1_000;

pub async fn run(client: &Client, screen: &mut Screen, args: AuditArgs) -> Result<Exit> {
    let AuditArgs { command, list } = args;
    match command.unwrap_or(AuditCommand::List(list)) {
        AuditCommand::List(args) if args.follow => follow(client, screen, &args).await,
        AuditCommand::List(args) => show(client, screen, &args).await,
        AuditCommand::Verify(args) => verify(client, screen, args).await,
        AuditCommand::Status => status(client, screen).await,
    }
}

async fn show(client: &Client, screen: &mut Screen, args: &AuditListArgs) -> Result<Exit> {
    let clock = Clock::system();
    let entries = list(client, &clock, args).await?;
    screen.print_list(&entries, |entries, wide| table(entries, wide, &clock), "no entries")?;
    Ok(Exit::Success)
}

/// The entries that the arguments select, the newest first.
async fn list(client: &Client, clock: &Clock, args: &AuditListArgs) -> Result<Vec<AuditEntry>> {
    let since = args.since.map(|ago| clock.before(ago));
    fetch_pages(Some(args.limit), async |page_size, page_token| {
        let request = ListAuditEntriesRequest {
            since,
            user: args.user.clone(),
            object_id: args.object.clone(),
            page_size,
            page_token,
            after_position: None,
        };
        let answer = client.call(client.audit().list_audit_entries(request)).await?;
        Ok((answer.entries, answer.next_page_token))
    })
    .await
}

/// Prints the entries in the order of the chain, in which none is skipped, until it is interrupted.
async fn follow(client: &Client, screen: &mut Screen, args: &AuditListArgs) -> Result<Exit> {
    let clock = Clock::system();
    let request = GetAuditStatusRequest { skip_check: true, ..Default::default() };
    let mut after = client.call(client.audit().get_audit_status(request)).await?.position;
    let mut known = list(client, &clock, args).await?;
    // Entries that are not sealed yet, or were sealed since, follow in their order.
    known.retain(|entry| (1..=after).contains(&entry.position));
    known.sort_by_key(|entry| entry.position);
    let since = args.since.map(|ago| clock.before(ago));
    for entry in &known {
        screen.print_event(entry, |entry| line(entry, &clock))?;
    }
    loop {
        let request = ListAuditEntriesRequest {
            since,
            user: args.user.clone(),
            object_id: args.object.clone(),
            page_size: PAGE_SIZE,
            page_token: String::new(),
            after_position: Some(after),
        };
        let answer = match client.audit().list_audit_entries(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == Code::Unavailable => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(status) => return Err(client.failure(status)),
        };
        for entry in &answer.entries {
            screen.print_event(entry, |entry| line(entry, &clock))?;
        }
        after = answer.position;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn outcome(entry: &AuditEntry) -> String {
    match (entry.accepted, entry.count) {
        (true, _) => "accepted".to_string(),
        (false, 1) => entry.refusal_reason.clone(),
        (false, count) => format!("{} ({count} times)", entry.refusal_reason),
    }
}

fn line(entry: &AuditEntry, clock: &Clock) -> String {
    let words = [
        clock.absolute(entry.at.as_ref()),
        entry.user.clone(),
        entry.call.trim_start_matches("farrier.v1.").to_string(),
        entry.object_ids.join(" "),
        outcome(entry),
        entry.operation_id.clone(),
    ];
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    one_line(&words.join("  ")).to_string()
}

fn table(entries: &[AuditEntry], wide: bool, clock: &Clock) -> Table {
    let names = ["TIME", "USER", "CALL", "OBJECTS", "OUTCOME", "OPERATION"];
    let more = ["TOKEN", "PEER", "REFERENCE", "REMARK", "POSITION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for entry in entries {
        let mut row = vec![
            clock.absolute(entry.at.as_ref()).into(),
            (&entry.user).into(),
            entry.call.trim_start_matches("farrier.v1.").into(),
            entry.object_ids.join(" ").into(),
            outcome(entry).into(),
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
    let skip_check = false;
    let request = GetAuditStatusRequest { checkpoint_position, checkpoint_seal, skip_check };
    let status = client.call_hardware(client.audit().get_audit_status(request)).await?;
    screen.print_record(&status, describe)?;
    Ok(if status.problems.is_empty() { Exit::Success } else { Exit::Unsuccessful })
}

async fn status(client: &Client, screen: &mut Screen) -> Result<Exit> {
    let request = GetAuditStatusRequest { skip_check: true, ..Default::default() };
    let status = client.call(client.audit().get_audit_status(request)).await?;
    let clock = Clock::system();
    screen.print_record(&status, |status| describe_streams(status, &clock))?;
    let is_failing = status.streams.iter().any(|stream| !stream.problem.is_empty());
    Ok(if is_failing || !status.problems.is_empty() { Exit::Unsuccessful } else { Exit::Success })
}

fn describe_streams(status: &AuditStatus, clock: &Clock) -> String {
    let mut text = format!("{} entries, {} not sealed yet\n", status.position, status.unsealed);
    for problem in &status.problems {
        text += &format!("- {}\n", one_line(problem));
    }
    if status.streams.is_empty() {
        text += "No stream; set [audit] file or syslog in the configuration\n";
    }
    for AuditStream { name, target, position, waiting, problem, failing_since } in &status.streams {
        text += &format!("{name} {}: sent up to {position}", one_line(target));
        if *waiting > 0 {
            text += &format!(", {waiting} waiting");
        }
        text.push('\n');
        if !problem.is_empty() {
            let since = clock.ago(failing_since.as_ref());
            text += &format!("  fails since {since}: {}\n", one_line(problem));
        }
    }
    text
}

fn describe(status: &AuditStatus) -> String {
    let AuditStatus { position, seal, unsealed, problems, streams: _ } = status;
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
