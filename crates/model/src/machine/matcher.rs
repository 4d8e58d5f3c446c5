//! Matches a discovered machine against the registered ones.
//!
//! A machine is matched by its serial number, a MAC address or its BMC endpoint. Each of them can
//! be wrong: boards leave the factory with equal serial numbers, and network cards move between
//! machines. If they contradict each other, the operator decides: two records of one machine are as
//! bad as one record of two machines.

use super::{Labels, MAX_MACS, Machine, MachineSpec};
use crate::id::{MAX_ID_LEN, MachineId};
use crate::text;
use std::collections::HashMap;

/// The least number of letters and digits in a valid serial number.
const MIN_SERIAL: usize = 4;
/// Placeholders that vendors leave in the serial number field, in lower case without blanks and
/// dots.
const NO_SERIAL: [&str; 12] = [
    "tobefilledbyoem",
    "defaultstring",
    "notspecified",
    "notavailable",
    "notapplicable",
    "systemserialnumber",
    "chassisserialnumber",
    "123456789",
    "0123456789",
    "none",
    "null",
    "unknown",
];

/// A computer that was discovered behind a BMC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoveredMachine {
    /// The endpoint to register. It names the System if the BMC has several.
    pub endpoint: String,
    pub vendor: String,
    pub model: String,
    pub serial: String,
    /// In lower case, separated by colons.
    pub macs: Vec<String>,
}

/// The attribute by which a machine was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchAttribute {
    Serial,
    Mac,
    Endpoint,
}

impl MatchAttribute {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serial => "serial number",
            Self::Mac => "MAC address",
            Self::Endpoint => "BMC endpoint",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineMatch {
    New,
    Known(MachineId, MatchAttribute),
    /// It may be this machine or another one. The text gives the contradiction.
    Doubtful(MachineId, String),
}

/// The registered machines, indexed by their identifying attributes.
#[derive(Debug, Default)]
pub struct MachineMatcher {
    machines: Vec<Entry>,
    by_serial: Marks,
    by_mac: Marks,
    by_place: Marks,
    by_name: HashMap<MachineId, usize>,
}

/// Attribute value to machine. A value that two machines share identifies neither (`None`).
type Marks = HashMap<String, Option<usize>>;

#[derive(Debug)]
struct Entry {
    id: MachineId,
    serial: Option<String>,
    macs: Vec<String>,
    place: String,
}

impl MachineMatcher {
    pub fn add(&mut self, machine: &Machine) {
        let MachineSpec { bmc_endpoint, mac_addresses, serial, .. } = &machine.spec;
        let (serial, position) = (real_serial(serial), normalize_endpoint(bmc_endpoint));
        let at = self.machines.len();
        if let Some(serial) = &serial {
            claim(&mut self.by_serial, serial, at);
        }
        for mac in mac_addresses {
            claim(&mut self.by_mac, mac, at);
        }
        if !position.is_empty() {
            claim(&mut self.by_place, &position, at);
        }
        self.by_name.insert(machine.id.clone(), at);
        let (id, macs) = (machine.id.clone(), mac_addresses.clone());
        self.machines.push(Entry { id, serial, macs, place: position });
    }

    /// Finds the registered machine that was discovered, if any.
    pub fn find_match(&self, observed: &DiscoveredMachine) -> MachineMatch {
        let entry = |at: Option<&Option<usize>>| self.machines.get((*at?)?);
        let serial = real_serial(&observed.serial);
        let by_serial = serial.as_ref().and_then(|serial| entry(self.by_serial.get(serial)));
        let by_mac = observed.macs.iter().find_map(|mac| entry(self.by_mac.get(mac)));
        let position = normalize_endpoint(&observed.endpoint);
        let by_place = entry(self.by_place.get(&position));
        match (by_serial, by_mac, by_place) {
            (Some(known), Some(other), _) if known.id != other.id => doubt(
                known,
                &format!(
                    "its serial number is that of {}, a MAC address is that of {}",
                    known.id, other.id
                ),
            ),
            (Some(known), None, _)
                if known.is_elsewhere(&position) && known.has_other_macs(&observed.macs) =>
            {
                doubt(
                    known,
                    &format!(
                        "its serial number is that of {}, but not its BMC and none of its MAC addresses",
                        known.id
                    ),
                )
            }
            (Some(known), _, _) => MachineMatch::Known(known.id.clone(), MatchAttribute::Serial),
            (None, Some(known), _) if known.has_other_serial(serial.as_ref()) => doubt(
                known,
                &format!(
                    "a MAC address is that of {}, but its serial number is {}",
                    known.id, observed.serial
                ),
            ),
            (None, Some(known), _) => MachineMatch::Known(known.id.clone(), MatchAttribute::Mac),
            (None, None, Some(known))
                if known.has_other_serial(serial.as_ref())
                    || known.has_other_macs(&observed.macs) =>
            {
                doubt(
                    known,
                    &format!("its BMC is that of {}, but it is another computer", known.id),
                )
            }
            (None, None, Some(known)) => {
                MachineMatch::Known(known.id.clone(), MatchAttribute::Endpoint)
            }
            (None, None, None) => self.by_its_name(observed),
        }
    }

    /// A new machine must not overwrite a registered one that happens to have its name.
    fn by_its_name(&self, observed: &DiscoveredMachine) -> MachineMatch {
        let name = id_for(observed);
        match self.by_name.contains_key(&name) {
            true => {
                let message = format!(
                    "a machine is called {name} that is registered with nothing of this one"
                );
                MachineMatch::Doubtful(name, message)
            }
            false => MachineMatch::New,
        }
    }
}

impl Entry {
    fn is_elsewhere(&self, position: &str) -> bool {
        !self.place.is_empty() && self.place != position
    }

    fn has_other_macs(&self, macs: &[String]) -> bool {
        !self.macs.is_empty() && !macs.is_empty() && !self.macs.iter().any(|mac| macs.contains(mac))
    }

    fn has_other_serial(&self, serial: Option<&String>) -> bool {
        matches!((&self.serial, serial), (Some(known), Some(observed)) if known != observed)
    }
}

fn claim(marks: &mut Marks, mark: &str, at: usize) {
    marks.entry(mark.to_string()).and_modify(|owner| *owner = None).or_insert(Some(at));
}

fn doubt(known: &Entry, message: &str) -> MachineMatch {
    MachineMatch::Doubtful(known.id.clone(), message.to_string())
}

/// The id for a discovered machine. It depends only on the machine, so two replicas that discover
/// it at the same time register it once.
pub fn id_for(observed: &DiscoveredMachine) -> MachineId {
    let named = match (real_serial(&observed.serial), observed.macs.first()) {
        (Some(_), _) => to_slug(&observed.serial),
        (None, Some(mac)) => format!("mac-{}", mac.replace(':', "")),
        (None, None) => format!("bmc-{}", to_slug(&normalize_endpoint(&observed.endpoint))),
    };
    MachineId::parse(&named).unwrap_or_else(|_| {
        // A text that is not a valid id becomes one with the prefix `m-`, shortened if needed.
        let short: String = named.chars().take(MAX_ID_LEN - "m-".len()).collect();
        MachineId::trusted(format!("m-{}", short.trim_matches('-')))
    })
}

/// The spec for a discovered machine.
pub fn spec_for(observed: &DiscoveredMachine, provider: &str, credential: &str) -> MachineSpec {
    let serial = observed.serial.trim();
    let stored = real_serial(serial).is_some() && text::check_short("serial", serial).is_ok();
    MachineSpec {
        bmc_endpoint: observed.endpoint.clone(),
        mac_addresses: observed.macs.iter().take(MAX_MACS).cloned().collect(),
        provider: provider.to_string(),
        serial: if stored { serial.to_string() } else { String::new() },
        bmc_credential: credential.to_string(),
        ..MachineSpec::default()
    }
}

/// The command that registers the machine.
pub fn register_command(
    observed: &DiscoveredMachine,
    spec: &MachineSpec,
    labels: &Labels,
) -> String {
    let mut words = vec![
        format!("farrier machine register {}", id_for(observed)),
        format!("--provider {}", spec.provider),
        format!("--bmc-endpoint {}", spec.bmc_endpoint),
    ];
    let quoted =
        |value: &str| match value.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
            true => value.to_string(),
            false => format!("'{}'", value.replace('\'', "'\\''")),
        };
    if !spec.bmc_credential.is_empty() {
        words.push(format!("--bmc-credential {}", spec.bmc_credential));
    }
    if !spec.serial.is_empty() {
        words.push(format!("--serial {}", quoted(&spec.serial)));
    }
    words.extend(spec.mac_addresses.iter().map(|mac| format!("--mac {mac}")));
    words.extend(
        labels.iter().map(|(key, value)| format!("--label {}", quoted(&format!("{key}={value}")))),
    );
    words.join(" ")
}

/// A serial number in its compared form, lower case. None for vendor placeholders.
fn real_serial(text: &str) -> Option<String> {
    let small = text.trim().to_lowercase();
    let bare: String = small.chars().filter(char::is_ascii_alphanumeric).collect();
    let one_digit = bare.chars().all(|c| bare.starts_with(c));
    let real = bare.len() >= MIN_SERIAL && !one_digit && !NO_SERIAL.contains(&bare.as_str());
    real.then_some(small)
}

/// Replaces everything but letters, digits and underscores by single dashes.
fn to_slug(text: &str) -> String {
    let dashed: String = text
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    let pieces: Vec<&str> = dashed.split('-').filter(|piece| !piece.is_empty()).collect();
    pieces.join("-")
}

/// Normalizes a BMC endpoint: `10.1.0.7`, `https://10.1.0.7:443/` and `https://10.1.0.7/redfish/v1`
/// are the same.
fn normalize_endpoint(endpoint: &str) -> String {
    let small = endpoint.trim().to_lowercase();
    let rest = small.strip_prefix("https://").unwrap_or(&small);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = match small.contains("://") && !small.starts_with("https://") {
        // A scheme other than https belongs to the normalized form.
        true => return small.trim_end_matches('/').to_string(),
        false => host.strip_suffix(":443").unwrap_or(host),
    };
    let path = path.trim_matches('/');
    match path.strip_prefix("redfish/v1").unwrap_or(path).trim_matches('/') {
        "" => host.to_string(),
        path => format!("{host}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn machine(id: &str, serial: &str, macs: &[&str], endpoint: &str) -> Machine {
        let spec = MachineSpec {
            serial: serial.into(),
            mac_addresses: macs.iter().map(ToString::to_string).collect(),
            bmc_endpoint: endpoint.into(),
            ..MachineSpec::default()
        };
        Machine::new(MachineId::trusted(id), spec, Labels::new(), Timestamp::default())
    }

    fn seen(serial: &str, macs: &[&str], endpoint: &str) -> DiscoveredMachine {
        DiscoveredMachine {
            serial: serial.into(),
            macs: macs.iter().map(ToString::to_string).collect(),
            endpoint: endpoint.into(),
            ..DiscoveredMachine::default()
        }
    }

    fn roster() -> MachineMatcher {
        let mut matcher = MachineMatcher::default();
        for machine in [
            machine("a", "SN-0001", &["02:00:00:00:00:0a"], "10.0.0.1"),
            machine("b", "SN-0002", &["02:00:00:00:00:0b"], "https://10.0.0.2"),
            machine("c", "", &[], "10.0.0.3:443"),
            machine("d", "Default string", &[], "http://10.0.0.4:8000/"),
            machine("SN-0009", "", &[], ""),
        ] {
            matcher.add(&machine);
        }
        matcher
    }

    #[test]
    fn a_machine_is_recognised_or_doubted_or_new() {
        let (mac_a, mac_b, mac_x) = ("02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:ff");
        for (sighting, expected) in [
            (seen("sn-0001", &[], "https://10.9.9.9"), "a by serial number"),
            (seen("SN-0001", &[mac_x], "https://10.0.0.1"), "a by serial number"),
            (seen("SN-0001", &[mac_x], "https://10.9.9.9"), "a?"),
            (seen("SN-0001", &[mac_b], "https://10.0.0.1"), "a?"),
            (seen("", &[mac_x, mac_a], "https://10.9.9.9"), "a by MAC address"),
            (seen("SN-0007", &[mac_a], "https://10.0.0.1"), "a?"),
            (seen("0", &[mac_a], "https://10.9.9.9"), "a by MAC address"),
            (seen("SN-0007", &[mac_x], "https://10.0.0.1"), "a?"),
            (seen("", &[], "https://10.0.0.2"), "b by BMC endpoint"),
            (seen("SN-0007", &[mac_x], "https://10.0.0.3"), "c by BMC endpoint"),
            (seen("", &[], "http://10.0.0.4:8000"), "d by BMC endpoint"),
            (seen("Default string", &[], "https://10.9.9.9"), "new"),
            (seen("SN-0007", &[], "https://10.0.0.1/redfish/v1/Systems/2"), "new"),
            (seen("SN-0009", &[], "https://10.9.9.9"), "SN-0009?"),
            (seen("", &[], "ipmi://10.0.0.1"), "new"),
        ] {
            let reported = match roster().find_match(&sighting) {
                MachineMatch::New => "new".to_string(),
                MachineMatch::Known(id, mark) => format!("{id} by {}", mark.as_str()),
                MachineMatch::Doubtful(id, message) => {
                    assert!(message.contains(id.as_str()), "{message}");
                    format!("{id}?")
                }
            };
            assert_eq!(reported, expected, "{sighting:?}");
        }
    }

    #[test]
    fn what_marks_two_machines_marks_neither() {
        let mut matcher = roster();
        let shared = "be:3a:f2:00:00:01";
        matcher.add(&machine("e", "SN-0005", &[shared], "10.0.0.5"));
        matcher.add(&machine("f", "SN-0006", &[shared], "10.0.0.6"));
        assert_eq!(
            matcher.find_match(&seen("SN-0007", &[shared], "https://10.0.0.7")),
            MachineMatch::New
        );
        let known = MachineMatch::Known(MachineId::trusted("f"), MatchAttribute::Serial);
        assert_eq!(matcher.find_match(&seen("SN-0006", &[shared], "https://10.0.0.7")), known);
    }

    #[test]
    fn what_was_registered_is_known_the_next_time() {
        for (sighting, name) in [
            (seen("CN7-X1.2", &["02:00:00:00:00:01"], "https://10.0.0.7"), "CN7-X1-2"),
            (seen(" op-1234 ", &[], "https://10.0.0.7"), "m-op-1234"),
            (
                seen("To be filled by O.E.M.", &["02:00:00:00:00:01"], "https://h"),
                "mac-020000000001",
            ),
            (
                seen("0000", &[], "https://[fe80::1]:8443/redfish/v1/Systems/2"),
                "bmc-fe80-1-8443-systems-2",
            ),
            (seen(&"x1".repeat(80), &[], "https://10.0.0.7"), &format!("m-{}x", "x1".repeat(30))),
        ] {
            let (mut matcher, id) = (roster(), id_for(&sighting));
            assert_eq!(id.as_str(), name);
            assert!(MachineId::parse(name).is_ok(), "{name}");
            assert_eq!(matcher.find_match(&sighting), MachineMatch::New);
            let spec = spec_for(&sighting, "datacenter", "bmc").checked().unwrap();
            matcher.add(&Machine::new(id.clone(), spec, Labels::new(), Timestamp::default()));
            match matcher.find_match(&sighting) {
                MachineMatch::Known(known, _) => assert_eq!(known, id),
                other @ (MachineMatch::New | MachineMatch::Doubtful(..)) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_command_can_be_typed() {
        let sighting = seen("S 1/2'3", &["02:00:00:00:00:01"], "https://10.0.0.7");
        let labels = Labels::from([("rack".to_string(), "r 1".to_string())]);
        let spec = spec_for(&sighting, "datacenter", "bmc");
        assert_eq!(
            register_command(&sighting, &spec, &labels),
            "farrier machine register S-1-2-3 --provider datacenter --bmc-endpoint https://10.0.0.7 \
             --bmc-credential bmc --serial 'S 1/2'\\''3' --mac 02:00:00:00:00:01 --label 'rack=r 1'"
        );
    }
}
