//! Which writes of credentials and of pinned identities are admitted.

use crate::refusal::{Reason, Refusal};
use crate::version::check_version;

/// A request to write a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialWrite {
    /// The name must be new.
    Create,
    /// The credential must be known, at this version if one is given. With `allow_missing` and
    /// without a version it may be new.
    Update { version: Option<i64>, allow_missing: bool },
}

impl CredentialWrite {
    /// `current` is the version of the stored credential, if there is one.
    pub fn admit(self, name: &str, current: Option<i64>) -> Result<(), Refusal> {
        match (self, current) {
            (Self::Create, None) | (Self::Update { version: None, allow_missing: true }, None) => {
                Ok(())
            }
            (Self::Create, Some(_)) => {
                let message = format!("the credential {name} exists already");
                Err(Refusal::new(Reason::CredentialExists, message)
                    .next(format!("farrier credential update {name} …")))
            }
            (Self::Update { version, .. }, Some(current)) => {
                let next = format!("farrier credential get {name}");
                check_version(format!("the credential {name}"), current, version, next)
            }
            (Self::Update { .. }, None) => Err(no_credential(name)),
        }
    }
}

pub fn no_credential(name: &str) -> Refusal {
    Refusal::not_found("credential", name, "farrier credential list")
}

/// A request to pin the identity of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityWrite {
    /// No other identity may be pinned.
    Create,
    /// An identity must be pinned, unless `allow_missing` is set.
    Update { allow_missing: bool },
}

impl IdentityWrite {
    /// `pinned` is the stored identity of the peer, if there is one.
    pub fn admit(self, peer: &str, identity: &str, pinned: Option<&str>) -> Result<(), Refusal> {
        match (self, pinned) {
            (Self::Create | Self::Update { allow_missing: true }, None)
            | (Self::Update { .. }, Some(_)) => Ok(()),
            (Self::Create, Some(pinned)) if pinned == identity => Ok(()),
            (Self::Create, Some(pinned)) => {
                let message = format!("{peer} is pinned to another identity, {pinned}");
                Err(Refusal::new(Reason::IdentityExists, message)
                    .next(format!("farrier trust update {peer} '{identity}'")))
            }
            (Self::Update { allow_missing: false }, None) => Err(no_identity(peer)),
        }
    }
}

pub fn no_identity(peer: &str) -> Refusal {
    Refusal::not_found("identity", peer, "farrier trust list")
}
