//! The hardware inventory of a machine.
//!
//! Every list is read as far as possible: a resource that is missing or unreadable is listed in
//! `skipped`. GPUs are processors of the System or of a board that the BMC shows as a System of its
//! own. A value that the device does not report stays empty.

use super::client::{MAX_MEMBERS, Skipped};
use super::decode::{JsonNode, Resource};
use super::firmware::Firmware;
use super::system::System;
use model::fault::Result;

const MIB_PER_GIB: f64 = 1024.0;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub sku: Option<String>,
    pub uuid: Option<String>,
    pub bios_version: Option<String>,
    /// The firmware of the BMC itself.
    pub bmc_version: Option<String>,
    pub cpus: Vec<Cpu>,
    /// The total that the System reports, otherwise the sum of its modules.
    pub memory_mib: Option<u64>,
    pub memory: Vec<Memory>,
    pub disks: Vec<Disk>,
    pub nics: Vec<Nic>,
    pub gpus: Vec<Gpu>,
    pub firmware: Vec<Firmware>,
    /// The resources that could not be read, each with the reason.
    pub skipped: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpu {
    pub id: String,
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub cores: Option<u64>,
    pub threads: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    pub id: String,
    pub capacity_mib: u64,
    pub kind: Option<String>,
    pub serial: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    pub id: String,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub capacity_bytes: Option<u64>,
    /// `SSD` or `HDD`, if the device shows it.
    pub media: Option<String>,
    pub protocol: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nic {
    pub id: String,
    /// Lower case, with colons.
    pub mac: String,
    pub link_up: Option<bool>,
    pub speed_mbps: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    pub id: String,
    pub vendor: Option<String>,
    pub model: Option<String>,
    pub serial: Option<String>,
}

impl System {
    pub async fn inventory(&self) -> Result<Inventory> {
        let system = self.read().await?;
        let part = system.root();
        let mut skipped = Skipped::new();
        let processors = self.processors(&system, &mut skipped).await?;
        let memory: Vec<Memory> = self
            .members_of(part, "Memory", &mut skipped)
            .await?
            .iter()
            .filter_map(memory)
            .collect();
        let nics = self.nics(part, &mut skipped).await?;
        let summed = part.get("MemorySummary").number("TotalSystemMemoryGiB");
        let modules: u64 = memory.iter().map(|module| module.capacity_mib).sum();
        Ok(Inventory {
            vendor: part.text("Manufacturer"),
            model: part.text("Model"),
            serial: part.text("SerialNumber"),
            sku: part.text("SKU"),
            uuid: part.text("UUID"),
            bios_version: part.text("BiosVersion"),
            bmc_version: self.manager(part, &mut skipped).await?.map(|(version, _)| version),
            cpus: processors.iter().filter(|one| is_kind(one, "CPU")).map(cpu).collect(),
            gpus: processors.iter().filter(|one| is_kind(one, "GPU")).map(gpu).collect(),
            memory_mib: summed
                .map(|gib| (gib * MIB_PER_GIB) as u64)
                .or(Some(modules))
                .filter(|mib| *mib > 0),
            memory,
            disks: self.disks(part, &mut skipped).await?,
            nics,
            firmware: self.list_firmware(&mut skipped).await?,
            skipped,
        })
    }

    /// The System's processors, and those of the machine's boards that are not CPUs.
    async fn processors(&self, system: &Resource, skipped: &mut Skipped) -> Result<Vec<Resource>> {
        let mut all = self.members_of(system.root(), "Processors", skipped).await?;
        for board in self.boards.iter().filter(|board| **board != system.path) {
            if let Some(board) = self.link.find_or_skip(board, skipped).await? {
                let more = self.members_of(board.root(), "Processors", skipped).await?;
                all.extend(more.into_iter().filter(|one| !is_kind(one, "CPU")));
            }
        }
        Ok(all)
    }

    pub(super) async fn members_of(
        &self,
        part: JsonNode<'_>,
        name: &str,
        skipped: &mut Skipped,
    ) -> Result<Vec<Resource>> {
        match part.link(name) {
            Some(path) => self.link.members(&path, MAX_MEMBERS, skipped).await,
            None => Ok(Vec::new()),
        }
    }

    /// The drives of every storage controller; on old devices those of `SimpleStorage`.
    async fn disks(&self, part: JsonNode<'_>, skipped: &mut Skipped) -> Result<Vec<Disk>> {
        let mut disks: Vec<Disk> = Vec::new();
        let mut unique: Vec<String> = Vec::new();
        for storage in self.members_of(part, "Storage", skipped).await? {
            for drive in
                storage.root().list("Drives").filter_map(JsonNode::as_link).take(MAX_MEMBERS)
            {
                // A drive behind two controllers is listed twice.
                if unique.contains(&drive) {
                    continue;
                }
                disks
                    .extend(self.link.find_or_skip(&drive, skipped).await?.as_ref().and_then(disk));
                unique.push(drive);
            }
        }
        if disks.is_empty() {
            for storage in self.members_of(part, "SimpleStorage", skipped).await? {
                disks.extend(storage.root().list("Devices").filter_map(simple_disk));
            }
        }
        Ok(disks)
    }

    pub(super) async fn nics(&self, part: JsonNode<'_>, skipped: &mut Skipped) -> Result<Vec<Nic>> {
        let listed = self.members_of(part, "EthernetInterfaces", skipped).await?;
        let nics: Vec<Nic> = listed.iter().filter_map(|nic| self.nic(nic)).collect();
        if nics.is_empty() { self.adapters(part, skipped).await } else { Ok(nics) }
    }

    fn nic(&self, doc: &Resource) -> Option<Nic> {
        let part = doc.root();
        // The other address may be that of a bond.
        let fields = ["PermanentMACAddress", "MACAddress"];
        let mac = fields.iter().find_map(|field| self.quirks.mac(&part.text(field)?))?;
        Some(Nic {
            id: name(doc),
            mac,
            link_up: part.text("LinkStatus").map(|status| status == "LinkUp"),
            speed_mbps: part.count("SpeedMbps").filter(|speed| *speed > 0),
        })
    }
}

pub(super) fn name(doc: &Resource) -> String {
    doc.root().text("Id").unwrap_or_else(|| doc.name().to_owned())
}

/// True if a processor is of this type. Without a type it is a CPU; an empty socket is none.
fn is_kind(doc: &Resource, kind: &str) -> bool {
    let part = doc.root();
    let absent = part.get("Status").text("State").as_deref() == Some("Absent");
    !absent && part.text("ProcessorType").as_deref().unwrap_or("CPU") == kind
}

fn cpu(doc: &Resource) -> Cpu {
    let part = doc.root();
    Cpu {
        id: name(doc),
        vendor: part.text("Manufacturer"),
        model: part.text("Model"),
        cores: part.count("TotalCores"),
        threads: part.count("TotalThreads"),
    }
}

fn gpu(doc: &Resource) -> Gpu {
    let part = doc.root();
    Gpu {
        id: name(doc),
        vendor: part.text("Manufacturer"),
        model: part.text("Model"),
        serial: part.text("SerialNumber"),
    }
}

/// None for an empty slot.
fn memory(doc: &Resource) -> Option<Memory> {
    let part = doc.root();
    let capacity_mib = part.count("CapacityMiB").filter(|mib| *mib > 0)?;
    Some(Memory {
        id: name(doc),
        capacity_mib,
        kind: part.text("MemoryDeviceType"),
        serial: part.text("SerialNumber"),
    })
}

/// None for an empty bay.
fn disk(doc: &Resource) -> Option<Disk> {
    let part = doc.root();
    let disk = Disk {
        id: name(doc),
        model: part.text("Model"),
        serial: part.text("SerialNumber"),
        capacity_bytes: part.count("CapacityBytes").filter(|bytes| *bytes > 0),
        media: part.text("MediaType"),
        protocol: part.text("Protocol"),
    };
    let absent = part.get("Status").text("State").as_deref() == Some("Absent");
    let anything = disk.model.is_some() || disk.serial.is_some() || disk.capacity_bytes.is_some();
    (!absent && anything).then_some(disk)
}

fn simple_disk(part: JsonNode<'_>) -> Option<Disk> {
    let id = part.text("Name")?;
    let capacity_bytes = part.count("CapacityBytes").filter(|bytes| *bytes > 0);
    let model = part.text("Model");
    let anything = capacity_bytes.is_some() || model.is_some();
    anything.then(|| Disk { id, model, capacity_bytes, ..Disk::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn doc(value: Value) -> Resource {
        Resource { path: "/redfish/v1/Things/7".into(), etag: None, value }
    }

    #[test]
    fn empty_slots_are_not_counted() {
        assert_eq!(memory(&doc(json!({"CapacityMiB": 0}))), None);
        assert_eq!(memory(&doc(json!({"CapacityMiB": null}))), None);
        assert_eq!(memory(&doc(json!({"CapacityMiB": "1024"}))).unwrap().capacity_mib, 1024);
        assert_eq!(disk(&doc(json!({"Id": "Bay 3", "CapacityBytes": 0}))), None);
        assert_eq!(disk(&doc(json!({"Model": "X", "Status": {"State": "Absent"}}))), None);
        assert_eq!(disk(&doc(json!({"Model": "X"}))).unwrap().id, "7");
        assert_eq!(simple_disk(JsonNode(&json!({"Name": "slot"}))), None);
    }

    #[test]
    fn processors_are_told_apart() {
        for (value, cpu, gpu) in [
            (json!({}), true, false),
            (json!({"ProcessorType": "CPU"}), true, false),
            (json!({"ProcessorType": "GPU"}), false, true),
            (json!({"ProcessorType": "FPGA"}), false, false),
            (json!({"ProcessorType": "CPU", "Status": {"State": "Absent"}}), false, false),
        ] {
            let doc = doc(value);
            assert_eq!((is_kind(&doc, "CPU"), is_kind(&doc, "GPU")), (cpu, gpu), "{doc:?}");
        }
    }
}
