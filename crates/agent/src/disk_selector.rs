//! Chooses the disk to write to. A wrong choice destroys data, so nothing is guessed: either
//! exactly one disk matches, or none is touched and the error lists the disks.

use crate::console::format_size;
use crate::failure::Failure;
use crate::inventory::DiskInfo;
use wire::deploy::FailureCode;

/// The selector in a machine's `root_disk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskSelector<'a> {
    OnlyDisk,
    Serial(&'a str),
    Wwn(&'a str),
    Path(&'a str),
}

impl<'a> DiskSelector<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        match text.split_once(':') {
            None if text.is_empty() => Some(Self::OnlyDisk),
            Some(("serial", serial)) if !serial.is_empty() => Some(Self::Serial(serial)),
            Some(("wwn", wwn)) if !wwn.is_empty() => Some(Self::Wwn(wwn)),
            Some(("path", path)) if path.starts_with("/dev/") => Some(Self::Path(path)),
            None | Some(_) => None,
        }
    }

    /// A removable disk matches only when it is named.
    fn matches(self, disk: &DiskInfo) -> bool {
        match self {
            Self::OnlyDisk => !disk.removable && !disk.read_only,
            Self::Serial(serial) => disk.serial == serial,
            Self::Wwn(wwn) => {
                !disk.wwn.is_empty() && strip_wwn_prefix(&disk.wwn) == strip_wwn_prefix(wwn)
            }
            Self::Path(path) => disk.path == path,
        }
    }
}

/// The number alone: tools write the same WWN with different prefixes.
fn strip_wwn_prefix(wwn: &str) -> String {
    let lower = wwn.to_ascii_lowercase();
    let prefixes = ["naa.", "eui.", "nvme.", "0x"];
    let stripped = prefixes.iter().find_map(|prefix| lower.strip_prefix(prefix));
    stripped.unwrap_or(&lower).to_owned()
}

pub fn select_disk<'a>(disks: &'a [DiskInfo], root_disk: &str) -> Result<&'a DiskInfo, Failure> {
    let Some(desired) = DiskSelector::parse(root_disk) else {
        let message = format!(
            "root_disk {root_disk:?} is not understood; write serial:…, wwn:… or path:/dev/…, or nothing where there is one disk"
        );
        return Err(Failure::new(FailureCode::DiskMissing, message));
    };
    let fitting: Vec<&DiskInfo> = disks.iter().filter(|disk| desired.matches(disk)).collect();
    match (fitting.as_slice(), desired) {
        ([disk], _) if disk.read_only => {
            let message = format!("{} is read-only; seen: {}", disk.path, describe_disks(disks));
            Err(Failure::new(FailureCode::DiskMissing, message))
        }
        ([disk], _) => Ok(disk),
        ([], DiskSelector::OnlyDisk) => {
            let message =
                format!("the machine has no disk to write to; seen: {}", describe_disks(disks));
            Err(Failure::new(FailureCode::DiskMissing, message))
        }
        ([], DiskSelector::Serial(_) | DiskSelector::Wwn(_) | DiskSelector::Path(_)) => {
            let message = format!("no disk is {root_disk}; seen: {}", describe_disks(disks));
            Err(Failure::new(FailureCode::DiskMissing, message))
        }
        ([..], DiskSelector::OnlyDisk) => {
            let message = format!(
                "the machine has {} disks: {}; say which one with root_disk, such as serial:… or path:…",
                fitting.len(),
                describe_disks(disks)
            );
            Err(Failure::new(FailureCode::DiskAmbiguous, message))
        }
        ([..], DiskSelector::Serial(_) | DiskSelector::Wwn(_) | DiskSelector::Path(_)) => {
            let message =
                format!("{} disks are {root_disk}; seen: {}", fitting.len(), describe_disks(disks));
            Err(Failure::new(FailureCode::DiskAmbiguous, message))
        }
    }
}

/// The list of disks, for the operator who has to choose.
fn describe_disks(disks: &[DiskInfo]) -> String {
    const MAX_SHOWN: usize = 24;
    if disks.is_empty() {
        return "none".into();
    }
    let one = |disk: &DiskInfo| {
        let serial = if disk.serial.is_empty() {
            "no serial".into()
        } else {
            format!("serial {}", disk.serial)
        };
        let wwn = if disk.wwn.is_empty() { String::new() } else { format!(", wwn {}", disk.wwn) };
        let removable = if disk.removable { ", removable" } else { "" };
        let read_only = if disk.read_only { ", read-only" } else { "" };
        format!("{} ({}, {serial}{wwn}{removable}{read_only})", disk.path, format_size(disk.size))
    };
    let mut shown: Vec<String> = disks.iter().take(MAX_SHOWN).map(one).collect();
    if disks.len() > MAX_SHOWN {
        shown.push(format!("and {} more", disks.len() - MAX_SHOWN));
    }
    shown.join(", ")
}

/// Refuses an image that does not fit, before anything is written.
pub fn check_disk_size(disk: &DiskInfo, needed: u64, what: &str) -> Result<(), Failure> {
    if needed <= disk.size {
        return Ok(());
    }
    let message = format!(
        "{what} needs {} ({needed} bytes), and {} has {} ({} bytes); choose a smaller image or another root_disk",
        format_size(needed),
        disk.path,
        format_size(disk.size),
        disk.size
    );
    Err(Failure::new(FailureCode::DiskTooSmall, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, serial: &str, wwn: &str) -> DiskInfo {
        DiskInfo {
            name: name.into(),
            path: format!("/dev/{name}"),
            size: 8 << 30,
            serial: serial.into(),
            wwn: wwn.into(),
            ..DiskInfo::default()
        }
    }

    #[test]
    fn exactly_one_disk_must_match() {
        let vda = disk("vda", "A", "naa.5000C500A1B2C3D4");
        let vdb = disk("vdb", "B", "");
        let twin = disk("vdc", "A", "");
        let stick = DiskInfo { removable: true, ..disk("sdx", "S", "") };
        let locked = DiskInfo { read_only: true, ..disk("sdy", "L", "") };
        use FailureCode::{DiskAmbiguous, DiskMissing};
        type Case<'a> = (&'a [&'a DiskInfo], &'a str, Result<&'a str, (FailureCode, &'a str)>);
        let table: [Case; 19] = [
            (&[&vda], "", Ok("vda")),
            (&[&vda, &stick, &locked], "", Ok("vda")),
            (&[], "", Err((DiskMissing, "seen: none"))),
            (&[&stick, &locked], "", Err((DiskMissing, "/dev/sdx (8.0 GiB, serial S, removable)"))),
            (&[&vda, &vdb], "", Err((DiskAmbiguous, "/dev/vdb (8.0 GiB, serial B)"))),
            (&[&vda, &vdb], "serial:B", Ok("vdb")),
            (&[&vda, &vdb], "serial:b", Err((DiskMissing, "no disk is serial:b"))),
            (&[&vda, &twin], "serial:A", Err((DiskAmbiguous, "2 disks are serial:A"))),
            (&[&vda, &vdb], "wwn:naa.5000c500a1b2c3d4", Ok("vda")),
            (&[&vda, &vdb], "wwn:0x5000c500a1b2c3d4", Ok("vda")),
            (&[&vda, &vdb], "wwn:5000", Err((DiskMissing, "no disk is wwn:5000"))),
            (&[&vda, &vdb], "path:/dev/vdb", Ok("vdb")),
            (&[&vda, &vdb], "path:/dev/vdz", Err((DiskMissing, "no disk is path:/dev/vdz"))),
            (&[&vda, &stick], "serial:S", Ok("sdx")),
            (&[&vda, &locked], "serial:L", Err((DiskMissing, "/dev/sdy is read-only"))),
            (&[&vda], "path:vda", Err((DiskMissing, "not understood"))),
            (&[&vda], "serial:", Err((DiskMissing, "not understood"))),
            (&[&vda], "wwn:", Err((DiskMissing, "not understood"))),
            (&[&vda], "vda", Err((DiskMissing, "not understood"))),
        ];
        for (disks, desired, expected) in table {
            let disks: Vec<DiskInfo> = disks.iter().map(|disk| (*disk).clone()).collect();
            match (select_disk(&disks, desired), expected) {
                (Ok(found), Ok(name)) => assert_eq!(found.name, name, "{desired}"),
                (Err(failure), Err((code, words))) => {
                    assert_eq!(failure.code, code, "{desired}: {}", failure.message);
                    assert!(failure.message.contains(words), "{desired}: {}", failure.message);
                }
                (found, _) => panic!("{desired}: {found:?}"),
            }
        }
    }

    #[test]
    fn too_large_images_are_refused_with_both_sizes() {
        let vda = disk("vda", "", "");
        assert_eq!(check_disk_size(&vda, 8 << 30, "the image"), Ok(()));
        let failure = check_disk_size(&vda, (8 << 30) + 1, "the image").unwrap_err();
        assert_eq!(failure.code, FailureCode::DiskTooSmall);
        for part in ["8589934593", "8589934592", "/dev/vda"] {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }
}
