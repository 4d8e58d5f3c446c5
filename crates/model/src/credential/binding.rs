//! The peers that a credential may be sent to.
//!
//! A credential is bound when it is set. A user who may edit the address of a machine or a site
//! can make Farrier log in elsewhere; the binding keeps the secret from being sent there. A host
//! name is resolved after this decision, so the decision says which addresses may then be connected
//! to.

use crate::fault::{Fault, FaultCode};
use crate::id::SiteId;
use crate::refusal::Refusal;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most peers that one request may name.
pub const MAX_PEERS: usize = 256;
/// The longest host name that DNS has.
const MAX_HOST_BYTES: usize = 253;
/// More peers than this are not listed in a message.
const MAX_SHOWN: usize = 8;
const INSTEAD: &str = "write a network (10.1.0.0/24), an address or a host name with or without a port \
     (10.1.0.7, [fd00::7]:443, bmc-7.lan), or site:ID";

/// Protocol by which a secret would travel to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerProtocol {
    Https,
    /// Plain text: every host on the network path can read the secret.
    Http,
    Ipmi,
    Ssh,
}

impl PeerProtocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ipmi => "ipmi",
            Self::Ssh => "ssh",
        }
    }
}

/// A peer that a secret would be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub protocol: PeerProtocol,
    /// A name or an address, without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.protocol.as_str(), bracketed(&self.host), self.port)
    }
}

/// The addresses with the same first `prefix` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

impl Network {
    /// `10.1.0.0/24`. None: it is no network. Bits after the prefix are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let first = match address {
            IpAddr::V4(v4) if prefix <= 32 => IpAddr::V4(Ipv4Addr::from_bits(
                v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0),
            )),
            IpAddr::V6(v6) if prefix <= 128 => IpAddr::V6(Ipv6Addr::from_bits(
                v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0),
            )),
            IpAddr::V4(_) | IpAddr::V6(_) => return None,
        };
        Some(Self { first, prefix })
    }

    /// An IPv4 address in the form of an IPv6 address counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differs = first.to_bits() ^ address.to_bits();
                differs.checked_shr(32 - u32::from(self.prefix)).unwrap_or(0) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differs = first.to_bits() ^ address.to_bits();
                differs.checked_shr(128 - u32::from(self.prefix)).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// A host with or without a port. Without one, every port is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundHost {
    /// In lower case and without a dot at the end.
    host: String,
    port: Option<u16>,
}

impl BoundHost {
    pub fn new(host: &str, port: Option<u16>) -> Option<Self> {
        let host = normalized(host);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let named = !host.is_empty() && host.chars().all(plain) && !host.starts_with('-');
        let known = named || host.parse::<IpAddr>().is_ok();
        (known && host.len() <= MAX_HOST_BYTES).then_some(Self { host, port })
    }

    /// The exact host and port of a peer.
    pub fn of(peer: &Peer) -> Option<Self> {
        Self::new(&peer.host, Some(peer.port))
    }

    /// `10.1.0.7`, `[fd00::7]:443`, `bmc-7.lan:8443`.
    fn parse(text: &str) -> Option<Self> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            return match rest.strip_prefix(':') {
                Some(number) => Self::new(host, Some(port(number)?)),
                None => rest.is_empty().then(|| Self::new(host, None))?,
            };
        }
        match text.split_once(':') {
            None => Self::new(text, None),
            Some((_, rest)) if rest.contains(':') => {
                text.parse::<Ipv6Addr>().ok()?;
                Self::new(text, None)
            }
            Some((host, number)) => Self::new(host, Some(port(number)?)),
        }
    }

    fn is(&self, peer: &Peer) -> bool {
        let same_host = match (address_of(&self.host), address_of(&peer.host)) {
            (Some(own), Some(other)) => own == other,
            (None, None) => self.host == normalized(&peer.host),
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_host && self.port.is_none_or(|port| port == peer.port)
    }
}

impl fmt::Display for BoundHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.host),
            Some(port) => write!(f, "{}:{port}", bracketed(&self.host)),
        }
    }
}

/// One entry of a binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum PeerBinding {
    Network(Network),
    Host(BoundHost),
    /// The MAAS of a site, at the address that the site had when the credential was set. A site
    /// that is changed to another address does not take the secret along.
    Site {
        id: SiteId,
        at: Option<BoundHost>,
    },
}

impl PeerBinding {
    /// Reads one entry of the list in `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let text = text.trim();
        if text.contains('@') {
            // Not quoted: the part before the sign is probably a password.
            return Err(Refusal::invalid(field, "has a user or a password in it", INSTEAD));
        }
        if let Some(rest) = text.strip_prefix("site:") {
            let (id, at) = match rest.split_once('=') {
                None => (rest, None),
                Some((id, at)) => {
                    let host = BoundHost::parse(at).ok_or_else(|| unreadable(field, text))?;
                    (id, Some(host))
                }
            };
            return Ok(Self::Site { id: SiteId::parse_field(id, field)?, at });
        }
        if text.contains('/') {
            return Network::parse(text).map(Self::Network).ok_or_else(|| unreadable(field, text));
        }
        BoundHost::parse(text).map(Self::Host).ok_or_else(|| unreadable(field, text))
    }

    /// The entry for exactly this peer.
    pub fn of(peer: &Peer) -> Option<Self> {
        BoundHost::of(peer).map(Self::Host)
    }
}

impl fmt::Display for PeerBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Host(host) => host.fmt(f),
            Self::Site { id, at: Some(at) } => write!(f, "site:{id}={at}"),
            Self::Site { id, at: None } => write!(f, "site:{id}"),
        }
    }
}

impl From<PeerBinding> for String {
    fn from(binding: PeerBinding) -> Self {
        binding.to_string()
    }
}

impl TryFrom<String> for PeerBinding {
    type Error = Refusal;

    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse("peers", &text)
    }
}

fn unreadable(field: &str, text: &str) -> Refusal {
    let shown: String = text.chars().take(64).collect();
    Refusal::invalid(field, format!("{shown:?} is no peer"), INSTEAD)
}

/// Peers that a credential may be sent to, and over which protocols.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CredentialPolicy {
    /// Empty: to no peer.
    pub peers: Vec<PeerBinding>,
    /// True if the secret may travel over plain `http://`.
    #[serde(default)]
    pub plain_http: bool,
}

/// The binding of a credential that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingWrite {
    /// The stored binding stays; plain HTTP may be allowed in addition.
    Keep {
        plain_http: bool,
    },
    Replace(CredentialPolicy),
}

impl BindingWrite {
    /// Reads the fields of a request. An empty list keeps the stored binding.
    pub fn parse(peers: &[String], plain_http: bool) -> Result<Self, Refusal> {
        match peers.is_empty() {
            true => Ok(Self::Keep { plain_http }),
            false => Ok(Self::Replace(CredentialPolicy::parse("peers", peers, plain_http)?)),
        }
    }

    /// The binding after the write. With `required`, a credential must be bound to some peer.
    pub fn apply(
        self,
        name: &str,
        stored: Option<CredentialPolicy>,
        required: bool,
    ) -> Result<CredentialPolicy, Refusal> {
        let policy = match self {
            Self::Replace(policy) => policy,
            Self::Keep { plain_http } => {
                let stored = stored.unwrap_or_default();
                CredentialPolicy { plain_http: stored.plain_http || plain_http, ..stored }
            }
        };
        if required && policy.peers.is_empty() {
            let instead = format!(
                "name the peers that may get the secret: \
                 `farrier credential set {name} --for 10.1.0.0/24 …`, a host name or site:ID"
            );
            return Err(Refusal::invalid("peers", "is empty", instead));
        }
        Ok(policy)
    }
}

/// The addresses that may be connected to after a host name was resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedAddresses {
    Any,
    Within(Vec<Network>),
}

impl AllowedAddresses {
    /// The fault of a host name without a known address in the networks of the binding.
    pub fn fault(peer: &Peer) -> Fault {
        let host = &peer.host;
        let message = format!(
            "no secret was sent to {peer}: the credential is bound to networks, and no address of \
             {host} that could be checked is in one of them; bind it to the host name too"
        );
        Fault::new(FaultCode::CredentialNotAllowed, message)
            .at_peer(&peer.to_string(), None)
            .with(|facts| facts.binding = Some(format!("--for … --for {}", normalized(host))))
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Within(networks) => networks.iter().any(|network| network.contains(address)),
        }
    }
}

/// The reason why a credential may not be sent to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRefusal {
    NotBound,
    PlainHttp,
}

impl CredentialPolicy {
    /// Reads the list of a request.
    pub fn parse(field: &str, peers: &[String], plain_http: bool) -> Result<Self, Refusal> {
        if peers.len() > MAX_PEERS {
            let problem = format!("has {} entries", peers.len());
            let instead = format!("give at most {MAX_PEERS}; a network holds many addresses");
            return Err(Refusal::invalid(field, problem, instead));
        }
        let mut read: Vec<PeerBinding> = Vec::new();
        for (index, text) in peers.iter().enumerate() {
            let binding = PeerBinding::parse(&format!("{field}[{index}]"), text)?;
            if !read.contains(&binding) {
                read.push(binding);
            }
        }
        Ok(Self { peers: read, plain_http })
    }

    /// Checks that the secret may be sent to this peer, and returns the addresses that its name may
    /// resolve to.
    pub fn allows(&self, peer: &Peer) -> Result<AllowedAddresses, PeerRefusal> {
        let allowed = self.bound_addresses(peer).ok_or(PeerRefusal::NotBound)?;
        match peer.protocol {
            PeerProtocol::Http if !self.plain_http => Err(PeerRefusal::PlainHttp),
            PeerProtocol::Http | PeerProtocol::Https | PeerProtocol::Ipmi | PeerProtocol::Ssh => {
                Ok(allowed)
            }
        }
    }

    fn bound_addresses(&self, peer: &Peer) -> Option<AllowedAddresses> {
        let mut networks = Vec::new();
        for binding in &self.peers {
            match binding {
                PeerBinding::Host(host) | PeerBinding::Site { at: Some(host), .. } => {
                    if host.is(peer) {
                        return Some(AllowedAddresses::Any);
                    }
                }
                PeerBinding::Site { at: None, .. } => {}
                PeerBinding::Network(network) => networks.push(*network),
            }
        }
        match address_of(&peer.host) {
            Some(address) => {
                let inside = networks.iter().any(|network| network.contains(address));
                inside.then_some(AllowedAddresses::Any)
            }
            None if networks.is_empty() => None,
            None => Some(AllowedAddresses::Within(networks)),
        }
    }

    /// The fault of a credential that may not be sent to a peer. Nothing was sent.
    pub fn fault(&self, name: &str, peer: &Peer, refusal: PeerRefusal) -> Fault {
        let bound = match self.peers.len() {
            0 => "no peer".to_string(),
            _ => self.shown().join(", "),
        };
        let message = match refusal {
            PeerRefusal::NotBound => format!(
                "the credential {name:?} was not sent to {peer}: it may only be sent to {bound}"
            ),
            PeerRefusal::PlainHttp => format!(
                "the credential {name:?} was not sent to {peer}: every host on the way could read \
                 it there; use https://, or allow it with --allow-plain-http"
            ),
        };
        let options = self.options_with(peer);
        Fault::new(FaultCode::CredentialNotAllowed, message)
            .at_peer(&peer.to_string(), Some(name))
            .with(|facts| facts.binding = Some(options))
    }

    fn shown(&self) -> Vec<String> {
        let more = self.peers.len().saturating_sub(MAX_SHOWN);
        let mut shown: Vec<String> =
            self.peers.iter().take(MAX_SHOWN).map(ToString::to_string).collect();
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        shown
    }

    /// The options that bind a credential to this peer too. A long list is left out as `…`, which
    /// the server refuses.
    fn options_with(&self, peer: &Peer) -> String {
        let mut options: Vec<String> = match self.peers.len() > MAX_SHOWN {
            true => vec!["--for …".into()],
            false => self.peers.iter().map(|binding| format!("--for {binding}")).collect(),
        };
        if self.bound_addresses(peer) != Some(AllowedAddresses::Any) {
            options.push(format!("--for {}", normalized(&peer.host)));
        }
        if self.plain_http || peer.protocol == PeerProtocol::Http {
            options.push("--allow-plain-http".into());
        }
        options.join(" ")
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_string() }
}

fn normalized(host: &str) -> String {
    match address_of(host) {
        Some(address) => address.to_string(),
        None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    }
}

/// The address that a host is written as. A zone (`fe80::1%eth0`) is not part of it.
fn address_of(host: &str) -> Option<IpAddr> {
    let host = host.split_once('%').map_or(host, |(address, _)| address);
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
