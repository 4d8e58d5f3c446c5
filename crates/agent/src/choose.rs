//! Which disk is written to. A wrong guess here destroys somebody's data, so nothing is guessed: one disk fits, or none is touched and
//! what was seen is said.

use crate::console::spoken_size;
use crate::failure::Failure;
use crate::inventory::Disk;
use wire::deploy::FailureCode;

/// What a machine's `root_disk` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted<'a> {
    TheOnlyOne,
    Serial(&'a str),
    Wwn(&'a str),
    Path(&'a str),
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        match text.split_once(':') {
            None if text.is_empty() => Some(Self::TheOnlyOne),
            Some(("serial", serial)) if !serial.is_empty() => Some(Self::Serial(serial)),
            Some(("wwn", wwn)) if !wwn.is_empty() => Some(Self::Wwn(wwn)),
            Some(("path", path)) if path.starts_with("/dev/") => Some(Self::Path(path)),
            None | Some(_) => None,
        }
    }

    /// A disk that is named may be removable; one that is found by itself may not.
    fn fits(self, disk: &Disk) -> bool {
        match self {
            Self::TheOnlyOne => !disk.removable && !disk.read_only,
            Self::Serial(serial) => disk.serial == serial,
            Self::Wwn(wwn) => !disk.wwn.is_empty() && bare(&disk.wwn) == bare(wwn),
            Self::Path(path) => disk.path == path,
        }
    }
}

/// The number alone: tools write the same one with different words before it.
fn bare(wwn: &str) -> String {
    let lower = wwn.to_ascii_lowercase();
    let prefixes = ["naa.", "eui.", "nvme.", "0x"];
    let stripped = prefixes.iter().find_map(|prefix| lower.strip_prefix(prefix));
    stripped.unwrap_or(&lower).to_owned()
}

pub fn choose<'a>(disks: &'a [Disk], root_disk: &str) -> Result<&'a Disk, Failure> {
    let Some(wanted) = Wanted::parse(root_disk) else {
        let said = format!(
            "root_disk {root_disk:?} is not understood; write serial:…, wwn:… or path:/dev/…, or nothing where there is one disk"
        );
        return Err(Failure::new(FailureCode::DiskMissing, said));
    };
    let fitting: Vec<&Disk> = disks.iter().filter(|disk| wanted.fits(disk)).collect();
    match (fitting.as_slice(), wanted) {
        ([disk], _) if disk.read_only => {
            let said = format!("{} is read-only; seen: {}", disk.path, seen(disks));
            Err(Failure::new(FailureCode::DiskMissing, said))
        }
        ([disk], _) => Ok(disk),
        ([], Wanted::TheOnlyOne) => {
            let said = format!("the machine has no disk to write to; seen: {}", seen(disks));
            Err(Failure::new(FailureCode::DiskMissing, said))
        }
        ([], Wanted::Serial(_) | Wanted::Wwn(_) | Wanted::Path(_)) => {
            let said = format!("no disk is {root_disk}; seen: {}", seen(disks));
            Err(Failure::new(FailureCode::DiskMissing, said))
        }
        ([..], Wanted::TheOnlyOne) => {
            let said = format!(
                "the machine has {} disks: {}; say which one with root_disk, such as serial:… or path:…",
                fitting.len(),
                seen(disks)
            );
            Err(Failure::new(FailureCode::DiskAmbiguous, said))
        }
        ([..], Wanted::Serial(_) | Wanted::Wwn(_) | Wanted::Path(_)) => {
            let said = format!("{} disks are {root_disk}; seen: {}", fitting.len(), seen(disks));
            Err(Failure::new(FailureCode::DiskAmbiguous, said))
        }
    }
}

/// The disks, for a person who has to choose.
fn seen(disks: &[Disk]) -> String {
    const MAX_SHOWN: usize = 24;
    if disks.is_empty() {
        return "none".into();
    }
    let one = |disk: &Disk| {
        let serial = if disk.serial.is_empty() {
            "no serial".into()
        } else {
            format!("serial {}", disk.serial)
        };
        let wwn = if disk.wwn.is_empty() { String::new() } else { format!(", wwn {}", disk.wwn) };
        let removable = if disk.removable { ", removable" } else { "" };
        let read_only = if disk.read_only { ", read-only" } else { "" };
        format!("{} ({}, {serial}{wwn}{removable}{read_only})", disk.path, spoken_size(disk.size))
    };
    let mut shown: Vec<String> = disks.iter().take(MAX_SHOWN).map(one).collect();
    if disks.len() > MAX_SHOWN {
        shown.push(format!("and {} more", disks.len() - MAX_SHOWN));
    }
    shown.join(", ")
}

/// Refuses an image that does not fit, before anything is written.
pub fn check_room(disk: &Disk, needed: u64, what: &str) -> Result<(), Failure> {
    if needed <= disk.size {
        return Ok(());
    }
    let said = format!(
        "{what} needs {} ({needed} bytes), and {} has {} ({} bytes); choose a smaller image or another root_disk",
        spoken_size(needed),
        disk.path,
        spoken_size(disk.size),
        disk.size
    );
    Err(Failure::new(FailureCode::DiskTooSmall, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, serial: &str, wwn: &str) -> Disk {
        Disk {
            name: name.into(),
            path: format!("/dev/{name}"),
            size: 8 << 30,
            serial: serial.into(),
            wwn: wwn.into(),
            ..Disk::default()
        }
    }

    #[test]
    fn one_disk_fits_or_none_is_touched() {
        let vda = disk("vda", "A", "naa.5000C500A1B2C3D4");
        let vdb = disk("vdb", "B", "");
        let twin = disk("vdc", "A", "");
        let stick = Disk { removable: true, ..disk("sdx", "S", "") };
        let locked = Disk { read_only: true, ..disk("sdy", "L", "") };
        use FailureCode::{DiskAmbiguous, DiskMissing};
        type Case<'a> = (&'a [&'a Disk], &'a str, Result<&'a str, (FailureCode, &'a str)>);
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
        for (disks, wanted, expected) in table {
            let disks: Vec<Disk> = disks.iter().map(|disk| (*disk).clone()).collect();
            match (choose(&disks, wanted), expected) {
                (Ok(found), Ok(name)) => assert_eq!(found.name, name, "{wanted}"),
                (Err(failure), Err((code, words))) => {
                    assert_eq!(failure.code, code, "{wanted}: {}", failure.said);
                    assert!(failure.said.contains(words), "{wanted}: {}", failure.said);
                }
                (found, _) => panic!("{wanted}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_sizes() {
        let vda = disk("vda", "", "");
        assert_eq!(check_room(&vda, 8 << 30, "the image"), Ok(()));
        let failure = check_room(&vda, (8 << 30) + 1, "the image").unwrap_err();
        assert_eq!(failure.code, FailureCode::DiskTooSmall);
        for part in ["8589934593", "8589934592", "/dev/vda"] {
            assert!(failure.said.contains(part), "{}", failure.said);
        }
    }
}
