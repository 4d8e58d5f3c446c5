//! Logins to BMCs, hosts and MAAS regions: credential, refused logins, and known identity.

use crate::http_client::{Fingerprint, Trust};
use crate::ipmi::{self, is_ipmi};
use crate::redfish::BmcAddress;
use crate::state_store::{Credential, Lockout, ProviderStateStore, Secret};
use model::credential::{AllowedAddresses, Peer};
use model::fault::{Fault, FaultCode, Result};
use secrecy::SecretString;
use std::fmt;
use std::sync::Arc;

/// The rule by which a peer must prove its identity.
#[derive(Debug, Clone)]
pub enum TrustPolicy {
    /// A configured CA signed its certificate.
    Ca(Trust),
    /// The first certificate or host key is pinned, and no other is trusted.
    FirstUse,
    /// Only pinned certificates and host keys are trusted.
    Pinned,
}

/// The user name and password for a BMC.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: SecretString,
    /// The addresses that the BMC's name may resolve to.
    pub allowed: AllowedAddresses,
}

pub const BMC_WANTS: &str = "a user and a password, which a BMC wants";

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// The login in a credential; a fault unless it is a password.
    pub fn of(credential: &Credential) -> Result<Self> {
        match &credential.secret {
            Secret::Password { user, password } => Ok(Self {
                user: user.clone(),
                password: password.clone(),
                allowed: credential.allowed.clone(),
            }),
            Secret::Key { .. } | Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
                Err(wrong_kind(&credential.name, BMC_WANTS))
            }
        }
    }
}

/// The BMC at an endpoint as the peer of a login.
pub fn login_peer(endpoint: &str) -> Result<Peer> {
    if is_ipmi(endpoint) {
        return ipmi::login_peer(endpoint);
    }
    Ok(BmcAddress::parse(endpoint)?.endpoint.peer())
}

#[derive(Clone)]
pub struct PeerLogin(pub Arc<dyn ProviderStateStore>);

impl PeerLogin {
    /// The credential with the first of these names that is not empty, to be sent to `at`, unless
    /// this peer has refused it before.
    pub async fn credential(
        &self,
        (peer, at): (&str, &Peer),
        named: [&str; 2],
        field: &str,
    ) -> Result<Credential> {
        let name = named.into_iter().find(|name| !name.is_empty()).ok_or_else(|| {
            let text = format!(
                "no credential is named for {peer}: neither in the machine ({field}) nor in the \
                 configuration (datacenter.{field})"
            );
            Fault::new(FaultCode::CredentialMissing, text)
        })?;
        let credential = self.0.credential(name, at).await?;
        match self.0.lockout(peer).await? {
            Some(Lockout { credential: refused, version, message: text })
                if refused == credential.name && version == credential.version =>
            {
                let text = format!(
                    "{peer} was not asked: it refused the credential {refused:?} before ({text}), \
                     and trying again might lock the account"
                );
                Err(Fault::new(FaultCode::LoginRefused, text).at_peer(peer, Some(&refused)))
            }
            Some(_) | None => Ok(credential),
        }
    }

    /// Records a refused login, so that it is not repeated.
    pub async fn after_login<T>(
        &self,
        peer: &str,
        credential: &Credential,
        done: Result<T>,
    ) -> Result<T> {
        if let Err(fault) = &done
            && fault.code == FaultCode::LoginRefused
        {
            self.record_refusal(peer, &credential.name, credential.version, fault).await?;
        }
        done.map_err(|fault| fault.at_peer(peer, Some(&credential.name)))
    }

    /// Records that a peer has refused this version of a credential.
    pub async fn record_refusal(
        &self,
        peer: &str,
        name: &str,
        version: i64,
        fault: &Fault,
    ) -> Result<()> {
        let lockout = Lockout { credential: name.into(), version, message: fault.message.clone() };
        self.0.lock_out(peer, &lockout).await
    }

    /// The known identity of a peer.
    pub async fn known_identity(&self, peer: &str) -> Result<Option<String>> {
        self.0.identity(peer).await
    }

    /// The proof of identity that a peer must give, with its known identity.
    pub async fn trust(
        &self,
        trusting: &TrustPolicy,
        peer: &str,
    ) -> Result<(Trust, Option<Fingerprint>)> {
        let known = fingerprint(peer, self.known_identity(peer).await?.as_deref())?;
        Ok((resolve_trust(trusting, peer, known)?, known))
    }

    /// Pins an identity on first use. Fails when another replica has pinned another one.
    pub async fn trust_on_first_use(&self, peer: &str, shown: &str) -> Result<()> {
        let known = self.0.trust_on_first_use(peer, shown).await?;
        if known == shown {
            return Ok(());
        }
        let message = format!("{peer} showed {shown}, and {known} was trusted before");
        let fault = Fault::new(FaultCode::IdentityChanged, message).at_peer(peer, None);
        Err(fault.with(|facts| facts.identity = Some(shown.into())))
    }
}

/// The fault of a credential of the wrong kind.
pub fn wrong_kind(name: &str, desired: &str) -> Fault {
    let message = format!("the credential {name:?} is not {desired}");
    let fault = Fault::new(FaultCode::CredentialMissing, message);
    fault.with(|facts| facts.credential = Some(name.into()))
}

/// The fault of a peer without a pinned identity when the policy is `pinned`.
pub fn unpinned(peer: &str) -> Fault {
    let message = format!(
        "{peer} was not contacted: its identity is not pinned, and the configuration has trust = \"pinned\"; \
         say it with `farrier trust set {peer} IDENTITY`"
    );
    Fault::new(FaultCode::IdentityUntrusted, message).at_peer(peer, None)
}

/// The stored identity of a peer. An unreadable one is a fault, not an unknown peer.
pub(crate) fn fingerprint(peer: &str, known: Option<&str>) -> Result<Option<Fingerprint>> {
    known.map(str::parse).transpose().map_err(|message| {
        let message = format!("what is remembered of {peer} cannot be read: {message}");
        Fault::new(FaultCode::RecordUnreadable, message)
    })
}

/// The proof of identity that a peer must give, given the known one.
fn resolve_trust(trusting: &TrustPolicy, peer: &str, known: Option<Fingerprint>) -> Result<Trust> {
    Ok(match (trusting, known) {
        (TrustPolicy::Ca(trust), _) => trust.clone(),
        (TrustPolicy::FirstUse, known) => Trust::FirstUse(known),
        (TrustPolicy::Pinned, Some(known)) => Trust::Pinned(known),
        (TrustPolicy::Pinned, None) => return Err(unpinned(peer)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_identity_decides_the_trust() {
        let print = format!("sha256:{}", "ab".repeat(32));
        let known = fingerprint("p", Some(&print)).unwrap();
        let first = resolve_trust(&TrustPolicy::FirstUse, "p", None);
        assert!(matches!(first, Ok(Trust::FirstUse(None))));
        let again = resolve_trust(&TrustPolicy::FirstUse, "p", known);
        assert!(matches!(again, Ok(Trust::FirstUse(Some(known))) if known.to_string() == print));
        let pinned = resolve_trust(&TrustPolicy::Pinned, "p", known);
        assert!(matches!(pinned, Ok(Trust::Pinned(known)) if known.to_string() == print));
        let stranger = resolve_trust(&TrustPolicy::Pinned, "https://b", None).unwrap_err();
        assert_eq!(stranger.code, FaultCode::IdentityUntrusted);
        assert!(stranger.message.contains("farrier trust set https://b"), "{stranger}");
        let fault = fingerprint("p", Some("rubbish")).unwrap_err();
        assert_eq!(fault.code, FaultCode::RecordUnreadable);
        assert_eq!(fingerprint("p", None), Ok(None));
    }
}
