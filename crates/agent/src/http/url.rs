//! A URL with an IP address: neither the deploy environment nor a static binary resolves names.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

const DEFAULT_PORT: u16 = 80;
const DEFAULT_TLS_PORT: u16 = 443;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    tls: bool,
    address: SocketAddr,
    /// Empty, or begins with a slash.
    path: String,
}

impl Url {
    /// Parses a URL without TLS. The deploy environment has no certificate of an authority.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{text:?} {what}; write it like http://10.0.0.1:8080");
        let rest =
            text.strip_prefix("http://").ok_or_else(|| wrong("does not begin with http://"))?;
        Self::parse_rest(false, rest).map_err(wrong)
    }

    /// Parses a URL with or without TLS.
    pub fn parse_web(text: &str) -> Result<Self, String> {
        match text.strip_prefix("https://") {
            None => Self::parse(text),
            Some(rest) => Self::parse_rest(true, rest)
                .map_err(|what| format!("{text:?} {what}; write it like https://10.0.0.1:8080")),
        }
    }

    fn parse_rest(tls: bool, rest: &str) -> Result<Self, &'static str> {
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if path.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
            return Err("has a path with spaces or control characters");
        }
        let port = if tls { DEFAULT_TLS_PORT } else { DEFAULT_PORT };
        let address = address_of(host, port).ok_or("does not name an IP address")?;
        Ok(Self { tls, address, path: path.to_owned() })
    }

    /// Resolves a reference: an absolute URL stays as it is, a path is appended to this one.
    pub fn join(&self, reference: &str) -> Result<Self, String> {
        if reference.contains("://") {
            return Self::parse(reference);
        }
        let base = self.path.trim_end_matches('/');
        let (scheme, path) = (self.scheme(), reference.trim_start_matches('/'));
        Self::parse_web(&format!("{scheme}://{}{base}/{path}", self.address))
    }

    pub fn is_tls(&self) -> bool {
        self.tls
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }
}

fn address_of(host: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.address, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        for (text, shown, path) in [
            ("http://10.0.0.1", "http://10.0.0.1:80", "/"),
            ("http://10.0.0.1:8080/", "http://10.0.0.1:8080/", "/"),
            ("http://10.0.0.1:8080/a/b?c", "http://10.0.0.1:8080/a/b?c", "/a/b?c"),
            ("http://[::1]:8080/a", "http://[::1]:8080/a", "/a"),
            ("http://[::1]", "http://[::1]:80", "/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.to_string().as_str(), url.path()), (shown, path));
        }
        for text in [
            "10.0.0.1",
            "https://10.0.0.1",
            "http://farrier.example/",
            "http://",
            "http://10.0.0.1/a b",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        for (text, shown) in [
            ("https://10.0.0.1", "https://10.0.0.1:443"),
            ("https://10.0.0.1:8481/f", "https://10.0.0.1:8481/f"),
            ("http://10.0.0.1", "http://10.0.0.1:80"),
        ] {
            assert_eq!(Url::parse_web(text).unwrap().to_string(), shown);
        }
        let named = Url::parse_web("https://farrier.example").unwrap_err();
        assert!(named.contains("https://10.0.0.1"), "{named}");
    }

    #[test]
    fn references_are_resolved() {
        for (base, reference, complete) in [
            ("http://10.0.0.1:8080", "/deploy/image", "http://10.0.0.1:8080/deploy/image"),
            ("http://10.0.0.1:8080/", "deploy/image", "http://10.0.0.1:8080/deploy/image"),
            ("http://10.0.0.1:8080/f/", "/deploy/image", "http://10.0.0.1:8080/f/deploy/image"),
            ("http://10.0.0.1:8080", "http://10.0.0.2:81/i", "http://10.0.0.2:81/i"),
        ] {
            assert_eq!(Url::parse(base).unwrap().join(reference).unwrap().to_string(), complete);
        }
        assert!(Url::parse("http://10.0.0.1").unwrap().join("https://10.0.0.2/i").is_err());
        let tls = Url::parse_web("https://10.0.0.1:8481").unwrap();
        assert_eq!(tls.join("/a").unwrap().to_string(), "https://10.0.0.1:8481/a");
    }
}
