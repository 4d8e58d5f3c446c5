//! The configuration of the DHCP server, for dnsmasq.

use model::machine::Machine;
use model::refusal::Refusal;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

/// The operator's choices for the network.
#[derive(Debug, Default)]
pub struct Network {
    pub interface: String,
    /// `FIRST,LAST`, or empty: only registered machines get an address.
    pub range: String,
}

impl Network {
    pub fn checked(self) -> Result<Self, Refusal> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !self.interface.chars().all(plain) {
            let problem = format!("{:?} is no name of an interface", self.interface);
            return Err(Refusal::invalid("interface", problem, "write one as `ip link` shows it"));
        }
        let address = |text: &str| text.trim().parse::<Ipv4Addr>().is_ok();
        let pair = self.range.split_once(',').is_some_and(|(a, b)| address(a) && address(b));
        if !self.range.is_empty() && !pair {
            let problem = format!("{:?} is no range", self.range);
            return Err(Refusal::invalid("range", problem, "write 10.0.0.100,10.0.0.200"));
        }
        Ok(self)
    }
}

/// Machines that have a MAC address and an IP address as their SSH endpoint get that address.
pub fn dnsmasq(url: &str, network: &Network, machines: &[Machine]) -> String {
    let mut text = String::from(
        "# Machines that boot over the network ask Farrier what to boot.\n\
         # dnsmasq --no-daemon --conf-file=THIS_FILE; iPXE's programs come with the package ipxe.\n\
         port=0\nlog-dhcp\nenable-tftp\ntftp-root=/usr/lib/ipxe\n",
    );
    if !network.interface.is_empty() {
        let _ = writeln!(text, "interface={}\nbind-interfaces", network.interface);
    }
    let lease = "1h";
    match (network.range.as_str(), address_of(url)) {
        ("", Some(here)) => {
            let _ = writeln!(
                text,
                "# Only the machines below get an address. For all: farrier netboot config --range FIRST,LAST\n\
                 dhcp-range={here},static,{lease}"
            );
        }
        ("", None) => text += "# farrier netboot config --range FIRST,LAST adds a dhcp-range\n",
        (range, _) => {
            let _ = writeln!(text, "dhcp-range={range},{lease}");
        }
    }
    let _ = writeln!(
        text,
        "# iPXE asks Farrier; other firmware gets iPXE first.\n\
         dhcp-match=set:ipxe,175\n\
         dhcp-match=set:efi,option:client-arch,7\n\
         dhcp-match=set:efi,option:client-arch,9\n\
         dhcp-boot=tag:ipxe,{url}/netboot/boot.ipxe\n\
         dhcp-boot=tag:!ipxe,tag:efi,snponly.efi\n\
         dhcp-boot=tag:!ipxe,tag:!efi,undionly.kpxe"
    );
    for machine in machines {
        let Some(address) = host_address(&machine.spec.ssh_endpoint) else { continue };
        if !machine.spec.mac_addresses.is_empty() {
            let macs = machine.spec.mac_addresses.join(",");
            let _ = writeln!(text, "dhcp-host={macs},{address},{}", machine.id);
        }
    }
    text
}

fn address_of(url: &str) -> Option<Ipv4Addr> {
    let position = url.strip_prefix("http://")?.split('/').next()?;
    position.rsplit_once(':').map_or(position, |(host, _)| host).parse().ok()
}

/// The IP address in an SSH endpoint, if it has one and not a name.
fn host_address(endpoint: &str) -> Option<IpAddr> {
    let position = endpoint.rsplit_once('@').map_or(endpoint, |(_, position)| position);
    let host = position.rsplit_once(':').map_or(position, |(host, _)| host);
    position.parse().or_else(|_| host.trim_matches(['[', ']']).parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::MachineId;
    use model::machine::{Labels, MachineSpec};
    use model::time::Timestamp;

    fn machine(id: &str, ssh: &str, macs: &[&str]) -> Machine {
        let spec = MachineSpec {
            ssh_endpoint: ssh.into(),
            mac_addresses: macs.iter().map(ToString::to_string).collect(),
            ..MachineSpec::default()
        };
        Machine::new(MachineId::trusted(id), spec, Labels::new(), Timestamp::default())
    }

    #[test]
    fn known_machines_get_their_address() {
        let machines = [
            machine("m-1", "root@10.0.0.5:22", &["52:54:00:00:00:01", "52:54:00:00:00:02"]),
            machine("m-2", "node-2.example", &["52:54:00:00:00:03"]),
            machine("m-3", "10.0.0.6", &[]),
        ];
        let text = dnsmasq("http://10.0.0.1:8480", &Network::default(), &machines);
        assert!(text.contains("dhcp-range=10.0.0.1,static,1h\n"), "{text}");
        assert!(text.contains("dhcp-boot=tag:ipxe,http://10.0.0.1:8480/netboot/boot.ipxe\n"));
        let hosts: Vec<_> = text.lines().filter(|line| line.starts_with("dhcp-host")).collect();
        assert_eq!(hosts, ["dhcp-host=52:54:00:00:00:01,52:54:00:00:00:02,10.0.0.5,m-1"]);
    }

    #[test]
    fn network_options_are_checked() {
        let network = |interface: &str, range: &str| {
            let network = Network { interface: interface.into(), range: range.into() };
            network.checked().map_err(|refusal| refusal.field.unwrap_or_default())
        };
        let given = network("br0", "10.0.0.100,10.0.0.200").unwrap();
        let text = dnsmasq("http://boot.example", &given, &[]);
        assert!(
            text.contains("interface=br0\n")
                && text.contains("dhcp-range=10.0.0.100,10.0.0.200,1h\n")
        );
        assert_eq!(network("br0\nx", "").unwrap_err(), "interface");
        assert_eq!(network("", "10.0.0.100").unwrap_err(), "range");
    }
}
