//! Makes unpacked files bootable: a kernel that the firmware can read, and a boot loader for BIOS
//! (extlinux, on the partition with the boot attribute) and for UEFI (systemd-boot, under the
//! default name).

use super::layout::Layout;
use crate::confined_fs::ConfinedRoot;
use crate::console::print_line;
use crate::failure::Failure;
use crate::install::InstallTarget;
use crate::platform::{BundledFile, Tool};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The size of the boot code in the first sector; the rest belongs to partition tables.
const BOOT_CODE_BYTES: usize = 440;
const KERNEL: &str = "vmlinuz";
const INITRD: &str = "initrd.img";

/// The mounted file systems, and what is written into them.
pub struct BootPartitions<'a> {
    pub root: &'a Path,
    pub firmware: &'a Path,
    pub layout: &'a Layout,
    pub consoles: &'a [String],
}

impl BootPartitions<'_> {
    pub fn install(&self, target: &InstallTarget) -> Result<(), Failure> {
        let wrong =
            |what: &str, error: io::Error| Failure::install_failed(format!("{what}: {error}"));
        let inside =
            ConfinedRoot::open(self.root).map_err(|error| wrong("the unpacked files", error))?;
        let none = |why: &str| {
            Failure::install_failed(format!(
                "the image has no /boot/vmlinuz*{why}; a tar has to bring its own kernel"
            ))
        };
        let names = inside.open_dir("/boot").and_then(|boot| boot.list_names());
        let names = names.map_err(|error| none(&format!(" (/boot: {error})")))?;
        let found = KernelFiles::newest(&names).ok_or_else(|| none(""))?;
        print_line(&format!("it boots {}", found.kernel));
        self.copy(&inside, &found.kernel, KERNEL)?;
        if let Some(initrd) = &found.initrd {
            self.copy(&inside, initrd, INITRD)?;
        }
        self.configure(target, found.initrd.is_some())
            .map_err(|error| wrong("the firmware's partition", error))?;
        let firmware = self.firmware.to_string_lossy();
        target
            .platform
            .run(Tool::Extlinux, &["--install", &firmware], "")
            .map_err(Failure::install_failed)?;
        self.write_fstab(&inside).map_err(|error| wrong("/etc/fstab of the new system", error))
    }

    /// The firmware partition is newly created, so it contains no links.
    fn copy(&self, inside: &ConfinedRoot, from: &str, to: &str) -> Result<(), Failure> {
        let copied = || -> io::Result<()> {
            let mut source = inside.open_file(&format!("/boot/{from}"))?;
            let mut target = File::create(self.firmware.join(to))?;
            io::copy(&mut source, &mut target)?;
            target.sync_all()
        };
        copied().map_err(|error| {
            Failure::install_failed(format!("/boot/{from} of the image cannot be copied: {error}"))
        })
    }

    fn configure(&self, target: &InstallTarget, initrd: bool) -> io::Result<()> {
        let cmdline = self.layout.cmdline(self.consoles);
        let write = |name: &str, text: String| {
            let path = self.firmware.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)
        };
        write("syslinux.cfg", syslinux(&cmdline, initrd))?;
        write("loader/loader.conf", "default farrier.conf\ntimeout 0\n".into())?;
        write("loader/entries/farrier.conf", systemd_boot(&cmdline, initrd))?;
        let loader = fs::read(BundledFile::SystemdBoot.path(target.root))?;
        let position = self.firmware.join("EFI/BOOT/BOOTX64.EFI");
        position.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(position, loader)
    }

    fn write_fstab(&self, inside: &ConfinedRoot) -> io::Result<()> {
        let owner = inside.owner()?;
        inside.create_dir_all("/boot/efi", 0o700, owner)?;
        let etc = inside.create_dir_all("/etc", 0o755, owner)?;
        etc.write("fstab", 0o644, owner, self.layout.fstab().as_bytes())
    }
}

/// Writes the boot code for BIOS into the first sector. This is the last write.
pub fn write_bios_boot_code(target: &InstallTarget) -> Result<(), Failure> {
    let written = || -> io::Result<()> {
        let mut code = fs::read(BundledFile::BiosBootCode.path(target.root))?;
        if code.len() > BOOT_CODE_BYTES {
            return Err(io::Error::other("it does not fit before the partition table"));
        }
        code.resize(BOOT_CODE_BYTES, 0);
        let disk = File::options().write(true).open(target.device())?;
        disk.write_all_at(&code, 0)?;
        disk.sync_all()
    };
    let path = &target.disk.path;
    written().map_err(|error| {
        Failure::install_failed(format!("{path} cannot be made bootable for a BIOS: {error}"))
    })
}

fn syslinux(cmdline: &str, initrd: bool) -> String {
    let initrd = if initrd { format!("  INITRD /{INITRD}\n") } else { String::new() };
    format!(
        "DEFAULT farrier\nPROMPT 0\nTIMEOUT 10\nLABEL farrier\n  LINUX /{KERNEL}\n{initrd}  APPEND {cmdline}\n"
    )
}

fn systemd_boot(cmdline: &str, initrd: bool) -> String {
    let initrd = if initrd { format!("initrd /{INITRD}\n") } else { String::new() };
    format!("title Linux\nlinux /{KERNEL}\n{initrd}options {cmdline}\n")
}

/// The files of a kernel, by their names in `/boot`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KernelFiles {
    kernel: String,
    initrd: Option<String>,
}

impl KernelFiles {
    /// The kernel with the highest version; rescue kernels are ignored.
    fn newest(names: &[String]) -> Option<Self> {
        let version = |name: &str| name.strip_prefix("vmlinuz").map(str::to_owned);
        let is_usual = |version: &String| !version.contains("rescue") && !version.ends_with(".old");
        let versions = names.iter().filter_map(|name| version(name)).filter(is_usual);
        let newest = versions.max_by(|one, other| compare_versions(one, other))?;
        let candidates = [
            format!("initrd.img{newest}"),
            format!("initramfs{newest}.img"),
            format!("initrd{newest}"),
            format!("initrd{newest}.img"),
            format!("initramfs{newest}"),
        ];
        let initrd = candidates.into_iter().find(|candidate| names.contains(candidate));
        Some(Self { kernel: format!("vmlinuz{newest}"), initrd })
    }
}

/// Compares numbers by value, the rest by letters.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (version_parts(one).into_iter(), version_parts(other).into_iter());
    // Each iteration consumes one part of both, and names are short.
    loop {
        match (one.next(), other.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => {
                let ordering = match (left.parse::<u64>(), right.parse::<u64>()) {
                    (Ok(left), Ok(right)) => left.cmp(&right),
                    (Ok(_), Err(_)) => Ordering::Greater,
                    (Err(_), Ok(_)) => Ordering::Less,
                    (Err(_), Err(_)) => left.cmp(right),
                };
                if ordering != Ordering::Equal {
                    return ordering;
                }
            }
        }
    }
}

/// Splits into runs of digits and runs of other characters, without separators.
fn version_parts(version: &str) -> Vec<&str> {
    let words = version.split(['-', '.', '_', '+', '~']).filter(|name| !name.is_empty());
    words
        .flat_map(|name| name.as_bytes().chunk_by(same_class))
        .filter_map(|piece| std::str::from_utf8(piece).ok())
        .collect()
}

fn same_class(one: &u8, other: &u8) -> bool {
    one.is_ascii_digit() == other.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_taken_with_its_own_initrd() {
        type Case<'a> = (&'a [&'a str], Option<(&'a str, Option<&'a str>)>);
        let table: [Case; 9] = [
            (&[], None),
            (&["grub", "System.map-6.1.0"], None),
            (
                &[
                    "vmlinuz-6.1.0-9-amd64",
                    "initrd.img-6.1.0-9-amd64",
                    "vmlinuz-6.1.0-18-amd64",
                    "initrd.img-6.1.0-18-amd64",
                ],
                Some(("vmlinuz-6.1.0-18-amd64", Some("initrd.img-6.1.0-18-amd64"))),
            ),
            (
                &[
                    "vmlinuz-0-rescue-abc",
                    "vmlinuz-5.14.0-427.el9.x86_64",
                    "initramfs-5.14.0-427.el9.x86_64.img",
                ],
                Some((
                    "vmlinuz-5.14.0-427.el9.x86_64",
                    Some("initramfs-5.14.0-427.el9.x86_64.img"),
                )),
            ),
            (&["vmlinuz-5.9", "vmlinuz-5.10", "initrd-5.9"], Some(("vmlinuz-5.10", None))),
            (&["vmlinuz", "initrd.img"], Some(("vmlinuz", Some("initrd.img")))),
            (
                &["vmlinuz", "vmlinuz.old", "vmlinuz-6.1", "initrd-6.1"],
                Some(("vmlinuz-6.1", Some("initrd-6.1"))),
            ),
            (
                &["vmlinuz-linux", "initramfs-linux.img"],
                Some(("vmlinuz-linux", Some("initramfs-linux.img"))),
            ),
            (&["vmlinuz-lts", "initramfs-lts"], Some(("vmlinuz-lts", Some("initramfs-lts")))),
        ];
        for (names, expected) in table {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let expected = expected.map(|(kernel, initrd)| KernelFiles {
                kernel: kernel.into(),
                initrd: initrd.map(str::to_owned),
            });
            assert_eq!(KernelFiles::newest(&names), expected, "{names:?}");
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        let ordered = [
            "",
            "-5.9",
            "-5.10",
            "-5.10-rc2",
            "-5.10.1",
            "-6.1.0-9-amd64",
            "-6.1.0-18-amd64",
            "-6.1.0-18-cloud-amd64",
        ];
        for pair in ordered.windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_versions(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare_versions("-6.1", "-6.1"), Ordering::Equal);
    }

    #[test]
    fn both_boot_loaders_get_the_same_entry() {
        for initrd in [true, false] {
            let (old, new) = (syslinux("root=X rw", initrd), systemd_boot("root=X rw", initrd));
            assert!(old.contains("LINUX /vmlinuz\n") && new.contains("linux /vmlinuz\n"));
            assert!(old.contains("APPEND root=X rw\n") && new.contains("options root=X rw\n"));
            assert_eq!(
                (old.contains("INITRD /initrd.img\n"), new.contains("initrd /initrd.img\n")),
                (initrd, initrd)
            );
        }
    }
}
