//! `farrier notify`: receivers of notices, and their dead letters.

use crate::args::{
    DeadLetterArgs, DeadLetterListArgs, NotifierArg, NotifierCreateArgs, NotifierListArgs,
    NotifierSpecArgs, NotifierUpdateArgs, NotifyCommand,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::{Cell, Table};
use crate::text::one_line;
use crate::time::Clock;
use crate::update::{Updated, changes};
use proto::field_mask::differences;
use proto::v1::{
    CreateNotifierRequest, DeadLetter, DeleteDeadLettersRequest, DeleteNotifierRequest,
    GetNotifierRequest, ListDeadLettersRequest, ListNotifiersRequest, NoticeKind, Notifier,
    NotifyFormat, PauseNotifierRequest, ReplayDeadLettersRequest, ResumeNotifierRequest,
    TestNotifierRequest, TestNotifierResponse, UpdateNotifierRequest,
};
use proto::words;

/// The fields that clients may change.
const WRITABLE: &[&str] =
    &["url", "credential", "format", "kinds", "filter", "source", "max_attempts"];

pub async fn run(client: &Client, screen: &mut Screen, command: NotifyCommand) -> Result<Exit> {
    let (dry_run, mut notifiers) = (client.is_dry_run(), client.notifiers());
    match command {
        NotifyCommand::Create(args) => {
            let NotifierCreateArgs { name, spec } = *args;
            let mut notifier = Notifier { name, ..Notifier::default() };
            apply_spec(&mut notifier, spec);
            let request = CreateNotifierRequest { notifier: Some(notifier), dry_run };
            let created = client.call(notifiers.create_notifier(request)).await?;
            screen.print_record(&created, |one| match dry_run {
                true => format_change(client, one, "created"),
                false => {
                    let name = one_line(&one.name);
                    format!("notifier {name} created\n\nNext: farrier notify test {name}\n")
                }
            })?;
        }
        NotifyCommand::List(args) => list(client, screen, &args).await?,
        NotifyCommand::Get(NotifierArg { name }) => {
            let found = fetch(client, name).await?;
            screen.print_record(&found, |one| describe(one, &Clock::system()))?;
        }
        NotifyCommand::Update(args) => {
            let updated = update(client, *args).await?;
            screen.print_record(&updated.object, |one| {
                format!("{}\n", updated.describe(client, &one.name))
            })?;
        }
        NotifyCommand::Delete(args) => {
            let expected_version = args.version.or_any();
            let request = DeleteNotifierRequest { name: args.name, expected_version, dry_run };
            let gone = client.call(notifiers.delete_notifier(request)).await?;
            screen.print_record(&gone, |one| format_change(client, one, "deleted"))?;
        }
        NotifyCommand::Pause(NotifierArg { name }) => {
            let request = PauseNotifierRequest { name, dry_run };
            let paused = client.call(notifiers.pause_notifier(request)).await?;
            screen.print_record(&paused, |one| format_change(client, one, "paused"))?;
        }
        NotifyCommand::Resume(NotifierArg { name }) => {
            let request = ResumeNotifierRequest { name, dry_run };
            let resumed = client.call(notifiers.resume_notifier(request)).await?;
            screen.print_record(&resumed, |one| format_change(client, one, "resumed"))?;
        }
        NotifyCommand::Test(NotifierArg { name }) => return test(client, screen, name).await,
        NotifyCommand::DeadLetters(args) => list_letters(client, screen, args).await?,
        NotifyCommand::Replay(DeadLetterArgs { name, numbers, .. }) => {
            let request = ReplayDeadLettersRequest { name, dead_letter_numbers: numbers, dry_run };
            let done = client.call(notifiers.replay_dead_letters(request)).await?;
            screen.print_record(&done, |done| {
                format!("{} dead letters {}\n", done.replayed, client.outcome("sent again"))
            })?;
        }
        NotifyCommand::Discard(DeadLetterArgs { name, numbers, .. }) => {
            let request = DeleteDeadLettersRequest { name, dead_letter_numbers: numbers, dry_run };
            let done = client.call(notifiers.delete_dead_letters(request)).await?;
            screen.print_record(&done, |done| {
                format!("{} dead letters {}\n", done.deleted, client.outcome("deleted"))
            })?;
        }
    }
    Ok(Exit::Success)
}

fn format_change(client: &Client, notifier: &Notifier, what: &str) -> String {
    format!("notifier {} {}\n", one_line(&notifier.name), client.outcome(what))
}

async fn fetch(client: &Client, name: String) -> Result<Notifier> {
    client.call(client.notifiers().get_notifier(GetNotifierRequest { name })).await
}

/// Overwrites the settings that are given.
fn apply_spec(notifier: &mut Notifier, given: NotifierSpecArgs) {
    for (field, value) in [
        (&mut notifier.url, given.url),
        (&mut notifier.credential, given.credential),
        (&mut notifier.filter, given.filter),
        (&mut notifier.source, given.source),
    ] {
        if let Some(value) = value {
            *field = value;
        }
    }
    if let Some(word) = &given.format {
        notifier.format = words::value::<NotifyFormat>(word);
    }
    if !given.kinds.is_empty() {
        let kinds = given.kinds.iter().map(|word| words::value::<NoticeKind>(word));
        notifier.kinds = kinds.collect();
    }
    notifier.max_attempts = given.max_attempts.unwrap_or(notifier.max_attempts);
}

/// Sends only what the arguments change.
async fn update(client: &Client, args: NotifierUpdateArgs) -> Result<Updated<Notifier>> {
    let before = fetch(client, args.name).await?;
    let mut after = before.clone();
    apply_spec(&mut after, args.spec);
    let differences = differences(&before, &after, WRITABLE);
    let update_mask = changes(&before, &after, WRITABLE, args.version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateNotifierRequest {
        notifier: Some(after),
        update_mask,
        expected_version: args.version.or_any(),
        dry_run: client.is_dry_run(),
    };
    let object = client.call(client.notifiers().update_notifier(request)).await?;
    Ok(Updated { object, differences })
}

async fn test(client: &Client, screen: &mut Screen, name: String) -> Result<Exit> {
    let request = TestNotifierRequest { name: name.clone() };
    let sent = client.call(client.notifiers().test_notifier(request)).await?;
    let name = one_line(&name);
    screen.print_record(&sent, |sent| match sent {
        TestNotifierResponse { accepted: true, .. } => {
            format!("{name}: the receiver accepted the test\n")
        }
        TestNotifierResponse { problem, repair, .. } => {
            let repair = match repair.as_str() {
                "" => String::new(),
                command => format!("\nNext: {}\n", one_line(command)),
            };
            format!("{name}: {}\n{repair}", one_line(problem))
        }
    })?;
    Ok(if sent.accepted { Exit::Success } else { Exit::Unsuccessful })
}

async fn list(client: &Client, screen: &mut Screen, args: &NotifierListArgs) -> Result<()> {
    let found = fetch_pages(args.limit, async |page_size, page_token| {
        let request = ListNotifiersRequest { page_size, page_token };
        let page = client.call(client.notifiers().list_notifiers(request)).await?;
        Ok((page.notifiers, page.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    let none = "no notifiers; create one with `farrier notify create NAME --url URL …`";
    screen.print_list(&found, |found, wide| table(found, wide, &clock), none)
}

/// The state of the deliveries, in one word.
const fn state(notifier: &Notifier) -> &'static str {
    match (notifier.paused, &notifier.failing_since) {
        (true, _) => "paused",
        (false, Some(_)) => "failing",
        (false, None) => "ok",
    }
}

fn table(notifiers: &[Notifier], wide: bool, clock: &Clock) -> Table {
    let names = ["NOTIFIER", "STATE", "FORMAT", "KINDS", "DELIVERED", "DEAD_LETTERS", "PROBLEM"];
    let more = ["URL", "CREDENTIAL", "FILTER", "LAST_DELIVERED", "VERSION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in notifiers {
        let mut row: Vec<Cell> = vec![
            (&one.name).into(),
            state(one).into(),
            words::word::<NotifyFormat>(one.format).into(),
            kinds(one).into(),
            one.delivered.to_string().into(),
            one.dead_letters.to_string().into(),
            (&one.problem).into(),
        ];
        if wide {
            row.extend([
                (&one.url).into(),
                (&one.credential).into(),
                (&one.filter).into(),
                clock.absolute(one.last_delivered_at.as_ref()).into(),
                one.version.to_string().into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

fn kinds(notifier: &Notifier) -> String {
    let kinds = notifier.kinds.iter().map(|kind| words::word::<NoticeKind>(*kind));
    kinds.collect::<Vec<_>>().join(",")
}

fn describe(notifier: &Notifier, clock: &Clock) -> String {
    let time = |at: Option<&proto::Timestamp>| at.map(|at| clock.absolute(Some(at)));
    let fields = [
        ("Notifier:", Some(notifier.name.clone())),
        ("State:", Some(state(notifier).to_string())),
        ("URL:", Some(notifier.url.clone())),
        ("Credential:", Some(notifier.credential.clone())),
        ("Format:", Some(words::word::<NotifyFormat>(notifier.format).to_string())),
        ("Kinds:", Some(kinds(notifier))),
        ("Filter:", Some(notifier.filter.clone())),
        ("Source:", Some(notifier.source.clone())),
        ("Attempts:", Some(notifier.max_attempts.to_string())),
        ("Delivered:", Some(notifier.delivered.to_string())),
        ("Last delivered:", time(notifier.last_delivered_at.as_ref())),
        ("Dead letters:", Some(notifier.dead_letters.to_string())),
        ("Failing since:", time(notifier.failing_since.as_ref())),
        ("Problem:", Some(notifier.problem.clone())),
        ("Next attempt:", time(notifier.next_attempt_at.as_ref())),
        ("Missed events:", time(notifier.missed_at.as_ref())),
        ("Repair:", Some(notifier.repair.clone())),
        ("Version:", Some(notifier.version.to_string())),
    ];
    let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let shown = given.filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("{name:<16}{}\n", one_line(&value))).collect()
}

async fn list_letters(
    client: &Client,
    screen: &mut Screen,
    args: DeadLetterListArgs,
) -> Result<()> {
    let found = fetch_pages(Some(args.limit), async |page_size, page_token| {
        let request = ListDeadLettersRequest { name: args.name.clone(), page_size, page_token };
        let page = client.call(client.notifiers().list_dead_letters(request)).await?;
        Ok((page.dead_letters, page.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.print_list(&found, |found, _| letter_table(found, &clock), "no dead letters")
}

fn letter_table(letters: &[DeadLetter], clock: &Clock) -> Table {
    let mut table =
        Table::new(&["NUMBER", "STATE", "TYPE", "AT", "SUMMARY", "ATTEMPTS", "PROBLEM"]);
    for one in letters {
        let state = if one.replaying { "replaying" } else { "dead" };
        table.add_row(vec![
            one.dead_letter_number.to_string().into(),
            state.into(),
            (&one.r#type).into(),
            clock.absolute(one.at.as_ref()).into(),
            (&one.summary).into(),
            one.attempts.to_string().into(),
            (&one.problem).into(),
        ]);
    }
    table
}
