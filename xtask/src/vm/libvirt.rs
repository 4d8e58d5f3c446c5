//! libvirt, which the Redfish emulator controls: a private daemon in the namespace, with private
//! directories mounted over the system's, and virtual machines with empty disks. The processor is
//! always emulated, which also works on a host that is a virtual machine itself.

use super::environment::{BRIDGE, NETWORK, VmEnvironment};
use crate::shell::{self, Failure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MEMORY_MIB: u32 = 512;
const DISK_BYTES: u64 = 1 << 30;
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The first port of the BMCs; a VM's number is added.
const BMC_PORT: u16 = 8000;

/// Mounts a private directory over each of libvirt's directories, and starts the daemon.
const START: &str = "\
for pair in etc:/etc/libvirt run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt; do
    mkdir -p \"$1/${pair%%:*}\" \"${pair#*:}\" && mount --bind \"$1/${pair%%:*}\" \"${pair#*:}\" || exit 1
done
mkdir -p \"$2\" /var/cache/libvirt && mount --bind \"$2\" /var/cache/libvirt || exit 1
exec libvirtd --config /etc/libvirt/libvirtd.conf --pid-file \"$1/libvirtd.pid\"
";

/// Without these settings libvirt searches for security modules and cgroups for minutes, and needs
/// a log daemon.
const QEMU: &str = "\
user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nstdio_handler = \"file\"\n\
cgroup_controllers = []\nnamespaces = []\nremember_owner = 0\ndynamic_ownership = 0\n";

const NEXT: &str = "see that QEMU and libvirt are installed, and read libvirt's words above";

/// A virtual machine; all values follow from its number.
#[derive(Debug)]
pub struct Vm {
    pub name: String,
    pub uuid: String,
    pub mac: String,
    /// The address that DHCP assigns.
    pub address: String,
    pub serial: String,
    pub bmc_port: u16,
}

impl Vm {
    pub fn numbered(number: u8) -> Self {
        Self {
            name: format!("vm-{number}"),
            uuid: format!("fa441e40-0000-4000-8000-0000000000{number:02x}"),
            mac: format!("52:54:00:fa:44:{number:02x}"),
            address: format!("{NETWORK}.{}", 10 + u16::from(number)),
            serial: format!("FARRIER{number}"),
            bmc_port: BMC_PORT + u16::from(number),
        }
    }

    pub fn bmc(&self) -> String {
        format!("http://127.0.0.1:{}", self.bmc_port)
    }

    pub fn console(&self, environment: &VmEnvironment) -> PathBuf {
        environment.consoles().join(&self.name)
    }
}

pub fn start(environment: &VmEnvironment, cache: &Path) -> Result<(), Failure> {
    environment.write("libvirt/etc/qemu.conf", QEMU)?;
    environment
        .write("libvirt/etc/libvirtd.conf", "auth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n")?;
    environment.write("consoles/README", "What the machines wrote to their serial consoles.\n")?;
    let mut daemon = environment.command("sh");
    daemon.args(["-c", START, "libvirt"]).arg(environment.file("libvirt")).arg(cache);
    environment.start_service("libvirtd", daemon, START_TIMEOUT, || {
        shell::succeeds(virsh(environment).arg("version"))
    })
}

/// The libvirt URI, valid from everywhere.
pub fn uri(environment: &VmEnvironment) -> String {
    format!("qemu:///system?socket={}", environment.file("libvirt/run/libvirt-sock").display())
}

pub fn define(environment: &VmEnvironment, vm: &Vm) -> Result<(), Failure> {
    let disk = environment.file(&format!("{}.raw", vm.name));
    File::create(&disk)
        .and_then(|file| file.set_len(DISK_BYTES))
        .and_then(|()| fs::write(vm.console(environment), ""))
        .map_err(|error| crate::tree::io_failure(&disk, &error))?;
    let domain = domain(vm, &disk, &vm.console(environment));
    let file = environment.write(&format!("{}.xml", vm.name), &domain)?;
    shell::run(virsh(environment).args(["--quiet", "define"]).arg(file), NEXT)
}

fn virsh(environment: &VmEnvironment) -> Command {
    let mut command = Command::new("virsh");
    command.arg("--connect").arg(uri(environment));
    command
}

/// The network precedes the disk in the boot order: a BMC that requests a network boot keeps that
/// order, and a machine without a boot script continues with its disk.
fn domain(vm: &Vm, disk: &Path, console: &Path) -> String {
    let Vm { name, uuid, mac, serial, .. } = vm;
    format!(
        "<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{MEMORY_MIB}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <boot dev='network'/>
    <boot dev='hd'/>
    <bios useserial='yes'/>
  </os>
  <features><acpi/><apic/></features>
  <clock offset='utc'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='unsafe'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
      <serial>{serial}</serial>
    </disk>
    <interface type='bridge'>
      <source bridge='{BRIDGE}'/>
      <mac address='{mac}'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'><source path='{console}' append='on'/></serial>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
</domain>
",
        disk = disk.display(),
        console = console.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_machines_share_anything() {
        let (one, two) = (Vm::numbered(1), Vm::numbered(2));
        assert_ne!(one.uuid, two.uuid);
        assert_ne!(one.mac, two.mac);
        assert_ne!(one.bmc(), two.bmc());
        assert_eq!(one.address, "10.77.0.11");
        assert_eq!(one.uuid.len(), 36);
    }

    #[test]
    fn a_machine_boots_from_the_network_and_then_from_its_disk() {
        let xml = domain(&Vm::numbered(1), Path::new("d.raw"), Path::new("console"));
        let at = |text: &str| xml.find(text).unwrap_or_else(|| panic!("{text} is not in {xml}"));
        assert!(at("dev='network'") < at("<boot dev='hd'"));
        assert!(at("52:54:00:fa:44:01") > at("bridge='br0'"));
    }
}
