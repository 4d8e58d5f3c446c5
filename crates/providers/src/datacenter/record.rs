//! The RMA record: the inventory and the newest event log entries, written to the log of the run
//! before a machine goes to the vendor and after it returns. It changes nothing at the machine, so
//! an unknown outcome is resolved by taking it again.

use super::Datacenter;
use super::controller::Controller;
use super::provider_calls::done;
use crate::governor::Priority;
use crate::ipmi;
use crate::port::{Journal, Target};
use crate::redfish::{Inventory, LogEntry, System};
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::Result;
use model::time::Timestamp;

/// The most entries of the event log that are recorded.
const MAX_LOG_ENTRIES: usize = 20;
const BYTES_PER_GB: u64 = 1_000_000_000;

/// The lines of the record, and their summary.
struct Record {
    lines: Vec<String>,
    summary: String,
}

impl Datacenter {
    pub(super) async fn record(
        &self,
        target: &Target,
        verb: CallVerb,
        journal: &Journal,
    ) -> CallResult {
        match verb {
            CallVerb::Perform | CallVerb::Follow => {}
            CallVerb::GetStatus => return Ok(ProviderAnswer::NeverStarted),
            CallVerb::Observe => {
                return Ok(ProviderAnswer::Differs(
                    "a record taken earlier cannot be observed".into(),
                ));
            }
            CallVerb::Stop => return Ok(ProviderAnswer::Stopped),
        }
        let power = self.read_power(target, Priority::Operator).await?;
        let record = self.call_bmc(target, async |bmc: &Controller| read(bmc).await).await?;
        for line in &record.lines {
            journal.write_line(format!("record: {line}")).await;
        }
        Ok(ProviderAnswer::Done(done(format!("{}, power is {}", record.summary, power.as_str()))))
    }
}

async fn read(bmc: &Controller) -> Result<Record> {
    match bmc {
        Controller::Redfish(system) => read_redfish(system).await,
        Controller::Shelf(shelf) => read_redfish(shelf.place()).await,
        Controller::Ipmi(bmc) => read_ipmi(bmc).await,
    }
}

async fn read_redfish(system: &System) -> Result<Record> {
    let inventory = system.inventory().await?;
    let mut lines = inventory_lines(&inventory);
    lines.extend(log_lines(system.log(MAX_LOG_ENTRIES).await, entry_line)?);
    Ok(Record { lines, summary: identity_of(&inventory) })
}

async fn read_ipmi(bmc: &ipmi::Bmc) -> Result<Record> {
    let requester = bmc.identity().await?;
    let guid = requester.guid.map(|guid| format!(", GUID {guid}")).unwrap_or_default();
    let message =
        format!("manufacturer {}, product {}{guid}", requester.manufacturer, requester.product);
    let mut lines = vec![
        message.clone(),
        format!("BMC firmware {}, IPMI {}", requester.firmware, requester.ipmi_version),
    ];
    lines.push("IPMI tells nothing of disks".into());
    lines.extend(log_lines(bmc.events(MAX_LOG_ENTRIES).await, event_line)?);
    Ok(Record { lines, summary: message })
}

/// Newest last. A log that the device refuses to return does not fail the record.
fn log_lines<T>(read: Result<Vec<T>>, line: impl Fn(&T) -> String) -> Result<Vec<String>> {
    match read {
        Ok(entries) if entries.is_empty() => Ok(vec!["log: it is empty".into()]),
        Ok(entries) => {
            Ok(entries.iter().rev().map(|entry| format!("log: {}", line(entry))).collect())
        }
        Err(fault) if fault.code.peer_unreachable() => Err(fault),
        Err(fault) => Ok(vec![format!("log: it cannot be read: {}", fault.message)]),
    }
}

fn identity_of(inventory: &Inventory) -> String {
    format!(
        "vendor {}, model {}, serial {}",
        shown(&inventory.vendor),
        shown(&inventory.model),
        shown(&inventory.serial)
    )
}

fn inventory_lines(inventory: &Inventory) -> Vec<String> {
    let mut lines = vec![identity_of(inventory)];
    lines.push(format!("BIOS {}", shown(&inventory.bios_version)));
    for firmware in &inventory.firmware {
        let name = firmware.name.as_deref().unwrap_or(&firmware.id);
        lines.push(format!("firmware {name} {}", firmware.version));
    }
    for disk in &inventory.disks {
        let size = disk.capacity_bytes.map(|bytes| format!(", {} GB", bytes / BYTES_PER_GB));
        lines.push(format!(
            "disk {}: {}, serial {}{}",
            disk.id,
            shown(&disk.model),
            shown(&disk.serial),
            size.unwrap_or_default()
        ));
    }
    for nic in &inventory.nics {
        lines.push(format!("nic {}: {}", nic.id, nic.mac));
    }
    for gpu in &inventory.gpus {
        lines.push(format!("gpu {}: {}, serial {}", gpu.id, shown(&gpu.model), shown(&gpu.serial)));
    }
    lines.extend(inventory.skipped.iter().map(|skipped| format!("not read: {skipped}")));
    lines
}

fn shown(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("unknown")
}

fn entry_line(entry: &LogEntry) -> String {
    let at = entry.at.map_or_else(|| "at an unknown time".into(), moment);
    let severity = entry.severity.as_deref().unwrap_or("-");
    format!("{at} {severity} {}", entry.message)
}

fn event_line(event: &ipmi::Event) -> String {
    let at = event.at_s.map(|seconds| Timestamp::from_millis(i64::from(seconds) * 1_000));
    format!("{} {}", at.map_or_else(|| "at an unknown time".into(), moment), event.describe())
}

fn moment(at: Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_millis() / 1_000)
        .map_or_else(|_| "at an unknown time".into(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redfish::{Disk, Firmware, Nic};
    use model::fault::Fault;
    use model::fault::FaultCode;

    #[test]
    fn the_record_lists_all_identifying_data() {
        let text = |text: &str| Some(text.to_string());
        let inventory = Inventory {
            vendor: text("Acme"),
            serial: text("S1"),
            bios_version: text("2.1"),
            disks: vec![Disk {
                id: "0".into(),
                serial: text("D1"),
                capacity_bytes: Some(960_197_124_096),
                ..Disk::default()
            }],
            nics: vec![Nic { id: "1".into(), mac: "aa:bb:cc:dd:ee:ff".into(), ..Nic::default() }],
            firmware: vec![Firmware {
                id: "BMC".into(),
                version: "7.0".into(),
                ..Firmware::default()
            }],
            skipped: vec!["Memory: 404".into()],
            ..Inventory::default()
        };
        assert_eq!(
            inventory_lines(&inventory),
            [
                "vendor Acme, model unknown, serial S1",
                "BIOS 2.1",
                "firmware BMC 7.0",
                "disk 0: unknown, serial D1, 960 GB",
                "nic 1: aa:bb:cc:dd:ee:ff",
                "not read: Memory: 404",
            ]
        );
    }

    #[test]
    fn a_log_reads_from_the_oldest_to_the_newest() {
        let entry = |seconds: i64, message: &str| LogEntry {
            id: "1".into(),
            log: "Sel".into(),
            at: Some(Timestamp::from_millis(seconds * 1_000)),
            severity: None,
            message: message.into(),
        };
        let newest_first = vec![entry(1_700_000_060, "fan back"), entry(1_700_000_000, "fan lost")];
        let lines = log_lines(Ok(newest_first), entry_line).unwrap();
        assert_eq!(
            lines,
            ["log: 2023-11-14T22:13:20Z - fan lost", "log: 2023-11-14T22:14:20Z - fan back"]
        );
        let no = |code| log_lines(Err(Fault::new(code, "no")), entry_line);
        assert_eq!(no(FaultCode::NotSupported), Ok(vec!["log: it cannot be read: no".into()]));
        assert!(no(FaultCode::BmcUnreachable).is_err());
        let none: Vec<LogEntry> = Vec::new();
        assert_eq!(log_lines(Ok(none), entry_line), Ok(vec!["log: it is empty".into()]));
    }
}
