//! A URL with plain HTTP and an IP address. The deploy environment has no name resolution.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

const DEFAULT_PORT: u16 = 80;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    address: SocketAddr,
    /// Empty, or begins with a slash.
    path: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{text:?} {what}; write it like http://10.0.0.1:8080");
        let rest =
            text.strip_prefix("http://").ok_or_else(|| wrong("does not begin with http://"))?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if path.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
            return Err(wrong("has a path with spaces or control characters"));
        }
        let address = address_of(host).ok_or_else(|| wrong("does not name an IP address"))?;
        Ok(Self { address, path: path.to_owned() })
    }

    /// Resolves a reference: an absolute URL stays as it is, a path is appended to this one.
    pub fn join(&self, reference: &str) -> Result<Self, String> {
        if reference.contains("://") {
            return Self::parse(reference);
        }
        let base = self.path.trim_end_matches('/');
        Self::parse(&format!("http://{}{base}/{}", self.address, reference.trim_start_matches('/')))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }
}

fn address_of(host: &str) -> Option<SocketAddr> {
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DEFAULT_PORT))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
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
    }
}
