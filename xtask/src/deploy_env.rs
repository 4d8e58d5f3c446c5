//! `cargo xtask deploy-env`: the ramdisk that a machine boots over the network to write an image to
//! its disk. It consists of Debian packages and our statically linked agent, and needs nothing from
//! the build host.

use crate::debian::{Debian, Kernel};
use crate::shell::{self, Failure};
use crate::test::{executable, target};
use crate::tree::{self, Tree, modules};
use std::fs;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("../../deploy/init");
const LEASE: &str = include_str!("../../deploy/lease");
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const AGENT: &str = "farrier-agent";

/// The programs with their libraries, and the boot loaders that make an unpacked system bootable.
const PACKAGES: [&str; 21] = [
    "busybox-static",
    "dosfstools",
    "e2fsprogs",
    "extlinux",
    "fdisk",
    "libblkid1",
    "libc6",
    "libcom-err2",
    "libext2fs2",
    "libfdisk1",
    "libmount1",
    "libncursesw6",
    "libpcre2-8-0",
    "libreadline8",
    "libselinux1",
    "libsmartcols1",
    "libtinfo6",
    "libuuid1",
    "mount",
    "syslinux-common",
    "systemd-boot-efi",
];

/// Programs of the packages, and where the agent finds them.
const PROGRAMS: [(&str, &str); 5] = [
    ("sbin/sfdisk", "sbin/sfdisk"),
    ("sbin/mke2fs", "sbin/mkfs.ext4"),
    ("sbin/mkfs.fat", "sbin/mkfs.vfat"),
    ("sbin/fsck.fat", "sbin/fsck.vfat"),
    ("usr/bin/extlinux", "sbin/extlinux"),
];

/// Other files of the packages.
const FILES: [(&str, &str); 3] = [
    ("etc/mke2fs.conf", "etc/mke2fs.conf"),
    ("usr/lib/syslinux/mbr/gptmbr.bin", "usr/lib/farrier/gptmbr.bin"),
    ("usr/lib/systemd/boot/efi/systemd-bootx64.efi", "usr/lib/farrier/systemd-bootx64.efi"),
];

/// The modules that every machine needs, by path prefix: file systems with their run-time
/// dependencies, and the drivers of virtual machines.
const MODULES: [&str; 23] = [
    "kernel/arch/x86/crypto/crc32c-intel",
    "kernel/crypto/blake2b_generic",
    "kernel/crypto/crc32c_generic",
    "kernel/crypto/sha256_generic",
    "kernel/crypto/xxhash_generic",
    "kernel/drivers/block/virtio_blk",
    "kernel/drivers/char/hw_random/virtio-rng",
    "kernel/drivers/net/ethernet/amazon/",
    "kernel/drivers/net/ethernet/google/",
    "kernel/drivers/net/ethernet/intel/ixgbevf/",
    "kernel/drivers/net/virtio_net",
    "kernel/drivers/nvme/host/",
    "kernel/drivers/scsi/sd_mod",
    "kernel/drivers/scsi/virtio_scsi",
    "kernel/drivers/virtio/",
    "kernel/fs/btrfs/",
    "kernel/fs/ext4/",
    "kernel/fs/fat/",
    "kernel/fs/nls/nls_ascii",
    "kernel/fs/nls/nls_cp437",
    "kernel/fs/nls/nls_iso8859-1",
    "kernel/fs/nls/nls_utf8",
    "kernel/fs/xfs/",
];

/// The additional modules for physical machines: all network card and disk drivers.
const METAL: [&str; 11] = [
    "kernel/drivers/ata/",
    "kernel/drivers/message/fusion/",
    "kernel/drivers/net/ethernet/",
    "kernel/drivers/net/hyperv/",
    "kernel/drivers/net/mdio/",
    "kernel/drivers/net/phy/",
    "kernel/drivers/net/vmxnet3/",
    "kernel/drivers/nvme/",
    "kernel/drivers/pci/controller/vmd",
    "kernel/drivers/scsi/",
    "kernel/drivers/xen/",
];

/// The options of the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Wish {
    pub out: PathBuf,
    pub kernel: Kernel,
    /// A prebuilt agent, instead of the one in the source tree.
    pub agent: Option<PathBuf>,
    /// Files that are copied over everything else, such as firmware that is not in Debian's free
    /// packages.
    pub overlay: Option<PathBuf>,
}

const USAGE: &str =
    "say `deploy-env --out DIR [--kernel cloud|generic] [--agent FILE] [--overlay DIR]`";

impl Wish {
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let (mut out, mut kernel, mut agent, mut overlay) = (None, Kernel::Generic, None, None);
        for pair in words.chunks(2) {
            match pair {
                ["--out", folder] => out = Some(PathBuf::from(folder)),
                ["--kernel", name] => {
                    kernel =
                        Kernel::parse(name).ok_or(format!("{name:?} is no kernel; {USAGE}"))?;
                }
                ["--agent", file] => agent = Some(PathBuf::from(file)),
                ["--overlay", folder] => overlay = Some(PathBuf::from(folder)),
                other => return Err(format!("{other:?} is not understood; {USAGE}")),
            }
        }
        let out = out.ok_or(format!("where to? {USAGE}"))?;
        Ok(Self { out, kernel, agent, overlay })
    }
}

pub fn run(wish: &Wish) -> Result<(), Failure> {
    let debian = Debian::open(&cache())?;
    build(&debian, wish)
}

/// The cache of packages and trees, so that a second build downloads nothing.
pub fn cache() -> PathBuf {
    target().join("debian")
}

/// Creates `vmlinuz` and `initrd` in the output directory.
pub fn build(debian: &Debian, wish: &Wish) -> Result<(), Failure> {
    let agent = match &wish.agent {
        Some(file) => file.clone(),
        None => build_agent()?,
    };
    let name = wish.kernel.name();
    let package = debian.kernel(wish.kernel)?;
    let kernel = debian.unpack(&format!("kernel-{name}"), &[&package])?;
    let packages = debian.unpack("deploy-packages", &PACKAGES)?;
    let tree = Tree::new(cache().join(format!("deploy-tree-{name}")), packages)?;
    fill(&tree, &agent)?;
    // Before the modules, so that modprobe's tables include custom modules of the overlay.
    if let Some(overlay) = &wish.overlay {
        tree.lay_over(overlay)?;
    }
    let count = modules::install(&tree, &kernel, &wanted(wish.kernel))?;
    fs::create_dir_all(&wish.out).map_err(|error| tree::cannot(&wish.out, &error))?;
    let (image, out) = (modules::image(&kernel)?, wish.out.join("vmlinuz"));
    let size = fs::copy(&image, &out).map_err(|error| tree::cannot(&image, &error))?;
    println!("{}: {package}, {}", out.display(), megabytes(size));
    let out = wish.out.join("initrd");
    let packed = tree.pack(&out)?;
    println!("{}: {count} modules, {}", out.display(), megabytes(packed));
    Ok(())
}

fn fill(tree: &Tree, agent: &Path) -> Result<(), Failure> {
    for folder in ["dev", "proc", "sys", "run", "tmp", "mnt", "etc"] {
        tree.folder(folder)?;
    }
    tree.busybox()?;
    for (from, to) in PROGRAMS {
        tree.program(from, to)?;
    }
    for (from, to) in FILES {
        tree.copy(&tree.packages().join(from), to, 0o644)?;
    }
    tree.write("init", INIT, 0o755)?;
    tree.write("etc/lease", LEASE, 0o755)?;
    tree.link("etc/mtab", "/proc/self/mounts")?;
    tree.copy(agent, &format!("sbin/{AGENT}"), 0o755)
}

fn wanted(kernel: Kernel) -> Vec<&'static str> {
    match kernel {
        Kernel::Cloud => MODULES.to_vec(),
        Kernel::Generic => [&MODULES[..], &METAL[..]].concat(),
    }
}

/// Builds the agent in its own target directory: other flags would make cargo rebuild everything
/// else.
fn build_agent() -> Result<PathBuf, Failure> {
    let mut build = shell::cargo(["build", "--release", "--locked", "--target", PLATFORM]);
    build.args(["-p", AGENT, "--message-format=json-render-diagnostics"]);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    build.env("CARGO_TARGET_DIR", target().join("agent"));
    // The agent is kept in memory and downloaded by every machine, so it is stripped.
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let messages = shell::answer(&mut build, "fix the errors shown above")?;
    executable(&messages, AGENT).ok_or_else(|| {
        let said = format!("cargo named no executable for the package `{AGENT}`");
        Failure::new(said, "see that the package has a binary of that name")
    })
}

pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_names_its_folder() {
        let wish = Wish::parse(&["--out", "o", "--kernel", "cloud", "--agent", "a"]).unwrap();
        assert_eq!(wish.out, Path::new("o"));
        assert_eq!((wish.kernel, wish.agent), (Kernel::Cloud, Some("a".into())));
        assert_eq!(Wish::parse(&["--out", "o"]).unwrap().kernel, Kernel::Generic);
        for bad in [&[][..], &["--out"], &["--kernel", "cloud"], &["--out", "o", "--kernel", "x"]] {
            let refusal = Wish::parse(bad).unwrap_err();
            assert!(refusal.contains("deploy-env --out DIR"), "{refusal}");
        }
    }

    #[test]
    fn lists_are_in_order_and_say_nothing_twice() {
        for list in [&PACKAGES[..], &MODULES[..], &METAL[..]] {
            assert!(list.is_sorted() && list.windows(2).all(|pair| pair[0] != pair[1]), "{list:?}");
        }
    }
}
