//! Host keys: parsing, display, and which keys are trusted.

use model::fault::{Fault, FaultCode};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey};
use std::fmt;
use std::str::FromStr;

/// A host's public key, shown and stored as `ssh-ed25519 AAAA…` without a comment.
#[derive(Clone)]
pub struct HostKey(PublicKey);

impl HostKey {
    pub(super) fn of(key: &PublicKey) -> Self {
        Self(PublicKey::new(key.key_data().clone(), ""))
    }

    /// The fingerprint as `ssh-keygen -l` prints it: `SHA256:…`.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint(HashAlg::Sha256).to_string()
    }
}

impl PartialEq for HostKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key_data() == other.0.key_data()
    }
}

impl Eq for HostKey {}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_openssh().map_err(|_| fmt::Error)?.trim_end())
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({})", self.fingerprint())
    }
}

impl FromStr for HostKey {
    type Err = String;

    /// Parses a line of a `.pub` file and drops its comment.
    fn from_str(line: &str) -> Result<Self, String> {
        PublicKey::from_openssh(line.trim()).map(|key| Self::of(&key)).map_err(|error| {
            format!("this is not a host key as in a .pub file, `ssh-ed25519 AAAA…`: {error}")
        })
    }
}

#[derive(Debug, Clone)]
pub enum Trust {
    /// Exactly one of these.
    Pinned(Vec<HostKey>),
    /// The key of the first connection; None before that.
    FirstUse(Option<HostKey>),
}

impl Trust {
    pub(super) fn known(&self) -> &[HostKey] {
        match self {
            Self::Pinned(keys) => keys,
            Self::FirstUse(key) => key.as_slice(),
        }
    }

    pub(super) fn accepts(&self, key: &HostKey) -> bool {
        matches!(self, Self::FirstUse(None)) || self.known().contains(key)
    }

    /// The fault for a key that is not accepted.
    pub(super) fn fault(&self, position: &str, shown: &HostKey) -> Fault {
        let identity = format!("'{shown}'");
        let shown = shown.fingerprint();
        let fault = match self {
            Self::Pinned(keys) => {
                let pinned: Vec<_> = keys.iter().map(HostKey::fingerprint).collect();
                let message = format!(
                    "{position} showed the host key {shown}, which is none of the pinned ones: {}",
                    pinned.join(", ")
                );
                Fault::new(FaultCode::IdentityUntrusted, message)
            }
            Self::FirstUse(before) => {
                let before =
                    before.as_ref().map_or_else(|| "none".to_string(), HostKey::fingerprint);
                let message = format!(
                    "{position} showed the host key {shown}, and had {before} when it was first met"
                );
                Fault::new(FaultCode::IdentityChanged, message)
            }
        };
        fault.with(|facts| facts.identity = Some(identity))
    }

    /// Algorithms of known keys come first, so that a host with several keys shows a known one.
    pub(super) fn algorithms(&self) -> Vec<Algorithm> {
        let mut desired: Vec<Algorithm> =
            self.known().iter().map(|key| key.0.algorithm()).collect();
        desired.extend([
            Algorithm::Ed25519,
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
        ]);
        let mut unique: Vec<Algorithm> = Vec::new();
        for algorithm in desired {
            if !unique.contains(&algorithm) && !matches!(algorithm, Algorithm::Rsa { .. }) {
                unique.push(algorithm);
            }
        }
        unique
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti somebody@somewhere";
    const B: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA6rWI3G1sz07DnfFlrouTcysQlj2P+jpNSOEWD9OJ3X";

    fn key(line: &str) -> HostKey {
        line.parse().unwrap()
    }

    #[test]
    fn the_comment_is_not_part_of_the_key() {
        let shown = key(A).to_string();
        assert_eq!(Some(shown.as_str()), A.strip_suffix(" somebody@somewhere"));
        assert_eq!(key(&shown), key(A));
        assert_ne!(key(A), key(B));
        assert!(key(A).fingerprint().starts_with("SHA256:"));
        assert!("ssh-ed25519 nonsense".parse::<HostKey>().is_err());
    }

    #[test]
    fn only_a_trusted_key_is_accepted() {
        let (a, b) = (key(A), key(B));
        for (trust, key, code) in [
            (Trust::FirstUse(None), &a, None),
            (Trust::FirstUse(Some(a.clone())), &a, None),
            (Trust::FirstUse(Some(a.clone())), &b, Some(FaultCode::IdentityChanged)),
            (Trust::Pinned(vec![a.clone(), b.clone()]), &b, None),
            (Trust::Pinned(vec![a.clone()]), &b, Some(FaultCode::IdentityUntrusted)),
            (Trust::Pinned(vec![]), &b, Some(FaultCode::IdentityUntrusted)),
        ] {
            assert_eq!(trust.accepts(key), code.is_none(), "{trust:?}");
            if let Some(code) = code {
                let fault = trust.fault("host:22", key);
                assert_eq!(fault.code, code);
                assert!(fault.message.contains(&key.fingerprint()), "{fault}");
            }
        }
    }

    #[test]
    fn algorithms_of_known_keys_come_first() {
        assert_eq!(Trust::FirstUse(None).algorithms().len(), 4);
        assert_eq!(Trust::FirstUse(Some(key(A))).algorithms().first(), Some(&Algorithm::Ed25519));
    }
}
