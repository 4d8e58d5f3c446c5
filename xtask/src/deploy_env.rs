//! `cargo xtask deploy-env`: the ramdisk that a machine boots over the network to write an image to
//! its disk. It consists of Debian packages and our statically linked agent, and needs nothing from
//! the build host.

use crate::debian::{DebianArchive, Kernel};
use crate::shell::{self, Failure};
use crate::test::{executable, target};
use crate::tree::{self, RootTree, modules};
use std::fs;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("../../deploy/init");
const LEASE: &str = include_str!("../../deploy/lease");
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const AGENT: &str = "farrier-agent";
/// The path at which the agent looks for the public key of the server's manifests.
const MANIFEST_KEY: &str = "etc/farrier/manifest.pub";

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
const PHYSICAL_MODULES: [&str; 11] = [
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
pub struct DeployEnvOptions {
    pub out: PathBuf,
    pub kernel: Kernel,
    /// A prebuilt agent, instead of the one in the source tree.
    pub agent: Option<PathBuf>,
    /// Files that are copied over everything else, such as firmware that is not in Debian's free
    /// packages.
    pub overlay: Option<PathBuf>,
    /// The public key of the server's manifests. The environment then believes no other.
    pub manifest_key: Option<PathBuf>,
}

const USAGE: &str = "say `deploy-env --out DIR [--kernel cloud|generic] [--agent FILE] \
                     [--overlay DIR] [--manifest-key FILE]`";

impl DeployEnvOptions {
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let (mut out, mut kernel, mut agent) = (None, Kernel::Generic, None);
        let (mut overlay, mut manifest_key) = (None, None);
        for pair in words.chunks(2) {
            match pair {
                ["--out", folder] => out = Some(PathBuf::from(folder)),
                ["--kernel", name] => {
                    kernel =
                        Kernel::parse(name).ok_or(format!("{name:?} is no kernel; {USAGE}"))?;
                }
                ["--agent", file] => agent = Some(PathBuf::from(file)),
                ["--overlay", folder] => overlay = Some(PathBuf::from(folder)),
                ["--manifest-key", file] => manifest_key = Some(PathBuf::from(file)),
                other => return Err(format!("{other:?} is not understood; {USAGE}")),
            }
        }
        let out = out.ok_or(format!("where to? {USAGE}"))?;
        Ok(Self { out, kernel, agent, overlay, manifest_key })
    }
}

pub fn run(options: &DeployEnvOptions) -> Result<(), Failure> {
    let debian = DebianArchive::open(&cache())?;
    build(&debian, options)
}

/// The cache of packages and trees, so that a second build downloads nothing.
pub fn cache() -> PathBuf {
    target().join("debian")
}

/// Creates `vmlinuz` and `initrd` in the output directory.
pub fn build(debian: &DebianArchive, options: &DeployEnvOptions) -> Result<(), Failure> {
    let agent = match &options.agent {
        Some(file) => file.clone(),
        None => build_agent()?,
    };
    let name = options.kernel.name();
    let package = debian.kernel(options.kernel)?;
    let kernel = debian.unpack(&format!("kernel-{name}"), &[&package])?;
    let packages = debian.unpack("deploy-packages", &PACKAGES)?;
    let tree = RootTree::new(cache().join(format!("deploy-tree-{name}")), packages)?;
    fill_tree(&tree, &agent)?;
    if let Some(key) = &options.manifest_key {
        tree.copy_file(key, MANIFEST_KEY, 0o644)?;
    }
    // Before the modules, so that modprobe's tables include custom modules of the overlay.
    if let Some(overlay) = &options.overlay {
        tree.copy_over(overlay)?;
    }
    let count = modules::install(&tree, &kernel, &module_prefixes(options.kernel))?;
    fs::create_dir_all(&options.out).map_err(|error| tree::io_failure(&options.out, &error))?;
    let (image, out) = (modules::kernel_image(&kernel)?, options.out.join("vmlinuz"));
    let size = fs::copy(&image, &out).map_err(|error| tree::io_failure(&image, &error))?;
    println!("{}: {package}, {}", out.display(), format_megabytes(size));
    let out = options.out.join("initrd");
    let packed = tree.pack(&out)?;
    println!("{}: {count} modules, {}", out.display(), format_megabytes(packed));
    Ok(())
}

fn fill_tree(tree: &RootTree, agent: &Path) -> Result<(), Failure> {
    for folder in ["dev", "proc", "sys", "run", "tmp", "mnt", "etc"] {
        tree.create_directory(folder)?;
    }
    tree.add_busybox()?;
    for (from, to) in PROGRAMS {
        tree.add_program(from, to)?;
    }
    for (from, to) in FILES {
        tree.copy_file(&tree.packages().join(from), to, 0o644)?;
    }
    tree.write_file("init", INIT, 0o755)?;
    tree.write_file("etc/lease", LEASE, 0o755)?;
    tree.add_link("etc/mtab", "/proc/self/mounts")?;
    tree.copy_file(agent, &format!("sbin/{AGENT}"), 0o755)
}

fn module_prefixes(kernel: Kernel) -> Vec<&'static str> {
    match kernel {
        Kernel::Cloud => MODULES.to_vec(),
        Kernel::Generic => [&MODULES[..], &PHYSICAL_MODULES[..]].concat(),
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
    let messages = shell::read_output(&mut build, "fix the errors shown above")?;
    executable(&messages, AGENT).ok_or_else(|| {
        let message = format!("cargo named no executable for the package `{AGENT}`");
        Failure::new(message, "see that the package has a binary of that name")
    })
}

pub fn format_megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_the_output_directory() {
        let options =
            DeployEnvOptions::parse(&["--out", "o", "--kernel", "cloud", "--agent", "a"]).unwrap();
        assert_eq!(options.out, Path::new("o"));
        assert_eq!((options.kernel, options.agent), (Kernel::Cloud, Some("a".into())));
        assert_eq!(DeployEnvOptions::parse(&["--out", "o"]).unwrap().kernel, Kernel::Generic);
        let pinned = DeployEnvOptions::parse(&["--out", "o", "--manifest-key", "k.pub"]).unwrap();
        assert_eq!(pinned.manifest_key, Some("k.pub".into()));
        for bad in [&[][..], &["--out"], &["--kernel", "cloud"], &["--out", "o", "--kernel", "x"]] {
            let refusal = DeployEnvOptions::parse(bad).unwrap_err();
            assert!(refusal.contains("deploy-env --out DIR"), "{refusal}");
        }
    }

    #[test]
    fn lists_are_sorted_without_duplicates() {
        for list in [&PACKAGES[..], &MODULES[..], &PHYSICAL_MODULES[..]] {
            assert!(list.is_sorted() && list.windows(2).all(|pair| pair[0] != pair[1]), "{list:?}");
        }
    }
}
