//! Validation of the text fields of requests, done once, at the API boundary.
//!
//! Every refusal names the field, says what is wrong with it, and what to type instead.

use crate::id::ObjectId;
use crate::machine::Labels;
use crate::refusal::Refusal;
use core::net::{Ipv4Addr, Ipv6Addr};
use std::borrow::Cow;

/// The length limit of short texts (names, serials, references), in bytes.
pub const MAX_SHORT: usize = 128;
/// The length limit of free texts, such as reasons, in bytes.
pub const MAX_LONG: usize = 1_024;
pub const MAX_LABELS: usize = 64;
pub const MAX_LABEL_KEY: usize = 63;
pub const MAX_LABEL_VALUE: usize = 255;
pub const MAX_ENDPOINT: usize = 255;
pub const MAX_URL: usize = 1_024;
pub const MAX_REQUEST_ID: usize = 128;
pub const MAX_NAME: usize = 63;
/// The length limit of the name of a Kubernetes node, in bytes.
pub const MAX_NODE_NAME: usize = 253;
/// The longest label of a DNS name.
const MAX_HOSTNAME: usize = 63;

fn check_length(field: &str, value: &str, most: usize) -> Result<(), Refusal> {
    let length = value.len();
    if length > most {
        let problem = format!("is {length} bytes long");
        return Err(Refusal::invalid(field, problem, format!("use at most {most} bytes")));
    }
    Ok(())
}

fn printable(field: &str, value: &str) -> Result<(), Refusal> {
    match value.chars().find(|c| c.is_control() || is_direction_control(*c)) {
        None => Ok(()),
        Some(bad) => {
            let problem = format!("contains the control character {bad:?}");
            Err(Refusal::invalid(field, problem, "use printable characters only"))
        }
    }
}

/// Unicode direction controls: they make a line display in another order than it is stored.
fn is_direction_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Checks a name: easy to type, and valid as a file name.
pub fn check_name(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::missing(field));
    }
    check_length(field, value, MAX_NAME)?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if value.starts_with(|c: char| c.is_ascii_alphanumeric()) && value.chars().all(fits) {
        return Ok(());
    }
    let instead =
        "use lower-case letters, digits, dots, dashes and underscores, a letter or digit first";
    Err(Refusal::invalid(field, format!("is {value:?}"), instead))
}

/// Like `name`, but the empty string is accepted.
pub fn check_optional_name(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() { Ok(()) } else { check_name(field, value) }
}

/// Checks the name of a Kubernetes node, a DNS name in lower case; it may be empty. The name is
/// also a part of a shell command.
pub fn check_node_name(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Ok(());
    }
    check_length(field, value, MAX_NODE_NAME)?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let part = |part: &str| {
        !part.is_empty() && part.chars().all(fits) && !part.starts_with('-') && !part.ends_with('-')
    };
    if value.split('.').all(part) {
        return Ok(());
    }
    let instead = "use lower-case letters, digits, dashes and dots, as in node-7.example";
    Err(Refusal::invalid(field, format!("is {value:?}"), instead))
}

/// The host name of a machine: its id, with the characters that a host name may have.
pub fn hostname(machine: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = machine.chars().take(MAX_HOSTNAME).map(fit).collect();
    name.trim_matches('-').to_owned()
}

/// The kinds of objects whose histories are named KIND/NAME.
const NAMED_HISTORIES: [&str; 5] = ["credential", "firmware", "identity", "image", "notifier"];

/// Checks the name of a history: the id of an object, or KIND/NAME.
pub fn check_history_id(field: &str, value: &str) -> Result<String, Refusal> {
    match value.split_once('/') {
        Some((kind, name)) if NAMED_HISTORIES.contains(&kind) && !name.is_empty() => {
            check_length(field, value, MAX_LONG)?;
            printable(field, value)?;
            Ok(value.to_string())
        }
        Some(_) | None => Ok(ObjectId::parse_field(value, field)?.to_string()),
    }
}

/// Checks a short text; it may be empty.
pub fn check_short(field: &str, value: &str) -> Result<(), Refusal> {
    check_length(field, value, MAX_SHORT)?;
    printable(field, value)
}

/// Checks and trims a reason. It is required, because it is recorded for later readers.
pub fn check_reason(field: &str, value: &str) -> Result<String, Refusal> {
    let value = value.trim();
    if value.is_empty() {
        return Err(Refusal::missing(field));
    }
    check_optional_reason(field, value)
}

/// Checks and trims a reason; it may be empty.
pub fn check_optional_reason(field: &str, value: &str) -> Result<String, Refusal> {
    check_length(field, value, MAX_LONG)?;
    printable(field, value)?;
    Ok(value.trim().to_string())
}

pub fn check_request_id(value: &str) -> Result<String, Refusal> {
    const FIELD: &str = "request_id";
    if value.is_empty() {
        return Err(Refusal::missing(FIELD));
    }
    check_length(FIELD, value, MAX_REQUEST_ID)?;
    printable(FIELD, value)?;
    if value.trim() != value {
        return Err(Refusal::invalid(FIELD, "begins or ends with a space", "remove it"));
    }
    Ok(value.to_string())
}

pub fn check_labels(field: &str, labels: &Labels) -> Result<(), Refusal> {
    if labels.len() > MAX_LABELS {
        let problem = format!("has {} entries", labels.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_LABELS}")));
    }
    for (key, value) in labels {
        label_key(field, key)?;
        let field = format!("{field}[{key}]");
        check_length(&field, value, MAX_LABEL_VALUE)?;
        printable(&field, value)?;
    }
    Ok(())
}

fn label_key(field: &str, key: &str) -> Result<(), Refusal> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    if key.is_empty() || key.len() > MAX_LABEL_KEY || !key.chars().all(legal) {
        let shown: String = key.chars().take(MAX_LABEL_KEY).collect();
        return Err(Refusal::invalid(
            field,
            format!("has the key {shown:?}"),
            format!("a key is 1 to {MAX_LABEL_KEY} letters, digits, '.', '_', '-' or '/'"),
        ));
    }
    Ok(())
}

/// Checks an endpoint: `host`, `host:port`, `[v6]:port` or `scheme://host…`; it may be empty.
pub fn check_endpoint(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Ok(());
    }
    check_length(field, value, MAX_ENDPOINT)?;
    printable(field, value)?;
    match endpoint_problem(value) {
        None => Ok(()),
        Some(problem) => Err(Refusal::invalid(
            field,
            format!("{value:?} {problem}"),
            "write host, host:port, [v6]:port or https://host",
        )),
    }
}

/// Checks a download URL: `http://host…` or `https://host…`, without credentials.
pub fn check_web_url(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::missing(field));
    }
    check_length(field, value, MAX_URL)?;
    printable(field, value)?;
    let web = value.starts_with("http://") || value.starts_with("https://");
    let problem = if web { endpoint_problem(value) } else { Some("is neither http nor https") };
    match problem {
        None => Ok(()),
        Some(problem) => Err(Refusal::invalid(
            field,
            format!("{value:?} {problem}"),
            "write http://host/file or https://host/file",
        )),
    }
}

fn endpoint_problem(value: &str) -> Option<&'static str> {
    let rest = match value.split_once("://") {
        Some((_, rest)) if rest.contains(char::is_whitespace) => return Some("contains a space"),
        Some((scheme, _))
            if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric()) =>
        {
            return Some("has a malformed scheme");
        }
        Some((_, rest)) => rest.split('/').next().unwrap_or(rest),
        None => value,
    };
    if rest.contains('@') {
        return Some("contains credentials");
    }
    let (host, port) = match rest.strip_prefix('[') {
        Some(v6) => match v6.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => return Some("has text behind the bracket"),
            },
            None => return Some("has no closing bracket"),
        },
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let bracketed = rest.starts_with('[');
    if !(if bracketed { host.parse::<Ipv6Addr>().is_ok() } else { is_host(host) }) {
        return Some("has a malformed host");
    }
    if port.is_some_and(|port| port.parse::<u16>().map_or(true, |number| number == 0)) {
        return Some("has a malformed port");
    }
    None
}

/// A host name or an IPv4 address. Text made of digits and dots must be a valid address.
fn is_host(host: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let part = |part: &str| {
        part.chars().all(legal) && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let numeric = host.chars().all(|c| c.is_ascii_digit() || c == '.');
    if numeric { host.parse::<Ipv4Addr>().is_ok() } else { host.split('.').all(part) }
}

/// A value as one word of a shell, for the commands that are printed.
pub fn shell_word(value: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@".contains(c);
    match !value.is_empty() && value.chars().all(plain) {
        true => Cow::Borrowed(value),
        false => Cow::Owned(format!("'{}'", value.replace('\'', r"'\''"))),
    }
}

/// Compares two checksums of secrets in a time that does not depend on where they differ.
pub fn same_checksum(one: &str, other: &str) -> bool {
    let differs = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    // Without the barrier a compiler may leave the loop early.
    one.len() == other.len() && std::hint::black_box(differs) == 0
}

/// Normalizes a MAC address to `aa:bb:cc:dd:ee:ff`.
pub fn normalize_mac(field: &str, value: &str) -> Result<String, Refusal> {
    let pair = |pair: &&str| pair.len() == 2 && pair.chars().all(|c| c.is_ascii_hexdigit());
    let separated = [':', '-'].into_iter().any(|separator| {
        let pairs: Vec<&str> = value.split(separator).collect();
        pairs.len() == 6 && pairs.iter().all(pair)
    });
    let bare = value.len() == 12 && value.chars().all(|c| c.is_ascii_hexdigit());
    if !separated && !bare {
        let shown: String = value.chars().take(32).collect();
        return Err(Refusal::invalid(
            field,
            format!("{shown:?} is not a MAC address"),
            "write six pairs of hex digits, aa:bb:cc:dd:ee:ff",
        ));
    }
    let digits: String = value.chars().filter(char::is_ascii_hexdigit).collect();
    let lower = digits.to_ascii_lowercase();
    let pairs: Vec<&str> = (0..6).map(|i| &lower[2 * i..2 * i + 2]).collect();
    Ok(pairs.join(":"))
}
