//! `farrier sim`: the faults of the simulated fleet, and the effects that it executed.

use crate::args::{
    SimAction, SimCommand, SimFaultArgs, SimFaultCommand, SimFaultDeleteArgs, SimVerb,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::{FilterText, empty_list_note};
use crate::output::Screen;
use crate::table::{Cell, Table, Tone};
use crate::text::one_line;
use proto::v1::{
    self, CreateFaultRequest, DeleteFaultsRequest, ListEffectsRequest, ListFaultsRequest,
    ProviderVerb, SimEffect, SimFault,
};
use proto::words::{self, WireEnum};

pub async fn run(client: &Client, screen: &mut Screen, command: SimCommand) -> Result<Exit> {
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
            let filter = effects_filter(&args.prefix, &args.list.filter);
            let effects = fetch_pages(args.list.limit, async |page_size, page_token| {
                let filter = filter.clone();
                let request = ListEffectsRequest { page_size, page_token, filter };
                let page = client.call(client.simulator().list_effects(request)).await?;
                Ok((page.effects, page.next_page_token))
            })
            .await?;
            let none = empty_list_note(&filter, "no effects were asked for");
            screen.print_list(&effects, effects_table, none)?;
        }
    }
    Ok(Exit::Success)
}

/// The filter of a key's prefix: an operation, a step of it, or a whole key.
fn effects_filter(prefix: &str, typed: &str) -> String {
    let filter = FilterText::typed(typed);
    let parts: Vec<&str> = prefix.trim_end_matches('/').splitn(3, '/').collect();
    let filter = match parts.as_slice() {
        [run] => filter.equal("run_id", run),
        [run, step] => filter.equal("run_id", run).equal("step", step),
        _ => filter.equal("key", prefix),
    };
    filter.build()
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
        "FAULT_ID", "MACHINE", "EFFECT", "VERB", "ACTION", "TIMES", "STRUCK", "DELAY", "MESSAGE",
    ]);
    for fault in faults {
        let or = |text: &str, empty: &str| {
            if text.is_empty() { empty.to_string() } else { text.to_string() }
        };
        let times = if fault.times == 0 { "∞".to_string() } else { fault.times.to_string() };
        let delay =
            if fault.delay_ms == 0 { String::new() } else { format!("{}ms", fault.delay_ms) };
        table.add_row(vec![
            (&fault.fault_id).into(),
            or(&fault.machine, "*").into(),
            or(&fault.effect, "*").into(),
            or(fault.verb().word(), "perform").into(),
            fault.action().word().into(),
            times.into(),
            fault.struck.to_string().into(),
            delay.into(),
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
        for (prefix, expected) in [
            ("", "effect=repave"),
            ("op-1", "effect=repave AND run_id=\"op-1\""),
            ("op-1/", "effect=repave AND run_id=\"op-1\""),
            ("op-1/join", "effect=repave AND run_id=\"op-1\" AND step=\"join\""),
            ("op-1/join/1", "effect=repave AND key=\"op-1/join/1\""),
        ] {
            assert_eq!(effects_filter(prefix, "effect=repave"), expected, "{prefix}");
        }
    }
}
