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
    /// Registered machines of which nothing can be read.
    unreadable: Vec<MachineId>,
}

/// Attribute value to machine. A value that two machines share identifies neither (`None`).
type Marks = HashMap<String, Option<usize>>;

#[derive(Debug)]
struct Entry {
    id: MachineId,
    serial: Option<String>,
    macs: Vec<String>,
    place: String,
    is_readable: bool,
}

impl MachineMatcher {
    pub fn add(&mut self, machine: &Machine) {
        self.add_spec(&machine.id, &machine.spec, true);
    }

    /// Adds a machine whose row cannot be decoded, with what could be read of its spec. Without an
    /// identifying attribute it may be any machine.
    pub fn add_unreadable(&mut self, id: &MachineId, spec: &MachineSpec) {
        let MachineSpec { bmc_endpoint, mac_addresses, serial, .. } = spec;
        if bmc_endpoint.is_empty() && mac_addresses.is_empty() && real_serial(serial).is_none() {
            self.unreadable.push(id.clone());
        }
        self.add_spec(id, spec, false);
    }

    fn add_spec(&mut self, id: &MachineId, spec: &MachineSpec, is_readable: bool) {
        let MachineSpec { bmc_endpoint, mac_addresses, serial, .. } = spec;
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
        self.by_name.insert(id.clone(), at);
        let (id, macs) = (id.clone(), mac_addresses.clone());
        self.machines.push(Entry { id, serial, macs, place: position, is_readable });
    }

    /// Finds the registered machine that was discovered, if any. A machine whose row cannot be read
    /// is never known for certain, and a new one is only new if it is none of those.
    pub fn find_match(&self, observed: &DiscoveredMachine) -> MachineMatch {
        let found = self.match_attributes(observed);
        let unreadable = match &found {
            MachineMatch::Known(id, _) => {
                let entry = self.by_name.get(id).and_then(|at| self.machines.get(*at));
                entry.filter(|entry| !entry.is_readable).map(|entry| &entry.id)
            }
            MachineMatch::New => self.unreadable.first(),
            MachineMatch::Doubtful(..) => None,
        };
        let Some(id) = unreadable.cloned() else { return found };
        let message = match found {
            MachineMatch::Known(_, mark) => {
                format!("its {} is that of {id}, whose row cannot be read", mark.as_str())
            }
            MachineMatch::New | MachineMatch::Doubtful(..) => {
                format!("it may be {id}, whose row cannot be read")
            }
        };
        MachineMatch::Doubtful(id, format!("{message}: farrier db check"))
    }

    fn match_attributes(&self, observed: &DiscoveredMachine) -> MachineMatch {
        let entry = |at: Option<&Option<usize>>| self.machines.get((*at?)?);
        let serial = real_serial(&observed.serial);
        let by_serial = serial.as_ref().and_then(|serial| entry(self.by_serial.get(serial)));
        let by_mac = observed.macs.iter().find_map(|mac| entry(self.by_mac.get(mac)));
        let position = normalize_endpoint(&observed.endpoint);
        let by_place = entry(self.by_place.get(&position));
        match (by_serial, by_mac, by_place) {
            (Some(known), Some(other), _) if known.id != other.id => doubtful_match(
                known,
                &format!(
                    "its serial number is that of {}, a MAC address is that of {}",
                    known.id, other.id
                ),
            ),
            (Some(known), None, _)
                if known.is_elsewhere(&position) && known.has_other_macs(&observed.macs) =>
            {
                doubtful_match(
                    known,
                    &format!(
                        "its serial number is that of {}, but not its BMC and none of its MAC addresses",
                        known.id
                    ),
                )
            }
            (Some(known), _, _) => MachineMatch::Known(known.id.clone(), MatchAttribute::Serial),
            (None, Some(known), _) if known.has_other_serial(serial.as_ref()) => doubtful_match(
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
                doubtful_match(
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

fn doubtful_match(known: &Entry, message: &str) -> MachineMatch {
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
