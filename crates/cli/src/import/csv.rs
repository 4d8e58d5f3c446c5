//! Machines from a CSV file, as spreadsheets write it.
//!
//! All errors are collected, each with its line and column, so that a file is corrected in one
//! pass. This module checks only that a cell can be parsed; the server validates the values.

use super::ImportRow;
use crate::device::non_empty;
use crate::exit::{Failure, Result};
use crate::text::one_line;
use csv::StringRecord;
use proto::v1::{Machine, MachineSpec};
use std::path::Path;

/// The maximum number of errors that are listed.
const MAX_ERRORS: usize = 20;
const COLUMN_NAMES: &str = "machine_id, ssh_endpoint, bmc_endpoint, target_cluster_ref, mac_addresses, provider, serial, \
                     customer_id, bmc_credential, ssh_credential, root_disk, rack_id, slot, height_u, feeds, node_name or labels.KEY";

/// The field that a column sets.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    MachineId,
    SshEndpoint,
    BmcEndpoint,
    TargetClusterRef,
    MacAddresses,
    Provider,
    Serial,
    CustomerId,
    BmcCredential,
    SshCredential,
    RootDisk,
    RackId,
    Slot,
    HeightU,
    Feeds,
    NodeName,
    Label(String),
}

impl Column {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "machine_id" => Some(Column::MachineId),
            "ssh_endpoint" => Some(Column::SshEndpoint),
            "bmc_endpoint" => Some(Column::BmcEndpoint),
            "target_cluster_ref" => Some(Column::TargetClusterRef),
            "mac_addresses" => Some(Column::MacAddresses),
            "provider" => Some(Column::Provider),
            "serial" => Some(Column::Serial),
            "customer_id" => Some(Column::CustomerId),
            "bmc_credential" => Some(Column::BmcCredential),
            "ssh_credential" => Some(Column::SshCredential),
            "root_disk" => Some(Column::RootDisk),
            "rack_id" => Some(Column::RackId),
            "slot" => Some(Column::Slot),
            "height_u" => Some(Column::HeightU),
            "feeds" => Some(Column::Feeds),
            "node_name" => Some(Column::NodeName),
            label => {
                let key = label.strip_prefix("labels.").filter(|key| !key.is_empty())?;
                Some(Column::Label(key.to_string()))
            }
        }
    }
}

/// All machines of the file, or all its errors.
pub fn parse_rows(path: &Path, text: &str) -> Result<Vec<ImportRow>> {
    let file = path.display().to_string();
    // Spreadsheets write a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| refusal(&[format!("{file}: {error}")]))?.clone();
    let columns = parse_header(&file, &header).map_err(|errors| refusal(&errors))?;
    let lines = LineIndex::new(text);
    let mut rows = Vec::new();
    let mut errors = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| refusal(&[format!("{file}: {error}")]))?;
        let line = lines.line_at(record.position().map_or(0, csv::Position::byte));
        let position = format!("{file}, line {line}");
        match parse_machine(&columns, &record) {
            Ok(machine) => rows.push(ImportRow { source: position, machine }),
            Err(problems) => {
                errors.extend(problems.iter().map(|problem| format!("{position}, {problem}")))
            }
        }
    }
    if errors.is_empty() { Ok(rows) } else { Err(refusal(&errors)) }
}

/// The offsets of the line ends. The csv crate's own line count is off by one after CRLF and empty
/// lines.
struct LineIndex<'a> {
    text: &'a [u8],
    ends: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at);
        Self { text: text.as_bytes(), ends: ends.collect() }
    }

    /// The line number of the first character at or after `byte` that is not a line end.
    fn line_at(&self, byte: u64) -> usize {
        let from = usize::try_from(byte).unwrap_or(usize::MAX).min(self.text.len());
        let skipped =
            self.text[from..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.ends.partition_point(|end| *end < from + skipped) + 1
    }
}

fn refusal(errors: &[String]) -> Failure {
    let mut lines: Vec<String> =
        errors.iter().take(MAX_ERRORS).map(|error| one_line(error).into_owned()).collect();
    if errors.len() > MAX_ERRORS {
        lines.push(format!("and {} more", errors.len() - MAX_ERRORS));
    }
    lines.push("nothing was registered".into());
    Failure::refused(lines.join("\n"))
}

fn parse_header(file: &str, header: &StringRecord) -> Result<Vec<Column>, Vec<String>> {
    let mut columns: Vec<Column> = Vec::new();
    let mut errors = Vec::new();
    for (at, name) in header.iter().enumerate() {
        let position = format!("{file}, line 1, column {}", at + 1);
        match Column::parse(name) {
            None => errors
                .push(format!("{position}: there is no column {name:?}; write {COLUMN_NAMES}")),
            Some(column) if columns.contains(&column) => {
                errors.push(format!("{position}: the column {name:?} is there twice; remove one"));
            }
            Some(column) => columns.push(column),
        }
    }
    if errors.is_empty() && !columns.contains(&Column::MachineId) {
        errors.push(format!("{file}, line 1: the column machine_id is missing; the header names the columns: {COLUMN_NAMES}"));
    }
    if errors.is_empty() { Ok(columns) } else { Err(errors) }
}

fn parse_machine(columns: &[Column], record: &StringRecord) -> Result<Machine, Vec<String>> {
    if record.len() != columns.len() {
        let (has, desired) = (record.len(), columns.len());
        return Err(vec![format!(
            "has {has} fields, but the header has {desired}; quote a value that contains a comma"
        )]);
    }
    let mut machine = Machine::default();
    let mut spec = MachineSpec::default();
    let mut problems = Vec::new();
    for (at, (column, value)) in columns.iter().zip(record).enumerate() {
        let position = at + 1;
        match column {
            Column::MachineId if value.is_empty() => problems.push(format!(
                "column {position} machine_id: is empty; name the machine, so that importing again changes nothing"
            )),
            Column::MachineId => machine.machine_id = value.to_string(),
            Column::SshEndpoint => spec.ssh_endpoint = value.to_string(),
            Column::BmcEndpoint => spec.bmc_endpoint = value.to_string(),
            Column::TargetClusterRef => spec.target_cluster_ref = value.to_string(),
            Column::Provider => spec.provider = value.to_string(),
            Column::Serial => spec.serial = value.to_string(),
            Column::CustomerId => spec.customer_id = value.to_string(),
            Column::BmcCredential => spec.bmc_credential = value.to_string(),
            Column::SshCredential => spec.ssh_credential = value.to_string(),
            Column::RootDisk => spec.root_disk = value.to_string(),
            Column::RackId => spec.rack_id = value.to_string(),
            Column::NodeName => spec.node_name = value.to_string(),
            Column::Feeds => {
                spec.feeds = non_empty(value.split(';').map(String::from).collect());
            }
            Column::Slot | Column::HeightU if value.is_empty() => {}
            Column::HeightU => match value.parse() {
                Ok(height) => spec.height_u = Some(height),
                Err(_) => problems.push(format!(
                    "column {position} height_u: {value:?} is not a number; write the height in rack units"
                )),
            },
            Column::Slot => match value.parse() {
                Ok(slot) => spec.slot = Some(slot),
                Err(_) => problems.push(format!(
                    "column {position} slot: {value:?} is not a number; write the place in the rack, counted from the bottom"
                )),
            },
            Column::MacAddresses => match parse_macs(value) {
                Ok(macs) => spec.mac_addresses = macs,
                Err(problem) => problems.push(format!("column {position} mac_addresses: {problem}")),
            },
            Column::Label(_) if value.is_empty() => {}
            Column::Label(key) => {
                machine.labels.insert(key.clone(), value.to_string());
            }
        }
    }
    machine.spec = Some(spec);
    if problems.is_empty() { Ok(machine) } else { Err(problems) }
}

fn parse_macs(value: &str) -> Result<Vec<String>, String> {
    let parts = value.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let digits = part.chars().filter(char::is_ascii_hexdigit).count();
            let others = part.chars().filter(|c| !c.is_ascii_hexdigit()).all(|c| c == ':' || c == '-');
            if digits == 12 && others {
                Ok(part.to_string())
            } else {
                Err(format!("{part:?} is not a MAC address; write aa:bb:cc:dd:ee:ff, several separated by ';'"))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<ImportRow>> {
        parse_rows(Path::new("fleet.csv"), text)
    }

    #[test]
    fn a_file_with_all_columns() {
        let text = "\u{feff}machine_id,ssh_endpoint,mac_addresses,labels.env,labels.row,rack_id,slot,height_u,feeds,node_name\r\n\
                    web-1, 10.0.0.1:22 ,aa:bb:cc:dd:ee:ff;02-00-00-00-00-01,prod,,rack-7,12,2,ps-1; ps-2,n1.example\r\n\
                    \"web-2\",,,\"a,b\",r7,,,,,\r\n";
        let rows = parse(text).unwrap();
        assert_eq!(rows.len(), 2);
        let spec = rows[0].machine.spec.as_ref().unwrap();
        assert_eq!(spec.ssh_endpoint, "10.0.0.1:22");
        assert_eq!(spec.mac_addresses, ["aa:bb:cc:dd:ee:ff", "02-00-00-00-00-01"]);
        assert_eq!((spec.rack_id.as_str(), spec.slot), ("rack-7", Some(12)));
        assert_eq!((spec.height_u, spec.node_name.as_str()), (Some(2), "n1.example"));
        assert_eq!(spec.feeds, ["ps-1", "ps-2"]);
        let other = rows[1].machine.spec.as_ref().unwrap();
        assert_eq!((other.slot, other.height_u, other.feeds.len()), (None, None, 0));
        assert_eq!(rows[0].machine.labels.len(), 1);
        assert_eq!(rows[1].machine.labels["env"], "a,b");
        assert_eq!(rows[1].source, "fleet.csv, line 3");
    }

    #[test]
    fn every_mistake_is_named_at_once() {
        let text = "machine_id,mac_addresses\nweb-1,aa:bb\n,\nweb-3\nweb-4,\n\n\nweb-5,x\n";
        assert_eq!(
            parse(text).unwrap_err().message,
            "\
fleet.csv, line 2, column 2 mac_addresses: \"aa:bb\" is not a MAC address; write aa:bb:cc:dd:ee:ff, several separated by ';'
fleet.csv, line 3, column 1 machine_id: is empty; name the machine, so that importing again changes nothing
fleet.csv, line 4, has 1 fields, but the header has 2; quote a value that contains a comma
fleet.csv, line 8, column 2 mac_addresses: \"x\" is not a MAC address; write aa:bb:cc:dd:ee:ff, several separated by ';'
nothing was registered"
        );
    }

    #[test]
    fn the_header_is_checked() {
        let message = |text| parse(text).unwrap_err().message;
        assert!(
            message("machine_id,ip\n")
                .starts_with("fleet.csv, line 1, column 2: there is no column \"ip\"; write")
        );
        assert!(
            message("machine_id,serial,serial\n")
                .contains("column 3: the column \"serial\" is there twice")
        );
        assert!(message("serial\nx\n").contains("the column machine_id is missing"));
        assert!(message("").contains("the column machine_id is missing"));
        assert!(
            message("machine_id,slot\nweb-1,top\n")
                .contains("line 2, column 2 slot: \"top\" is not")
        );
        assert!(
            message("machine_id,height_u\nweb-1,2U\n")
                .contains("line 2, column 2 height_u: \"2U\" is not a number")
        );
        assert!(message("machine_id,labels.\n").contains("there is no column \"labels.\""));
    }

    #[test]
    fn many_mistakes_are_counted() {
        let text = format!("machine_id\n{}", "\"\"\n".repeat(30));
        let message = parse(&text).unwrap_err().message;
        assert!(message.contains("and 10 more"), "{message}");
    }
}
