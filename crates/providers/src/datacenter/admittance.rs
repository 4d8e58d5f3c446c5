//! Being let in: credentials, logins that were refused before, and who was met where. The same for BMCs, for hosts and for MAAS.

use super::Trusting;
use crate::keeper::{Credential, Keeper, Lockout};
use crate::redfish::{Fingerprint, Trust};
use model::fault::{Code, Fault};
use std::sync::Arc;

#[derive(Clone)]
pub struct Admittance(pub Arc<dyn Keeper>);

impl Admittance {
    /// The first of these credentials that is named, unless this peer has refused it before.
    pub async fn credential(
        &self,
        peer: &str,
        named: [&str; 2],
        field: &str,
    ) -> Result<Credential, Fault> {
        let name = named.into_iter().find(|name| !name.is_empty()).ok_or_else(|| {
            let said = format!(
                "no credential is named for {peer}: neither in the machine ({field}) nor in the \
                 configuration (datacenter.{field})"
            );
            Fault::new(Code::CredentialMissing, said)
        })?;
        let credential = self.0.credential(name).await?;
        match self.0.lockout(peer).await? {
            Some(Lockout { credential: refused, version, said })
                if refused == credential.name && version == credential.version =>
            {
                let said = format!(
                    "{peer} was not asked: it refused the credential {refused:?} before ({said}), \
                     and trying again might lock the account"
                );
                Err(Fault::new(Code::LoginRefused, said))
            }
            Some(_) | None => Ok(credential),
        }
    }

    /// Takes in how a login went: a refused one is written down, so that nobody tries it again.
    pub async fn after_login<T>(
        &self,
        peer: &str,
        credential: &Credential,
        done: Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Err(fault) = &done
            && fault.code == Code::LoginRefused
        {
            self.refused(peer, &credential.name, credential.version, fault).await?;
        }
        done
    }

    /// Writes down that a peer has refused this version of a credential.
    pub async fn refused(
        &self,
        peer: &str,
        name: &str,
        version: i64,
        fault: &Fault,
    ) -> Result<(), Fault> {
        let lockout = Lockout { credential: name.into(), version, said: fault.said.clone() };
        self.0.lock_out(peer, &lockout).await
    }

    /// Who was met at an address before.
    pub async fn known(&self, peer: &str) -> Result<Option<String>, Fault> {
        self.0.identity(peer).await
    }

    /// How somebody at an address must prove who it is, and who was met there before.
    pub async fn trust(
        &self,
        trusting: &Trusting,
        peer: &str,
    ) -> Result<(Trust, Option<Fingerprint>), Fault> {
        let known = fingerprint(peer, self.known(peer).await?.as_deref())?;
        Ok((believing(trusting, peer, known)?, known))
    }

    /// Writes down who was met. Somebody else may have met another one at the same moment.
    pub async fn meet(&self, peer: &str, shown: &str) -> Result<(), Fault> {
        let known = self.0.meet(peer, shown).await?;
        if known == shown {
            return Ok(());
        }
        let said = format!("{peer} showed {shown}, and {known} was trusted before");
        Err(Fault::new(Code::IdentityChanged, said))
    }
}

/// A credential of another kind than is needed.
pub fn wrong_kind(credential: &Credential, wanted: &str) -> Fault {
    let said = format!("the credential {:?} is not {wanted}", credential.name);
    Fault::new(Code::CredentialMissing, said)
}

/// Nobody has said who is at an address, and only those are believed of whom that was said.
pub fn unpinned(peer: &str) -> Fault {
    let said = format!(
        "{peer} was not asked: nobody has said who it is, and the configuration has trust = \"pinned\"; \
         say it with `farrier trust set {peer} IDENTITY`"
    );
    Fault::new(Code::IdentityUntrusted, said)
}

/// Who is known at an address. What cannot be read must not be taken for nobody.
fn fingerprint(peer: &str, known: Option<&str>) -> Result<Option<Fingerprint>, Fault> {
    known.map(str::parse).transpose().map_err(|said| {
        let said = format!("what is remembered of {peer} cannot be read: {said}");
        Fault::new(Code::RecordUnreadable, said)
    })
}

/// How somebody must prove who it is, given who is known there.
fn believing(trusting: &Trusting, peer: &str, known: Option<Fingerprint>) -> Result<Trust, Fault> {
    Ok(match (trusting, known) {
        (Trusting::Ca(trust), _) => trust.clone(),
        (Trusting::FirstUse, known) => Trust::FirstUse(known),
        (Trusting::Pinned, Some(known)) => Trust::Pinned(known),
        (Trusting::Pinned, None) => return Err(unpinned(peer)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_known_decides_whom_is_believed() {
        let print = format!("sha256:{}", "ab".repeat(32));
        let known = fingerprint("p", Some(&print)).unwrap();
        let first = believing(&Trusting::FirstUse, "p", None);
        assert!(matches!(first, Ok(Trust::FirstUse(None))));
        let again = believing(&Trusting::FirstUse, "p", known);
        assert!(matches!(again, Ok(Trust::FirstUse(Some(known))) if known.to_string() == print));
        let pinned = believing(&Trusting::Pinned, "p", known);
        assert!(matches!(pinned, Ok(Trust::Pinned(known)) if known.to_string() == print));
        let stranger = believing(&Trusting::Pinned, "https://b", None).unwrap_err();
        assert_eq!(stranger.code, Code::IdentityUntrusted);
        assert!(stranger.said.contains("farrier trust set https://b"), "{stranger}");
        let fault = fingerprint("p", Some("rubbish")).unwrap_err();
        assert_eq!(fault.code, Code::RecordUnreadable);
        assert_eq!(fingerprint("p", None), Ok(None));
    }
}
