//! Finds an object by what a person has at hand: a serial number, a MAC address, the address of a
//! BMC, a host name, the label `name`, in any case. For reading only: what acts takes exact ids.

use crate::lifecycle::{DeviceSpec, RecordHeader};
use crate::machine::{Labels, Machine};
use crate::refusal::{Reason, Refusal};
use crate::text::normalize_mac;

/// The most candidates that a refusal names.
const MAX_CANDIDATES: usize = 10;
/// The most characters of a name that a refusal shows.
const MAX_SHOWN: usize = 64;
/// The label that names an object for people.
const NAME: &str = "name";

/// True if a person may mean this machine by `text`.
pub fn is_machine(machine: &Machine, text: &str) -> bool {
    let spec = &machine.spec;
    let mac = normalize_mac("id", text).ok();
    mac.is_some_and(|mac| spec.mac_addresses.contains(&mac))
        || is_id_or_label(machine.id.as_str(), &machine.labels, text)
        || [&spec.serial, &spec.node_name].into_iter().any(|name| is_name(name, text))
        || [&spec.bmc_endpoint, &spec.ssh_endpoint].into_iter().any(|at| is_address(at, text))
}

/// True if a person may mean this switch or power shelf by `text`.
pub fn is_device(head: &RecordHeader, spec: &DeviceSpec, text: &str) -> bool {
    is_id_or_label(&head.id, &head.labels, text)
        || is_name(&spec.serial, text)
        || [&spec.bmc_endpoint, &spec.ssh_endpoint].into_iter().any(|at| is_address(at, text))
}

/// True if a person may mean this rack, node or site by `text`.
pub fn is_record(head: &RecordHeader, text: &str) -> bool {
    is_id_or_label(&head.id, &head.labels, text)
}

fn is_id_or_label(id: &str, labels: &Labels, text: &str) -> bool {
    is_name(id, text) || labels.get(NAME).is_some_and(|name| is_name(name, text))
}

fn is_name(name: &str, text: &str) -> bool {
    !name.is_empty() && name.eq_ignore_ascii_case(text)
}

fn is_address(endpoint: &str, text: &str) -> bool {
    is_name(endpoint, text) || is_name(host(endpoint), text)
}

/// The host of an endpoint, without protocol, user, port and path.
fn host(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let rest = rest.split_once('/').map_or(rest, |(host, _)| host);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if let Some(ipv6) = rest.strip_prefix('[') {
        return ipv6.split_once(']').map_or(ipv6, |(host, _)| host);
    }
    match rest.split_once(':') {
        // More than one colon: an IPv6 address without brackets.
        Some((host, port)) if !port.contains(':') => host,
        Some(_) | None => rest,
    }
}

/// The refusal of a name that fits several objects.
pub fn ambiguous(text: &str, candidates: &[String]) -> Refusal {
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    let named = crate::list_format::join_limited(candidates, ", ", MAX_CANDIDATES);
    let message = format!("{shown:?} fits {} objects: {named}", candidates.len());
    let first = candidates.first().map(String::as_str).unwrap_or_default();
    Refusal::new(Reason::AmbiguousName, message).next(format!("farrier why {first}"))
}

/// The refusal of a name that fits nothing.
pub fn nothing_known_as(text: &str) -> Refusal {
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    let message = format!(
        "nothing is known as {shown:?}: no machine, operation, rack, switch, power shelf, node or \
         site has it as its id, serial number, MAC address, address, host name or name"
    );
    Refusal::new(Reason::NotFound, message).next("farrier list")
}
