//! Matches a machine of the inventory with one of MAAS: by system id, MAC addresses and serial
//! number. Several candidates are a conflict that the operator resolves.

use super::annotations;
use super::executor::observe_upstream;
use crate::clock::now;
use crate::maas::Machine;
use model::id::NodeId;
use model::machine::MachineSpec;
use model::node::MaasObservation;

/// The most candidates that a conflict names.
const MAX_NAMED: usize = 8;

/// The fields of a machine in the list of a site that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedMachine {
    pub system_id: String,
    pub hostname: String,
    pub serial: Option<String>,
    pub macs: Vec<String>,
    /// The node in its annotation.
    pub node: Option<NodeId>,
    pub observation: MaasObservation,
}

impl ListedMachine {
    pub fn of(machine: &Machine) -> Self {
        Self {
            system_id: machine.system_id.clone(),
            hostname: machine.hostname.clone(),
            serial: machine.serial().map(str::to_owned),
            macs: machine.interfaces.iter().map(|one| digits(&one.mac_address)).collect(),
            node: annotations::annotated_node(machine),
            observation: observe_upstream(machine, now()),
        }
    }

    fn has_mac(&self, macs: &[String]) -> bool {
        macs.iter().any(|mac| self.macs.contains(mac))
    }

    fn has_serial(&self, serial: &str) -> bool {
        self.serial.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(serial))
    }
}

/// A MAC address without separators, in lower case.
fn digits(mac: &str) -> String {
    let hex = mac.chars().filter(char::is_ascii_hexdigit);
    hex.map(|c| c.to_ascii_lowercase()).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FindResult<'a> {
    None,
    One(&'a ListedMachine),
    /// Names all candidates and what matches of each.
    Conflict(String),
}

/// `id` is the system id, if the inventory has it.
pub(super) fn find_machine<'a>(
    machines: &'a [ListedMachine],
    spec: &MachineSpec,
    id: Option<&str>,
) -> FindResult<'a> {
    let macs: Vec<String> = spec.mac_addresses.iter().map(|mac| digits(mac)).collect();
    let serial = spec.serial.trim();
    let by_serial = |one: &ListedMachine| !serial.is_empty() && one.has_serial(serial);
    let by_id = |one: &ListedMachine| Some(one.system_id.as_str()) == id;
    let fits = |one: &&ListedMachine| by_id(one) || one.has_mac(&macs) || by_serial(one);
    let fitting: Vec<&ListedMachine> = machines.iter().filter(fits).collect();
    match fitting[..] {
        [] => FindResult::None,
        [one] => match &one.serial {
            // Id or MAC address matches and the board does not: one of them was exchanged.
            Some(other) if !serial.is_empty() && !by_serial(one) => FindResult::Conflict(format!(
                "{} has the {} of the machine, and the serial number {other:?} instead of {serial:?}",
                named(one),
                if by_id(one) { "system id" } else { "MAC address" }
            )),
            Some(_) | None => FindResult::One(one),
        },
        _ => {
            let why = |one: &&ListedMachine| {
                let reasons = [
                    (by_id(one), "system id"),
                    (one.has_mac(&macs), "MAC address"),
                    (by_serial(one), "serial number"),
                ];
                let those = reasons.into_iter().filter(|(is, _)| *is).map(|(_, why)| why);
                format!("{} by {}", named(one), those.collect::<Vec<_>>().join(" and "))
            };
            let all: Vec<String> = fitting.iter().take(MAX_NAMED).map(why).collect();
            let count = fitting.len();
            FindResult::Conflict(format!(
                "MAAS has {count} machines that could be it: {}",
                all.join(", ")
            ))
        }
    }
}

fn named(one: &ListedMachine) -> String {
    format!("{} ({})", one.system_id, one.hostname)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::node::MaasState;
    use model::time::Timestamp;

    fn listed(id: &str, mac: &str, serial: &str) -> ListedMachine {
        let at = Timestamp::default();
        ListedMachine {
            system_id: id.into(),
            hostname: format!("host-{id}"),
            serial: Some(serial.to_owned()).filter(|serial| !serial.is_empty()),
            macs: vec![digits(mac)],
            node: None,
            observation: MaasObservation {
                state: MaasState::New,
                message: String::new(),
                powered_on: None,
                at,
            },
        }
    }

    /// MAC addresses, serial number, and the machine found, none, or parts of the conflict text.
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
            // Not commissioned yet, so its serial number is unknown.
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
            match (find_machine(&all, &spec, None), expected) {
                (FindResult::None, Ok("")) => {}
                (FindResult::One(one), Ok(id)) => {
                    assert_eq!(one.system_id, id, "{macs:?} {serial}")
                }
                (FindResult::Conflict(message), Err(words)) => {
                    assert!(words.iter().all(|name| message.contains(name)), "{message}");
                }
                (found, expected) => panic!("{macs:?} {serial}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_system_id_matches_first_and_can_conflict() {
        let all = [listed("a", "aa:00:00:00:00:01", "S1"), listed("b", "aa:00:00:00:00:02", "")];
        let spec = |mac: &str, serial: &str| MachineSpec {
            mac_addresses: vec![mac.into()],
            serial: serial.into(),
            ..MachineSpec::default()
        };
        let none = "aa:00:00:00:00:09";
        assert_eq!(find_machine(&all, &spec(none, ""), Some("a")), FindResult::One(&all[0]));
        assert_eq!(find_machine(&all, &spec(none, "s1"), Some("a")), FindResult::One(&all[0]));
        // No machine has that system id any more.
        assert_eq!(
            find_machine(&all, &spec("aa:00:00:00:00:02", ""), Some("c")),
            FindResult::One(&all[1])
        );
        for (mac, serial, words) in [
            ("aa:00:00:00:00:02", "", ["a (host-a) by system id", "b (host-b) by MAC address"]),
            (none, "S9", ["system id", "\"S9\""]),
        ] {
            let FindResult::Conflict(message) = find_machine(&all, &spec(mac, serial), Some("a"))
            else {
                panic!()
            };
            assert!(words.iter().all(|name| message.contains(name)), "{message}");
        }
    }
}
