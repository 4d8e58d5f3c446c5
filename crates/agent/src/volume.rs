//! Detects the content of a partition by the signatures in its first blocks. Only known file
//! systems are mounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The distance of the last signature from the beginning, rounded up.
const LOOK_BYTES: usize = 68 * 1024;

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
pub enum Content {
    Files(FileSystem),
    /// A known format that cannot be mounted.
    Closed(&'static str),
    Unknown,
}

impl Content {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files(kind) => kind.as_str(),
            Self::Closed(name) => name,
            Self::Unknown => "nothing that is known",
        }
    }
}

/// A signature: its offset, its bytes, and the content that it identifies.
const MARKS: [(usize, &[u8], Content); 11] = [
    (1024 + 56, &[0x53, 0xEF], Content::Files(FileSystem::Ext4)),
    (0, b"XFSB", Content::Files(FileSystem::Xfs)),
    (64 * 1024 + 64, b"_BHRfS_M", Content::Files(FileSystem::Btrfs)),
    (82, b"FAT32   ", Content::Files(FileSystem::Vfat)),
    (54, b"FAT16   ", Content::Files(FileSystem::Vfat)),
    (54, b"FAT12   ", Content::Files(FileSystem::Vfat)),
    (512, b"LABELONE", Content::Closed("LVM")),
    (0, b"LUKS\xBA\xBE", Content::Closed("an encrypted volume")),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], Content::Closed("a part of a RAID")),
    (4086, b"SWAPSPACE2", Content::Closed("swap space")),
    (3, b"NTFS    ", Content::Closed("NTFS")),
];

pub fn look(device: &Path) -> io::Result<Content> {
    let file = File::open(device)?;
    let mut start = vec![0; LOOK_BYTES];
    let mut full = 0;
    while full < start.len() {
        match file.read_at(&mut start[full..], full as u64)? {
            0 => break,
            count => full += count,
        }
    }
    Ok(recognise(&start[..full]))
}

fn recognise(start: &[u8]) -> Content {
    let stands = |at: usize, mark: &[u8]| start.get(at..at + mark.len()) == Some(mark);
    let found = MARKS.iter().find(|(at, mark, _)| stands(*at, mark));
    found.map_or(Content::Unknown, |(_, _, content)| *content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_mark_is_recognised_where_it_stands() {
        for (at, mark, content) in MARKS {
            let mut start = vec![0; LOOK_BYTES];
            start[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(recognise(&start), content);
            start[at] ^= 1;
            assert_eq!(recognise(&start), Content::Unknown);
        }
        assert_eq!(recognise(b"short"), Content::Unknown);
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
                    assert_eq!(look(&path).unwrap(), Content::Files(kind));
                }
                Ok(output) => panic!("{tool}: {}", String::from_utf8_lossy(&output.stderr)),
                Err(_) => eprintln!("skipped: there is no {tool} here"),
            }
        }
    }
}
