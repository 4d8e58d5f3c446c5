//! Signs browsers in, with a link, with an API token, or with the identity provider, and signs them
//! out.
//!
//! Every sign-in and sign-out is an entry of the audit log, in the commit of its session. Sign-ins
//! that are refused are counted, as refused requests of clients without an identity are.

use super::{AccessControl, Caller, ForeignIdentity, NewToken, new_secret};
use crate::audit::AuditLog;
use model::access::{Principal, TokenKind, TokenRecord, unauthenticated};
use model::audit::{AuditEntry, SIGN_IN_CALLS};
use model::id::TokenId;
use model::refusal::{Reason, Refusal};
use std::sync::Arc;
use std::time::Duration;
use store::{Result, StoreError};

/// The life of the code in a sign-in link.
const SIGN_IN_LIFE: Duration = Duration::from_secs(15 * 60);
/// The name of a sign-out in the audit log.
const SIGN_OUT: &str = "SignOut";
/// The life of a browser's session.
pub const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);

/// How a browser signs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignInMethod {
    Link,
    Token,
    Provider,
}

impl SignInMethod {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Link => "SignInWithLink",
            Self::Token => "SignInWithToken",
            Self::Provider => "SignInWithProvider",
        }
    }

    /// The entry of the audit log. None: nobody knows who it is.
    fn entry(self, control: &AccessControl, who: Option<&Principal>, peer: &str) -> AuditEntry {
        session_entry(control, who, self.as_str(), peer)
    }
}

/// The entry of the audit log about the session of a browser.
fn session_entry(
    control: &AccessControl,
    who: Option<&Principal>,
    change: &str,
    peer: &str,
) -> AuditEntry {
    let call = format!("{SIGN_IN_CALLS}{change}");
    AuditEntry { peer: peer.to_string(), ..AuditEntry::of(who, &call, control.now()) }
}

/// What a browser shows to be signed in.
#[derive(Clone, Copy)]
pub enum SignInProof<'a> {
    /// The code of a sign-in link. It works once.
    Link(&'a str),
    /// An API token.
    Token(&'a str),
    /// A user of the identity provider. No stored token ends the session; it lasts for this time,
    /// at most as long as every session.
    Provider(&'a ForeignIdentity, Duration),
}

impl SignInProof<'_> {
    pub const fn method(&self) -> SignInMethod {
        match self {
            Self::Link(_) => SignInMethod::Link,
            Self::Token(_) => SignInMethod::Token,
            Self::Provider(_, _) => SignInMethod::Provider,
        }
    }

    fn life(&self) -> Duration {
        match self {
            Self::Link(_) | Self::Token(_) => SESSION_LIFE,
            Self::Provider(_, life) => SESSION_LIFE.min(*life),
        }
    }
}

impl AccessControl {
    /// Opens a session for a browser at this address.
    pub async fn sign_in(
        &self,
        proof: SignInProof<'_>,
        peer: &str,
        audit: &AuditLog,
    ) -> Result<NewToken> {
        let method = proof.method();
        let identified = match proof {
            SignInProof::Link(code) => self.authenticate(code, TokenKind::SignIn).await,
            SignInProof::Token(token) => self.authenticate(token, TokenKind::Api).await,
            SignInProof::Provider(identity, _) => self.accept(identity),
        };
        let caller = identified.inspect_err(|refusal| {
            self.count_refused_sign_in(method, peer, refusal.reason.as_str(), audit);
        })?;
        let draft = audit.draft(method.entry(self, Some(caller.principal()), peer));
        let opened = self.with_audit(Some(Arc::clone(&draft))).open_session(&caller, proof).await;
        match &opened {
            Ok(_) => audit.finish(&draft).await,
            Err(StoreError::Refused(refusal)) => {
                audit.count_refusal(draft.entry(), refusal.reason.as_str());
            }
            // The database does not answer, so it has no entry.
            Err(StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Corrupt(_)) => {}
        }
        opened
    }

    /// Counts a try to sign in that was refused before its sender was known.
    pub fn count_refused_sign_in(
        &self,
        method: SignInMethod,
        peer: &str,
        reason: &str,
        audit: &AuditLog,
    ) {
        audit.count_refusal(method.entry(self, None, peer), reason);
    }

    async fn open_session(&self, caller: &Caller, proof: SignInProof<'_>) -> Result<NewToken> {
        // The code of a link is used up.
        let consumed = match proof {
            SignInProof::Link(_) => caller.presented_token().map(str::to_string),
            SignInProof::Token(_) | SignInProof::Provider(_, _) => None,
        };
        let made = self.derived_token(caller, TokenKind::Session, proof.life());
        let stored = made.stored();
        let written = self.store.write("sign_in", (stored, consumed), |(stored, consumed), tx| {
            Box::pin(async move {
                let now = stored.token.created_at;
                if let Some(id) = consumed {
                    tx.revoke_token(id, now)?;
                }
                tx.delete_ended_sessions(now).await?;
                tx.insert_token(stored)
            })
        });
        match written.await {
            // Another sign-in has used the link.
            Err(StoreError::Conflict) => {
                Err(unauthenticated("the sign-in link was used already").into())
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.reload().await?;
                Ok(made)
            }
        }
    }

    /// Ends the session of a browser at this address.
    pub async fn sign_out(&self, caller: &Caller, peer: &str, audit: &AuditLog) -> Result<()> {
        let snapshot = self.snapshot();
        let token = caller.presented_token().and_then(|id| snapshot.by_id.get(id));
        // Only a session ends this way. An API token is revoked by an administrator.
        let Some(session) = token.filter(|token| token.kind == TokenKind::Session) else {
            return Ok(());
        };
        let id = &session.id;
        let input = (id.to_string(), (self.clock)());
        let entry = session_entry(self, Some(caller.principal()), SIGN_OUT, peer);
        let draft = audit.draft(entry);
        let control = self.with_audit(Some(Arc::clone(&draft)));
        let written = control.store.write("sign_out", input, |(id, now), tx| {
            Box::pin(async move { tx.revoke_token(id, *now) })
        });
        match written.await {
            Ok(()) => audit.finish(&draft).await,
            // It has ended already.
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error),
        }
        self.reload().await
    }

    fn derived_token(&self, caller: &Caller, kind: TokenKind, life: Duration) -> NewToken {
        let now = (self.clock)();
        let principal = caller.principal();
        let token = TokenRecord {
            id: TokenId::new(now, (self.random)()).to_string(),
            kind,
            parent: principal.token_id.clone(),
            user: principal.user.clone(),
            groups: principal.groups.clone(),
            description: String::new(),
            created_at: now,
            created_by: principal.user.clone(),
            expires_at: Some(now + life),
            revoked_at: None,
        };
        NewToken { token, secret: new_secret(kind) }
    }

    /// The code of a sign-in link for this caller.
    pub async fn create_sign_in_code(&self, caller: &Caller) -> Result<NewToken> {
        // A session lives and ends with the token that it derives from.
        if caller.presented_token().is_none() {
            let message =
                format!("{} has no API token that a link could stand for", caller.principal());
            return Err(Refusal::new(Reason::TokenNeeded, message).into());
        }
        let made = self.derived_token(caller, TokenKind::SignIn, SIGN_IN_LIFE);
        let written = self.store.write("create_sign_in_code", made.stored(), |stored, tx| {
            Box::pin(async move { tx.insert_token(stored) })
        });
        written.await?;
        self.reload().await?;
        Ok(made)
    }
}
