//! Detects the content of a partition by the signatures in its first blocks. Only known file
//! systems are mounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The distance of the last signature from the beginning, rounded up.
const SIGNATURE_AREA_BYTES: usize = 68 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
    Vfat,
}

impl FileSystem {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
        }
    }

    /// The mount options to try, in order, to find the root: distributions use these btrfs
    /// subvolumes.
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Btrfs => &["", "subvol=@", "subvol=root", "subvol=@rootfs"],
            Self::Ext4 | Self::Xfs | Self::Vfat => &[""],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionContent {
    Mountable(FileSystem),
    /// A known format that cannot be mounted.
    Unmountable(&'static str),
    Unknown,
}

impl PartitionContent {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mountable(kind) => kind.as_str(),
            Self::Unmountable(name) => name,
            Self::Unknown => "nothing that is known",
        }
    }
}

/// A signature: its offset, its bytes, and the content that it identifies.
const SIGNATURES: [(usize, &[u8], PartitionContent); 11] = [
    (1024 + 56, &[0x53, 0xEF], PartitionContent::Mountable(FileSystem::Ext4)),
    (0, b"XFSB", PartitionContent::Mountable(FileSystem::Xfs)),
    (64 * 1024 + 64, b"_BHRfS_M", PartitionContent::Mountable(FileSystem::Btrfs)),
    (82, b"FAT32   ", PartitionContent::Mountable(FileSystem::Vfat)),
    (54, b"FAT16   ", PartitionContent::Mountable(FileSystem::Vfat)),
    (54, b"FAT12   ", PartitionContent::Mountable(FileSystem::Vfat)),
    (512, b"LABELONE", PartitionContent::Unmountable("LVM")),
    (0, b"LUKS\xBA\xBE", PartitionContent::Unmountable("an encrypted volume")),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], PartitionContent::Unmountable("a part of a RAID")),
    (4086, b"SWAPSPACE2", PartitionContent::Unmountable("swap space")),
    (3, b"NTFS    ", PartitionContent::Unmountable("NTFS")),
];

pub fn detect_content(device: &Path) -> io::Result<PartitionContent> {
    let file = File::open(device)?;
    let mut start = vec![0; SIGNATURE_AREA_BYTES];
    let mut full = 0;
    while full < start.len() {
        match file.read_at(&mut start[full..], full as u64)? {
            0 => break,
            count => full += count,
        }
    }
    Ok(match_signature(&start[..full]))
}

fn match_signature(start: &[u8]) -> PartitionContent {
    let stands = |at: usize, mark: &[u8]| start.get(at..at + mark.len()) == Some(mark);
    let found = SIGNATURES.iter().find(|(at, mark, _)| stands(*at, mark));
    found.map_or(PartitionContent::Unknown, |(_, _, content)| *content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn signatures_are_recognised_at_their_offsets() {
        for (at, mark, content) in SIGNATURES {
            let mut start = vec![0; SIGNATURE_AREA_BYTES];
            start[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(match_signature(&start), content);
            start[at] ^= 1;
            assert_eq!(match_signature(&start), PartitionContent::Unknown);
        }
        assert_eq!(match_signature(b"short"), PartitionContent::Unknown);
    }

    /// The tools of the real file systems write these signatures; skipped where a tool is missing.
    #[test]
    fn what_mkfs_makes_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        for (tool, arguments, kind) in [
            ("mkfs.ext4", &["-q", "-F"][..], FileSystem::Ext4),
            ("mkfs.xfs", &["-q", "-f"], FileSystem::Xfs),
            ("mkfs.btrfs", &["-q", "-f"], FileSystem::Btrfs),
            ("mkfs.vfat", &["-F", "32"], FileSystem::Vfat),
        ] {
            let path = folder.path().join(tool);
            File::create(&path).unwrap().set_len(320 << 20).unwrap();
            match Command::new(tool).args(arguments).arg(&path).output() {
                Ok(output) if output.status.success() => {
                    assert_eq!(detect_content(&path).unwrap(), PartitionContent::Mountable(kind));
                }
                Ok(output) => panic!("{tool}: {}", String::from_utf8_lossy(&output.stderr)),
                Err(_) => eprintln!("skipped: there is no {tool} here"),
            }
        }
    }
}
