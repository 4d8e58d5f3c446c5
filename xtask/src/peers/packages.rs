//! System packages for the tests: tools that create, unpack and inspect disk images, and libvirt's
//! headers, with which the Redfish emulator has machines that accept firmware.

use crate::shell::{self, Failure};
use std::process::Command;

const NEXT: &str = "install zstd, qemu-img, mkfs.xfs, mkfs.btrfs and libvirt's headers \
                    (Debian: zstd, qemu-utils, xfsprogs, btrfs-progs, libvirt-dev)";

/// The programs and their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("zstd", "zstd"),
    ("qemu-img", "qemu-utils"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("pkg-config", "pkg-config"),
];

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends";

/// Installs missing packages. A failed installation fails the run on CI; elsewhere the tests that
/// need the packages are skipped.
pub fn find_or_install() -> Result<(), Failure> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    println!("missing: {}", missing.join(" "));
    let absent = || Failure::new(format!("{} could not be installed", missing.join(" ")), NEXT);
    let script = format!("{INSTALL} {}", missing.join(" "));
    let installed = shell::administrator_command(&script)
        .ok_or_else(absent)
        .and_then(|mut command| shell::run(&mut command, NEXT));
    match installed {
        Err(failure) if std::env::var_os("CI").is_none() => {
            println!("packages: skipped\n  {failure}");
            Ok(())
        }
        other => other,
    }
}

/// The Debian names of the missing packages.
fn missing() -> Vec<&'static str> {
    let mut missing = Vec::new();
    for (program, package) in PROGRAMS {
        if shell::find(program).is_none() {
            missing.push(package);
        }
    }
    if !shell::succeeds(Command::new("pkg-config").args(["--exists", "libvirt"])) {
        missing.push("libvirt-dev");
    }
    missing
}
