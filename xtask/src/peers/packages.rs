//! Programs and libraries that the tests use as they are: what unpacks and inspects disk images, and
//! libvirt's headers, with which the Redfish emulator gets machines that take firmware.

use crate::shell::{self, Failure};
use std::process::Command;

const NEXT: &str =
    "install zstd, qemu-img and libvirt's headers (Debian: zstd, qemu-utils, libvirt-dev)";

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends";

/// Installs what is missing. On CI a failure to do so is one of the run; elsewhere the tests that
/// need it are skipped.
pub fn find_or_install() -> Result<(), Failure> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    println!("missing: {}", missing.join(" "));
    let absent = || Failure::new(format!("{} could not be installed", missing.join(" ")), NEXT);
    let script = format!("{INSTALL} {}", missing.join(" "));
    let installed = shell::administrator(&script)
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

/// Debian's names of what is not there.
fn missing() -> Vec<&'static str> {
    let has_libvirt = || shell::succeeds(Command::new("pkg-config").args(["--exists", "libvirt"]));
    let mut missing = Vec::new();
    for (program, package) in
        [("zstd", "zstd"), ("qemu-img", "qemu-utils"), ("pkg-config", "pkg-config")]
    {
        if shell::find(program).is_none() {
            missing.push(package);
        }
    }
    if !has_libvirt() {
        missing.push("libvirt-dev");
    }
    missing
}
