//! Parses the addresses for BMC discovery.
//!
//! Discovery probes only the given addresses: an address, a host name, an endpoint with its scheme,
//! or an address range. An oversized range is more often a typing error than an intent, so it is
//! refused with the smaller ranges to type instead.

use crate::refusal::Refusal;
use crate::text;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;

/// The size limit of one range: an IPv4 /20.
pub const MAX_RANGE: u128 = 4_096;
/// The number of addresses in one discovery.
pub const MAX_ADDRESSES: usize = 16_384;
/// The protocols that discovery speaks.
const SCHEMES: [&str; 3] = ["https", "http", "ipmi"];
const V4_BITS: u8 = 32;
const V6_BITS: u8 = 128;

/// The endpoints in the given order, without duplicates.
pub fn expand_endpoints(field: &str, given: &[String]) -> Result<Vec<String>, Refusal> {
    if given.is_empty() {
        return Err(Refusal::missing(field));
    }
    let mut unique = BTreeSet::new();
    let mut found = Vec::new();
    for (index, text) in given.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let meant = expanded(&field, text.trim())?;
        found.extend(meant.into_iter().filter(|endpoint| unique.insert(endpoint.clone())));
        if found.len() > MAX_ADDRESSES {
            let instead = format!("give at most {MAX_ADDRESSES} addresses at a time");
            return Err(Refusal::invalid(&field, "makes too many addresses", instead));
        }
    }
    Ok(found)
}

fn expanded(field: &str, text: &str) -> Result<Vec<String>, Refusal> {
    if text.contains('@') {
        // The text is not shown: the part before the `@` is probably a password.
        let instead = "write it without, and give them as a credential";
        return Err(Refusal::invalid(field, "has a user or a password in it", instead));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        text::check_endpoint(field, text)?;
        return match SCHEMES.contains(&scheme) {
            true => Ok(vec![text.to_string()]),
            false => Err(unreadable(field, text)),
        };
    }
    if let Some((base, prefix)) = text.split_once('/') {
        return match (base.parse(), prefix.parse()) {
            (Ok(base), Ok(prefix)) => range(field, text, base, prefix),
            (Err(_), _) | (_, Err(_)) => Err(unreadable(field, text)),
        };
    }
    if let Ok(address) = text.parse() {
        return Ok(vec![endpoint(address)]);
    }
    if text.is_empty() {
        return Err(unreadable(field, text));
    }
    text::check_endpoint(field, text)?;
    Ok(vec![format!("https://{text}")])
}

fn unreadable(field: &str, text: &str) -> Refusal {
    let shown: String = text.chars().take(64).collect();
    let instead =
        "write 10.1.0.7, 10.1.0.0/24, bmc-7.lan, https://10.1.0.7:8443 or ipmi://10.1.0.7";
    Refusal::invalid(field, format!("{shown:?} is no address and no range of addresses"), instead)
}

/// The addresses of a range. For IPv4 the network and the broadcast address are left out.
fn range(field: &str, text: &str, base: IpAddr, prefix: u8) -> Result<Vec<String>, Refusal> {
    let (bits, number) = match base {
        IpAddr::V4(v4) => (V4_BITS, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (V6_BITS, v6.to_bits()),
    };
    if prefix > bits {
        return Err(unreadable(field, text));
    }
    let size = 1_u128.checked_shl(u32::from(bits - prefix)).unwrap_or(u128::MAX);
    let first = number & !(size - 1);
    if size > MAX_RANGE {
        return Err(too_large(field, text, base, first, prefix));
    }
    let every = first..first + size;
    let all: Vec<u128> = match (base, size) {
        (IpAddr::V4(_), 4..) => every.skip(1).take(size as usize - 2).collect(),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => every.collect(),
    };
    Ok(all.into_iter().map(|number| endpoint(address(base, number))).collect())
}

fn too_large(field: &str, text: &str, base: IpAddr, first: u128, prefix: u8) -> Refusal {
    let bits = if base.is_ipv4() { V4_BITS } else { V6_BITS };
    let widest = bits - MAX_RANGE.ilog2() as u8;
    let piece = |number| format!("{}/{widest}", address(base, number));
    let instead = format!(
        "at most a /{widest} ({MAX_RANGE} addresses) is asked at a time: give {}, then {}, and so on, \
         or a file with the addresses",
        piece(first),
        piece(first + MAX_RANGE)
    );
    Refusal::invalid(field, format!("{text:?} is a /{prefix}, which is too large"), instead)
}

/// The address with this number, in the same family.
fn address(family: IpAddr, number: u128) -> IpAddr {
    match family {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

fn endpoint(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("https://{v4}"),
        IpAddr::V6(v6) => format!("https://[{v6}]"),
    }
}
