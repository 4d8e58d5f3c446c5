//! What a partition holds, by the marks in its first blocks. The kernel is asked to mount only what was recognised.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// As far as the last mark is from the beginning.
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

    /// What to mount it with, one after the other, to find the root: distributions keep it in a part of a btrfs of these names.
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
    /// Something that has a name and cannot be looked into.
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

/// A mark: where it stands, and what it says.
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

    /// The tools of the real file systems write what we look for, where those tools are there.
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
