//! `farrier import`: registers machines from a file, or a number of simulated ones.
//!
//! The server checks every machine before the first is written: if one is refused, none is
//! registered. Machines are then written in batches, each one transaction. Repeating an
//! interrupted import continues it.

pub mod csv;
pub mod file;

use crate::args::ImportArgs;
use crate::client::Client;
use crate::device::format_follow_ups;
use crate::exit::{Exit, Failure, Result, eprintln_quietly};
use crate::machine::table;
use crate::output::Screen;
use crate::text::one_line;
use proto::v1::{Machine, MachineRegistration, MachineSpec, RegisterMachinesRequest};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// The number of machines in one transaction: a larger one would delay the other writers.
const BATCH: usize = 500;
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

/// The machines of a source.
struct Import {
    rows: Vec<ImportRow>,
    /// Known machines stay as they are.
    only_new: bool,
}

pub async fn run(client: &Client, screen: &mut Screen, args: &ImportArgs) -> Result<Exit> {
    let import = read_source(&args.source)?;
    let (plan, follows) = import.register(client, screen, true).await?;
    import.refuse_problems(&plan)?;
    if client.is_dry_run() {
        print_machines(screen, &plan, "would be ")?;
        screen.print_line(format_follow_ups(&follows).trim_end())?;
        return Ok(Exit::Success);
    }
    if screen.is_human() && !import.only_new {
        screen.print_line(&format!("plan: {}", counts(&plan, "")))?;
    }
    let (done, _) = import.register(client, screen, false).await?;
    print_machines(screen, &done, "")?;
    Ok(Exit::Success)
}

impl Import {
    /// One line for each machine: its result. A dry run adds the predictions for their racks.
    async fn register(
        &self,
        client: &Client,
        screen: &Screen,
        dry_run: bool,
    ) -> Result<(Vec<MachineRegistration>, Vec<String>)> {
        let total = self.rows.len();
        let mut done = Vec::with_capacity(total);
        let mut follows = BTreeSet::new();
        for batch in self.rows.chunks(BATCH) {
            let machines = batch.iter().map(|row| row.machine.clone()).collect();
            let request = RegisterMachinesRequest { machines, only_new: self.only_new, dry_run };
            let answer = client.call(client.machines().register_machines(request)).await;
            let answer = answer.map_err(|failure| match dry_run {
                true => failure,
                false => interrupted(failure, done.len(), total),
            })?;
            done.extend(answer.registrations);
            follows.extend(answer.would_follow);
            show_progress(
                screen,
                if dry_run { "checking" } else { "registering" },
                done.len(),
                total,
            );
        }
        Ok((done, follows.into_iter().collect()))
    }

    /// Refuses the import and names every machine that the server would refuse.
    fn refuse_problems(&self, plan: &[MachineRegistration]) -> Result<()> {
        let all: Vec<_> =
            self.rows.iter().zip(plan).filter(|(_, one)| !one.problem.is_empty()).collect();
        if all.is_empty() {
            return Ok(());
        }
        let shown = all.iter().take(MAX_LINES).map(|(row, one)| {
            let name = one_line(&row.machine.machine_id);
            match row.source.as_str() {
                "" => format!("{name}: {}", one.problem),
                source => format!("{source} ({name}): {}", one.problem),
            }
        });
        let mut lines: Vec<String> = shown.collect();
        if all.len() > MAX_LINES {
            lines.push(format!("and {} more", all.len() - MAX_LINES));
        }
        lines.push(format!(
            "{} of {} machines are refused; nothing was registered",
            all.len(),
            self.rows.len()
        ));
        Err(Failure::refused(lines.join("\n")))
    }
}

/// A failure after some batches were written.
fn interrupted(failure: Failure, done: usize, total: usize) -> Failure {
    let message =
        format!("{}\n{done} of {total} registered; repeat the command to go on", failure.message);
    Failure::new(failure.exit, message)
}

/// Shows a counter on the terminal and clears it at the end.
fn show_progress(screen: &Screen, what: &str, done: usize, total: usize) {
    use std::io::{IsTerminal, Write};
    let interactive = screen.is_human() && screen.is_terminal() && std::io::stderr().is_terminal();
    if interactive && total > MAX_LINES {
        let end = if done == total { "\r\u{1b}[K" } else { "" };
        let _ = write!(std::io::stderr(), "\r{what} {done}/{total}{end}");
    }
}

/// Prints what became of each machine, or would: `mood` is `would be `.
fn print_machines(screen: &mut Screen, all: &[MachineRegistration], mood: &str) -> Result<()> {
    if !screen.is_human() {
        let machines: Vec<Machine> = all.iter().filter_map(|one| one.machine.clone()).collect();
        return screen.print_list(&machines, table, "");
    }
    let changed = || all.iter().filter(|one| one.created || one.updated);
    if changed().count() <= MAX_LINES || screen.is_wide() {
        for one in changed() {
            let id = one.machine.as_ref().map(|machine| one_line(&machine.machine_id));
            let what = if one.created { "registered" } else { "changed" };
            screen.print_line(&format!("{} {mood}{what}", id.unwrap_or_default()))?;
        }
    }
    let next = match mood.is_empty() {
        true => "see them with `farrier list`",
        false => "nothing was changed",
    };
    screen.print_line(&format!("{}; {next}", counts(all, mood)))
}

/// `2 machines registered, 1 changed, 15 unchanged`.
fn counts(all: &[MachineRegistration], mood: &str) -> String {
    let created = all.iter().filter(|one| one.created).count();
    let updated = all.iter().filter(|one| one.updated).count();
    let plural = if created == 1 { "" } else { "s" };
    let mut text = format!("{created} machine{plural} {mood}registered");
    for (count, what) in [(updated, "changed"), (all.len() - created - updated, "unchanged")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn read_source(source: &str) -> Result<Import> {
    match source.parse::<u32>() {
        Ok(count @ 1..=MAX_SIMULATED) => {
            Ok(Import { rows: simulated_fleet(count), only_new: true })
        }
        Ok(count) => Err(Failure::refused(format!(
            "cannot import {count} machines; type a number from 1 to {MAX_SIMULATED}"
        ))),
        Err(_) => {
            let rows = file::read_rows(Path::new(source))?;
            check_unique(&rows, "machine_id", |machine| Some(machine.machine_id.clone()))?;
            // A conflict within a batch is found by the server; this also finds it between batches.
            check_unique(&rows, "slot", |machine| {
                let spec = machine.spec.as_ref()?;
                Some(format!("{} of {}", spec.slot?, spec.rack_id))
            })?;
            check_unique(&rows, "node_name", |machine| {
                let spec = machine.spec.as_ref()?;
                let cluster = Some(&spec.target_cluster_ref).filter(|name| !name.is_empty())?;
                let own = Some(&spec.node_name).filter(|name| !name.is_empty());
                Some(format!("{} of cluster {cluster}", own.unwrap_or(&machine.machine_id)))
            })?;
            if rows.is_empty() {
                eprintln_quietly(&format!("{source} has no machines"));
            }
            Ok(Import { rows, only_new: false })
        }
    }
}

/// Refuses what two machines of a file cannot share, such as an ID: the second machine would
/// overwrite the first.
fn check_unique(
    rows: &[ImportRow],
    field: &str,
    value: impl Fn(&Machine) -> Option<String>,
) -> Result<()> {
    let mut observed = HashMap::new();
    for row in rows {
        let Some(used) = value(&row.machine) else { continue };
        if let Some(first) = observed.insert(used.clone(), &row.source) {
            return Err(Failure::refused(format!(
                "{}: {field} {used:?} was already used at {first}; give each machine its own\nnothing was registered",
                row.source
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
        let Import { rows, only_new } = read_source("36").unwrap();
        assert_eq!((rows.len(), only_new), (36, true));
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
        assert!(read_source("0").err().unwrap().message.contains("from 1 to 100000"));
        assert!(read_source("4000000").is_err());
    }

    #[test]
    fn a_name_is_used_once() {
        let row =
            |position: &str| ImportRow { source: position.into(), machine: simulated_machine(1) };
        let rows = [row("f.csv, line 2"), row("f.csv, line 7")];
        let id = |machine: &Machine| Some(machine.machine_id.clone());
        let failure = check_unique(&rows, "machine_id", id).unwrap_err();
        assert!(failure.message.starts_with(
            "f.csv, line 7: machine_id \"machine-1\" was already used at f.csv, line 2"
        ));
    }
}
