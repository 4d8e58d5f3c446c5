//! DHCP and TFTP on the bridge: dnsmasq, configured as an operator would to have machines boot from Farrier, plus an address
//! that each VM always gets, so that the tests know where its new system will be.

use super::libvirt::Vm;
use super::site::{ADDRESS, BRIDGE, NETWORK, PORT, Site};
use crate::shell::Failure;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
/// What firmware boots that is no iPXE itself; Debian's package `ipxe` has it.
pub const LOADER: &str = "/usr/lib/ipxe/undionly.kpxe";
const TFTP_PORT: u16 = 69;

pub fn start(site: &Site, vms: &[Vm]) -> Result<(), Failure> {
    let tftp = site.file("tftp");
    let loader = tftp.join("undionly.kpxe");
    fs::create_dir_all(&tftp)
        .and_then(|()| fs::copy(LOADER, &loader))
        .map_err(|error| crate::tree::cannot(Path::new(LOADER), &error))?;
    let text = [netboot(&tftp), addresses(vms), process(site)].concat();
    let file = site.write("dnsmasq.conf", &text)?;
    let mut server = site.inside("dnsmasq");
    server.arg("--keep-in-foreground").arg(format!("--conf-file={}", file.display()));
    let ready = || site.file("dnsmasq.log").exists() && is_serving(site);
    site.serve("dnsmasq", server, PATIENCE, ready)
}

/// Firmware gets iPXE by TFTP, iPXE gets Farrier's script by HTTP.
fn netboot(tftp: &Path) -> String {
    format!(
        "port=0\ninterface={BRIDGE}\nbind-interfaces\n\
         dhcp-range={NETWORK}.100,{NETWORK}.199,255.255.255.0,1h\n\
         enable-tftp\ntftp-root={}\ndhcp-match=set:ipxe,175\n\
         dhcp-boot=tag:!ipxe,undionly.kpxe\n\
         dhcp-boot=tag:ipxe,http://{ADDRESS}:{PORT}/netboot/boot.ipxe\n",
        tftp.display()
    )
}

fn addresses(vms: &[Vm]) -> String {
    vms.iter().map(|vm| format!("dhcp-host={},{},{}\n", vm.mac, vm.address, vm.name)).collect()
}

/// What keeps it from the computer's own files and users.
fn process(site: &Site) -> String {
    format!(
        "user=root\nlog-dhcp\nlog-facility=-\nno-resolv\nno-hosts\npid-file={}\ndhcp-leasefile={}\n",
        site.file("dnsmasq.pid").display(),
        site.file("dnsmasq.leases").display(),
    )
}

fn is_serving(site: &Site) -> bool {
    let mut ss = site.inside("ss");
    ss.args(["-Huln", &format!("sport = :{TFTP_PORT}")]);
    ss.output().is_ok_and(|output| !output.stdout.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipxe_is_sent_to_farrier_and_everybody_else_to_ipxe() {
        let text = netboot(Path::new("tftp"));
        assert!(text.contains("dhcp-boot=tag:!ipxe,undionly.kpxe\n"), "{text}");
        let script = "dhcp-boot=tag:ipxe,http://10.77.0.1:7411/netboot/boot.ipxe\n";
        assert!(text.contains(script), "{text}");
    }

    #[test]
    fn a_machine_always_gets_its_address() {
        let text = addresses(&[Vm::numbered(1)]);
        assert_eq!(text, "dhcp-host=52:54:00:fa:44:01,10.77.0.11,vm-1\n");
    }
}
