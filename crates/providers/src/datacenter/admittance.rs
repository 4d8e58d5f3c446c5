//! Being let in: credentials, logins that were refused before, and who was met where. The same for BMCs and for hosts.

use crate::keeper::{Credential, Keeper, Lockout};
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
