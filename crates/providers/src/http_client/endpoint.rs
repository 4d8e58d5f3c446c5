//! The address of an HTTP server: scheme, host and port.
//!
//! Operators write a name or an IPv4 or IPv6 address, with or without a scheme or a port. It is
//! parsed once, here. A password in an address is refused, because addresses are shown and logged.

use model::credential::{Peer, PeerProtocol};
use std::fmt;
use std::net::Ipv6Addr;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    tls: bool,
    host: String,
    port: u16,
}

/// The reason why a text is not an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointError {
    /// It contains a user or a password and must not be shown.
    HasLogin,
    Scheme,
    Host,
}

impl Endpoint {
    /// Reads `10.0.0.5`, `bmc-7:8443` or `https://10.0.0.5/PATH`, and returns the path without its
    /// first slash. The scheme is https unless the text names one.
    pub(crate) fn parse(text: &str) -> Result<(Self, &str), EndpointError> {
        let text = text.trim();
        if text.contains('@') {
            return Err(EndpointError::HasLogin);
        }
        let (tls, rest) = match text.split_once("://") {
            None => (true, text),
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(EndpointError::Scheme),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let default_port = if tls { HTTPS_PORT } else { HTTP_PORT };
        let (host, port) = host_and_port(authority).ok_or(EndpointError::Host)?;
        Ok((Self { tls, host, port: port.unwrap_or(default_port) }, path))
    }

    /// False only if the address says `http://`.
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

    /// The server as the peer of a login.
    pub fn peer(&self) -> Peer {
        let protocol = if self.tls { PeerProtocol::Https } else { PeerProtocol::Http };
        Peer { protocol, host: self.host.clone(), port: self.port }
    }

    /// True if the authority of a URL is this host and port.
    pub(crate) fn is_at(&self, authority: &str) -> bool {
        let default_port = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        host_and_port(authority).is_some_and(|(host, port)| {
            host.eq_ignore_ascii_case(&self.host) && port.unwrap_or(default_port) == self.port
        })
    }

    /// Host and port for a URL and the `Host` header.
    pub(crate) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let default_port = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        if self.port == default_port { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_operators_write_them() {
        for (text, shown, path) in [
            ("10.0.0.5", "https://10.0.0.5", ""),
            (" https://bmc-7.rack.lan/ ", "https://bmc-7.rack.lan", ""),
            ("https://h:8443/redfish/v1/", "https://h:8443", "redfish/v1/"),
            ("http://h:80", "http://h", ""),
            ("http://h", "http://h", ""),
            ("fe80::1", "https://[fe80::1]", ""),
            ("https://[::1]:8000", "https://[::1]:8000", ""),
        ] {
            let (endpoint, rest) = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.to_string().as_str(), rest), (shown, path), "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused() {
        for (text, error) in [
            ("", EndpointError::Host),
            ("https://", EndpointError::Host),
            ("ftp://h", EndpointError::Scheme),
            ("h:port", EndpointError::Host),
            ("h:99999", EndpointError::Host),
            ("a b", EndpointError::Host),
            ("[::1", EndpointError::Host),
            ("h\r\nX: y", EndpointError::Host),
            ("https://root:calvin@10.0.0.5", EndpointError::HasLogin),
        ] {
            assert_eq!(Endpoint::parse(text), Err(error), "{text}");
        }
    }
}
