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

/// How many characters of an invalid address are shown.
const MAX_SHOWN: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqgkV7jIFxbTO4sNRDlUbD2rPr7x7HOjvNPqOSHVsdU";

    #[test]
    fn identities_are_normalized() {
        let (digits, colons) = ("ab".repeat(32), ["AB"; 32].join(":"));
        let shown = format!("sha256:{digits}");
        for (peer, identity, expected) in [
            ("https://10.0.0.5", digits.as_str(), Ok(("https://10.0.0.5", shown.as_str()))),
            ("https://10.0.0.5/redfish/v1/Systems/2", &colons, Ok(("https://10.0.0.5", &shown))),
            ("https://10.0.0.5", "abcd", Err("identity")),
            ("http://10.0.0.5", &digits, Err("peer")),
            ("ipmi://10.0.0.5", &digits, Err("peer")),
            ("10.0.0.5", &digits, Err("peer")),
            ("ssh://10.0.0.7", KEY, Ok(("ssh://10.0.0.7:22", KEY))),
            ("ssh://u@10.0.0.7:2222", KEY, Ok(("ssh://10.0.0.7:2222", KEY))),
            ("ssh://10.0.0.7", &digits, Err("identity")),
            ("ssh://", KEY, Err("peer")),
        ] {
            match (Pin::parse(peer, identity), expected) {
                (Ok(pin), Ok((peer, identity))) => {
                    assert_eq!((pin.peer.as_str(), pin.identity.as_str()), (peer, identity));
                }
                (Err(refusal), Err(field)) => assert_eq!(refusal.field.as_deref(), Some(field)),
                (found, expected) => panic!("{peer} {identity}: {found:?}, not {expected:?}"),
            }
        }
    }
}
