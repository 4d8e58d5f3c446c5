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

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, bytes: impl AsRef<[u8]>) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn only_physical_disks_are_listed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "sys/block/vda/size", "16777216\n");
        write(root, "sys/block/vda/serial", "root-disk\n");
        write(root, "sys/block/vda/removable", "0\n");
        write(root, "sys/block/sda/size", "2048\n");
        write(root, "sys/block/sda/device/vpd_pg80", b"\x00\x80\x00\x08  ABC123\0");
        write(root, "sys/block/sda/device/wwid", "naa.5000c500a1b2c3d4\n");
        write(root, "sys/block/sda/device/model", "ST4000NM0035    \n");
        write(root, "sys/block/sda/removable", "1\n");
        write(root, "sys/block/sda/ro", "1\n");
        write(root, "sys/block/nvme0n1/size", "4096\n");
        write(root, "sys/block/nvme0n1/wwid", "eui.0025388b71b0d2a5\n");
        write(root, "sys/block/nvme0n1/device/serial", "S4EVNX0N  \n");
        write(root, "sys/block/nvme0c0n1/size", "4096\n");
        write(root, "sys/block/nvme0c0n1/hidden", "1\n");
        write(root, "sys/block/sdb/size", "0\n");
        for none in ["loop0", "ram0", "zram0", "sr0", "fd0", "dm-0", "md127", "nbd0"] {
            write(root, &format!("sys/block/{none}/size"), "4096\n");
        }
        let found = list_disks(root);
        let names: Vec<&str> = found.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(names, ["sda", "vda", "nvme0n1"]);
        assert_eq!(
            found[0],
            DiskInfo {
                name: "sda".into(),
                path: "/dev/sda".into(),
                size: 1024 * 1024,
                serial: "ABC123".into(),
                wwn: "naa.5000c500a1b2c3d4".into(),
                model: "ST4000NM0035".into(),
                removable: true,
                read_only: true,
            }
        );
        assert_eq!((found[1].size, found[1].serial.as_str()), (8 << 30, "root-disk"));
        assert_eq!(
            (found[2].serial.as_str(), found[2].wwn.as_str()),
            ("S4EVNX0N", "eui.0025388b71b0d2a5")
        );
    }

    #[test]
    fn mac_addresses_are_listed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (card, kind, mac) in [
            ("eth1", "1", "AA:bb:cc:dd:ee:01"),
            ("eth0", "1", "aa:bb:cc:dd:ee:00"),
            ("lo", "772", "00:00:00:00:00:00"),
            ("dummy0", "1", "00:00:00:00:00:00"),
            ("ib0", "32", "80:00:02:08"),
        ] {
            write(root, &format!("sys/class/net/{card}/type"), format!("{kind}\n"));
            write(root, &format!("sys/class/net/{card}/address"), format!("{mac}\n"));
        }
        assert_eq!(list_macs(root), ["aa:bb:cc:dd:ee:00", "aa:bb:cc:dd:ee:01"]);
        assert!(list_macs(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn partitions_are_sorted() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (name, number) in [("vda10", "10"), ("vda2", "2"), ("vda1", "1")] {
            write(root, &format!("sys/block/vda/{name}/partition"), number);
        }
        write(root, "sys/block/vda/queue/rotational", "1");
        let expected = ["vda1", "vda2", "vda10"].map(|name| root.join("dev").join(name));
        assert_eq!(list_partitions(root, "vda"), expected);
    }
}
