//! Which machine of MAAS is one of ours: by the addresses of its network cards and by its serial number. More than one answer is
//! none: a person says which it is.

use super::hand::{now, seen};
use super::marks;
use crate::maas::Machine;
use model::id::NodeId;
use model::machine::MachineSpec;
use model::node::UpstreamSeen;

/// How many candidates are named.
const MAX_NAMED: usize = 8;

/// What is kept of a machine in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub system_id: String,
    pub hostname: String,
    pub serial: Option<String>,
    pub macs: Vec<String>,
    /// The node that it is marked as.
    pub node: Option<NodeId>,
    pub seen: UpstreamSeen,
}

impl Listed {
    pub fn of(machine: &Machine) -> Self {
        Self {
            system_id: machine.system_id.clone(),
            hostname: machine.hostname.clone(),
            serial: machine.serial().map(str::to_owned),
            macs: machine.interfaces.iter().map(|one| digits(&one.mac_address)).collect(),
            node: marks::node_of(machine),
            seen: seen(machine, now()),
        }
    }

    fn has_mac(&self, macs: &[String]) -> bool {
        macs.iter().any(|mac| self.macs.contains(mac))
    }

    fn has_serial(&self, serial: &str) -> bool {
        self.serial.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(serial))
    }
}

/// An address without how it is written.
fn digits(mac: &str) -> String {
    let hex = mac.chars().filter(char::is_ascii_hexdigit);
    hex.map(|c| c.to_ascii_lowercase()).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found<'a> {
    None,
    One(&'a Listed),
    /// The text names all candidates and what speaks for each.
    Conflict(String),
}

pub(super) fn find<'a>(machines: &'a [Listed], spec: &MachineSpec) -> Found<'a> {
    let macs: Vec<String> = spec.mac_addresses.iter().map(|mac| digits(mac)).collect();
    let serial = spec.serial.trim();
    let by_serial = |one: &Listed| !serial.is_empty() && one.has_serial(serial);
    let fitting: Vec<&Listed> =
        machines.iter().filter(|one| one.has_mac(&macs) || by_serial(one)).collect();
    match fitting[..] {
        [] => Found::None,
        [one] => match &one.serial {
            // Its network card is ours and its board is not: one of the two was exchanged.
            Some(other) if !serial.is_empty() && !by_serial(one) => Found::Conflict(format!(
                "{} has a MAC address of the machine, and the serial number {other:?} instead of {serial:?}",
                named(one)
            )),
            Some(_) | None => Found::One(one),
        },
        _ => {
            let why = |one: &&Listed| match (one.has_mac(&macs), by_serial(one)) {
                (true, true) => format!("{} by MAC address and serial number", named(one)),
                (true, false) => format!("{} by MAC address", named(one)),
                (false, _) => format!("{} by serial number", named(one)),
            };
            let all: Vec<String> = fitting.iter().take(MAX_NAMED).map(why).collect();
            let count = fitting.len();
            Found::Conflict(format!(
                "MAAS has {count} machines that could be it: {}",
                all.join(", ")
            ))
        }
    }
}

fn named(one: &Listed) -> String {
    format!("{} ({})", one.system_id, one.hostname)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::node::Upstream;
    use model::time::Timestamp;

    fn listed(id: &str, mac: &str, serial: &str) -> Listed {
        let at = Timestamp::default();
        Listed {
            system_id: id.into(),
            hostname: format!("host-{id}"),
            serial: Some(serial.to_owned()).filter(|serial| !serial.is_empty()),
            macs: vec![digits(mac)],
            node: None,
            seen: UpstreamSeen { state: Upstream::New, said: String::new(), on: None, at },
        }
    }

    /// MAC addresses, serial number, and the machine that is found, none, or what is said of several.
    type Row =
        (&'static [&'static str], &'static str, Result<&'static str, &'static [&'static str]>);

    #[test]
    fn one_machine_is_found_and_several_are_named() {
        let all = [
            listed("a", "aa:00:00:00:00:01", "S1"),
            listed("b", "aa:00:00:00:00:02", ""),
            listed("c", "aa:00:00:00:00:03", "S3"),
            listed("d", "aa:00:00:00:00:03", ""),
        ];
        let rows: [Row; 10] = [
            (&[], "", Ok("")),
            (&["aa:00:00:00:00:09"], "S9", Ok("")),
            (&["aa:00:00:00:00:01"], "", Ok("a")),
            (&["AA-00-00-00-00-01"], "s1", Ok("a")),
            (&[], "S1", Ok("a")),
            // Nobody has looked at its board yet.
            (&["aa:00:00:00:00:02"], "S2", Ok("b")),
            (&["aa:00:00:00:00:09"], "S1", Ok("a")),
            (&["aa:00:00:00:00:01"], "S9", Err(&["a (host-a)", "S1", "S9"])),
            (&["aa:00:00:00:00:02"], "S1", Err(&["a (host-a) by serial", "b (host-b) by MAC"])),
            (&["aa:00:00:00:00:03"], "", Err(&["2 machines", "c (host-c)", "d (host-d)"])),
        ];
        for (macs, serial, expected) in rows {
            let spec = MachineSpec {
                mac_addresses: macs.iter().map(ToString::to_string).collect(),
                serial: serial.into(),
                ..MachineSpec::default()
            };
            match (find(&all, &spec), expected) {
                (Found::None, Ok("")) => {}
                (Found::One(one), Ok(id)) => assert_eq!(one.system_id, id, "{macs:?} {serial}"),
                (Found::Conflict(said), Err(words)) => {
                    assert!(words.iter().all(|word| said.contains(word)), "{said}");
                }
                (found, expected) => panic!("{macs:?} {serial}: {found:?}, not {expected:?}"),
            }
        }
    }
}
