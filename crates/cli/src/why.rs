//! `farrier why`: why an object is not ready, and the next command. `farrier fault`: the page of a
//! fault code.

use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::{Cell, Table, format_pairs};
use crate::text::{MAX_IN_CELL, join_names, one_line, printable};
use crate::time::Clock;
use proto::v1::{
    AttentionItem, ExplainRequest, Explanation, FaultPage, GetFaultPageRequest,
    ListAttentionRequest,
};
use proto::words::WireEnum;

pub async fn explain(client: &Client, screen: &mut Screen, id: String) -> Result<Exit> {
    let explanation = client.call(client.explain().explain(ExplainRequest { id })).await?;
    screen.print_record(&explanation, |explanation| {
        format_explanation(explanation, &Clock::system())
    })?;
    Ok(Exit::Success)
}

/// Everything that needs a person, worst first. Unsuccessful if there is something.
pub async fn list_attention(client: &Client, screen: &mut Screen) -> Result<Exit> {
    let answer = client.call(client.explain().list_attention(ListAttentionRequest {})).await?;
    let clock = Clock::system();
    screen.print_list(
        &answer.items,
        |items, wide| attention_table(items, wide, &clock),
        "nothing needs a person",
    )?;
    if answer.more {
        screen.print_notice(
            "more objects need a person: see `farrier list` and `farrier rack list`",
        )?;
    }
    Ok(if answer.items.is_empty() { Exit::Success } else { Exit::Unsuccessful })
}

fn attention_table(items: &[AttentionItem], wide: bool, clock: &Clock) -> Table {
    let names = ["ID", "SINCE", "PROBLEM", "TYPE NEXT"];
    let more = ["KIND", "URGENCY", "FAULT", "FAILED"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for item in items {
        let mut row: Vec<Cell> = vec![
            (&item.id).into(),
            clock.ago(item.since.as_ref()).into(),
            problem(item).into(),
            (&item.next_command).into(),
        ];
        if wide {
            let urgency = item.urgency().word();
            row.extend([
                item.kind().word().into(),
                urgency.into(),
                (&item.fault).into(),
                (&item.failed).into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// The headline, with the cause and the machine if it does not name them, and what it explains.
fn problem(item: &AttentionItem) -> String {
    let mut words = item.headline.clone();
    if !item.failed.is_empty() && !words.contains(&item.failed) {
        words = format!("{words}: {}", item.failed);
    }
    if !item.machine_id.is_empty()
        && item.machine_id != item.id
        && !words.contains(&item.machine_id)
    {
        words = format!("{words} (on {})", item.machine_id);
    }
    match item.explains.len() {
        0 => words,
        count => {
            let named = join_names(item.explains.iter().map(String::as_str), MAX_IN_CELL);
            format!("{words}; it explains {count}: {named}")
        }
    }
}

pub async fn show_fault_page(client: &Client, screen: &mut Screen, code: String) -> Result<Exit> {
    let page = client.call(client.explain().get_fault_page(GetFaultPageRequest { code })).await?;
    screen.print_record(&page, format_fault_page)?;
    Ok(Exit::Success)
}

fn format_fault_page(page: &FaultPage) -> String {
    let (code, class) = (one_line(&page.code), page.class().word());
    format!("{code} ({class})\n\n{}\n", printable(page.markdown.trim_end()))
}

fn format_explanation(why: &Explanation, clock: &Clock) -> String {
    let mut text = format!("{}\n", one_line(&why.headline));
    let facts = explanation_facts(why, clock);
    if !facts.is_empty() {
        text.push_str(&format!("\n{}", format_pairs(&facts)));
    }
    text.push_str(&format_next_commands(&why.next_commands));
    text
}

/// The commands to type next, best first; empty if there are none.
pub fn format_next_commands(commands: &[String]) -> String {
    if commands.is_empty() {
        return String::new();
    }
    let lines = commands.iter().map(|command| format!("  {}\n", one_line(command)));
    format!("\nType next:\n{}", lines.collect::<String>())
}

/// The facts that are not empty.
fn explanation_facts(why: &Explanation, clock: &Clock) -> Vec<(&'static str, String)> {
    let since = why.since.as_ref().map_or_else(String::new, |since| {
        format!("{} ({})", clock.ago(Some(since)), clock.absolute(Some(since)))
    });
    let overdue = if why.overdue { "  (overdue)" } else { "" };
    let normal = if why.normal.is_empty() {
        overdue.trim().into()
    } else {
        format!("{}{overdue}", why.normal)
    };
    let fault = match why.fault.as_str() {
        "" => String::new(),
        code => format!("{code}  (farrier fault {code})"),
    };
    let mut facts = vec![
        ("waiting for", why.waiting_for.clone()),
        ("last word", why.last_word.clone()),
        ("since", since),
        ("normal", normal),
        ("claimed by", why.held_by.clone()),
        ("failed", why.failed.clone()),
        ("fault", fault),
        ("degraded", why.degraded_reason.clone()),
        ("operation", why.run_id.clone()),
        ("requested by", why.requested_by.clone()),
        ("last operation", why.last_operation.clone()),
        ("last refused", why.refused.clone()),
        ("machine", why.machine_id.clone()),
    ];
    facts.extend(why.health.iter().map(|message| ("health", message.clone())));
    facts.extend(why.notes.iter().map(|message| ("note", message.clone())));
    // The requested ID is not repeated.
    facts.retain(|(_, value)| !value.is_empty() && *value != why.id);
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;

    #[test]
    fn an_explanation_reads_from_top_to_bottom() {
        let why = Explanation {
            id: "machine-3".into(),
            headline: "machine-3 needs attention: its reimage failed at set-netboot.".into(),
            waiting_for: "a person".into(),
            since: Some(Timestamp { seconds: 36_001, nanos: 0 }),
            normal: "minutes".into(),
            overdue: true,
            failed: "the BMC did not\u{1b} answer".into(),
            fault: "bmc-unreachable".into(),
            next_commands: vec![
                "farrier operation retry-step op-1".into(),
                "farrier logs op-1".into(),
            ],
            run_id: "op-1".into(),
            machine_id: "machine-3".into(),
            notes: vec!["the serial number differs".into()],
            ..Default::default()
        };
        assert_eq!(
            format_explanation(&why, &Clock::fixed(36_721)),
            "\
machine-3 needs attention: its reimage failed at set-netboot.

waiting for  a person
since        12m 0s ago (1970-01-01 10:00:01 +00:00)
normal       minutes  (overdue)
failed       the BMC did not\\x1b answer
fault        bmc-unreachable  (farrier fault bmc-unreachable)
operation    op-1
note         the serial number differs

Type next:
  farrier operation retry-step op-1
  farrier logs op-1
"
        );
    }

    #[test]
    fn a_row_has_the_cause_and_the_machine() {
        let item = |headline: &str, failed: &str| AttentionItem {
            id: "node-1".into(),
            machine_id: "m-1".into(),
            headline: headline.into(),
            failed: failed.into(),
            ..Default::default()
        };
        for (headline, failed, words) in [
            ("node-1 is offline", "no answer", "node-1 is offline: no answer (on m-1)"),
            ("node-1 is offline: no answer", "no answer", "node-1 is offline: no answer (on m-1)"),
            ("node-1 on m-1 is lost", "", "node-1 on m-1 is lost"),
        ] {
            assert_eq!(problem(&item(headline, failed)), words);
        }
        let own = AttentionItem { id: "m-1".into(), ..item("it is off", "") };
        assert_eq!(problem(&own), "it is off");
        let explains = vec!["m-2".to_string(), "node-2".to_string()];
        let words = "it is off; it explains 2: m-2, node-2";
        assert_eq!(problem(&AttentionItem { explains, ..own }), words);
    }

    #[test]
    fn a_healthy_machine_has_a_short_answer() {
        let why = Explanation { headline: "machine-1 is ready.".into(), ..Default::default() };
        assert_eq!(format_explanation(&why, &Clock::fixed(0)), "machine-1 is ready.\n");
    }
}
