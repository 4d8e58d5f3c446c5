//! Where a BMC is.
//!
//! Operators write an address in many ways: a name, an address of either family, with or without a
//! scheme, a port, or the path of the one System that is meant. It is parsed once, here, so that the
//! rest of the client deals with a host, a port and perhaps a path. A password in an address is
//! refused, because addresses are shown and logged.

use model::fault::{Code, Fault};
use std::fmt;
use std::net::Ipv6Addr;

/// The path under which every Redfish service begins.
pub(super) const ROOT: &str = "/redfish/v1";

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The address of one BMC, and the System on it, when one was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    tls: bool,
    host: String,
    port: u16,
    system: Option<String>,
}

impl Endpoint {
    /// Reads `10.0.0.5`, `https://bmc-7:8443` or `https://10.0.0.5/redfish/v1/Systems/2`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let text = text.trim();
        if text.contains('@') {
            // Not shown again: what stands before the sign is probably a password.
            return Err(wrong("with a user or password in it", "give them as a credential"));
        }
        let (tls, rest) = match text.split_once("://") {
            None => (true, text),
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(wrong(text, "it must begin with https:// or http://")),
        };
        let (authority, path) = match rest.split_once('/') {
            None => (rest, ""),
            Some((authority, path)) => (authority, path),
        };
        let default_port = if tls { HTTPS_PORT } else { HTTP_PORT };
        let (host, port) = host_and_port(authority)
            .ok_or_else(|| wrong(text, "it needs a host name or an address"))?;
        let system = system_path(path)
            .ok_or_else(|| wrong(text, "its path must be /redfish/v1/Systems/ and an id"))?;
        Ok(Self { tls, host, port: port.unwrap_or(default_port), system })
    }

    /// False only when the operator wrote `http://`.
    pub const fn tls(&self) -> bool {
        self.tls
    }

    /// The name or address, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The path of the System that the operator named.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Whether a host and port, as they stand in a URL, are these.
    pub(super) fn is_at(&self, authority: &str) -> bool {
        let usual = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        host_and_port(authority).is_some_and(|(host, port)| {
            host.eq_ignore_ascii_case(&self.host) && port.unwrap_or(usual) == self.port
        })
    }

    /// Host and port as they stand in a URL and in the `Host` header.
    pub(super) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

fn wrong(text: &str, why: &str) -> Fault {
    Fault::new(Code::BmcUnreachable, format!("The BMC address {text:?} cannot be used: {why}"))
}

fn host_and_port(authority: &str) -> Option<(String, Option<u16>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        let port = match after {
            "" => None,
            port => Some(port.strip_prefix(':')?.parse().ok()?),
        };
        return Some((host.to_owned(), port));
    }
    if authority.parse::<Ipv6Addr>().is_ok() {
        return Some((authority.to_owned(), None));
    }
    let (host, port) = match authority.split_once(':') {
        None => (authority, None),
        Some((host, port)) => (host, Some(port.parse().ok()?)),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(plain)).then(|| (host.to_owned(), port))
}

/// The System in a path: `Some(None)` when the path names none, `None` when it is something else.
fn system_path(path: &str) -> Option<Option<String>> {
    let path = path.trim_end_matches('/');
    if matches!(path, "" | "redfish" | "redfish/v1") {
        return Some(None);
    }
    let id = path.strip_prefix("redfish/v1/Systems/")?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#');
    id.chars().all(plain).then(|| Some(format!("{ROOT}/Systems/{id}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_operators_write_them() {
        for (text, shown, system) in [
            ("10.0.0.5", "https://10.0.0.5", None),
            (" https://bmc-7.rack.lan/ ", "https://bmc-7.rack.lan", None),
            ("https://h:8443/redfish/v1/", "https://h:8443", None),
            ("http://h:80", "http://h", None),
            ("http://h", "http://h", None),
            ("fe80::1", "https://[fe80::1]", None),
            ("https://[::1]:8000", "https://[::1]:8000", None),
            ("h/redfish/v1/Systems/System.Embedded.1/", "https://h", Some("System.Embedded.1")),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.to_string(), shown, "{text}");
            let system = system.map(|id| format!("/redfish/v1/Systems/{id}"));
            assert_eq!(endpoint.system().map(str::to_owned), system, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "https://",
            "ftp://h",
            "h:port",
            "h:99999",
            "a b",
            "h/other",
            "h/redfish/v1/Systems/1/Bios",
            "[::1",
            "h\r\nX: y",
        ] {
            let fault = Endpoint::parse(text).unwrap_err();
            assert_eq!(fault.code, Code::BmcUnreachable, "{text}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        let fault = Endpoint::parse("https://root:calvin@10.0.0.5").unwrap_err();
        assert!(!fault.said.contains("calvin"), "{fault}");
        assert!(fault.said.contains("credential"), "{fault}");
    }
}
