//! The programs that the virtual machines need, found or installed from Debian packages. Their
//! services are not started: everything runs only in our namespace.

use crate::shell::{self, Failure};
use std::path::Path;
use std::process::Command;

const PROGRAMS: [&str; 9] = [
    "dnsmasq",
    "ip",
    "libvirtd",
    "losetup",
    "pkg-config",
    "qemu-img",
    "qemu-system-x86_64",
    "readelf",
    "virsh",
];

/// The boot loader that `farrier netboot config` offers to firmware that is not iPXE.
const LOADER: &str = "/usr/lib/ipxe/undionly.kpxe";

/// All parts of QEMU must be of one release. If `qemu-utils` comes from Debian's backports, the
/// others are taken from there too, with private package lists; nothing else is changed.
const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e \"$policy\" ]; then
    trap 'rm -f \"$policy\"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > \"$policy\"
    chmod 755 \"$policy\"
fi
qemu='qemu-system-x86 qemu-system-common qemu-system-data qemu-utils seabios ipxe-qemu'
apt-get update || echo 'some package lists could not be fetched; trying with the others'
case $(dpkg-query -W -f '${Version}' qemu-utils 2>/dev/null) in
*~bpo*)
    . /etc/os-release
    own=$(mktemp -d)
    mkdir -p \"$own/lists/partial\"
    signed='deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org'
    for suite in $VERSION_CODENAME $VERSION_CODENAME-updates $VERSION_CODENAME-backports; do
        echo \"$signed/debian $suite main\"
    done > \"$own/sources.list\"
    echo \"$signed/debian-security $VERSION_CODENAME-security main\" >> \"$own/sources.list\"
    lists=\"-o Dir::Etc::SourceList=$own/sources.list -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=$own/lists\"
    apt-get $lists -qq update
    apt-get $lists -o DPkg::Lock::Timeout=300 install -y --no-install-recommends -t $VERSION_CODENAME-backports $qemu
    rm -rf \"$own\" ;;
*)
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $qemu ;;
esac
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends libvirt-daemon libvirt-daemon-driver-qemu \\
    libvirt-daemon-system libvirt-clients libvirt-dev pkg-config dnsmasq-base ipxe iproute2 mount binutils gcc
";

const NEXT: &str = "install QEMU, libvirt, dnsmasq and ipxe (Debian: qemu-system-x86 qemu-utils \
                    libvirt-daemon-system libvirt-clients libvirt-dev pkg-config dnsmasq-base ipxe)";

pub fn find_or_install() -> Result<(), Failure> {
    if absent().is_empty() {
        return Ok(());
    }
    println!("installing from the system's packages, for {}", absent().join(", "));
    let refused = || Failure::new(format!("{} not found", absent().join(", ")), NEXT);
    shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(refused)?, NEXT)?;
    match absent().is_empty() {
        true => Ok(()),
        false => Err(refused()),
    }
}

/// The missing programs and files.
fn absent() -> Vec<&'static str> {
    let mut absent: Vec<&str> =
        PROGRAMS.into_iter().filter(|program| shell::find(program).is_none()).collect();
    if !Path::new(LOADER).exists() {
        absent.push(LOADER);
    }
    let mut headers = Command::new("pkg-config");
    if !shell::succeeds(headers.args(["--exists", "libvirt"])) {
        absent.push("libvirt's headers");
    }
    absent
}
