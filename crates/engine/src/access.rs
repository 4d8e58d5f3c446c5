//! Authentication of callers, and the rights they have.
//!
//! [`AccessControl`] keeps a copy of all tokens, roles and bindings in memory, so that a request
//! costs no database read. A change reaches every replica by a signal; a poll is the safety net. It
//! is the only place that makes a [`Caller`], and every request of a client needs one.

mod admin;
mod caller;
mod object;
mod sign_in;

pub use admin::{AccessAdmin, NewToken, TokenRequest, new_secret};
pub use caller::Caller;
use caller::Proof;
pub use object::NamedObject;
pub use sign_in::{SESSION_LIFE, SignInMethod, SignInProof};

use crate::clock::Clock;
use crate::random::Random;
use crate::secret::checksum;
use model::access::{
    AccessPolicy, BindingReach, Permission, Principal, RoleBinding, Subject, TokenKind,
    TokenRecord, TokenState, unauthenticated,
};
use model::id::{BindingId, TokenId};
use model::refusal::Refusal;
use model::time::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{AccessState, Result, Signal, Store, StoredToken, Tx};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// The interval at which the version of the copy is compared when no signal arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The copy is compared at most this often because of unknown tokens.
const UNKNOWN_TOKEN_INTERVAL: Duration = Duration::from_millis(500);
/// The user of the first token.
pub const FIRST_USER: &str = "admin";

#[derive(Clone)]
pub struct AccessControl {
    store: Store,
    clock: Clock,
    random: Random,
    snapshot: Arc<watch::Sender<Arc<Snapshot>>>,
    /// The time when an unknown token last led to a comparison.
    compared: Arc<Mutex<Option<Instant>>>,
}

#[derive(Debug, Default)]
struct Snapshot {
    version: i64,
    by_hash: HashMap<String, TokenRecord>,
    by_id: HashMap<String, TokenRecord>,
    policy: AccessPolicy,
}

impl Snapshot {
    fn new(state: AccessState) -> Self {
        let AccessState { version, tokens, policy, unreadable: _ } = state;
        let by_id = tokens.iter().map(|one| (one.token.id.clone(), one.token.clone())).collect();
        let by_hash = tokens.into_iter().map(|one| (one.hash, one.token)).collect();
        Self { version, by_hash, by_id, policy }
    }

    /// The state of a token; a token that derives from another one ends with it.
    fn state(&self, token: &TokenRecord, now: Timestamp) -> TokenState {
        let own = token.state(now);
        match &token.parent {
            Some(parent) if own == TokenState::Valid => {
                self.by_id.get(parent).map_or(TokenState::Revoked, |parent| parent.state(now))
            }
            Some(_) | None => own,
        }
    }
}

/// A user that a client certificate or an identity provider vouches for. The server has verified
/// the proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignIdentity {
    pub principal: Principal,
    /// The end of the certificate or of the token.
    pub valid_until: Timestamp,
}

/// The end of the first start of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bootstrap {
    /// The token is the first one, and an administrator's.
    Created,
    /// The token was known before.
    Known,
    /// Other tokens exist, and this is none of them.
    Foreign,
}

impl AccessControl {
    pub async fn open(store: Store, clock: Clock, random: Random) -> Result<Self> {
        let (snapshot, _) = watch::channel(Arc::default());
        let compared = Arc::default();
        let control = Self { store, clock, random, snapshot: Arc::new(snapshot), compared };
        control.reload().await?;
        Ok(control)
    }

    /// Keeps the copy current until the process ends.
    pub async fn run_refresh(self) {
        let mut signals = self.store.bus().listen();
        let mut failing = false;
        loop {
            let due = tokio::time::sleep(POLL_INTERVAL);
            tokio::pin!(due);
            loop {
                tokio::select! {
                    () = &mut due => break,
                    signal = signals.recv() => match signal {
                        Ok(Signal::Access) | Err(RecvError::Lagged(_)) => break,
                        Ok(Signal::Work | Signal::Event | Signal::Wake(_) | Signal::Log(_)) => {}
                        Err(RecvError::Closed) => return,
                    },
                }
            }
            match self.refresh().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the access rules cannot be compared: revocations wait");
                    }
                    failing = true;
                }
            }
        }
    }

    /// Loads the rules if they have changed.
    async fn refresh(&self) -> Result<()> {
        let version = self.store.read_one((), |(), tx| Box::pin(tx.access_version())).await?;
        let current = self.snapshot.borrow().version;
        if version == current { Ok(()) } else { self.reload().await }
    }

    async fn reload(&self) -> Result<()> {
        let state = self.store.scan((), |(), tx| Box::pin(tx.access_state())).await?;
        self.snapshot.send_if_modified(|known| {
            // The version of a restored backup is lower.
            let changed = state.version != known.version;
            if changed {
                for problem in &state.unreadable {
                    tracing::warn!(problem, "a row of the access rules was left out");
                }
                *known = Arc::new(Snapshot::new(state));
            }
            changed
        });
        Ok(())
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// The caller with this token.
    pub async fn authenticate(
        &self,
        secret: &str,
        kind: TokenKind,
    ) -> std::result::Result<Caller, Refusal> {
        let hash = checksum(secret);
        if !self.snapshot().by_hash.contains_key(&hash) {
            // Another replica may have created it a moment ago.
            self.compare_for_unknown_token().await;
        }
        let snapshot = self.snapshot();
        let token = snapshot.by_hash.get(&hash).filter(|token| token.kind == kind);
        let token = token.ok_or_else(|| unauthenticated("the token is not known here"))?;
        match snapshot.state(token, (self.clock)()) {
            TokenState::Valid => {
                let principal = token.principal();
                let grants = snapshot.policy.grants(&principal);
                Ok(Caller::new(principal, grants, Proof::Token(token.id.clone())))
            }
            TokenState::Expired => Err(unauthenticated("the token has expired")),
            TokenState::Revoked => Err(unauthenticated("the token was revoked")),
        }
    }

    /// The caller with this identity. It has the rights that bindings give to its name and groups.
    pub fn accept(&self, identity: &ForeignIdentity) -> std::result::Result<Caller, Refusal> {
        let ForeignIdentity { principal, valid_until } = identity.clone();
        if valid_until <= self.now() {
            let method = principal.method.as_str();
            return Err(unauthenticated(&format!("the {method} identity has expired")));
        }
        let granted = self.snapshot().policy.grants(&principal);
        Ok(Caller::new(principal, granted, Proof::Foreign { valid_until }))
    }

    async fn compare_for_unknown_token(&self) {
        let mut compared = self.compared.lock().await;
        if compared.is_none_or(|at| at.elapsed() >= UNKNOWN_TOKEN_INTERVAL) {
            *compared = Some(Instant::now());
            // Without the database only the known tokens are accepted.
            let _ = self.refresh().await;
        }
    }

    /// True if the proof of a caller is still valid and its principal still has this permission, on
    /// the same objects. A stream shows what its caller could see when it began.
    fn is_allowed(&self, caller: &Caller, needed: Permission) -> bool {
        let (snapshot, now) = (self.snapshot(), self.now());
        let valid = match caller.proof() {
            Proof::Token(id) => {
                let token = snapshot.by_id.get(id);
                token.is_some_and(|token| snapshot.state(token, now) == TokenState::Valid)
            }
            Proof::Foreign { valid_until } => now < *valid_until,
            Proof::Internal => false,
        };
        let grants = snapshot.policy.grants(caller.principal());
        valid
            && grants.somewhere().contains(needed)
            && grants.scope(needed) == caller.grants().scope(needed)
    }

    /// Resolves when a caller has lost this permission, for streams that are open for long.
    pub async fn until_revoked(self, caller: Caller, needed: Permission) {
        let mut changes = self.snapshot.subscribe();
        while self.is_allowed(&caller, needed) {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // A token or a certificate may expire meanwhile.
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Makes a token an administrator's if it is the first one of this installation.
    pub async fn bootstrap(&self, secret: &SecretString) -> Result<Bootstrap> {
        let hash = checksum(secret.expose_secret());
        let stored = StoredToken { token: self.new_admin_token("the first start"), hash };
        let binding = self.admin_binding(&stored.token);
        let end = self.store.retry_write("bootstrap_access", (stored, binding), |input, tx| {
            Box::pin(bootstrap(tx, &input.0, &input.1))
        });
        let end = end.await?;
        self.reload().await?;
        Ok(end)
    }

    /// Adds an administrator's token, whatever other tokens exist. For the recovery of an
    /// installation whose tokens are lost, by a person on the server's host.
    pub async fn recover(&self, secret: &SecretString) -> Result<TokenRecord> {
        let hash = checksum(secret.expose_secret());
        let stored = StoredToken { token: self.new_admin_token("recovery on the host"), hash };
        let (token, binding) = (stored.token.clone(), self.admin_binding(&stored.token));
        let written = self.store.retry_write("recover_access", (stored, binding), |input, tx| {
            Box::pin(async move { insert_with_binding(tx, &input.0, &input.1) })
        });
        written.await?;
        Ok(token)
    }

    fn new_admin_token(&self, by: &str) -> TokenRecord {
        let now = (self.clock)();
        TokenRecord {
            id: TokenId::new(now, (self.random)()).to_string(),
            kind: TokenKind::Api,
            parent: None,
            user: FIRST_USER.into(),
            groups: Vec::new(),
            description: "administrator".into(),
            created_at: now,
            created_by: by.into(),
            expires_at: None,
            revoked_at: None,
        }
    }

    fn admin_binding(&self, token: &TokenRecord) -> RoleBinding {
        RoleBinding {
            id: BindingId::new(token.created_at, (self.random)()).to_string(),
            subject: Subject::Token(token.id.clone()),
            role: "admin".into(),
            reach: BindingReach::Everything,
        }
    }
}

async fn bootstrap(tx: &mut Tx, stored: &StoredToken, binding: &RoleBinding) -> Result<Bootstrap> {
    tx.lock_access().await?;
    if !tx.has_api_tokens().await? {
        insert_with_binding(tx, stored, binding)?;
        return Ok(Bootstrap::Created);
    }
    let known = tx.access_state().await?.tokens.iter().any(|one| one.hash == stored.hash);
    Ok(if known { Bootstrap::Known } else { Bootstrap::Foreign })
}

fn insert_with_binding(tx: &mut Tx, stored: &StoredToken, binding: &RoleBinding) -> Result<()> {
    tx.insert_token(stored)?;
    let StoredToken { token, .. } = stored;
    tx.insert_role_binding(binding, &token.created_by, token.created_at)
}
