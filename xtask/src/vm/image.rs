//! A minimal bootable disk image: a boot loader, Debian's kernel, busybox as its system, and
//! OpenSSH's server, whose host key and authorized keys the installer must provide. It is built as
//! a raw disk, as a compressed qcow2, and as a tar of its files.

use crate::debian::{DebianArchive, Kernel};
use crate::deploy_env::{cache, format_megabytes};
use crate::shell::{self, Failure};
use crate::tree::{RootTree, io_failure, modules, packaged_command};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tools that build it, the programs in it, and the libraries of both.
const PACKAGES: [&str; 42] = [
    "busybox-static",
    "e2fsprogs",
    "extlinux",
    "fdisk",
    "libaudit1",
    "libblkid1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcom-err2",
    "libcrypt1",
    "libext2fs2",
    "libfdisk1",
    "libgcrypt20",
    "libgpg-error0",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "liblz4-1",
    "liblzma5",
    "libmount1",
    "libncursesw6",
    "libnsl2",
    "libpam0g",
    "libpcre2-8-0",
    "libreadline8",
    "libselinux1",
    "libsmartcols1",
    "libssl3",
    "libsystemd0",
    "libtinfo6",
    "libtirpc3",
    "libuuid1",
    "libwrap0",
    "libzstd1",
    "mount",
    "openssh-server",
    "syslinux-common",
    "util-linux",
    "zlib1g",
];

/// The modules that the image's ramdisk needs for the root disk, and its system for the network.
const MODULES: [&str; 6] = [
    "kernel/drivers/block/virtio_blk",
    "kernel/drivers/char/hw_random/virtio-rng",
    "kernel/drivers/net/virtio_net",
    "kernel/drivers/virtio/virtio_pci.ko",
    "kernel/fs/ext4/",
    "kernel/crypto/crc32c_generic",
];

const LABEL: &str = "farrier-test";
const DISK_BYTES: u64 = 128 << 20;
/// The offset of the only partition, in bytes.
const PARTITION_START: u64 = 1 << 20;
/// The code part of the first sector, in bytes; the partition table follows it.
const LOADER_BYTES: usize = 440;
const NEXT: &str = "the kernel must allow loop devices; in a container, run it privileged";

/// Our own files in the image, with their modes.
const FILES: [(&str, &str, u32); 10] = [
    ("etc/inittab", include_str!("guest/inittab"), 0o644),
    ("etc/rc", include_str!("guest/rc"), 0o755),
    ("etc/serve", include_str!("guest/serve"), 0o755),
    ("etc/lease", include_str!("../../../deploy/lease"), 0o755),
    ("etc/os-release", include_str!("guest/os-release"), 0o644),
    ("etc/passwd", include_str!("guest/passwd"), 0o644),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644),
    ("etc/shadow", "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n", 0o600),
    ("etc/ssh/sshd_config", include_str!("guest/sshd_config"), 0o644),
    ("boot/extlinux.conf", include_str!("guest/extlinux.conf"), 0o644),
];

pub struct Images {
    pub raw: PathBuf,
    pub qcow2: PathBuf,
    pub tar: PathBuf,
}

pub fn build(debian: &DebianArchive, out: &Path) -> Result<Images, Failure> {
    let package = debian.kernel(Kernel::Cloud)?;
    let kernel = debian.unpack("kernel-cloud", &[&package])?;
    let packages = debian.unpack("image-packages", &PACKAGES)?;
    fs::create_dir_all(out).map_err(|error| io_failure(out, &error))?;
    let tree = RootTree::new(cache().join("image-tree"), packages)?;
    fill_tree(&tree, &kernel)?;
    let ramdisk = ramdisk(&tree, &kernel)?;
    let [raw, qcow2, tar] = ["image.raw", "image.qcow2", "image.tar.gz"].map(|name| out.join(name));
    let images = Images { raw, qcow2, tar };
    partition(&tree, &images.raw)?;
    format(&tree, &images.raw)?;
    let files = [(modules::kernel_image(&kernel)?, "vmlinuz"), (ramdisk, "initrd")];
    make_bootable(&tree, &images.raw, &out.join("mount"), &files)?;
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-c", "-f", "raw", "-O", "qcow2"]).arg(&images.raw);
    shell::run(convert.arg(&images.qcow2), "install qemu-utils")?;
    files
        .iter()
        .try_for_each(|(from, name)| tree.copy_file(from, &format!("boot/{name}"), 0o644))?;
    pack(tree.root(), &images.tar)?;
    for path in [&images.raw, &images.qcow2, &images.tar] {
        let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
        println!("{}: {}", path.display(), format_megabytes(size));
    }
    Ok(images)
}

fn pack(root: &Path, out: &Path) -> Result<(), Failure> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--numeric-owner", "--owner=0", "--group=0", "--file"]);
    shell::run(tar.arg(out).arg("--directory").arg(root).arg("."), "install tar and gzip")
}

fn fill_tree(tree: &RootTree, kernel: &Path) -> Result<(), Failure> {
    for folder in ["dev", "proc", "sys", "run", "tmp", "var/tmp", "mnt"] {
        tree.create_directory(folder)?;
    }
    for folder in ["root", "var/empty"] {
        tree.create_directory(folder)?;
    }
    tree.add_busybox()?;
    tree.add_link("sbin/init", "../bin/busybox")?;
    tree.add_program("usr/sbin/sshd", "usr/sbin/sshd")?;
    for (path, text, mode) in FILES {
        tree.write_file(path, text, mode)?;
    }
    modules::install(tree, kernel, &MODULES).map(drop)
}

/// Builds the ramdisk that mounts the root file system.
fn ramdisk(tree: &RootTree, kernel: &Path) -> Result<PathBuf, Failure> {
    let ramdisk = RootTree::new(cache().join("image-ramdisk"), tree.packages().to_owned())?;
    for folder in ["dev", "proc", "sys"] {
        ramdisk.create_directory(folder)?;
    }
    ramdisk.add_busybox()?;
    // Busybox's own findfs finds only labels.
    ramdisk.add_program("sbin/findfs", "sbin/findfs")?;
    ramdisk.write_file("init", include_str!("guest/ramdisk-init"), 0o755)?;
    modules::install(&ramdisk, kernel, &MODULES)?;
    let packed = cache().join("image-initrd");
    ramdisk.pack(&packed)?;
    Ok(packed)
}

/// Creates an empty disk with one partition, and the boot code in its first sector.
fn partition(tree: &RootTree, disk: &Path) -> Result<(), Failure> {
    let _ = fs::remove_file(disk);
    let made = File::create(disk).and_then(|file| file.set_len(DISK_BYTES));
    made.map_err(|error| io_failure(disk, &error))?;
    let table = format!("label: dos\nstart={}, type=83, bootable\n", PARTITION_START / 512);
    let mut sfdisk = packaged_command(tree.packages(), "sbin/sfdisk");
    sfdisk.arg("--quiet").arg(disk).stdin(Stdio::piped());
    let mut child = sfdisk
        .spawn()
        .map_err(|error| Failure::new(format!("sfdisk did not start: {error}"), NEXT))?;
    let reported = child.stdin.take().map(|mut pipe| pipe.write_all(table.as_bytes()));
    let ended = child.wait();
    if !matches!(reported, Some(Ok(()))) || !ended.is_ok_and(|status| status.success()) {
        return Err(Failure::new("sfdisk failed", "read its words above"));
    }
    let loader = tree.packages().join("usr/lib/syslinux/mbr/mbr.bin");
    let mut code = fs::read(&loader).map_err(|error| io_failure(&loader, &error))?;
    code.truncate(LOADER_BYTES);
    File::options()
        .write(true)
        .open(disk)
        .and_then(|mut file| file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&code)))
        .map_err(|error| io_failure(disk, &error))
}

/// Creates and fills the file system. The boot loader does not support some newer ext4 features.
fn format(tree: &RootTree, disk: &Path) -> Result<(), Failure> {
    let blocks = (DISK_BYTES - PARTITION_START) / 1024;
    let mut mke2fs = packaged_command(tree.packages(), "sbin/mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "^64bit,^metadata_csum", "-L", LABEL, "-d"]);
    mke2fs.arg(tree.root()).arg("-E").arg(format!("offset={PARTITION_START},root_owner=0:0"));
    mke2fs.env("MKE2FS_CONFIG", tree.packages().join("etc/mke2fs.conf"));
    shell::run(mke2fs.arg(disk).arg(format!("{blocks}k")), "read its words above")
}

/// The boot loader records the positions of its own blocks, so the file system must be mounted. The
/// files that it loads are copied only now: mke2fs leaves holes for zeros, and the loader cannot
/// read a file with holes.
fn make_bootable(
    tree: &RootTree,
    disk: &Path,
    mountpoint: &Path,
    files: &[(PathBuf, &str)],
) -> Result<(), Failure> {
    fs::create_dir_all(mountpoint).map_err(|error| io_failure(mountpoint, &error))?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "ext4", "-o", &format!("loop,offset={PARTITION_START}")]);
    shell::run(mount.arg(disk).arg(mountpoint), NEXT)?;
    let boot = mountpoint.join("boot");
    let copied = files.iter().try_for_each(|(from, name)| {
        let copied = fs::copy(from, boot.join(name));
        copied.map(drop).map_err(|error| io_failure(from, &error))
    });
    let mut extlinux = packaged_command(tree.packages(), "usr/bin/extlinux");
    extlinux.arg("--install").arg(boot).stderr(Stdio::null());
    let installed = copied.and_then(|()| shell::run(&mut extlinux, NEXT));
    let unmounted = shell::run(Command::new("umount").arg(mountpoint), NEXT);
    installed.and(unmounted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_by_the_label_that_it_has() {
        assert!(include_str!("guest/extlinux.conf").contains(&format!("root=LABEL={LABEL}")));
    }

    #[test]
    fn the_list_of_packages_is_in_order() {
        assert!(PACKAGES.is_sorted());
    }

    #[test]
    fn the_user_of_the_server_and_of_the_keys_is_there() {
        let users = include_str!("guest/passwd");
        assert!(users.starts_with("root:") && users.contains("\nsshd:"), "{users}");
    }
}
