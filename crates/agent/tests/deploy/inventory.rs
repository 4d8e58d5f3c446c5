//! Tests of the module `inventory` alone.

use agent::inventory::*;
use std::fs;
use std::path::Path;

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
