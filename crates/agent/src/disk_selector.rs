//! Chooses the disk to write to. A wrong choice destroys data, so nothing is guessed: either
//! exactly one disk matches, or none is touched and the error lists the disks.

use crate::console::format_size;
use crate::failure::Failure;
use crate::inventory::DiskInfo;
use wire::deploy::DeploymentFailure;

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
        return Err(Failure::new(DeploymentFailure::DiskMissing, message));
    };
    let fitting: Vec<&DiskInfo> = disks.iter().filter(|disk| desired.matches(disk)).collect();
    match (fitting.as_slice(), desired) {
        ([disk], _) if disk.read_only => {
            let message = format!("{} is read-only; seen: {}", disk.path, describe_disks(disks));
            Err(Failure::new(DeploymentFailure::DiskMissing, message))
        }
        ([disk], _) => Ok(disk),
        ([], DiskSelector::OnlyDisk) => {
            let message =
                format!("the machine has no disk to write to; seen: {}", describe_disks(disks));
            Err(Failure::new(DeploymentFailure::DiskMissing, message))
        }
        ([], DiskSelector::Serial(_) | DiskSelector::Wwn(_) | DiskSelector::Path(_)) => {
            let message = format!("no disk is {root_disk}; seen: {}", describe_disks(disks));
            Err(Failure::new(DeploymentFailure::DiskMissing, message))
        }
        ([..], DiskSelector::OnlyDisk) => {
            let message = format!(
                "the machine has {} disks: {}; say which one with root_disk, such as serial:… or path:…",
                fitting.len(),
                describe_disks(disks)
            );
            Err(Failure::new(DeploymentFailure::DiskAmbiguous, message))
        }
        ([..], DiskSelector::Serial(_) | DiskSelector::Wwn(_) | DiskSelector::Path(_)) => {
            let message =
                format!("{} disks are {root_disk}; seen: {}", fitting.len(), describe_disks(disks));
            Err(Failure::new(DeploymentFailure::DiskAmbiguous, message))
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
    Err(Failure::new(DeploymentFailure::DiskTooSmall, message))
}
