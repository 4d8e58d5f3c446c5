//! `farrier discover`: finds machines by probing BMCs at the given addresses only.
//!
//! The server probes and streams one result per address; each result becomes a line. Unreachable
//! addresses are only counted, because most of a range is empty.

use crate::args::DiscoverArgs;
use crate::client::Client;
use crate::exit::{Exit, Failure, Result};
use crate::hardware::power_name;
use crate::output::Screen;
use crate::text::one_line;
use proto::v1::discovered::Outcome;
use proto::v1::found_system::Status;
use proto::v1::{DiscoverRequest, Discovered, FoundSystem};
use std::io::{IsTerminal, Read, Write};
use std::path::Path;

/// The maximum size of an address file, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// The maximum number of MAC addresses shown per machine.
const MAX_MACS: usize = 4;

/// The counts of the results so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct DiscoveryCounts {
    addresses: i32,
    new: usize,
    known: usize,
    registered: usize,
    doubtful: usize,
    refused: usize,
    unreachable: usize,
    logins: usize,
    failed: usize,
}

pub async fn run(client: &Client, screen: &mut Screen, args: DiscoverArgs) -> Result<Exit> {
    let request = DiscoverRequest {
        addresses: collect_addresses(&args.addresses)?,
        credential: args.credential,
        import: args.import,
        provider: args.provider,
        labels: args.labels.into_iter().collect(),
        concurrency: args.concurrency,
    };
    let answer = client.hardware().discover(request).await;
    let mut stream = answer.map_err(|status| client.failure(status))?.into_inner();
    let mut counts = DiscoveryCounts::default();
    while let Some(result) = stream.message().await.map_err(|status| client.failure(status))? {
        counts.add(&result);
        print_result(screen, &result)?;
        show_progress(screen, &result, &counts);
    }
    screen.print_line(&format_summary(&counts))?;
    if counts.new > 0 && !args.import {
        screen.print_line("next: the same command with --import registers the new ones")?;
    }
    match counts.refused {
        0 => Ok(Exit::Success),
        refused => Err(Failure::refused(format!("{refused} machines could not be registered"))),
    }
}

impl DiscoveryCounts {
    fn add(&mut self, result: &Discovered) {
        self.addresses = result.total;
        match result.outcome() {
            Outcome::Unreachable => self.unreachable += 1,
            Outcome::LoginRefused => self.logins += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Found | Outcome::Unspecified => {}
        }
        for system in &result.systems {
            match system.status() {
                Status::New | Status::Unspecified => self.new += 1,
                Status::Known => self.known += 1,
                Status::Registered => self.registered += 1,
                Status::Doubtful => self.doubtful += 1,
                Status::Refused => self.refused += 1,
            }
        }
    }

    fn found(&self) -> usize {
        self.new + self.known + self.registered + self.doubtful + self.refused
    }
}

fn format_summary(counts: &DiscoveryCounts) -> String {
    let DiscoveryCounts {
        addresses,
        new,
        known,
        registered,
        doubtful,
        refused,
        unreachable,
        logins,
        failed,
    } = counts;
    let named = |count: &usize, what: &str| (*count > 0).then(|| format!("{count} {what}"));
    let found = [
        named(registered, "registered"),
        named(new, "new"),
        named(known, "known"),
        named(doubtful, "doubtful"),
        named(refused, "not registered"),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    let rest = [
        named(unreachable, "unreachable"),
        named(logins, "refused the login"),
        named(failed, "failed"),
    ];
    let rest = rest.into_iter().flatten().map(|what| format!(", {what}")).collect::<String>();
    let detail = if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) };
    let noun = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    };
    let requested = match addresses {
        1 => "1 address".to_string(),
        count => format!("{count} addresses"),
    };
    format!("{requested} probed: {} found{detail}{rest}", noun(counts.found(), "machine"))
}

fn print_result(screen: &mut Screen, result: &Discovered) -> Result<()> {
    clear_progress(screen);
    if !screen.is_human() {
        return match result.outcome() {
            Outcome::Unreachable => Ok(()),
            Outcome::Found | Outcome::LoginRefused | Outcome::Failed | Outcome::Unspecified => {
                screen.print_event(result, |_| String::new())
            }
        };
    }
    match result.outcome() {
        Outcome::Unreachable => Ok(()),
        Outcome::LoginRefused => screen.print_line(&format!(
            "{}  login refused: {}; next: farrier bmc unlock {}",
            one_line(&result.address),
            one_line(&result.message),
            one_line(&result.address)
        )),
        Outcome::Failed => screen.print_line(&format!(
            "{}  failed: {}",
            one_line(&result.address),
            one_line(&result.message)
        )),
        Outcome::Found | Outcome::Unspecified => {
            result.systems.iter().try_for_each(|system| screen.print_line(&format_machine(system)))
        }
    }
}

/// Formats one machine as a line.
fn format_machine(system: &FoundSystem) -> String {
    let make = [system.vendor.as_str(), &system.model].join(" ");
    let serial = match system.serial.as_str() {
        "" => "no serial".to_string(),
        serial => format!("serial {serial}"),
    };
    let power = format!("power {}", power_name(system.power()));
    let (id, message) = (&system.machine_id, &system.message);
    let status = match system.status() {
        Status::New | Status::Unspecified => "new".to_string(),
        Status::Known => format!("known as {id} by its {message}"),
        Status::Registered => format!("registered as {id}"),
        Status::Doubtful => format!("doubtful, not registered: {message}"),
        Status::Refused => format!("not registered: {message}"),
    };
    let parts = [
        system.endpoint.clone(),
        make.trim().to_string(),
        serial,
        format_macs(system),
        power,
        status,
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| one_line(part).into_owned())
        .collect();
    parts.join("  ")
}

fn format_macs(system: &FoundSystem) -> String {
    let all = &system.mac_addresses;
    let shown: Vec<&str> = all.iter().take(MAX_MACS).map(String::as_str).collect();
    match all.len().saturating_sub(MAX_MACS) {
        0 if all.is_empty() => "no MAC".into(),
        0 => shown.join(","),
        more => format!("{} and {more} more", shown.join(",")),
    }
}

/// Shows the progress on stderr, if it is a terminal.
fn show_progress(screen: &Screen, result: &Discovered, counts: &DiscoveryCounts) {
    if has_progress(screen) {
        let text = format!("\rasked {}/{}, {} found", result.probed, result.total, counts.found());
        let end = if result.probed == result.total { "\r\u{1b}[K" } else { "" };
        let _ = write!(std::io::stderr(), "{text}{end}");
    }
}

fn clear_progress(screen: &Screen) {
    if has_progress(screen) {
        let _ = write!(std::io::stderr(), "\r\u{1b}[K");
    }
}

fn has_progress(screen: &Screen) -> bool {
    screen.is_human() && std::io::stderr().is_terminal()
}

/// The addresses from the command line and from the files that it names.
fn collect_addresses(given: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for text in given {
        match Path::new(text) {
            path if path.is_file() => all.extend(split_addresses(&read_address_file(path)?)),
            _ => all.extend(split_addresses(text)),
        }
    }
    match all.is_empty() {
        true => Err(Failure::refused(
            "no address was given; type 10.1.0.7, 10.1.0.0/24 or a file with addresses",
        )),
        false => Ok(all),
    }
}

fn read_address_file(path: &Path) -> Result<String> {
    let wrong = |message: String| Failure::refused(format!("{}: {message}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(MAX_FILE + 1).read_to_string(&mut text);
    match read.map_err(|error| wrong(error.to_string()))? as u64 > MAX_FILE {
        true => Err(wrong(format!("is longer than {MAX_FILE} bytes"))),
        false => Ok(text),
    }
}

/// Splits text into addresses, at white space and commas. A `#` starts a comment.
fn split_addresses(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','));
    words.filter(|name| !name.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_line_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bmcs.txt");
        std::fs::write(&file, "10.0.0.1, 10.0.0.2 # rack 1\n# none\n\nfe80::1\r\n").unwrap();
        let given = ["10.1.0.0/24,h".to_string(), file.to_str().unwrap().to_string()];
        let expected = ["10.1.0.0/24", "h", "10.0.0.1", "10.0.0.2", "fe80::1"];
        assert_eq!(collect_addresses(&given).unwrap(), expected);
        assert!(collect_addresses(&[",".to_string()]).unwrap_err().message.contains("no address"));
    }

    #[test]
    fn a_machine_is_a_line() {
        let mut system = FoundSystem {
            endpoint: "https://10.1.0.7".into(),
            vendor: "Acme".into(),
            model: "Anvil".into(),
            serial: "S1".into(),
            mac_addresses: vec!["02:00:00:00:00:01".into()],
            power: proto::v1::PowerState::On.into(),
            status: Status::Known.into(),
            machine_id: "m-1".into(),
            message: "serial number".into(),
            ..Default::default()
        };
        assert_eq!(
            format_machine(&system),
            "https://10.1.0.7  Acme Anvil  serial S1  02:00:00:00:00:01  power on  \
             known as m-1 by its serial number"
        );
        system.mac_addresses = (0..6).map(|n| format!("m{n}")).collect();
        assert!(format_machine(&system).contains("m3 and 2 more"), "{}", format_machine(&system));
    }

    #[test]
    fn the_end_counts_everything() {
        let result = |outcome: Outcome, statuses: &[Status]| Discovered {
            outcome: outcome.into(),
            systems: statuses
                .iter()
                .map(|one| FoundSystem { status: (*one).into(), ..Default::default() })
                .collect(),
            total: 4,
            ..Default::default()
        };
        let mut counts = DiscoveryCounts::default();
        for one in [
            result(Outcome::Found, &[Status::Registered, Status::Known]),
            result(Outcome::Unreachable, &[]),
            result(Outcome::LoginRefused, &[]),
            result(Outcome::Failed, &[]),
        ] {
            counts.add(&one);
        }
        assert_eq!(
            format_summary(&counts),
            "4 addresses probed: 2 machines found (1 registered, 1 known), 1 unreachable, \
             1 refused the login, 1 failed"
        );
    }
}
