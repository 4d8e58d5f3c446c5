//! The machine's network interfaces and disks, from `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

/// Name prefixes of block devices that are not physical disks: memory, loop devices, devices made
/// of other disks, optical drives.
const NON_DISK_PREFIXES: [&str; 10] =
    ["loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd", "mtdblock", "drbd"];
/// The limit of directory entries that are read.
const MAX_DEVICES: usize = 4_096;
const SECTOR_BYTES: u64 = 512;
const ETHERNET: &str = "1";
const NO_MAC: &str = "00:00:00:00:00:00";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// The kernel's name: `vda`.
    pub name: String,
    /// `/dev/vda`
    pub path: String,
    pub size: u64,
    pub serial: String,
    pub wwn: String,
    pub model: String,
    pub removable: bool,
    pub read_only: bool,
}

/// The MAC addresses of all Ethernet interfaces, sorted.
pub fn list_macs(root: &Path) -> Vec<String> {
    mac_addresses(&list_entries(&root.join("sys/class/net")))
}

/// The MAC addresses of physical interfaces, without bridges and the like, which come and go with
/// containers; those of all interfaces if no physical one exists.
pub fn physical_macs(root: &Path) -> Vec<String> {
    let cards = list_entries(&root.join("sys/class/net"));
    let own: Vec<PathBuf> =
        cards.iter().filter(|card| card.join("device").exists()).cloned().collect();
    match mac_addresses(&own) {
        none if none.is_empty() => mac_addresses(&cards),
        own => own,
    }
}

fn mac_addresses(cards: &[PathBuf]) -> Vec<String> {
    let mut macs: Vec<String> = cards
        .iter()
        .filter(|card| read_line(&card.join("type")) == ETHERNET)
        .map(|card| read_line(&card.join("address")).to_ascii_lowercase())
        .filter(|mac| !mac.is_empty() && mac != NO_MAC)
        .collect();
    macs.sort();
    macs.dedup();
    macs
}

/// The disks, sorted by name.
pub fn list_disks(root: &Path) -> Vec<DiskInfo> {
    let mut disks: Vec<DiskInfo> = list_entries(&root.join("sys/block"))
        .iter()
        .filter_map(|device| read_disk(device))
        .collect();
    disks.sort_by(|one, other| (one.name.len(), &one.name).cmp(&(other.name.len(), &other.name)));
    disks
}

fn read_disk(device: &Path) -> Option<DiskInfo> {
    let name = device.file_name()?.to_str()?.to_owned();
    // The paths of a multipath NVMe disk are hidden; the disk itself has its own name.
    let hidden = read_line(&device.join("hidden")) == "1";
    let size = read_line(&device.join("size")).parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)?;
    if hidden || size == 0 || NON_DISK_PREFIXES.iter().any(|begin| name.starts_with(begin)) {
        return None;
    }
    Some(DiskInfo {
        path: format!("/dev/{name}"),
        size,
        serial: read_first(device, &["serial", "device/serial"])
            .or_else(|| read_serial_page(&device.join("device/vpd_pg80")))
            .unwrap_or_default(),
        wwn: read_first(device, &["wwid", "device/wwid"]).unwrap_or_default(),
        model: read_first(device, &["device/model"]).unwrap_or_default(),
        removable: read_line(&device.join("removable")) == "1",
        read_only: read_line(&device.join("ro")) == "1",
        name,
    })
}

/// The device files of a disk's partitions, in order.
pub fn list_partitions(root: &Path, disk: &str) -> Vec<PathBuf> {
    let device = root.join("sys/block").join(disk);
    let mut found: Vec<(u32, PathBuf)> = list_entries(&device)
        .iter()
        .filter_map(|entry| {
            let number = read_line(&entry.join("partition")).parse().ok()?;
            Some((number, root.join("dev").join(entry.file_name()?)))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn list_entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).take(MAX_DEVICES).collect()
}

/// The only line of a small file; empty if it cannot be read.
pub fn read_line(file: &Path) -> String {
    fs::read(file).map(|bytes| clean_text(&bytes)).unwrap_or_default()
}

fn read_first(device: &Path, files: &[&str]) -> Option<String> {
    files.iter().map(|file| read_line(&device.join(file))).find(|text| !text.is_empty())
}

/// The serial number page of a SCSI or ATA disk: a header of four bytes, then the number.
fn read_serial_page(file: &Path) -> Option<String> {
    let page = fs::read(file).ok()?;
    Some(clean_text(page.get(4..)?)).filter(|serial| !serial.is_empty())
}

/// Vendors pad with blanks and NUL bytes. Control characters are removed for display.
fn clean_text(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
    text.trim().to_owned()
}
