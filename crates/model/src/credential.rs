//! The rules for writes of credentials and of pinned identities, and the peers that a credential
//! may be sent to.

mod binding;

pub use binding::{
    AllowedAddresses, BindingWrite, BoundHost, CredentialPolicy, MAX_PEERS, Network, Peer,
    PeerBinding, PeerProtocol, PeerRefusal,
};

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
    /// An identity must be pinned, at this version if one is given. With `allow_missing` and
    /// without a version there may be none.
    Update { version: Option<i64>, allow_missing: bool },
}

/// The stored identity of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedIdentity<'a> {
    pub identity: &'a str,
    pub version: i64,
}

impl IdentityWrite {
    /// `pinned` is the stored identity of the peer, if there is one. Returns whether anything is
    /// written: an identity that is pinned already is not.
    pub fn admit(
        self,
        peer: &str,
        identity: &str,
        pinned: Option<PinnedIdentity<'_>>,
    ) -> Result<bool, Refusal> {
        match (self, pinned) {
            (Self::Create | Self::Update { version: None, allow_missing: true }, None) => Ok(true),
            (Self::Update { version, .. }, Some(pinned)) => {
                check_identity_version(peer, pinned.version, version)?;
                Ok(pinned.identity != identity)
            }
            (Self::Create, Some(pinned)) if pinned.identity == identity => Ok(false),
            (Self::Create, Some(pinned)) => {
                let message = format!("{peer} is pinned to another identity, {}", pinned.identity);
                Err(Refusal::new(Reason::IdentityExists, message)
                    .next(format!("farrier trust update {peer} '{identity}'")))
            }
            (Self::Update { .. }, None) => Err(no_identity(peer)),
        }
    }
}

pub fn check_identity_version(
    peer: &str,
    current: i64,
    expected: Option<i64>,
) -> Result<(), Refusal> {
    let next = format!("farrier trust get {peer}");
    check_version(format!("the identity of {peer}"), current, expected, next)
}

pub fn no_identity(peer: &str) -> Refusal {
    Refusal::not_found("identity", peer, "farrier trust list")
}
