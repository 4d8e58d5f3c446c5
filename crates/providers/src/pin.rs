//! Pinned identities: parsed from the operator's input into the form in which they are compared.

use crate::http_client::{Fingerprint, InvalidFingerprint};
use crate::redfish::BmcAddress;
use crate::ssh;
use crate::ssh::HostKey;
use model::refusal::Refusal;

/// The identity that is expected at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub peer: String,
    pub identity: String,
}

impl Pin {
    /// Accepts `https://…` with the fingerprint of a certificate, or `ssh://…` with a host key.
    pub fn parse(peer: &str, identity: &str) -> Result<Self, Refusal> {
        if peer.starts_with("ssh://") {
            let ssh::Endpoint { host, port, .. } = ssh::Endpoint::parse("peer", peer)?;
            let key: HostKey = identity.parse().map_err(|message: String| {
                Refusal::invalid(
                    "identity",
                    message,
                    "give the host's line of `ssh-keyscan`, from the type of the key on",
                )
            })?;
            return Ok(Self { peer: format!("ssh://{host}:{port}"), identity: key.to_string() });
        }
        if !peer.starts_with("https://") {
            let instead = "write https://HOST for a BMC, or ssh://HOST:PORT for a host";
            let shown: String = peer.chars().take(MAX_SHOWN).collect();
            return Err(Refusal::invalid("peer", format!("{shown:?} has no identity"), instead));
        }
        let endpoint = BmcAddress::parse(peer).map_err(|fault| {
            Refusal::invalid("peer", fault.message, "write https://HOST or https://HOST:PORT")
        })?;
        let fingerprint: Fingerprint =
            identity.parse().map_err(|message: InvalidFingerprint| {
                let instead =
                    "give what `openssl x509 -noout -fingerprint -sha256` prints behind the =";
                Refusal::invalid("identity", message.to_string(), instead)
            })?;
        Ok(Self { peer: endpoint.to_string(), identity: fingerprint.to_string() })
    }
}

/// The most characters of an invalid address that are shown.
const MAX_SHOWN: usize = 80;
