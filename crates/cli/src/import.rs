//! `farrier import`: registers machines from a file, or a number of simulated ones.
//!
//! The whole source is read before the first registration, so a file with an error changes nothing.
//! Registration is an upsert, so an interrupted import can be repeated.

pub mod csv;
pub mod file;

use crate::args::ImportArgs;
use crate::client::Client;
use crate::exit::{Exit, Failure, Result, eprintln_quietly};
use crate::machine::table;
use crate::output::Screen;
use crate::text::one_line;
use futures_util::{StreamExt, stream};
use proto::v1::{Machine, MachineSpec, RegisterMachineRequest};
use std::path::Path;

/// The maximum number of concurrent registrations.
const CONCURRENCY: usize = 16;
/// The maximum number of simulated machines.
const MAX_SIMULATED: u32 = 100_000;
/// The number of machines in a simulated rack.
const MACHINES_PER_RACK: u32 = 18;
/// With more machines than this, only the total is printed, unless the output is wide.
const MAX_LINES: usize = 20;

/// A machine and its position in the source.
#[derive(Debug, PartialEq)]
pub struct ImportRow {
    /// `fleet.csv, line 3`; empty for a simulated machine.
    pub source: String,
    pub machine: Machine,
}

pub async fn run(client: &Client, screen: &mut Screen, args: &ImportArgs) -> Result<Exit> {
    let rows = read_rows(&args.source)?;
    let total = rows.len();
    let mut answers = stream::iter(rows).map(|row| register(client, row)).buffered(CONCURRENCY);
    let mut registered = Vec::with_capacity(total);
    let mut refused = 0;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(machine) => registered.push(machine),
            Err(failure) if failure.exit == Exit::Refused => {
                refused += 1;
                failure.report(screen.format());
            }
            Err(failure) => {
                let done = registered.len();
                let message = format!(
                    "{}\n{done} of {total} registered; repeat the command to go on",
                    failure.message
                );
                return Err(Failure::new(failure.exit, message));
            }
        }
        show_progress(screen, registered.len(), total);
    }
    print_summary(screen, &registered)?;
    if refused > 0 {
        return Err(Failure::refused(format!("{refused} of {total} machines were refused")));
    }
    Ok(Exit::Success)
}

async fn register(client: &Client, row: ImportRow) -> Result<Machine> {
    let ImportRow { source: position, machine } = row;
    let name = machine.machine_id.clone();
    let request = RegisterMachineRequest { machine: Some(machine), dry_run: client.is_dry_run() };
    client.call(client.machines().register_machine(request)).await.map_err(|failure| {
        match (failure.exit == Exit::Refused, position.is_empty()) {
            (true, true) => Failure::refused(format!("{name}: {}", failure.message)),
            (true, false) => Failure::refused(format!("{position} ({name}): {}", failure.message)),
            (false, _) => failure,
        }
    })
}

/// Shows a counter on the terminal and clears it at the end.
fn show_progress(screen: &Screen, done: usize, total: usize) {
    use std::io::{IsTerminal, Write};
    let interactive = screen.is_human() && screen.is_terminal() && std::io::stderr().is_terminal();
    if interactive && total > MAX_LINES {
        let end = if done == total { "\r\u{1b}[K" } else { "" };
        let _ = write!(std::io::stderr(), "\rregistering {done}/{total}{end}");
    }
}

fn print_summary(screen: &mut Screen, machines: &[Machine]) -> Result<()> {
    if !screen.is_human() {
        return screen.print_list(machines, table, "");
    }
    if machines.len() <= MAX_LINES || screen.is_wide() {
        for machine in machines {
            screen.print_line(&format!("{} registered", one_line(&machine.machine_id)))?;
        }
    }
    let plural = if machines.len() == 1 { "" } else { "s" };
    screen.print_line(&format!(
        "{} machine{plural} registered; see them with `farrier list`",
        machines.len()
    ))
}

fn read_rows(source: &str) -> Result<Vec<ImportRow>> {
    match source.parse::<u32>() {
        Ok(count @ 1..=MAX_SIMULATED) => Ok(simulated_fleet(count)),
        Ok(count) => Err(Failure::refused(format!(
            "cannot import {count} machines; type a number from 1 to {MAX_SIMULATED}"
        ))),
        Err(_) => {
            let rows = file::read_rows(Path::new(source))?;
            check_unique_ids(&rows)?;
            if rows.is_empty() {
                eprintln_quietly(&format!("{source} has no machines"));
            }
            Ok(rows)
        }
    }
}

/// Refuses duplicate IDs: the second machine would overwrite the first.
fn check_unique_ids(rows: &[ImportRow]) -> Result<()> {
    let mut observed = std::collections::HashMap::new();
    for row in rows {
        if let Some(first) = observed.insert(&row.machine.machine_id, &row.source) {
            return Err(Failure::refused(format!(
                "{}: machine_id {:?} was already used at {first}; give each machine its own\nnothing was registered",
                row.source, row.machine.machine_id
            )));
        }
    }
    Ok(())
}

/// machine-1 to machine-N, identical every time.
fn simulated_fleet(count: u32) -> Vec<ImportRow> {
    (1..=count)
        .map(|number| ImportRow { source: String::new(), machine: simulated_machine(number) })
        .collect()
}

fn simulated_machine(number: u32) -> Machine {
    let [a, b, c, d] = number.to_be_bytes();
    let rack = (number - 1) / MACHINES_PER_RACK + 1;
    Machine {
        machine_id: format!("machine-{number}"),
        labels: [("env".to_string(), "demo".to_string()), ("rack".to_string(), format!("r{rack}"))]
            .into(),
        spec: Some(MachineSpec {
            ssh_endpoint: format!("10.{b}.{c}.{d}:22"),
            bmc_endpoint: format!("10.{}.{c}.{d}", 128 + u32::from(b)),
            target_cluster_ref: "demo".into(),
            mac_addresses: vec![format!("02:fa:{a:02x}:{b:02x}:{c:02x}:{d:02x}")],
            provider: "sim".into(),
            serial: format!("SIM{number:06}"),
            ..Default::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_the_same_every_time() {
        let rows = read_rows("36").unwrap();
        assert_eq!(rows.len(), 36);
        let last = &rows[35].machine;
        assert_eq!(last.machine_id, "machine-36");
        assert_eq!(last.labels["rack"], "r2");
        let spec = last.spec.as_ref().unwrap();
        assert_eq!(spec.mac_addresses, ["02:fa:00:00:00:24"]);
        assert_eq!(spec.ssh_endpoint, "10.0.0.36:22");
        assert_eq!(simulated_machine(70_000).spec.unwrap().ssh_endpoint, "10.1.17.112:22");
    }

    #[test]
    fn absurd_numbers_are_refused() {
        assert!(read_rows("0").unwrap_err().message.contains("from 1 to 100000"));
        assert!(read_rows("4000000").is_err());
    }

    #[test]
    fn a_name_is_used_once() {
        let row =
            |position: &str| ImportRow { source: position.into(), machine: simulated_machine(1) };
        let failure = check_unique_ids(&[row("f.csv, line 2"), row("f.csv, line 7")]).unwrap_err();
        assert!(failure.message.starts_with(
            "f.csv, line 7: machine_id \"machine-1\" was already used at f.csv, line 2"
        ));
    }
}
