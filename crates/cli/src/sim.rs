//! `farrier sim`: the faults of the simulated fleet, and the effects that it executed.

use crate::args::{
    SimAction, SimCommand, SimEffectsArgs, SimFaultArgs, SimFaultCommand, SimFaultDeleteArgs,
    SimVerb,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::{FilterText, empty_list_note};
use crate::operation::fetch_runs;
use crate::output::Screen;
use crate::table::{Cell, Table, Tone};
use crate::text::one_line;
use proto::v1::{
    self, CreateFaultRequest, DeleteFaultsRequest, ListEffectsRequest, ListFaultsRequest,
    ProviderVerb, SimEffect, SimFault,
};
use proto::words::{self, WireEnum};

/// The number of runs that one filter names; a filter has at most 4,096 bytes.
const MAX_FILTER_RUNS: usize = 64;

pub async fn run(client: &Client, screen: &mut Screen, command: SimCommand) -> Result<Exit> {
    execute(client, screen, command).await.map_err(|failure| match failure.is_unimplemented() {
        true => Failure::refused(
            "the server has no simulated hardware; start one that has with `farrier serve --demo` \
             or `farrier serve --simulate N`, or set sim.enabled in its configuration",
        ),
        false => failure,
    })
}

async fn execute(client: &Client, screen: &mut Screen, command: SimCommand) -> Result<Exit> {
    match command {
        SimCommand::Fault(SimFaultCommand::Create(args)) => {
            let request = CreateFaultRequest { fault: Some(fault_rule(args)) };
            let fault = client.call(client.simulator().create_fault(request)).await?;
            screen.print_record(&fault, |fault| {
                format!("fault {} created\n", one_line(&fault.fault_id))
            })?;
        }
        SimCommand::Fault(SimFaultCommand::List(args)) => {
            let faults = fetch_pages(args.limit, async |page_size, page_token| {
                let filter = args.filter.clone();
                let request = ListFaultsRequest { page_size, page_token, filter };
                let page = client.call(client.simulator().list_faults(request)).await?;
                Ok((page.faults, page.next_page_token))
            })
            .await?;
            let none = "no faults; the simulated hardware is well";
            screen.print_list(&faults, faults_table, empty_list_note(&args.filter, none))?;
        }
        SimCommand::Fault(SimFaultCommand::Delete(SimFaultDeleteArgs { fault_id, all: _ })) => {
            let request = DeleteFaultsRequest { fault_id: fault_id.unwrap_or_default() };
            let answer = client.call(client.simulator().delete_faults(request)).await?;
            screen.print_record(&answer, |answer| format!("{} deleted\n", answer.deleted))?;
        }
        SimCommand::Effects(args) => {
            let effects = fetch_effects(client, &args).await?;
            let selected = format!("{}{}", args.prefix, args.list.filter);
            let none = empty_list_note(&selected, "no effects were asked for");
            screen.print_list(&effects, effects_table, none)?;
        }
    }
    Ok(Exit::Success)
}

/// The counters that the prefix and the filter select.
async fn fetch_effects(client: &Client, args: &SimEffectsArgs) -> Result<Vec<SimEffect>> {
    let runs = fetch_run_ids(client, &args.prefix).await?;
    let mut effects = Vec::new();
    for filter in effects_filters(&args.prefix, &runs, &args.list.filter) {
        let left = args.list.limit.map(|limit| limit.saturating_sub(effects.len() as u32));
        let found = fetch_pages(left, async |page_size, page_token| {
            let request = ListEffectsRequest { page_size, page_token, filter: filter.clone() };
            let page = client.call(client.simulator().list_effects(request)).await?;
            Ok((page.effects, page.next_page_token))
        });
        effects.extend(found.await?);
    }
    Ok(effects)
}

/// The operation of a prefix with its child operations, in the order of their effect keys. The
/// operation of a rack calls no hardware itself: its child operations do.
async fn fetch_run_ids(client: &Client, prefix: &str) -> Result<Vec<String>> {
    let ([run] | [run, _]) = key_parts(prefix)[..] else { return Ok(Vec::new()) };
    if run.is_empty() {
        return Ok(Vec::new());
    }
    let children = FilterText::default().equal("part_of", run).build();
    let children = fetch_runs(client, (&children, ""), None).await?;
    let mut ids: Vec<String> = children.into_iter().map(|child| child.run_id).collect();
    ids.push(run.into());
    ids.sort();
    Ok(ids)
}

/// The parts of a prefix: an operation, a step of it, and the rest of a whole key.
fn key_parts(prefix: &str) -> Vec<&str> {
    prefix.trim_end_matches('/').splitn(3, '/').collect()
}

/// The filters that together select the effects of these runs.
fn effects_filters(prefix: &str, runs: &[String], typed: &str) -> Vec<String> {
    let filter = |runs: &[String]| {
        let filter = FilterText::typed(typed).any_of("run_id", runs);
        let filter = match key_parts(prefix).as_slice() {
            [_, step] => filter.equal("step", step),
            [_, _, _, ..] => filter.equal("key", prefix),
            [] | [_] => filter,
        };
        filter.build()
    };
    match runs.is_empty() {
        true => vec![filter(&[])],
        false => runs.chunks(MAX_FILTER_RUNS).map(filter).collect(),
    }
}

fn fault_rule(args: SimFaultArgs) -> SimFault {
    let delay_ms =
        args.delay.map_or(0, |delay| i32::try_from(delay.as_millis()).unwrap_or(i32::MAX));
    SimFault {
        machine: args.machine,
        effect: args.effect.unwrap_or_default(),
        verb: words::value::<ProviderVerb>(args.verb.map_or("", verb_name)),
        action: words::value::<v1::SimAction>(action_name(args.action)),
        times: args.times,
        delay_ms,
        message: args.message,
        code: args.code,
        at_percent: args.at_percent.unwrap_or_default(),
        ..Default::default()
    }
}

fn verb_name(verb: SimVerb) -> &'static str {
    match verb {
        SimVerb::Perform => "perform",
        SimVerb::Follow => "follow",
        SimVerb::GetStatus => "get_status",
        SimVerb::Observe => "observe",
        SimVerb::Stop => "stop",
    }
}

fn action_name(action: SimAction) -> &'static str {
    match action {
        SimAction::Fail => "fail",
        SimAction::Hang => "hang",
        SimAction::Drop => "drop",
        SimAction::Garbage => "garbage",
        SimAction::Slow => "slow",
        SimAction::Twice => "twice",
    }
}

fn faults_table(faults: &[SimFault], _wide: bool) -> Table {
    let mut table = Table::new(&[
        "FAULT_ID", "MACHINE", "EFFECT", "VERB", "ACTION", "CODE", "TIMES", "STRUCK", "DELAY",
        "AT", "MESSAGE",
    ]);
    for fault in faults {
        let or = |text: &str, empty: &str| {
            if text.is_empty() { empty.to_string() } else { text.to_string() }
        };
        let times = if fault.times == 0 { "∞".to_string() } else { fault.times.to_string() };
        let delay =
            if fault.delay_ms == 0 { String::new() } else { format!("{}ms", fault.delay_ms) };
        let at =
            if fault.at_percent == 0 { String::new() } else { format!("{}%", fault.at_percent) };
        table.add_row(vec![
            (&fault.fault_id).into(),
            or(&fault.machine, "*").into(),
            or(&fault.effect, "*").into(),
            or(fault.verb().word(), "perform").into(),
            fault.action().word().into(),
            (&fault.code).into(),
            times.into(),
            fault.struck.to_string().into(),
            delay.into(),
            at.into(),
            (&fault.message).into(),
        ]);
    }
    table
}

fn effects_table(effects: &[SimEffect], _wide: bool) -> Table {
    let mut table = Table::new(&["KEY", "MACHINE", "EFFECT", "REQUESTED", "APPLIED"]);
    for effect in effects {
        // An effect that was applied more than once breaks Farrier's guarantee.
        let tone = if effect.applied > 1 { Tone::Bad } else { Tone::Plain };
        table.add_row(vec![
            (&effect.key).into(),
            (&effect.machine).into(),
            (&effect.effect).into(),
            effect.requested.to_string().into(),
            Cell::with_tone(effect.applied.to_string(), tone),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::filter::{Filter, FilterSubject};

    #[test]
    fn the_earlier_words_of_faults_still_work() {
        use crate::args::Cli;
        use clap::Parser;
        for (old, new) in [
            ("add --action fail", "create --action fail"),
            ("clear --all", "delete --all"),
            ("clear fault-1", "delete fault-1"),
        ] {
            let parse = |line| {
                let line = format!("farrier sim fault {line}");
                format!("{:?}", Cli::try_parse_from(line.split(' ')).unwrap().command)
            };
            assert_eq!(parse(old), parse(new));
        }
    }

    #[test]
    fn a_prefix_becomes_a_filter() {
        let runs = |prefix: &str| match prefix.is_empty() {
            true => Vec::new(),
            false => vec!["op-1".to_string()],
        };
        for (prefix, expected) in [
            ("", "effect=repave"),
            ("op-1", "effect=repave AND run_id in (\"op-1\")"),
            ("op-1/", "effect=repave AND run_id in (\"op-1\")"),
            ("op-1/join", "effect=repave AND run_id in (\"op-1\") AND step=\"join\""),
        ] {
            let filters = effects_filters(prefix, &runs(prefix), "effect=repave");
            assert_eq!(filters, [expected], "{prefix}");
        }
        let key = effects_filters("op-1/join/1", &[], "effect=repave");
        assert_eq!(key, ["effect=repave AND key=\"op-1/join/1\""]);
    }

    /// The operation of a large rack has more child operations than one filter may name.
    #[test]
    fn many_runs_take_several_filters() {
        let runs: Vec<String> = (0..150).map(|number| format!("op-{number:026}")).collect();
        let filters = effects_filters("op-1", &runs, "");
        assert_eq!(filters.len(), 3);
        for filter in &filters {
            Filter::parse(filter, FilterSubject::SimEffect).unwrap();
        }
        assert!(runs.iter().all(|run| filters.iter().any(|filter| filter.contains(run))));
    }
}
