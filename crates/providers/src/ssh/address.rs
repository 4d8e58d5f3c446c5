//! The address of an SSH server.

use model::credential::{Peer, PeerProtocol};
use model::refusal::Refusal;
use std::fmt;

/// An address. A user in it takes precedence over the user of the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub user: Option<String>,
    pub host: String,
    pub port: u16,
}

impl Endpoint {
    pub const DEFAULT_PORT: u16 = 22;
    const MAX_LEN: usize = 320;

    /// `10.0.0.5`, `host:2222`, `[::1]:22`, `::1`, `user@host`, `ssh://user@host:22`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(Self::MAX_LEN).collect();
            let instead = "write host, host:port, [v6]:port or user@host";
            Refusal::invalid(
                field,
                format!("{shown:?} is not an address of an SSH server"),
                instead,
            )
        })
    }

    /// The server as the peer of a login.
    pub fn peer(&self) -> Peer {
        Peer { protocol: PeerProtocol::Ssh, host: self.host.clone(), port: self.port }
    }

    fn read(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("ssh://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, position) = match rest.rsplit_once('@') {
            Some((user, position)) => (Some(user.to_string()), position),
            None => (None, rest),
        };
        let (host, port) = split_port(position)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        let name = |c: char| c.is_ascii_graphic() && !"/@:\"'\\".contains(c);
        let sound = text.len() <= Self::MAX_LEN
            && !host.is_empty()
            && !host.starts_with('-')
            && host.chars().all(plain)
            && user.as_ref().is_none_or(|user| !user.is_empty() && user.chars().all(name));
        sound.then(|| Self { user, host: host.to_string(), port })
    }
}

fn split_port(position: &str) -> Option<(&str, u16)> {
    let number = |port: &str| port.parse().ok().filter(|port| *port != 0);
    if let Some(rest) = position.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest {
            "" => Some((host, Endpoint::DEFAULT_PORT)),
            _ => Some((host, number(rest.strip_prefix(':')?)?)),
        };
    }
    match position.split_once(':') {
        None => Some((position, Endpoint::DEFAULT_PORT)),
        // More than one colon is an IPv6 address without brackets and without a port.
        Some((_, rest)) if rest.contains(':') => Some((position, Endpoint::DEFAULT_PORT)),
        Some((host, port)) => Some((host, number(port)?)),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
