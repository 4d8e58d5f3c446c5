//! The address of a region: `http://HOST:5240/MAAS`, as MAAS itself shows it, with or without the
//! path of the API. The scheme is required: a region serves plain HTTP until it has a certificate.

use crate::http_client::Endpoint;
use model::credential::Peer;
use model::refusal::Refusal;
use std::fmt;

/// The field that a refusal names.
const FIELD: &str = "maas_url";
const INSTEAD: &str =
    "write http://HOST:5240/MAAS, or https://HOST:5443/MAAS where MAAS speaks TLS";
const ROOT: &str = "/MAAS";
const API: &str = "/api/2.0";
/// The most characters of an invalid address that a refusal quotes.
const MAX_SHOWN: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    endpoint: Endpoint,
    root: String,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let text = text.trim();
        let wrong = |problem: String| Err(Refusal::invalid(FIELD, problem, INSTEAD));
        if text.contains('@') {
            // Not quoted: the part before the sign is probably a password.
            return wrong("has a user or password in it".into());
        }
        let shown: String = text.chars().take(MAX_SHOWN).collect();
        let Some((scheme @ ("http" | "https"), rest)) = text.split_once("://") else {
            return wrong(format!("{shown:?} does not begin with http:// or https://"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let Ok((endpoint, _)) = Endpoint::parse(&format!("{scheme}://{authority}")) else {
            return wrong(format!("{shown:?} has no host that can be asked"));
        };
        match root(path) {
            Some(root) => Ok(Self { endpoint, root }),
            None => wrong(format!("{shown:?} has a path that is none of a MAAS")),
        }
    }

    pub(super) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The region as the peer of a login.
    pub fn peer(&self) -> Peer {
        self.endpoint.peer()
    }

    /// The full path of an API resource such as `machines/abc123/`.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("{}{API}/{rest}", self.root)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.endpoint, self.root)
    }
}

/// The path before the path of the API. A proxy may have put the region under a path of its own.
fn root(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix(API.trim_start_matches('/')).unwrap_or(path).trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/');
    match path {
        "" => Some(ROOT.to_owned()),
        path if path.chars().all(plain) && !path.contains("//") => Some(format!("/{path}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_copy_it() {
        for (text, shown, path) in [
            ("http://maas:5240/MAAS", "http://maas:5240/MAAS", "/MAAS/api/2.0/tags/"),
            (" http://maas:5240/MAAS/ ", "http://maas:5240/MAAS", "/MAAS/api/2.0/tags/"),
            ("http://maas:5240", "http://maas:5240/MAAS", "/MAAS/api/2.0/tags/"),
            ("https://maas/MAAS/api/2.0/", "https://maas/MAAS", "/MAAS/api/2.0/tags/"),
            ("https://[::1]:5443/MAAS", "https://[::1]:5443/MAAS", "/MAAS/api/2.0/tags/"),
            ("https://proxy/east/MAAS", "https://proxy/east/MAAS", "/east/MAAS/api/2.0/tags/"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(
                (address.to_string().as_str(), address.path("tags/").as_str()),
                (shown, path)
            );
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_field() {
        for text in [
            "",
            "maas",
            "maas:5240",
            "ftp://maas/MAAS",
            "http://",
            "http://h/MAAS?x",
            "http://h/a b",
        ] {
            let refusal = Address::parse(text).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(FIELD), "{text}");
            assert!(refusal.message.contains("http://HOST:5240/MAAS"), "{refusal}");
        }
        let refusal = Address::parse("http://admin:secret@maas/MAAS").unwrap_err();
        assert!(!refusal.message.contains("secret"), "{refusal}");
    }
}
